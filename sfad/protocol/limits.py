"""Limits as people and programs write them (SPEC section 3): `turns=50`, `cost=2.50:warn`, one JSON object; and as they are
shown. Pure. Ranges are the core's business: what is read here is a number of the right kind, no more."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from .types import Action, Limit, LimitKind, LimitState
from .units import (
    COUNT_FORMS,
    DURATION_FORMS,
    SIZE_FORMS,
    format_duration,
    format_size,
    format_usd,
    parse_count,
    parse_duration,
    parse_size,
)

METERED = frozenset(
    {
        LimitKind.TURNS,
        LimitKind.MESSAGES,
        LimitKind.TOKENS,
        LimitKind.COST,
        LimitKind.PLANNING_COST,
        LimitKind.EXECUTION_COST,
    }
)
"""Kinds that can only be kept where somebody tells what the run uses: a meter, or the agent itself."""

COSTS = frozenset({LimitKind.COST, LimitKind.PLANNING_COST, LimitKind.EXECUTION_COST})
"""Kinds whose threshold is USD."""

ALIASES = {
    "wall": LimitKind.TIME,
    "wall_time": LimitKind.TIME,
    "timeout": LimitKind.TIME,
    "duration": LimitKind.TIME,
    "turn": LimitKind.TURNS,
    "tool_call": LimitKind.TURNS,
    "tool_calls": LimitKind.TURNS,
    "message": LimitKind.MESSAGES,
    "token": LimitKind.TOKENS,
    "usd": LimitKind.COST,
    "cost_usd": LimitKind.COST,
    "total_cost": LimitKind.COST,
    "total_cost_usd": LimitKind.COST,
    "planning": LimitKind.PLANNING_COST,
    "planning_cost_usd": LimitKind.PLANNING_COST,
    "execution": LimitKind.EXECUTION_COST,
    "execution_cost_usd": LimitKind.EXECUTION_COST,
    "mem": LimitKind.MEMORY,
    "pid": LimitKind.PIDS,
    "processes": LimitKind.PIDS,
    "cpus": LimitKind.CPU,
    "cores": LimitKind.CPU,
}
"""Other words for a kind: singulars, and what agent frameworks call them. A leading `max_` means nothing, `-` is `_`."""

LIMIT_FORM = "KIND=N or KIND=N:ACTION, as in turns=50, time=90s, cost=2.50:warn, tokens=200k:pause, memory=2G"
"""How a limit may be written, for messages."""


def parse_limit(text: str, source: str = "--limit") -> Limit:
    """`turns=50` or `cost=2.50:warn` as a limit whose source is `source` and its kind. Its action is `None` where none is
    written. Raises `ValueError` that names `source`, what is wrong, and what is allowed."""
    word, equals, rest = text.partition("=")
    amount, colon, action = rest.partition(":")
    if not (word.strip() and equals and amount.strip()):
        raise ValueError(f"{source}: {text!r} is not a limit: write {LIMIT_FORM}")
    try:
        kind = parse_kind(word)
        threshold = parse_amount(kind, amount.strip())
        return Limit(
            kind=kind,
            threshold=threshold,
            action=parse_action(action) if colon else None,
            source=f"{source} {kind.value}",
        )
    except ValueError as error:
        raise ValueError(f"{source} {text}: {error}") from None


def parse_kind(word: str) -> LimitKind:
    """The kind that a word means, aliases included. Raises `ValueError` with the kinds there are."""
    plain = word.strip().lower().replace("-", "_").removeprefix("max_")
    if plain in ALIASES:
        return ALIASES[plain]
    try:
        return LimitKind(plain)
    except ValueError:
        raise ValueError(f"unknown limit {word.strip()!r}; choose from: {', '.join(LimitKind)}") from None


def parse_action(word: str) -> Action:
    """What a breach is to be answered with. Raises `ValueError` with the actions there are."""
    try:
        return Action(word.strip().lower().replace("-", "_"))
    except ValueError:
        raise ValueError(f"unknown action {word.strip()!r}; choose from: {', '.join(Action)}") from None


def parse_amount(kind: LimitKind, text: str) -> float:
    """A threshold in the unit of `Limit.threshold`. Raises `ValueError` with the forms that the kind takes."""
    read, forms = _AMOUNTS[kind]
    try:
        return float(read(text))
    except ValueError:
        raise ValueError(f"{text!r} is not {forms}") from None


_DECIMAL = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)", re.ASCII)


def _decimal(text: str) -> float:
    if not _DECIMAL.fullmatch(text) or not math.isfinite(float(text)):
        raise ValueError
    return float(text)


def parse_usd(text: str) -> float:
    """US dollars from `2.50` or `$2.50`. Raises `ValueError`."""
    try:
        return _decimal(text.strip().removeprefix("$"))
    except ValueError:
        raise ValueError(f"{text!r} is not {_USD}") from None


_USD = "an amount of USD, like 2.50"
_SIZE = f"a size: {SIZE_FORMS}, like 2G"

_AMOUNTS: dict[LimitKind, tuple[Callable[[str], float], str]] = {
    LimitKind.TIME: (parse_duration, f"a duration: {DURATION_FORMS}, like 90s"),
    LimitKind.TURNS: (parse_count, f"a count of tool calls: {COUNT_FORMS}"),
    LimitKind.MESSAGES: (parse_count, f"a count of messages: {COUNT_FORMS}"),
    LimitKind.TOKENS: (parse_count, f"a count of tokens: {COUNT_FORMS}, like 200k"),
    LimitKind.COST: (parse_usd, _USD),
    LimitKind.PLANNING_COST: (parse_usd, _USD),
    LimitKind.EXECUTION_COST: (parse_usd, _USD),
    LimitKind.OUTPUT: (parse_size, _SIZE),
    LimitKind.MEMORY: (parse_size, _SIZE),
    LimitKind.PIDS: (parse_count, f"a count of processes: {COUNT_FORMS}"),
    LimitKind.CPU: (_decimal, "a number of cores, like 1.5"),
}


_Count = Annotated[int, Meta(ge=1)]
_Amount = Annotated[float, Meta(gt=0)]


class LimitsObject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bounds on what a run may use. What is left out, or null, is as the run's type or the daemon's config has it."""

    max_turns: Annotated[_Count | None, Meta(description="Tool calls of the run: 1 to limits.max_turns, by default 100.")] = None
    max_duration_ms: Annotated[
        _Amount | None,
        Meta(description="Milliseconds since the run's start, paused time excluded: 1000 to limits.max_time, by default 3600000."),
    ] = None
    max_cost_usd: Annotated[
        _Amount | None, Meta(description="USD of the run and its descendants: 0.01 to limits.max_cost, by default 100.")
    ] = None
    max_planning_cost_usd: Annotated[
        _Amount | None,
        Meta(description="USD of the run and its descendants that were reported as planning: 0.01 to limits.max_cost."),
    ] = None
    max_execution_cost_usd: Annotated[
        _Amount | None,
        Meta(description="USD of the run and its descendants that were reported as execution: 0.01 to limits.max_cost."),
    ] = None
    max_total_cost_usd: Annotated[
        _Amount | None, Meta(description="The same as max_cost_usd; where both are given they must be equal.")
    ] = None
    max_tokens: Annotated[_Count | None, Meta(description="Tokens, in and out, of the run and its descendants.")] = None
    max_messages: Annotated[_Count | None, Meta(description="Messages of the run's model.")] = None
    timeout_action: Annotated[
        Action | None,
        Meta(
            description="What a breach of any of these limits is answered with, not of the time alone. Without it: --on-limit, "
            "else the action of the run's type, else terminate."
        ),
    ] = None

    def limits(self, source: str = "--limits") -> list[Limit]:
        """What it bounds; the source of each limit is `source` and the name of its field. Raises `ValueError` where
        `max_cost_usd` and `max_total_cost_usd` differ, and for an action without a limit."""
        if None not in (self.max_cost_usd, self.max_total_cost_usd) and self.max_cost_usd != self.max_total_cost_usd:
            raise ValueError(
                f"{source}: max_cost_usd ({self.max_cost_usd:g}) and max_total_cost_usd ({self.max_total_cost_usd:g}) "
                "are the same limit and differ: give one of them"
            )
        found = {kind: limit for name, kind in _FIELDS.items() if (limit := self._limit(name, kind, source))}
        if self.timeout_action and not found:
            raise ValueError(f"{source}: timeout_action is given, but no limit that it would be the action of")
        return list(found.values())

    def _limit(self, name: str, kind: LimitKind, source: str) -> Limit | None:
        value: float | None = getattr(self, name)
        if value is None:
            return None
        threshold = value / 1000 if kind is LimitKind.TIME else float(value)
        return Limit(kind=kind, threshold=threshold, action=self.timeout_action, source=f"{source} {name}")


_FIELDS = {
    "max_duration_ms": LimitKind.TIME,
    "max_turns": LimitKind.TURNS,
    "max_messages": LimitKind.MESSAGES,
    "max_tokens": LimitKind.TOKENS,
    "max_total_cost_usd": LimitKind.COST,
    "max_cost_usd": LimitKind.COST,
    "max_planning_cost_usd": LimitKind.PLANNING_COST,
    "max_execution_cost_usd": LimitKind.EXECUTION_COST,
}


def parse_limits(text: str | bytes, source: str = "--limits") -> LimitsObject:
    """The object in JSON. Raises `ValueError` that names `source`, the field and what it takes."""
    try:
        return msgspec.json.decode(text, type=LimitsObject)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{source}: {error}{_hint(str(error))}") from None


def _hint(error: str) -> str:
    if "unknown field" in error:
        return f"; choose from: {', '.join(LimitsObject.__struct_fields__)}"
    return f"; choose from: {', '.join(Action)}" if "timeout_action" in error else ""


def schema() -> bytes:
    """The JSON Schema of `LimitsObject`, indented, with a newline at its end."""
    found = msgspec.json.schema(LimitsObject)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"


INSTEAD = {LimitKind.OUTPUT: "the oldest is freed", LimitKind.CPU: "throttled"}
"""What happens at limits that take no action."""


def format_limit(limit: Limit | LimitState) -> str:
    """For people: `cost 2.50 USD → warn`, `time 2m`, `memory 2 GiB`."""
    follows = INSTEAD.get(limit.kind, limit.action.value if limit.action else "")
    action = f" → {follows}" if follows else ""
    return f"{limit.kind.value} {format_amount(limit.kind, limit.threshold)}{action}"


def format_amount(kind: LimitKind, amount: float, *, unit: bool = True) -> str:
    """An amount of what a kind counts: `2.50 USD`, `2m`, `2 GiB`, `1.5 cores`, `200000`. Without `unit`, the unit of costs and
    cores is left out: of `0.45 of 0.30 USD`, the first."""
    if kind is LimitKind.TIME:
        return format_duration(round(amount, 1) if amount >= 1 else round(amount, 3))
    if kind in COSTS:
        return f"{format_usd(amount)} USD" if unit else format_usd(amount)
    if kind in (LimitKind.OUTPUT, LimitKind.MEMORY):
        return format_size(amount)
    if kind is LimitKind.CPU and unit:
        return f"{amount:g} {'core' if amount == 1 else 'cores'}"
    return f"{amount:.15g}"

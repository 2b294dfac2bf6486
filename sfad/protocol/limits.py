"""Limits as people and programs write them (`turns=50`, `cost=2.50:warn`, one JSON object), and as they are shown.

Only the form is checked here; the core checks ranges.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from . import units
from .kinds import COSTS, KINDS, LimitSpec
from .types import Action, Limit, LimitKind, LimitState

ALIASES = {word: kind for kind, spec in KINDS.items() for word in spec.words}
"""Other words for a kind. A leading `max_` means nothing, `-` is `_`."""
LIMIT_FORM = "KIND=N or KIND=N:ACTION, as in turns=50, time=90s, cost=2.50:warn, tokens=200k:pause, memory=2G"

_NONE_BY_DEFAULT = '"off" for its key in [defaults] of the config means no limit where none is given'


def parse_limit(text: str, source: str = "--limit") -> Limit:
    """Return `turns=50` or `cost=2.50:warn` as a limit. Raise `ValueError` with `source`, what is wrong, and what is allowed."""
    word, equals, rest = text.partition("=")
    amount, colon, action = rest.partition(":")
    if not (word.strip() and equals and amount.strip()):
        raise ValueError(f"{source}: {text!r} is not a limit: write {LIMIT_FORM}")
    try:
        kind = parse_kind(word)
        if amount.strip().lower() == "off":
            raise ValueError(f"a limit of a run cannot be off: {kind}=N:warn only warns, and {_NONE_BY_DEFAULT}")
        threshold, wanted = parse_amount(kind, amount.strip()), parse_action(action) if colon else None
        return Limit(kind=kind, threshold=threshold, action=wanted, source=f"{source} {kind.value}")
    except ValueError as error:
        raise ValueError(f"{source} {text}: {error}") from None


def parse_kind(word: str) -> LimitKind:
    """Return the kind that a word or one of its `ALIASES` means. Raise `ValueError` with the kinds there are."""
    plain = word.strip().lower().replace("-", "_").removeprefix("max_")
    if plain in ALIASES:
        return ALIASES[plain]
    try:
        return LimitKind(plain)
    except ValueError:
        raise ValueError(f"unknown limit {word.strip()!r}; choose from: {', '.join(LimitKind)}") from None


def parse_action(word: str) -> Action:
    """Return the action that a word means. Raise `ValueError` with the actions there are."""
    try:
        return Action(word.strip().lower().replace("-", "_"))
    except ValueError:
        raise ValueError(f"unknown action {word.strip()!r}; choose from: {', '.join(Action)}") from None


def parse_amount(kind: LimitKind, text: str) -> float:
    """Return a threshold in the unit of its kind. Raise `ValueError` with the forms that the kind takes."""
    read, forms = _AMOUNTS[KINDS[kind].unit]
    try:
        return float(read(text))
    except ValueError:
        raise ValueError(f"{text!r} is not {forms.format(KINDS[kind].counts)}") from None


_AMOUNTS: dict[str, tuple[Callable[[str], float], str]] = {
    "s": (units.parse_duration, f"a duration: {units.DURATION_FORMS}, like 90s"),
    "": (units.parse_count, f"a count of {{}}: {units.COUNT_FORMS}, like 200k"),
    "USD": (units.parse_usd, units.USD_FORM),
    "bytes": (units.parse_size, f"a size: {units.SIZE_FORMS}, like 2G"),
    "cores": (units.parse_decimal, "a number of cores, like 1.5"),
}
"""How amounts of a unit are read, and what may be written."""

_FIELDS = {name: kind for kind, spec in KINDS.items() for name in spec.fields}


def _type(name: str, spec: LimitSpec) -> Any:
    number = Annotated[int, Meta(ge=1)] if spec.whole else Annotated[float, Meta(gt=0)]
    counts, least = (f"milli{spec.counts}", spec.least * 1000) if name.endswith("_ms") else (spec.counts, spec.least)
    whose = "with its descendants'" if spec.scope == "tree" else "the run's own"
    upper = f"to limits.{spec.most} of the config" if spec.most else "or more"
    described = f"{counts[0].upper()}{counts[1:]}, {whose}: {least:g} {upper}."
    return Annotated[number | None, Meta(description=described if name == spec.fields[0] else f"The same as {spec.fields[0]}.")]


_ACTION = Annotated[
    Action | None,
    Meta(
        description="What a breach of any of these limits is answered with, not of the time alone. Without it: --on-limit, "
        "else the action of the run's type, else terminate."
    ),
]

LimitsObject = msgspec.defstruct(
    "LimitsObject",
    [*((name, _type(name, KINDS[kind]), None) for name, kind in _FIELDS.items()), ("timeout_action", _ACTION, None)],
    namespace={
        "__doc__": "Bounds on what a run may use. What is left out, or null, is as the run's type or the daemon's config has it."
    },
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)


def parse_limits(text: str | bytes, source: str = "--limits") -> list[Limit]:
    """Return the limits of a JSON object; the source of each is `source` and the name of its field. Raise `ValueError` with
    `source`, the field and what it takes: also where two fields set one kind and differ, and for an action without a limit."""
    try:
        found = msgspec.structs.asdict(msgspec.json.decode(text, type=LimitsObject))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{source}: {error}{_hint(str(error))}") from None
    action = found.pop("timeout_action")
    given = {name: value for name, value in found.items() if value is not None}
    if action and not given:
        raise ValueError(f"{source}: timeout_action is given, but no limit that it would be the action of")
    return list(_limits(given, action, source).values())


def _limits(given: Mapping[str, float], action: Action | None, source: str) -> dict[LimitKind, Limit]:
    limits: dict[LimitKind, Limit] = {}
    for name, value in given.items():
        kind = _FIELDS[name]
        threshold = value / 1000 if name.endswith("_ms") else float(value)
        limit = Limit(kind=kind, threshold=threshold, action=action, source=f"{source} {name}")
        other = limits.get(kind, limit)
        if other.threshold != threshold:
            both = f"{other.source} ({other.threshold:g}) and {name} ({threshold:g})"
            raise ValueError(f"{both} are the same limit and differ: give one of them")
        limits[kind] = limit
    return limits


def _hint(error: str) -> str:
    if "unknown field" in error:
        return f"; choose from: {', '.join(LimitsObject.__struct_fields__)}"
    return f"; choose from: {', '.join(Action)}" if "timeout_action" in error else ""


def schema() -> bytes:
    """Return the JSON Schema of `LimitsObject`, indented, with a newline at its end."""
    found = msgspec.json.schema(LimitsObject)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"


def format_limit(limit: Limit | LimitState) -> str:
    """Return a limit for people: `cost 2.50 USD → warn`, `time 2m`, `memory 2 GiB`."""
    follows = KINDS[limit.kind].instead or (limit.action.value if limit.action else "")
    action = f" → {follows}" if follows else ""
    return f"{limit.kind.value} {format_amount(limit.kind, limit.threshold)}{action}"


def format_amount(kind: LimitKind, amount: float, *, unit: bool = True) -> str:
    """Return an amount of a kind for people: `2.50 USD`, `2m`, `2 GiB`, `1.5 cores`, `200000`. Without `unit`, leave out that of
    money and cores, as for the first number of `0.45 of 0.30 USD`."""
    if kind is LimitKind.TIME:
        return units.format_duration(round(amount, 1) if amount >= 1 else round(amount, 3))
    if kind in COSTS:
        return f"{units.format_usd(amount)} USD" if unit else units.format_usd(amount)
    if KINDS[kind].unit == "bytes":
        return units.format_size(amount)
    if kind is LimitKind.CPU and unit:
        return f"{amount:g} {'core' if amount == 1 else 'cores'}"
    return f"{amount:.15g}"

"""Limits: kinds, ranges, profiles, precedence, and what has been crossed (SPEC section 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from ..protocol.known import CODING_AGENT, PROFILES, Profile
from ..protocol.types import Action, Limit, LimitKind
from ..protocol.units import format_size, format_usd
from .account import Account
from .policy import MIN_TIME, Invalid, Policy

if TYPE_CHECKING:
    from .asked import Asked
    from .run import Run

Scope = Literal["run", "tree"]

ROUNDING = 1e-9
"""USD. Sums of binary fractions are not exact: ten times 0.1 must not be above 1."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of limit."""

    scope: Scope
    least: float
    unit: str = ""
    whole: bool = False
    """Whether only whole numbers make sense."""
    acts: bool = True
    """Whether a breach has an action; `output` frees the oldest bytes and `cpu` throttles instead."""


KINDS: dict[LimitKind, Kind] = {
    LimitKind.TIME: Kind("run", MIN_TIME, " s"),
    LimitKind.TURNS: Kind("run", 1, whole=True),
    LimitKind.MESSAGES: Kind("run", 1, whole=True),
    LimitKind.TOKENS: Kind("tree", 1, whole=True),
    LimitKind.COST: Kind("tree", 0.01, unit=" USD"),
    LimitKind.PLANNING_COST: Kind("tree", 0.01, unit=" USD"),
    LimitKind.EXECUTION_COST: Kind("tree", 0.01, unit=" USD"),
    LimitKind.OUTPUT: Kind("run", 65536, " bytes", whole=True, acts=False),
    LimitKind.MEMORY: Kind("tree", 1024 * 1024, " bytes", whole=True),
    LimitKind.PIDS: Kind("tree", 1, whole=True),
    LimitKind.CPU: Kind("tree", 0.01, " cores", acts=False),
}
"""SPEC section 3. For the kinds in `RAISED_BY` the policy has the upper end. Below a mebibyte of memory no command
can be executed."""

RAISED_BY: dict[LimitKind, str] = {
    LimitKind.TIME: "max_time", LimitKind.TURNS: "max_turns", LimitKind.COST: "max_cost",
    LimitKind.PLANNING_COST: "max_cost", LimitKind.EXECUTION_COST: "max_cost",
}  # fmt: skip
"""The field of `Policy` that holds the upper end of a kind's range, and the key in the table `limits` that sets it."""

COSTS = frozenset({LimitKind.COST, LimitKind.PLANNING_COST, LimitKind.EXECUTION_COST})

METERED = frozenset({
    LimitKind.TURNS, LimitKind.MESSAGES, LimitKind.TOKENS, LimitKind.COST, LimitKind.PLANNING_COST, LimitKind.EXECUTION_COST,
})  # fmt: skip
"""Kinds that nobody can enforce unless the agent, or its output, tells what it uses."""

_OF_TREES = frozenset({LimitKind.MEMORY, LimitKind.PIDS, LimitKind.CPU})
"""Their defaults bound a whole tree, so a run below a root has none of its own."""

_PROFILED = frozenset({LimitKind.TIME, LimitKind.TURNS, LimitKind.COST})

_ANSWERED = METERED | {LimitKind.TIME}
"""Kinds whose defaults `--on-limit` speaks of. Those of memory and processes protect the machine, and are only answered
otherwise where they are asked for."""


def amount(kind: LimitKind, value: float) -> str:
    """So much of a kind, for people: `11 turns`, `0.45 USD`, `200 MiB`."""
    if kind in (LimitKind.MEMORY, LimitKind.OUTPUT):
        return format_size(value)
    if kind in COSTS:
        return f"{format_usd(value)} USD"
    number = f"{value:.0f}" if KINDS[kind].whole else f"{value:.6g}"
    named = f" {kind}".removesuffix("s" if value == 1 else "")
    return f"{number}{KINDS[kind].unit or named}"


def bare(kind: LimitKind, value: float) -> str:
    """`amount` where the kind has been named already: `11`, `0.45 USD`."""
    return amount(kind, value).removesuffix(f" {kind}").removesuffix(f" {kind}".removesuffix("s"))


@dataclass(slots=True)
class Held:
    """A limit in force on a run, and what has been said about it."""

    limit: Limit
    """`action` is never None here."""
    near: bool = False
    over: bool = False
    refused: bool = False
    """Its action is `refuse`, and a reservation was refused for it."""

    @property
    def action(self) -> Action:
        """What a breach is answered with."""
        return self.limit.action or Action.TERMINATE

    @property
    def binds(self) -> bool:
        """Whether what is below the run may not have more. One that only warns bounds nobody."""
        return self.action is not Action.WARN or not KINDS[self.limit.kind].acts

    def above(self, used: float) -> bool:
        """Whether so much is a breach: more than the threshold; for time, as much."""
        if self.limit.kind is LimitKind.TIME:
            return used >= self.limit.threshold
        return used > self.limit.threshold + ROUNDING


Limits = dict[LimitKind, Held]


@dataclass(frozen=True, slots=True)
class Crossing:
    """A limit that has come near its threshold, or has been exceeded, and was not before."""

    held: Held
    used: float
    exceeded: bool


def limits_of(asked: Asked, above: Run | None, policy: Policy) -> Limits:
    """The limits of a run to be: what was asked for, else what was learnt, else its profile's, else the configured ones; below
    a parent never more than the parent has. Raises `Invalid`."""
    chosen = dict(policy.defaults)
    if above is not None:
        for kind in _OF_TREES:
            chosen.pop(kind, None)
    chosen |= _of_profile(asked, policy)
    if policy.advice:
        chosen |= _by_advice(asked, chosen, policy)
    if asked.on_limit is not None:
        answered = METERED if asked.on_limit is Action.REFUSE else _ANSWERED
        chosen |= {kind: replaced(chosen[kind], action=asked.on_limit) for kind in answered if kind in chosen}
    for limit in asked.limits:
        check(limit, policy)
        chosen[limit.kind] = _settled(limit, asked, policy)
    if above is not None:
        _narrow(chosen, above)
    return {kind: Held(chosen[kind]) for kind in KINDS if kind in chosen}


def profile_of(asked: Asked, policy: Policy) -> tuple[str, Profile] | None:
    """The profile of a run, and what to call it: that of its type; else `coding-agent` for a known agent program, which the
    defaults would end in the middle of ordinary work."""
    if asked.type in PROFILES:
        return f"type {asked.type}", PROFILES[asked.type]
    if asked.agent_program and policy.program_profile:
        return f"profile {CODING_AGENT}", PROFILES[CODING_AGENT]
    return None


def _of_profile(asked: Asked, policy: Policy) -> dict[LimitKind, Limit]:
    """Return the profile's limits. Turns and cost are at most what may be asked for; `max_time` ends a run by itself."""
    found = profile_of(asked, policy)
    if found is None:
        return {}
    source, profile = found
    return {
        kind: Limit(
            kind=kind,
            threshold=_bounded(kind, float(getattr(profile, kind.value)), policy),
            action=profile.action,
            source=source,
        )
        for kind in (LimitKind.TIME, LimitKind.TURNS, LimitKind.COST)
    }


def _bounded(kind: LimitKind, threshold: float, policy: Policy) -> float:
    return threshold if kind is LimitKind.TIME else min(threshold, most_of(kind, policy) or inf)


def _by_advice(asked: Asked, chosen: Mapping[LimitKind, Limit], policy: Policy) -> dict[LimitKind, Limit]:
    advice = policy.advice.get(advice_key(asked.type, asked.name)) if policy.advice else None
    return {
        kind: Limit(kind=kind, threshold=threshold, action=chosen[kind].action, source="limits.adaptive")
        for kind, threshold in (advice or {}).items()
        if kind in chosen and threshold <= (most_of(kind, policy) or inf)
    }


def advice_key(run_type: str | None, name: str | None) -> str:
    """Under which `Policy.advice` has what was learnt for a run: its type's, else its name's."""
    return f"type {run_type}" if run_type is not None else f"name {name}"


def _settled(limit: Limit, asked: Asked, policy: Policy) -> Limit:
    """What was asked for, with its action: its own, else `--on-limit`, else the profile's."""
    if not KINDS[limit.kind].acts:
        return replaced(limit, action=Action.WARN)
    if limit.action is not None:
        return limit
    if asked.on_limit is not None and (asked.on_limit is not Action.REFUSE or limit.kind in METERED):
        return replaced(limit, action=asked.on_limit)
    found = profile_of(asked, policy) if limit.kind in _PROFILED else None
    return replaced(limit, action=found[1].action if found is not None else Action.TERMINATE)


def _narrow(limits: dict[LimitKind, Limit], above: Run) -> None:
    """A child widens nothing. What it uses of a tree's limit counts against its ancestors', and its clock runs within its
    parent's, so these are kept by them; the run's own kinds are narrowed here, since their use counts nowhere else. There a
    warning of the child's own would be a way out of the bound.

    Rejected: to narrow a tree's limits as well. A parent that is only to be paused would see its child terminated by the
    number it has inherited, at the same moment, and again after the parent was given more room."""
    for kind, held in above.limits.items():
        if not held.binds or kind is LimitKind.TIME or KINDS[kind].scope == "tree":
            continue
        own = limits.get(kind)
        bounds = own is not None and Held(own).binds
        if own is None or not bounds or own.threshold > held.limit.threshold:
            source = held.limit.source
            source = source if source.startswith("run ") else f"run {above.id} ({source})"
            action = own.action if own is not None and bounds else held.action
            limits[kind] = replaced(held.limit, action=action, source=source)


def replaced(limit: Limit, *, threshold: float | None = None, action: Action | None = None, source: str | None = None) -> Limit:
    """`limit` with other values; `None` keeps the old one."""
    return Limit(
        kind=limit.kind,
        threshold=limit.threshold if threshold is None else threshold,
        action=action or limit.action,
        source=source or limit.source,
    )


def check(limit: Limit, policy: Policy) -> None:
    """Raises `Invalid` for a threshold outside the range of its kind, or an action of a kind that takes none."""
    kind, threshold = KINDS[limit.kind], limit.threshold
    most = most_of(limit.kind, policy)
    if limit.action is not None and not kind.acts:
        raise Invalid(f"the limit '{limit.kind}' takes no action, so '{limit.action}' cannot be its action ({limit.source})")
    if limit.action is Action.REFUSE and limit.kind not in METERED:
        raise Invalid(
            f"the limit '{limit.kind}' cannot refuse ({limit.source}): only what is reserved before it is used can be refused, "
            f"which is {', '.join(sorted(METERED))}"
        )
    within = kind.least <= threshold < inf and (most is None or threshold <= most)  # false for a NaN, too
    if not within or (kind.whole and threshold != int(threshold)):
        raise Invalid(_out_of_range(limit, most, policy))


def most_of(kind: LimitKind, policy: Policy) -> float | None:
    """Return the upper end of the range of a kind; `None` where it has none."""
    field = RAISED_BY.get(kind)
    most: float | None = None if field is None else getattr(policy, field)
    return most


def _out_of_range(limit: Limit, most: float | None, policy: Policy) -> str:
    kind = KINDS[limit.kind]
    upper = f"to {bare(limit.kind, most)}" if most is not None else "or more"
    whole = ", whole numbers" if kind.whole else ""
    asked = f"{limit.kind} = {limit.threshold:g}{kind.unit} ({limit.source})"
    range_ = f"{asked} is outside its range: {bare(limit.kind, kind.least)} {upper}{whole}"
    key = RAISED_BY.get(limit.kind)
    if key is None or most is None or not limit.threshold > most:
        return range_
    return f"{range_}. To allow more, raise {policy.place(f'limits.{key}')}, then run: sfactl reload"


def crossed(limits: Limits, account: Account, nearing: float) -> Iterator[Crossing]:
    """What has been crossed since the last look; each is told once. Time is not among it: the clock has a timer."""
    for kind, held in limits.items():
        if held.over or kind is LimitKind.TIME or not KINDS[kind].acts:
            continue
        used = account.used(kind)
        if used is not None:
            yield from cross(held, used, nearing)


def cross(held: Held, used: float, nearing: float) -> Iterator[Crossing]:
    """The same for one limit."""
    if not held.near and used >= nearing * held.limit.threshold - ROUNDING:
        held.near = True
        yield Crossing(held, used, exceeded=False)
    if not held.over and held.above(used):
        held.over = True
        yield Crossing(held, used, exceeded=True)

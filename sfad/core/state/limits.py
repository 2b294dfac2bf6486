"""Limits of a run: where each comes from, within which range, and what has been exceeded. What the
page docs/limits.md says."""

from collections.abc import Collection, Iterator, Mapping
from math import inf
from typing import Protocol, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from ...protocol.kinds import BY_KERNEL, COSTS, KINDS, METERED_KINDS, TIMED
from ...protocol.known import CODING_AGENT, PROFILES, Profile
from ...protocol.limits import format_amount
from ...protocol.types import Action, Limit, LimitKind, RunId
from .account import Account
from .money import to_core, to_wire
from .naming import derive_name
from .policy import Invalid, LimitsConfig, Policy
from .request import Asked

PROFILED = tuple(kind for kind in LimitKind if kind.value in Profile.__struct_fields__)
"""Kinds that a profile sets."""

NEED_COUNTING = (
    LimitKind.COST,
    LimitKind.PLANNING_COST,
    LimitKind.EXECUTION_COST,
    LimitKind.TOKENS,
)
"""Kinds that mean nothing unless something tells what a run uses."""

_OF_ONE_RUN = tuple(
    kind for kind, spec in KINDS.items() if spec.scope == "run" and kind is not LimitKind.TIME
)
"""Kinds that a child's own limits are lowered in, to its parent's."""

_ANSWERED = METERED_KINDS | {LimitKind.TIME}
"""Kinds whose defaults `--on-limit` changes. Those of memory and processes protect the machine, and
only change where the limit itself was asked for."""


SILENT_AGENT = Limit(
    kind=LimitKind.SILENCE, threshold=1800.0, action=Action.WARN, source=f"profile {CODING_AGENT}"
)
"""Of known agent programs: a model call seldom takes longer than ten minutes, and a person is told
of a run that hangs."""


_ONLY_OF: Mapping[Action, Collection[LimitKind]] = {
    Action.REFUSE: METERED_KINDS,
    Action.CONCLUDE: (LimitKind.COST, LimitKind.TOKENS, LimitKind.TURNS),
    Action.CONTINUE: (LimitKind.SILENCE,),
}
"""Actions that only some kinds can have: what is reserved before it is used can be refused; after
any other breach than of silence, a continued session would exceed the limit again."""


_AFTER_WAITING: Mapping[str, Action] = {
    "continue": Action.WARN,
    "pause": Action.PAUSE,
    "terminate": Action.TERMINATE,
}


def usual_action(kind: LimitKind, config: LimitsConfig) -> Action:
    """Return the action of a limit that names none."""
    if not KINDS[kind].acts:
        return Action.WARN
    return _AFTER_WAITING[config.waiting] if kind is LimitKind.WAITING else Action.TERMINATE


def takes(kind: LimitKind, action: Action) -> bool:
    """Return whether a limit of this kind may have this action."""
    return kind in _ONLY_OF.get(action, KINDS)


def amount(kind: LimitKind, value: float) -> str:
    """Return an amount that the core has counted for people, with the kind where the unit does not
    tell it: `11 turns`."""
    shown = bare(kind, value)
    return shown if KINDS[kind].unit else f"{shown} {kind}".removesuffix("s" if value == 1 else "")


def bare(kind: LimitKind, value: float, *, unit: bool = True) -> str:
    """Return the amount without the kind: `11`, `0.45 USD`, or without `unit` `0.45`."""
    return format_amount(kind, to_wire(kind, value), unit=unit)


def and_reserved(kind: LimitKind, reserved: float) -> str:
    """Return what follows an amount that is used, in words: ` (0.20 more reserved)`; empty if
    nothing is reserved."""
    return f" ({bare(kind, reserved, unit=False)} more reserved)" if reserved else ""


class Numbers(TypedDict, total=False):
    """The numbers of a `Reason` or an `Event`, as it has them."""

    used: float
    reserved: float | None
    exceeded_by: float | None


NO_NUMBERS = Numbers()


def numbers_of(
    kind: LimitKind, counted: float, reserved: float, refused: float, threshold: float | None
) -> Numbers:
    """Return what is told of a limit or a purse. `counted` holds what is only reserved, and what
    was refused to a reservation. `threshold`: it is exceeded."""
    return Numbers(
        used=_shown(kind, counted - reserved - refused),
        reserved=_shown(kind, reserved) if reserved else None,
        exceeded_by=None if threshold is None else _shown(kind, max(0, counted - threshold)),
    )


def _shown(kind: LimitKind, amount: float) -> float:
    return round(to_wire(kind, amount), 6)


class ActiveLimit(Struct, omit_defaults=True, gc=False):
    """A limit in force on a run, and which events about it have been published."""

    limit: Limit
    """Its `action` is never None here."""
    near: bool = False
    over: bool = False
    refused: bool = False
    """Its action is `refuse`, and a reservation was refused for it."""

    @property
    def action(self) -> Action:
        return self.limit.action or Action.TERMINATE

    @property
    def binds(self) -> bool:
        """Whether the run's descendants may not have more. A limit that only warns binds none of
        them."""
        return self.action is not Action.WARN or not KINDS[self.limit.kind].acts

    @property
    def threshold(self) -> float:
        """As the core counts it: of money in nano-dollars."""
        limit = self.limit
        return to_core(limit.kind, limit.threshold) if limit.kind in COSTS else limit.threshold

    def kept_back(self, share: float) -> float:
        """Return what of its threshold is kept for the last call. `share`: of money and tokens; of
        turns it is one."""
        if self.action is not Action.CONCLUDE:
            return 0.0
        return 1.0 if self.limit.kind is LimitKind.TURNS else share * self.threshold

    def above(self, used: float) -> bool:
        """Return whether `used` is a breach: more than the threshold, or for time as much."""
        return used >= self.threshold if self.limit.kind in TIMED else used > self.threshold

    def nears(self, used: float, share: float) -> bool:
        if self.limit.kind in TIMED:
            return used >= share * self.threshold  # the very number that the timer was armed with
        return used / self.threshold >= share  # exact, where 0.55 * 20 would be above 11


Limits = dict[LimitKind, ActiveLimit]


class Parent(Protocol):
    """What the limits of a new run need of the run above it."""

    id: RunId
    limits: Limits


class Crossing(Struct, frozen=True):
    """The use of a limit has come near its threshold or exceeded it, for the first time."""

    active: ActiveLimit
    used: float
    exceeded: bool
    reserved: float = 0
    """The part of `used` that is only reserved."""


def limits_of(asked: Asked, above: Parent | None, policy: Policy, uid: int) -> Limits:
    """Return the limits of a new run: what was asked for, else learnt, else the profile's, else
    the default; never more than the parent has. `uid`: whose run it is. Raise `Invalid`."""
    chosen = dict(policy.defaults)
    if above is not None:
        for kind in BY_KERNEL:  # their defaults bound the whole tree
            chosen.pop(kind, None)
    if asked.sources.agent_program and policy.program_profile:
        chosen.setdefault(LimitKind.SILENCE, SILENT_AGENT)
    chosen |= _of_profile(asked, policy)
    if policy.learnt:
        chosen |= _learnt(asked, chosen, policy, uid)
    # no person wants such a run: what bounds those above it is enough
    if asked.identity.unnamed:
        for kind in (LimitKind.TIME, LimitKind.COST):
            chosen.pop(kind, None)
    if asked.terms.on_limit is not None:
        answered = _ONLY_OF.get(asked.terms.on_limit, _ANSWERED)
        chosen |= {
            kind: replace(chosen[kind], action=asked.terms.on_limit)
            for kind in answered
            if kind in chosen
        }
    for limit in asked.terms.limits:
        check_range(limit, policy)
        chosen[limit.kind] = _with_action(limit, asked, policy)
    silence = chosen.get(LimitKind.SILENCE)
    if silence is not None and silence.action is Action.CONTINUE and asked.retries.attempts == 1:
        raise Invalid(
            "the action 'continue' of the limit 'silence' needs further attempts, "
            "as in: --attempts 3"
        )
    if above is not None:
        narrow(chosen, above)
    return {kind: ActiveLimit(chosen[kind]) for kind in KINDS if kind in chosen}


def profile_of(asked: Asked, policy: Policy) -> tuple[str, Profile] | None:
    """Return a run's profile and what to call it: its type's, else `coding-agent` for a known agent
    program, because the defaults would end that in the middle of ordinary work."""
    if asked.identity.run_type in PROFILES:
        return f"type {asked.identity.run_type}", PROFILES[asked.identity.run_type]
    if asked.sources.agent_program and policy.program_profile:
        return f"profile {CODING_AGENT}", PROFILES[CODING_AGENT]
    return None


def _of_profile(asked: Asked, policy: Policy) -> dict[LimitKind, Limit]:
    found = profile_of(asked, policy)
    return profile_limits(*found, policy) if found is not None else {}


def profile_limits(source: str, profile: Profile, policy: Policy) -> dict[LimitKind, Limit]:
    """Return the limits of a profile."""
    # turns and cost are cut to what may be asked for; time is not, because `max_time` ends the run
    # anyway
    return {
        kind: Limit(
            kind=kind,
            threshold=_bounded(kind, float(getattr(profile, kind.value)), policy),
            action=profile.action,
            source=source,
        )
        for kind in PROFILED
    }


def is_default(limit: Limit) -> bool:
    """Return whether the limit comes from the defaults, of the program or of the config."""
    return limit.source == "default" or limit.source.startswith("defaults.")


def is_from_above(limit: Limit) -> bool:
    """Return whether the limit is that of a run above, to which the run's own was lowered."""
    return limit.source.startswith("run ")


def _bounded(kind: LimitKind, threshold: float, policy: Policy) -> float:
    return threshold if kind is LimitKind.TIME else min(threshold, most_of(kind, policy) or inf)


def _learnt(
    asked: Asked, chosen: Mapping[LimitKind, Limit], policy: Policy, uid: int
) -> dict[LimitKind, Limit]:
    """Return what features have learnt. That changes thresholds within their ranges, and no action;
    it bounds no kind that nothing bounds."""
    name = asked.identity.name or derive_name(asked.shown.argv)
    return {
        limit.kind: replace(limit, action=chosen[limit.kind].action)
        for learnt in policy.learnt.values()
        for limit in learnt(uid, asked.identity.run_type, name)
        if limit.kind in chosen and limit.threshold <= (most_of(limit.kind, policy) or inf)
    }


def _with_action(limit: Limit, asked: Asked, policy: Policy) -> Limit:
    """Return a limit that was asked for with its action: its own, else `--on-limit`, else the
    profile's."""
    if not KINDS[limit.kind].acts:
        return replace(limit, action=Action.WARN)
    if limit.action is not None:
        return limit
    if asked.terms.on_limit is not None and takes(limit.kind, asked.terms.on_limit):
        return replace(limit, action=asked.terms.on_limit)
    found = profile_of(asked, policy) if limit.kind in PROFILED else None
    usual = usual_action(limit.kind, policy.limits)
    return replace(limit, action=usual if found is None else found[1].action)


def narrow(limits: dict[LimitKind, Limit], above: Parent) -> None:
    """Lower a child's limits to its parent's. What it uses of a tree's limit counts against its
    ancestors' limits, and its clock runs within its parent's; only kinds that count for the run
    alone are lowered here. A limit of the child's own that only warns does not loosen them.

    Rejected: lowering a tree's limits as well. When a parent's limit pauses it, the same threshold
    inherited by its child would terminate the child at the same moment, and again after the parent
    was given more room."""
    for kind in _OF_ONE_RUN:
        active, own = above.limits.get(kind), limits.get(kind)
        if active is None or not active.binds:
            continue
        bounds = own is not None and ActiveLimit(own).binds
        if own is None or not bounds or own.threshold > active.limit.threshold:
            source = (
                active.limit.source
                if is_from_above(active.limit)
                else f"run {above.id} ({active.limit.source})"
            )
            action = own.action if own is not None and bounds else active.action
            limits[kind] = replace(active.limit, action=action, source=source)


def check_range(limit: Limit, policy: Policy) -> None:
    """Raise `Invalid` for a threshold outside the range of its kind, or an action that the kind
    does not take."""
    spec, threshold = KINDS[limit.kind], limit.threshold
    most = most_of(limit.kind, policy)
    if limit.action is not None and not spec.acts:
        raise Invalid(
            f"the limit '{limit.kind}' takes no action, "
            f"so '{limit.action}' cannot be its action ({limit.source})"
        )
    if limit.action is Action.CONTINUE and limit.kind is not LimitKind.SILENCE:
        raise Invalid(
            f"the limit '{limit.kind}' cannot continue a session ({limit.source}), "
            "because it would be exceeded again; only silence can, as in silence=15m:continue. "
            "After another limit: sfactl continue RUN --limit …"
        )
    if limit.action is Action.REFUSE and limit.kind not in METERED_KINDS:
        raise Invalid(
            f"the limit '{limit.kind}' cannot refuse ({limit.source}): only what is reserved "
            f"before it is used can be refused, which is {', '.join(sorted(METERED_KINDS))}"
        )
    if limit.action is not None and not takes(limit.kind, limit.action):
        raise Invalid(
            f"the limit '{limit.kind}' cannot conclude ({limit.source}): only what the gateway "
            f"bounds before each call can, which is {', '.join(_ONLY_OF[limit.action])}"
        )
    # false for a NaN, too
    within = spec.least <= threshold < inf and (most is None or threshold <= most)
    if not within or (threshold != int(threshold) and spec.whole):
        raise Invalid(_out_of_range(limit, most, policy))


def most_of(kind: LimitKind, policy: Policy) -> float | None:
    key = KINDS[kind].most
    if KINDS[kind].unit == "%":
        return 100.0
    most: float | None = getattr(policy.limits, key) if key else None
    return most


def _out_of_range(limit: Limit, most: float | None, policy: Policy) -> str:
    spec = KINDS[limit.kind]
    upper = f"to {format_amount(limit.kind, most)}" if most is not None else "or more"
    whole = ", whole numbers" if spec.whole else ""
    asked = f"{limit.kind} = {limit.threshold:g}{spec.suffix} ({limit.source})"
    range_ = f"{asked} is outside its range: {format_amount(limit.kind, spec.least)} {upper}{whole}"
    if most is None or not limit.threshold > most or not spec.most:
        return range_
    return (
        f"{range_}. To allow more, raise {policy.where_set(f'limits.{spec.most}')}, "
        "then run: sfactl reload"
    )


def step(before: ActiveLimit | None, limit: Limit) -> str:
    """Return the change of a limit in words: `turns 25 → 50`."""
    old = f"{bare(limit.kind, before.threshold)} → " if before is not None else ""
    return f"{limit.kind} {old}{bare(limit.kind, ActiveLimit(limit).threshold)}"


def all_crossings(limits: Limits, account: Account, nearing: float) -> Iterator[Crossing]:
    """Yield each limit that was crossed since the last call, but not time: the clock has a
    timer."""
    for kind, active in limits.items():
        if active.over or kind is LimitKind.TIME or KINDS[kind].instead:
            continue
        used = account.used(kind)
        if used is not None:
            yield from crossings(active, used, nearing, reserved=account.reserved(kind))


def crossings(
    active: ActiveLimit, used: float, nearing: float, *, reserved: float = 0
) -> Iterator[Crossing]:
    """Yield whether this limit was crossed since the last call. `reserved`: the part of `used` that
    is only reserved."""
    # what is reserved may take all that is left, and is rarely used
    near, held = (used, reserved) if active.above(used) else (used - reserved, 0)
    if not active.near and active.nears(near, nearing):
        active.near = True
        yield Crossing(active, near, exceeded=False, reserved=held)
    if not active.over and active.above(used):
        active.over = True
        yield Crossing(active, used, exceeded=True, reserved=reserved)

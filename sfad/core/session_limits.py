"""Limits of a session: never more than `[sessions]`, nor than the profile or the entry of its agent sets."""

from typing import NamedTuple

from msgspec.structs import replace

from ..protocol.kinds import KINDS
from ..protocol.limits import format_amount
from ..protocol.types import Action, Limit, LimitKind, Lowered
from .asked import Asked
from .limits import ActiveLimit, Limits, Parent, limits_of, most_of
from .policy import Invalid, Policy
from .run import Run


class _Cap(NamedTuple):
    default: float
    default_key: str
    most: float
    most_key: str
    lowers: bool = False
    """What was asked for is lowered to it; else refused."""


def session_limits_of(asked: Asked, above: Parent | None, policy: Policy, uid: int) -> Limits:
    """Return the limits of a new session, as `limits_of` does. Raise `Invalid`."""
    assert asked.session is not None
    found = limits_of(asked, None, policy, uid)
    # what only warns, and what no entry or profile has set, is no bound
    registered = {kind: active for kind, active in found.items() if active.binds and active.limit is not policy.defaults.get(kind)}
    entry = {limit.kind for limit in asked.limits}
    caps = _caps(policy)
    for limit in asked.session.limits:
        _check(limit, registered.get(limit.kind), caps.get(limit.kind), policy, for_model=above is not None or asked.from_model)
    wanted = {limit.kind: limit for limit in asked.session.limits}
    chosen = {limit.kind: limit for limit in asked.limits}
    for kind in dict.fromkeys([*wanted, *caps]):
        if kind in wanted:
            chosen[kind] = _asked_for(wanted[kind], registered.get(kind), caps.get(kind))
        else:
            own = found.get(kind) if kind is not LimitKind.TIME or kind in registered else None
            chosen[kind] = _by_default(kind, own, caps[kind], by_entry=kind in entry)
    return limits_of(replace(asked, limits=tuple(chosen.values())), above, policy, uid)


def lowered(run: Run) -> list[Lowered]:
    """Return the limits of a session that are lower than what was asked for."""
    asked = run.asked.session.limits if run.asked.session is not None else ()
    found = ((limit, run.limits[limit.kind].limit) for limit in asked if limit.kind in run.limits)
    return [_lowered(limit, given) for limit, given in found if given.threshold < limit.threshold]


def _lowered(asked: Limit, given: Limit) -> Lowered:
    kind = asked.kind
    words = f"{kind}: {format_amount(kind, asked.threshold)} asked for, {format_amount(kind, given.threshold)} given"
    return Lowered(
        kind=kind, asked=asked.threshold, given=given.threshold, source=given.source, message=f"{words} ({given.source})"
    )


def _caps(policy: Policy) -> dict[LimitKind, _Cap]:
    rules = policy.sessions
    time = min(rules.max_time, policy.max_time)
    turns = min(rules.max_turns, policy.max_turns)
    return {
        LimitKind.TIME: _Cap(
            min(rules.default_time, time), "sessions.default_timeout_minutes", time, "sessions.max_timeout_minutes"
        ),
        LimitKind.TURNS: _Cap(turns, "sessions.max_tool_calls_per_run", turns, "sessions.max_tool_calls_per_run"),
        LimitKind.TOKENS: _Cap(
            min(rules.default_tokens, rules.max_tokens),
            "sessions.default_token_budget",
            rules.max_tokens,
            "sessions.max_token_budget",
            lowers=True,
        ),
    }


def _bound(kind: LimitKind, registered: ActiveLimit | None, cap: _Cap | None) -> Limit | None:
    bounds = [Limit(kind=kind, threshold=cap.most, source=cap.most_key)] if cap is not None else []
    bounds += [registered.limit] if registered is not None else []
    return min(bounds, key=lambda each: each.threshold, default=None)


def _check(limit: Limit, registered: ActiveLimit | None, cap: _Cap | None, policy: Policy, *, for_model: bool) -> None:
    """Raise `Invalid` for less than the kind allows, and for more than a session may have, unless that is lowered."""
    bound = _bound(limit.kind, registered, cap)
    spec, most = KINDS[limit.kind], most_of(limit.kind, policy)
    if bound is None and most is not None:
        bound = Limit(kind=limit.kind, threshold=most, source=f"limits.{spec.most}")
    if bound is None:
        return
    if limit.threshold < spec.least:
        least, highest = format_amount(limit.kind, spec.least), format_amount(limit.kind, bound.threshold)
        asked = f"{limit.kind} = {limit.threshold:g}{spec.suffix} ({limit.source})"
        raise Invalid(f"{asked} is outside the range of a session: {least} to {highest}")
    if limit.threshold > bound.threshold and not (cap is not None and cap.lowers):
        raise Invalid(_too_much(limit, bound, policy, for_model=for_model))


def _asked_for(limit: Limit, registered: ActiveLimit | None, cap: _Cap | None) -> Limit:
    bound = _bound(limit.kind, registered, cap)
    if bound is None:
        return limit
    if limit.action in {None, Action.WARN}:
        limit = replace(limit, action=registered.action if registered is not None else Action.TERMINATE)
    if not limit.threshold > bound.threshold:
        return limit
    return replace(limit, threshold=bound.threshold, source=bound.source)


def _too_much(limit: Limit, bound: Limit, policy: Policy, *, for_model: bool) -> str:
    kind, key = limit.kind, bound.source
    configured = key.startswith(("sessions.", "limits."))
    where = f"the default of {key}" if configured and key not in policy.files else f"set by {key}"
    asked, most = format_amount(kind, limit.threshold), format_amount(kind, bound.threshold)
    said = f"{kind} = {asked} ({limit.source}) is more than a session may have: at most {most}, {where}"
    if for_model:
        return f"{said}. Ask for at most {most}"
    return f"{said}. To allow more, raise {policy.where_set(key)}, then run: sfactl reload" if configured else said


def _by_default(kind: LimitKind, own: ActiveLimit | None, cap: _Cap, *, by_entry: bool) -> Limit:
    threshold, key = (cap.most, cap.most_key) if by_entry else (cap.default, cap.default_key)
    if own is not None and own.binds and own.limit.threshold <= threshold:
        return own.limit
    action = own.action if own is not None and own.binds else Action.TERMINATE
    return Limit(kind=kind, threshold=threshold, action=action, source=key)

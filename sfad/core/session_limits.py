"""Limits of a session: never more than `[sessions]`, nor than the profile or the entry of its agent sets."""

from dataclasses import replace
from typing import NamedTuple

from msgspec.structs import replace as with_values

from ..protocol.limits import format_amount
from ..protocol.types import Action, Limit, LimitKind, Lowered
from .asked import Asked
from .limits import ActiveLimit, Limits, Parent, limits_of
from .policy import Invalid, Policy
from .run import Run


class _Cap(NamedTuple):
    default: float
    default_key: str
    most: float
    most_key: str
    lowers: bool = False
    """What was asked for is lowered to it; else refused."""


def session_limits_of(asked: Asked, above: Parent | None, policy: Policy) -> Limits:
    """Return the limits of a new session, as `limits_of` does. Raise `Invalid`."""
    assert asked.session is not None
    found = limits_of(asked, None, policy)
    # what only warns, and what no entry or profile has set, is no bound
    registered = {kind: active for kind, active in found.items() if active.binds and active.limit is not policy.defaults.get(kind)}
    entry = {limit.kind for limit in asked.limits}
    caps = _caps(policy)
    wanted = {limit.kind: limit for limit in asked.session.limits}
    chosen = {limit.kind: limit for limit in asked.limits}
    for kind in dict.fromkeys([*wanted, *caps]):
        if kind in wanted:
            chosen[kind] = _asked_for(wanted[kind], registered.get(kind), caps.get(kind), policy)
        else:
            own = found.get(kind) if kind is not LimitKind.TIME or kind in registered else None
            chosen[kind] = _by_default(kind, own, caps[kind], by_entry=kind in entry)
    return limits_of(replace(asked, limits=tuple(chosen.values())), above, policy)


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


def _asked_for(limit: Limit, registered: ActiveLimit | None, cap: _Cap | None, policy: Policy) -> Limit:
    bounds = [Limit(kind=limit.kind, threshold=cap.most, source=cap.most_key)] if cap is not None else []
    bounds += [registered.limit] if registered is not None else []
    if not bounds:
        return limit
    bound = min(bounds, key=lambda each: each.threshold)
    if limit.action in {None, Action.WARN}:
        limit = with_values(limit, action=registered.action if registered is not None else Action.TERMINATE)
    if not limit.threshold > bound.threshold:
        return limit
    if cap is not None and cap.lowers:
        return with_values(limit, threshold=bound.threshold, source=bound.source)
    raise Invalid(_too_much(limit, bound, policy))


def _too_much(limit: Limit, bound: Limit, policy: Policy) -> str:
    kind, key = limit.kind, bound.source
    where = policy.where_set(key) if key.startswith("sessions.") else key
    asked, most = format_amount(kind, limit.threshold), format_amount(kind, bound.threshold)
    raising = ". To allow more, raise it there, then run: sfactl reload" if key.startswith("sessions.") else ""
    return f"{kind} = {asked} ({limit.source}) is more than a session may have: at most {most}, set by {where}{raising}"


def _by_default(kind: LimitKind, own: ActiveLimit | None, cap: _Cap, *, by_entry: bool) -> Limit:
    threshold, key = (cap.most, cap.most_key) if by_entry else (cap.default, cap.default_key)
    if own is not None and own.binds and own.limit.threshold <= threshold:
        return own.limit
    action = own.action if own is not None and own.binds else Action.TERMINATE
    return Limit(kind=kind, threshold=threshold, action=action, source=key)

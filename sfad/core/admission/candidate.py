"""The run that a spawn request describes: its values checked, its bounds narrowed, a session's
limits set."""

from msgspec import Struct
from msgspec.structs import replace

from ...protocol.kinds import KINDS
from ...protocol.limits import format_amount
from ...protocol.types import Action, Bound, Grant, Limit, LimitKind, Lowered, RunId
from ..events import SpawnRequested
from ..state.access import Peer, Permissions
from ..state.grants import Lease
from ..state.limits import ActiveLimit, Limits, Parent, limits_of, most_of, takes
from ..state.naming import NAME, derive_name, is_name, one_form
from ..state.policy import MAX_ATTEMPTS, MAX_LABELS, MAX_RETRY_DELAY, Invalid, Policy
from ..state.request import Asked, Identity
from ..state.run import AllowedModels, Birth, Run, check_grace, run_id
from ..state.tree import narrower

# ---- Limits of a session: never more than `[sessions]`, nor than the profile or the entry of its
# agent sets


class _Cap(Struct, frozen=True):
    default: float
    default_key: str
    most: float
    most_key: str
    lowers: bool = False
    """What was asked for is lowered to it; else refused."""


def session_limits_of(asked: Asked, above: Parent | None, policy: Policy, uid: int) -> Limits:
    """Return the limits of a new session, as `limits_of` does. Raise `Invalid`."""
    assert asked.session is not None
    session, on_limit = asked.session, asked.terms.on_limit
    if on_limit is Action.WARN:  # it would be no bound
        on_limit = None
    asked = replace(asked, terms=replace(asked.terms, on_limit=None))
    found = limits_of(asked, None, policy, uid)
    # what only warns, and what no entry or profile has set, is no bound
    registered = {
        kind: active
        for kind, active in found.items()
        if active.binds and active.limit is not policy.defaults.get(kind)
    }
    entry = {limit.kind for limit in asked.terms.limits}
    caps = _caps(policy)
    for limit in session.limits:
        _check_limit(
            limit,
            registered.get(limit.kind),
            caps.get(limit.kind),
            policy,
            for_model=above is not None or asked.from_model,
        )
    wanted = {limit.kind: _answered(limit, on_limit) for limit in session.limits}
    chosen = {limit.kind: limit for limit in asked.terms.limits}
    for kind in dict.fromkeys([*wanted, *caps]):
        if kind in wanted:
            chosen[kind] = _asked_for(wanted[kind], registered.get(kind), caps.get(kind))
        else:
            own = found.get(kind) if kind is not LimitKind.TIME or kind in registered else None
            chosen[kind] = _answered(
                _by_default(kind, own, caps[kind], by_entry=kind in entry), on_limit, always=True
            )
    terms = replace(asked.terms, limits=tuple(chosen.values()), on_limit=on_limit)
    return limits_of(replace(asked, terms=terms), above, policy, uid)


def _answered(limit: Limit, action: Action | None, *, always: bool = False) -> Limit:
    """Return the limit with this action, if it may have it and, unless `always`, names none."""
    if action is None or not takes(limit.kind, action) or (limit.action and not always):
        return limit
    return replace(limit, action=action)


def lowered(run: Run) -> list[Lowered]:
    """Return the limits of a session that are lower than what was asked for."""
    asked = run.asked.session.limits if run.asked.session is not None else ()
    found = ((limit, run.limits[limit.kind].limit) for limit in asked if limit.kind in run.limits)
    return [_lowered(limit, given) for limit, given in found if given.threshold < limit.threshold]


def _lowered(asked: Limit, given: Limit) -> Lowered:
    kind = asked.kind
    words = (
        f"{kind}: {format_amount(kind, asked.threshold)} asked "
        f"for, {format_amount(kind, given.threshold)} given"
    )
    return Lowered(
        kind=kind,
        asked=asked.threshold,
        given=given.threshold,
        source=given.source,
        message=f"{words} ({given.source})",
    )


def _caps(policy: Policy) -> dict[LimitKind, _Cap]:
    rules = policy.sessions
    time = min(rules.max_time, policy.limits.max_time)
    turns = min(rules.max_tool_calls_per_run, policy.limits.max_turns)
    return {
        LimitKind.TIME: _Cap(
            min(rules.default_time, time),
            "sessions.default_timeout_minutes",
            time,
            "sessions.max_timeout_minutes",
        ),
        LimitKind.TURNS: _Cap(
            turns, "sessions.max_tool_calls_per_run", turns, "sessions.max_tool_calls_per_run"
        ),
        LimitKind.TOKENS: _Cap(
            min(rules.default_token_budget, rules.max_token_budget),
            "sessions.default_token_budget",
            rules.max_token_budget,
            "sessions.max_token_budget",
            lowers=True,
        ),
    }


def _session_bound(
    kind: LimitKind, registered: ActiveLimit | None, cap: _Cap | None
) -> Limit | None:
    bounds = [Limit(kind=kind, threshold=cap.most, source=cap.most_key)] if cap is not None else []
    bounds += [registered.limit] if registered is not None else []
    return min(bounds, key=lambda each: each.threshold, default=None)


def _check_limit(
    limit: Limit,
    registered: ActiveLimit | None,
    cap: _Cap | None,
    policy: Policy,
    *,
    for_model: bool,
) -> None:
    """Raise `Invalid` for less than the kind allows, and for more than a session may have, unless
    that is lowered."""
    bound = _session_bound(limit.kind, registered, cap)
    spec, most = KINDS[limit.kind], most_of(limit.kind, policy)
    if bound is None and most is not None:
        bound = Limit(kind=limit.kind, threshold=most, source=f"limits.{spec.most}")
    if bound is None:
        return
    if limit.threshold < spec.least:
        least, highest = (
            format_amount(limit.kind, spec.least),
            format_amount(limit.kind, bound.threshold),
        )
        asked = f"{limit.kind} = {limit.threshold:g}{spec.suffix} ({limit.source})"
        raise Invalid(f"{asked} is outside the range of a session: {least} to {highest}")
    if limit.threshold > bound.threshold and not (cap is not None and cap.lowers):
        raise Invalid(_too_much(limit, bound, policy, for_model=for_model))


def _asked_for(limit: Limit, registered: ActiveLimit | None, cap: _Cap | None) -> Limit:
    bound = _session_bound(limit.kind, registered, cap)
    if bound is None:
        return limit
    if limit.action in {None, Action.WARN}:
        limit = replace(
            limit, action=registered.action if registered is not None else Action.TERMINATE
        )
    if not limit.threshold > bound.threshold:
        return limit
    return replace(limit, threshold=bound.threshold, source=bound.source)


def _too_much(limit: Limit, bound: Limit, policy: Policy, *, for_model: bool) -> str:
    kind, key = limit.kind, bound.source
    configured = key.startswith(("sessions.", "limits."))
    where = f"the default of {key}" if configured and key not in policy.files else f"set by {key}"
    asked, most = format_amount(kind, limit.threshold), format_amount(kind, bound.threshold)
    said = (
        f"{kind} = {asked} ({limit.source}) is more than a session may have: "
        f"at most {most}, {where}"
    )
    if for_model:
        return f"{said}. Ask for at most {most}"
    return (
        f"{said}. To allow more, raise {policy.where_set(key)}, then run: sfactl reload"
        if configured
        else said
    )


def _by_default(kind: LimitKind, own: ActiveLimit | None, cap: _Cap, *, by_entry: bool) -> Limit:
    threshold, key = (cap.most, cap.most_key) if by_entry else (cap.default, cap.default_key)
    if own is not None and own.binds and own.limit.threshold <= threshold:
        return own.limit
    action = own.action if own is not None and own.binds else Action.TERMINATE
    return Limit(kind=kind, threshold=threshold, action=action, source=key)


# ---- The run that a spawn request describes: its values checked, its bounds narrowed. The guard
# decides whether it may start.


class Draft(Struct, frozen=True):
    """What all runs have in common that are asked for in the same way."""

    asked: Asked
    peer: Peer
    policy: Policy
    above: Run | None
    birth: Birth
    """But for id, number and time."""
    limits: tuple[Limit, ...]


def draft(ev: SpawnRequested, *, policy: Policy, caller: Run | None, rights: Permissions) -> Draft:
    """Check a request. `caller` is the live run that the peer is in, `rights` what that run may do.
    Raise `Invalid`."""
    above = None if ev.asked.queueing.detach else caller
    _check(ev)
    grant = ev.asked.grant
    if grant is not None:
        _check_grant(grant, ev, policy)
    if ev.asked.queueing.group is not None:
        _check_group(ev.asked.queueing.group, above, policy)
    identity, terms = _identity(ev.asked.identity, above), ev.asked.terms
    asked = replace(ev.asked, identity=identity)
    origin, claimed_depth = _origin(ev, caller)
    birth = Birth(
        id="",
        number=0,
        name=identity.name or derive_name(asked.shown.argv),
        kind=identity.kind,
        asked=asked,
        uid=ev.peer.uid,
        user=ev.peer.user,
        channel=identity.channel or (above.birth.channel if above is not None else "cli"),
        parent=above.id if above is not None else None,
        created_at=0.0,
        max_depth=_granted(grant, grant.max_depth)
        if grant is not None
        else _bound(
            terms.max_depth,
            above.birth.max_depth if above else None,
            policy.max_depth,
            policy.guard.depth_ceiling,
            "depth",
        ),
        # each run has a bound of its own; the guard asks the ancestors' one by one
        max_descendants=_granted(grant, grant.descendants)
        if grant is not None
        else _bound(
            terms.max_descendants,
            above.birth.max_descendants if above else None,
            policy.max_descendants,
            policy.guard.descendants_ceiling,
            "descendants",
        ),
        # the peer's, not the parent's: to detach is no way out of them
        permissions=rights.narrowed(
            allow=terms.allow,
            deny=terms.deny,
            leaf=terms.leaf,
            sessions=grant.sessions
            if grant is not None
            else terms.nested or (caller is None and asked.session is None),
            session=asked.session is not None,
        ),
        origin=origin,
        claimed_depth=claimed_depth,
        models=caller.birth.models if caller is not None else (),
    )
    limits = limits_for(asked, above, policy, ev.peer.uid)
    kinds = tuple([active.limit for active in limits.values()])
    return Draft(ev.asked, ev.peer, policy, above, birth, kinds)


def candidate(made: Draft, ev: SpawnRequested, number: int) -> Run:
    """Return the run to be, part of no tree yet."""
    asked, own_id = made.birth.asked, run_id(number)
    models = made.birth.models
    if asked.terms.allowed_models or asked.grant is not None:
        models = _models(own_id, asked, models)
    birth = replace(made.birth, id=own_id, number=number, created_at=ev.at, models=models)
    limits = {limit.kind: ActiveLimit(limit) for limit in made.limits}
    run = Run.born(birth, made.above, limits, made.policy.limits.max_time)
    run.tied_to, run.admit_token = asked.tied_to, ev.token
    if asked.grant is not None:
        run.lease = Lease(ev.lease_until)
    return run


def limits_for(asked: Asked, above: Run | None, policy: Policy, uid: int) -> Limits:
    """Return the limits of a new run or session of this user. Raise `Invalid`."""
    decide = limits_of if asked.session is None else session_limits_of
    return decide(asked, above, policy, uid)


def _identity(own: Identity, parent: Run | None) -> Identity:
    """Bring the name into its one form, and add the parent's labels; for each key the child's own
    label wins."""
    labels = own.labels
    if parent is not None and parent.asked.identity.labels:
        labels = parent.asked.identity.labels | labels
        if len(labels) > MAX_LABELS:
            raise Invalid(
                f"{len(labels)} labels, with those of its parent {parent.id}; "
                f"at most {MAX_LABELS}: give it fewer of its own"
            )
    return replace(own, name=own.name and one_form(own.name), labels=labels)


def _check(ev: SpawnRequested) -> None:
    asked, name = ev.asked, ev.asked.identity.name
    attempts, delay = asked.retries.attempts, asked.retries.retry_delay
    if not asked.shown.argv:
        raise Invalid("there is no command to run")
    if name is not None and not is_name(name):
        raise Invalid(f"the name {name!r} is not valid: {NAME}")
    if not 1 <= attempts <= MAX_ATTEMPTS:
        raise Invalid(f"attempts = {attempts} is outside 1 to {MAX_ATTEMPTS}")
    if delay is not None and not 0 <= delay <= MAX_RETRY_DELAY:
        raise Invalid(f"retry_delay = {delay:g} s is outside 0 s to {MAX_RETRY_DELAY:g} s")
    if asked.terms.leaf and asked.terms.nested:
        raise Invalid("leaf and nested exclude each other: a leaf may start nothing")
    if asked.queueing.after and not asked.queueing.queue:
        raise Invalid(
            "--after and --no-queue exclude each other: a run that waits for another is queued"
        )
    check_grace(asked.terms.grace)


def _check_group(group: str, above: Run | None, policy: Policy) -> None:
    if above is not None:
        raise Invalid(
            f"a group bounds trees, and this run would be a part of the tree of {above.root.id}: "
            "leave out --group"
        )
    if group not in policy.groups:
        known = f"choose from: {', '.join(policy.groups)}" if policy.groups else "there are none"
        where = policy.where_set(f"groups.{group[:64]}.slots")
        raise Invalid(
            f"there is no group {group[:64]!r}; {known}. "
            f"To add it, set {where}, then run: sfactl reload"
        )


def _check_grant(grant: Grant, ev: SpawnRequested, policy: Policy) -> None:
    if ev.peer.run is not None or not policy.access.is_admin(ev.peer):
        raise Invalid("only the daemon's own process may bring the grant of another node")
    if grant.lease is not None and (ev.lease_until is None or ev.lease_until <= ev.at):
        raise Invalid(
            f"the grant of {grant.giver}/{grant.run} came after its lease of {grant.lease:g} "
            "s was over"
        )
    for value, ceiling, what in (
        (grant.max_depth, policy.guard.depth_ceiling, "depth"),
        (grant.descendants, policy.guard.descendants_ceiling, "descendants"),
    ):
        if not 0 <= value <= ceiling:
            raise Invalid(
                f"the grant of {grant.giver}/{grant.run} has {what} {value}; "
                f"guard.{what}_ceiling is {ceiling} here"
            )


def _granted(grant: Grant, value: int) -> Bound:
    return Bound(value=value, source=f"the grant of {grant.giver}/{grant.run}")


def _origin(
    ev: SpawnRequested, caller: Run | None
) -> tuple[tuple[tuple[str | None, str], ...], int]:
    if ev.asked.grant is not None:
        return tuple((kind, name) for kind, name in ev.asked.grant.chain), ev.asked.grant.depth
    if caller is None:
        claim = ev.asked.identity.claim
        return tuple((None, name) for name in claim.names), max(claim.depth, len(claim.names), 0)
    if not ev.asked.queueing.detach:
        return (), 0
    return (*caller.root.birth.origin, *(run.identity for run in caller.lineage)), 0


def _models(
    run: RunId, asked: Asked, inherited: tuple[AllowedModels, ...]
) -> tuple[AllowedModels, ...]:
    if asked.grant is not None:
        return tuple(AllowedModels(run, tuple(patterns)) for patterns in asked.grant.models)
    return (*inherited, AllowedModels(run, asked.terms.allowed_models))


def _bound(
    asked: Bound | None, inherited: Bound | None, default: Bound, ceiling: int, what: str
) -> Bound:
    if inherited is not None:
        return narrower(asked, inherited)
    if asked is None or asked.value <= 0:
        return default
    if asked.value > ceiling:
        raise Invalid(
            f"max_{what} = {asked.value} ({asked.source}) "
            f"is above guard.{what}_ceiling = {ceiling}; ask for at most {ceiling}"
        )
    return asked

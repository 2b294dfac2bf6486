"""The run that a spawn request describes: its values checked, its bounds narrowed. The guard decides whether it may start."""

from msgspec.structs import replace

from ..protocol.types import Bound, RunId, Status
from .access import Permissions
from .asked import Asked
from .events import SpawnRequested
from .ids import run_id
from .ladder import check_grace
from .limits import Limits, limits_of
from .naming import NAME, derive_name, is_name, one_form
from .policy import MAX_ATTEMPTS, MAX_LABELS, MAX_RETRY_DELAY, Invalid, Policy
from .run import AllowedModels, Attempt, Birth, Run, State
from .session_limits import session_limits_of
from .tool_lists import narrowed
from .tree import narrower


def candidate(ev: SpawnRequested, *, number: int, policy: Policy, peer_run: Run | None, permissions: Permissions) -> Run:
    """Return the run to be, part of no tree yet. `peer_run` is the live run that the peer is in, `permissions` what that run may
    do. Raise `Invalid`."""
    above = None if ev.asked.detach else peer_run
    _check(ev)
    if ev.asked.group is not None:
        _check_group(ev.asked.group, above, policy)
    asked = _with_tools_of(peer_run, _with_labels_of(above, ev.asked))
    if asked.name is not None:
        asked = replace(asked, name=one_form(asked.name))
    origin, claimed_depth = _origin(ev, peer_run)
    own_id = run_id(number)
    birth = Birth(
        id=own_id,
        number=number,
        name=asked.name or derive_name(asked.argv),
        kind=asked.kind,
        asked=asked,
        uid=ev.peer.uid,
        user=ev.peer.user,
        channel=asked.channel or (above.birth.channel if above is not None else "cli"),
        parent=above.id if above is not None else None,
        created_at=ev.at,
        max_depth=_bound(
            asked.max_depth, above.birth.max_depth if above else None, policy.max_depth, policy.depth_ceiling, "depth"
        ),
        # each run has a bound of its own; the guard asks the ancestors' one by one
        max_descendants=_bound(
            asked.max_descendants,
            above.birth.max_descendants if above else None,
            policy.max_descendants,
            policy.descendants_ceiling,
            "descendants",
        ),
        max_time=policy.max_time,
        # the peer's, not the parent's: to detach is no way out of them
        permissions=permissions.narrowed(
            allow=asked.allow,
            deny=asked.deny,
            leaf=asked.leaf,
            sessions=asked.nested or (peer_run is None and asked.session is None),
            session=asked.session is not None,
        ),
        origin=origin,
        claimed_depth=claimed_depth,
        models=_models(own_id, asked, peer_run),
    )
    limits = limits_for(asked, above, policy, ev.peer.uid)
    state = State(Status.ACCEPTED, limits, policy.max_time, Attempt(0), tied_to=asked.tied_to, admit_token=ev.token)
    return Run(birth, state, above)


def limits_for(asked: Asked, above: Run | None, policy: Policy, uid: int) -> Limits:
    """Return the limits of a new run or session of this user. Raise `Invalid`."""
    decide = limits_of if asked.session is None else session_limits_of
    return decide(asked, above, policy, uid)


def _with_labels_of(parent: Run | None, asked: Asked) -> Asked:
    """Add the parent's labels; for each key the child's own label wins."""
    if parent is None or not parent.asked.labels:
        return asked
    labels = parent.asked.labels | asked.labels
    if len(labels) > MAX_LABELS:
        raise Invalid(f"{len(labels)} labels, with those of its parent {parent.id}; at most {MAX_LABELS}: give it fewer of its own")
    return replace(asked, labels=labels)


def _with_tools_of(peer_run: Run | None, asked: Asked) -> Asked:
    """Narrow the lists of tools by those of the peer's run: as with permissions, to detach is no way out."""
    if peer_run is None or not any(peer_run.asked.tools):
        return asked
    tools = narrowed(asked.tools, peer_run.asked.tools, f"run {peer_run.id}")
    return replace(asked, allowed_tools=tools.allowed, blocked_tools=tools.blocked)


def _check(ev: SpawnRequested) -> None:
    asked = ev.asked
    if not asked.argv:
        raise Invalid("there is no command to run")
    if asked.name is not None and not is_name(asked.name):
        raise Invalid(f"the name {asked.name!r} is not valid: {NAME}")
    if not 1 <= asked.attempts <= MAX_ATTEMPTS:
        raise Invalid(f"attempts = {asked.attempts} is outside 1 to {MAX_ATTEMPTS}")
    if asked.retry_delay is not None and not 0 <= asked.retry_delay <= MAX_RETRY_DELAY:
        raise Invalid(f"retry_delay = {asked.retry_delay:g} s is outside 0 s to {MAX_RETRY_DELAY:g} s")
    if asked.leaf and asked.nested:
        raise Invalid("leaf and nested exclude each other: a leaf may start nothing")
    if asked.after and not asked.queue:
        raise Invalid("--after and --no-queue exclude each other: a run that waits for another is queued")
    check_grace(asked.grace)


def _check_group(group: str, above: Run | None, policy: Policy) -> None:
    if above is not None:
        raise Invalid(f"a group bounds trees, and this run would be a part of the tree of {above.root.id}: leave out --group")
    if group not in policy.groups:
        known = f"choose from: {', '.join(policy.groups)}" if policy.groups else "there are none"
        where = policy.where_set(f"groups.{group[:64]}.slots")
        raise Invalid(f"there is no group {group[:64]!r}; {known}. To add it, set {where}, then run: sfactl reload")


def _origin(ev: SpawnRequested, peer_run: Run | None) -> tuple[tuple[tuple[str | None, str], ...], int]:
    if peer_run is None:
        claim = ev.asked.claim
        return tuple((None, name) for name in claim.names), max(claim.depth, len(claim.names), 0)
    if not ev.asked.detach:
        return (), 0
    return (*peer_run.root.birth.origin, *(run.identity for run in peer_run.lineage)), 0


def _models(run: RunId, asked: Asked, peer_run: Run | None) -> tuple[AllowedModels, ...]:
    inherited = peer_run.birth.models if peer_run is not None else ()
    return (*inherited, AllowedModels(run, asked.models)) if asked.models else inherited


def _bound(asked: Bound | None, inherited: Bound | None, default: Bound, ceiling: int, what: str) -> Bound:
    if inherited is not None:
        return narrower(asked, inherited)
    if asked is None or asked.value <= 0:
        return default
    if asked.value > ceiling:
        raise Invalid(
            f"max_{what} = {asked.value} ({asked.source}) is above guard.{what}_ceiling = {ceiling}; ask for at most {ceiling}"
        )
    return asked

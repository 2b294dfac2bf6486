"""The guard: ordered rules that admit or refuse a run. The first refusal counts. It reads memory
only, and fails closed."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from ...protocol.kinds import ROLES, ROLES_ARE_REPORTED
from ...protocol.limits import format_amount
from ...protocol.texts.units import counted, format_elapsed, format_moment
from ...protocol.types import Limit, Refusal, Rule, Status
from ..purses import Shortage
from ..state.access import FULL, Peer, why_sessions_refused, why_verb_refused
from ..state.policy import Policy
from ..state.quotas import SlidingRate, Slots
from ..state.run import Run
from ..state.tree import full_ancestor, typed_bounds

FINISH = "Do not try again; finish your task with what you already have."
"""The advice to the model that reads a refusal. A model that was only told "no" tried 970 times in
6 minutes."""


class Quota(NamedTuple):
    """What a refusal tells of the bound that is reached."""

    key: str | None = None
    """The key of the config that sets it."""
    value: float | None = None
    limit: float | None = None
    wait: float | None = None
    """Seconds until a start is possible, at the latest; `None` if that is not known, or never."""
    reserved: float | None = None
    """What is reserved beyond `value`."""


class Question(Struct, frozen=True):
    at: float
    policy: Policy
    draining: bool
    peer: Peer
    run: Run
    """The run to be (`candidate`), part of no tree yet."""
    caller: Run | None
    """The live run that the peer is in. It is not the parent of a detached run."""
    rate: SlidingRate
    slots: Slots
    shortage: Shortage | None = None
    """Of a purse that the peer's user spends."""
    live: Iterable[Run] = ()
    """The live runs of all users."""
    session_rate: SlidingRate | None = None
    """Of a session: starts of sessions by the peer's user."""
    sessions: Sequence[Run] = ()
    """Of a session: the live sessions of all users."""
    waits: bool = False
    """The run has to wait for another one."""
    window: str | None = None
    """Why a root has to wait for the reset of a window."""
    unix_time: float = 0.0
    """When the peer asks, in seconds since 1970."""

    @property
    def for_model(self) -> bool:
        """Whether a model reads the answer: the peer is in a run, or says that it comes from
        one."""
        return self.peer.run is not None or self.run.asked.from_model

    def message(self, why: str, remedy: str) -> str:
        """Return the message of a refusal: `why`, and for a model that it should finish, for a
        person the `remedy`."""
        return f"'{self.run.name}' was not started: {why}. {FINISH if self.for_model else remedy}"

    def refuse(
        self, rule: Rule, detail: str, why: str, remedy: str, quota: Quota | None = None
    ) -> Refusal:
        """Return the refusal by a rule: `detail` for the ledger, and `why` and `remedy` as
        `message` has them."""
        quota = quota or Quota()
        return Refusal(
            kind=rule,
            detail=detail,
            message=self.message(why, remedy),
            limit=quota.limit,
            value=quota.value,
            reserved=quota.reserved,
            key=quota.key,
            possible_in_s=None if quota.wait is None else round(quota.wait, 3),
        )

    def raised(self, key: str) -> str:
        if not self.policy.access.is_admin(self.peer):
            return f"ask root, or a member of access.admin_group, to raise {key}"
        return f"raise {self.policy.where_set(key)}, then run: sfactl reload"

    @property
    def detached(self) -> bool:
        """A new root asked for from inside a run."""
        return self.run.asked.queueing.detach and self.caller is not None

    @property
    def chain_length(self) -> int:
        """Runs above the run to be, claimed ones included."""
        return len(self.run.ancestors) + self.run.root.birth.claimed_depth


MayStart = Callable[[Question], Refusal | None]
"""A rule: returns why a run may not start, or `None`."""


def first_refusal(question: Question, more: Sequence[MayStart] = ()) -> Refusal | None:
    """Return the first rule's refusal, or `None`: admitted. `more`: the rules of features, which
    are asked last. Of a run that another node has granted, that one has asked them."""
    rules = RULES if question.run.asked.session is None else SESSION_RULES
    for rule in (*rules, *more) if question.run.lease is None else GRANT_RULES:
        refusal = rule(question)
        if refusal is not None:
            return refusal
    return None


def _enabled(q: Question) -> Refusal | None:
    remedy = ""
    if q.draining:
        detail, remedy = (
            "the daemon is stopping",
            "Start it again when the daemon is back: sfactl status",
        )
    elif not q.policy.enabled:
        detail, remedy = (
            "enabled = false in the daemon's config",
            f"To allow it, set {q.policy.where_set('enabled')} to true, then run: sfactl reload",
        )
    elif q.run.asked.session is not None and not q.policy.sessions.enabled:
        detail = "sessions.enabled = false in the daemon's config"
        remedy = (
            f"To allow it, set {q.policy.where_set('sessions.enabled')} to true, "
            "then run: sfactl reload"
        )
    elif q.caller is not None and q.caller.status in {Status.STOPPING, Status.RETRYING}:
        # nothing may be born into a tree that is being emptied
        detail = f"run {q.caller.id} ('{q.caller.name}') is being stopped"
    else:
        return None
    return q.refuse(Rule.ENABLED, detail, f"{detail}. Nothing can be started now", remedy)


def _permission(q: Question) -> Refusal | None:
    permissions = q.caller.birth.permissions if q.caller is not None else FULL
    asked = q.run.asked
    if asked.session is not None or asked.terms.nested:
        detail = why_sessions_refused(q.peer, permissions, q.policy.access)
    else:
        detail = why_verb_refused(q.peer, "spawn", permissions, q.policy.access)
    if detail is None and q.detached and not q.policy.guard.allow_detach:
        detail = f"run {q.peer.run} may not start a detached run (guard.allow_detach = false)"
    if detail is None:
        return None
    remedy = (
        "Start a daemon of your own (sfad serve), or ask root"
        if not q.policy.access.serves(q.peer)
        else "Try again from a shell outside any run"
    )
    return q.refuse(Rule.PERMISSION, detail, detail, remedy)


def _chain(q: Question) -> Refusal | None:
    """Ask the rules that only a run can break which is called by others."""
    birth = q.run.root.birth
    if not q.run.ancestors and not birth.origin and not birth.claimed_depth:
        return None  # as most
    return _loop(q) or _depth(q) or _descendants(q)


def _loop(q: Question) -> Refusal | None:
    if not q.run.ancestors and not q.run.birth.origin:
        return None
    known = [run.identity for run in q.run.ancestors]
    # a claim says names only, so it matches either kind
    own_kind, own = q.run.identity
    if q.run.asked.identity.unnamed and q.policy.guard.unnamed == "child":
        return None  # scripts do this on purpose; depth, descendants and money bound it
    chain = [(kind or own_kind, name) for kind, name in (*q.run.root.birth.origin, *known)]
    if q.run.identity not in chain:
        return None
    names = [name for _, name in chain]
    path = [*names[chain.index(q.run.identity) :], own]
    shown = " → ".join(path)
    return Refusal(
        kind=Rule.LOOP,
        detail=f"{own_kind} '{own}' already runs higher in the chain: {shown}",
        message=q.message(f"it would call itself in a circle ({shown})", "").rstrip()
        + f" {_another(q)}",
        value=len(path) - 1,
        path=path,
    )


def _another(q: Question) -> str:
    if q.run.asked.identity.agent is not None:
        return (
            f"It is the registered agent '{q.run.asked.identity.agent}', whatever its name; "
            "another agent needs an entry of its own."
        )
    name = "worker_name" if q.run.asked.by_tool else "--name"
    return f"If it really is a different agent, give it its own {name}."


def _depth(q: Question) -> Refusal | None:
    value, limit = q.chain_length, q.run.birth.max_depth
    if value < limit.value:
        return None
    return q.refuse(
        Rule.DEPTH,
        (
            f"the chain already holds {counted(value, 'run')}; "
            f"max_depth is {limit.value}, set by {limit.source}"
        ),
        f"the chain of agents calling agents is already {value} deep and {limit.value} is the "
        f"limit (max_depth, set by {limit.source})",
        f"Start it with a higher --max-depth, or {q.raised('guard.max_depth')}",
        Quota("guard.max_depth", value, limit.value),
    )


def _descendants(q: Question) -> Refusal | None:
    full = full_ancestor(q.run.parent)
    if full is None:
        return None
    run, limit = full
    return q.refuse(
        Rule.BUDGET,
        f"run {run.id} ('{run.name}') has already admitted {counted(run.admitted, 'descendant')}; "
        f"max_descendants is {limit.value}, set by {limit.source}",
        f"'{run.name}' (run {run.id}) and the agents below it have started "
        f"{counted(run.admitted, 'agent')} and {limit.value} is the limit (max_descendants, "
        f"set by {limit.source})",
        f"Start its root with a higher --max-descendants, or {q.raised('guard.max_descendants')}",
        Quota("guard.max_descendants", run.admitted, limit.value),
    )


def _money(q: Question) -> Refusal | None:
    short = q.shortage
    if short is None:
        return None
    used, reserved = round(short.used, 6), round(short.reserved or 0, 6) or None
    quota = Quota(short.key, used, short.allowed, short.wait, reserved)
    remedy = f"Start it again then, or {q.raised(short.key)}"
    return q.refuse(Rule.BUDGET, short.detail, short.why, remedy, quota)


def unenforced(run: Run) -> tuple[str, Limit] | None:
    """Return a limit that a person has asked for and that nothing would enforce, because nothing
    would tell what the run uses, and that in words. The defaults only are told so.

    A limit of a run above counts if that run uses the gateway, which keeps its limits. Where that
    run goes without it, its meter does, and reads nothing of what it starts anyway."""
    if (of_role := _unreported_role(run)) is not None:
        return of_role
    why = run.asked.sources.uncounted
    bounds = typed_bounds(run) if why is not None else ()
    whose, found = next(
        ((each, found) for each, found in bounds if each is run or each.asked.sources.gated),
        (run, None),
    )
    if found is None:
        return None
    limit = found.limit
    words = (
        f"its {limit.kind} limit" if whose is run else f"the {limit.kind} limit of run {whose.id}"
    )
    return (
        (
            f"nothing would enforce {words} of "
            f"{format_amount(limit.kind, limit.threshold)} ({limit.source}): {why}"
        ),
        limit,
    )


def _unreported_role(run: Run) -> tuple[str, Limit] | None:
    """Return such a limit of a role's cost: nothing but a report knows the role of a call."""
    for limit in () if run.asked.sources.reports else run.asked.terms.limits:
        if limit.kind in ROLES and limit.typed and run.limits[limit.kind].binds:
            bound = format_amount(limit.kind, limit.threshold)
            words = f"its {limit.kind} limit of {bound} ({limit.source})"
            return f"nothing would enforce {words}: {ROLES_ARE_REPORTED}", limit
    return None


def _unenforceable(q: Question) -> Refusal | None:
    """Refuse a run with such a limit. Of one that is to be placed, only its node knows."""
    run = q.run
    if run.parent is None and not run.asked.terms.limits and run.asked.grant is None:
        return None  # nobody has typed any
    found = unenforced(run) if run.remote is None else None
    if found is None:
        return None
    detail, limit = found
    gate = "Change that" if q.run.asked.sources.direct else "Start it with --gateway"
    meter = (
        "Name --meter report if its agents report so"
        if limit.kind in ROLES
        else f"{gate}; or name its --meter, --meter report if it reports its use itself"
    )
    remedy = f"{meter}; or let the limit only warn: --limit {limit.kind}={limit.threshold:g}:warn"
    return q.refuse(Rule.UNENFORCEABLE, detail, detail, remedy, Quota(limit=limit.threshold))


def _rate(q: Question) -> Refusal | None:
    if q.run.parent is not None or not q.rate.full(q.at):
        return None
    used, limit, wait = q.rate.used(q.at), q.rate.limit, q.rate.room_in(q.at)
    return q.refuse(
        Rule.RATE,
        f"user {q.peer.user} started {counted(used, 'tree')} within the last {q.rate.span:.0f} s; "
        f"quotas.spawns_per_hour is {limit}; one more fits in {wait:.0f} s",
        f"{counted(used, 'start')} within the last hour, "
        f"and {limit} is the limit (quotas.spawns_per_hour); the next can start in {wait:.0f} s",
        f"Wait, or {q.raised('quotas.spawns_per_hour')}",
        Quota("quotas.spawns_per_hour", used, limit, wait),
    )


def _concurrency(q: Question) -> Refusal | None:
    user, group = q.peer.user, q.run.asked.queueing.group
    if q.run.parent is not None or (q.slots.free_for(user, group) and not q.waits):
        return None
    if q.run.asked.queueing.queue:
        return (
            _queue_full(q, q.slots.queued_of(user))
            if q.slots.queued_of(user) >= q.policy.quotas.queued_per_user
            else None
        )
    in_group, own = q.slots.group_full(user, group), q.slots.full_for(user)
    live = _trees_in_the_way(q)
    if in_group:
        value, limit, key = len(live), q.slots.groups[group or ""], f"groups.{group}.slots"
    elif own:
        value, limit, key = len(live), q.slots.per_user, "quotas.trees_per_user"
    else:
        value, limit, key = q.slots.count, q.slots.total, "quotas.trees"
    # those that wait come first
    wait = _until_fewer(
        live, limit - (q.slots.queued_of(user) if own or in_group else q.slots.queued), q.at
    )
    whose = (
        f" for user {user} in the group '{group}'"
        if in_group
        else f" for user {user}"
        if own
        else ""
    )
    running = f"{counted(value, 'agent tree')} {'is' if value == 1 else 'are'} already running"
    running += " here, others on other machines," if q.slots.parts is not None else ""
    return q.refuse(
        Rule.CONCURRENCY,
        f"{running}{whose}; {key} is {limit}, and the request said not to queue{_when(wait)}",
        f"{running} and {limit} is the limit ({key}){_when(wait)}",
        f"Leave out --no-queue to wait for a slot, or {q.raised(key)}",
        Quota(key, value, limit, wait),
    )


def _window(q: Question) -> Refusal | None:
    if q.window is None or q.run.asked.queueing.queue:
        return None
    detail = f"{q.window}, and the request said not to queue"
    return q.refuse(
        Rule.CONCURRENCY,
        detail,
        detail,
        "Leave out --no-queue to wait for the reset, or keep less in [plans]",
    )


def _queue_full(q: Question, waiting: int) -> Refusal:
    key, limit = "quotas.queued_per_user", q.policy.quotas.queued_per_user
    full = q.slots.full_for(q.peer.user) and not q.slots.group_full(
        q.peer.user, q.run.asked.queueing.group
    )
    wait = _until_fewer(_trees_in_the_way(q), q.slots.per_user, q.at) if full else None
    wait = wait if limit else None
    said = (
        f"{counted(waiting, 'tree')} of user {q.peer.user} "
        f"{'waits' if waiting == 1 else 'wait'} to start"
    )
    when = _when(wait) or "; one more can wait when one of them has started or was stopped"
    return q.refuse(
        Rule.CONCURRENCY,
        f"{said}; {key} is {limit}{when}",
        f"{said} and {limit} is the limit ({key}){when}",
        f"Stop waiting trees that are not needed (sfactl list --status queued), or {q.raised(key)}",
        Quota(key, waiting, limit, wait),
    )


def _trees_in_the_way(q: Question) -> list[Run]:
    """Return the trees of which one has to end before the peer's user gets a slot."""
    user, group = q.peer.user, q.run.asked.queueing.group
    live = [run for run in q.live if run.parent is None and not q.slots.waits(run.id)]
    if q.slots.group_full(user, group):
        return [run for run in live if run.user == user and run.asked.queueing.group == group]
    return [run for run in live if run.user == user or not q.slots.full_for(user)]


def _when(wait: float | None) -> str:
    return (
        ""
        if wait is None
        else (
            f"; a slot is free in {format_elapsed(wait)} at the latest, "
            "when trees reach their time limits"
        )
    )


def _session_rate(q: Question) -> Refusal | None:
    if q.session_rate is None or not q.session_rate.full(q.at):
        return None
    used, limit, span = (
        q.session_rate.used(q.at),
        q.session_rate.limit,
        format_elapsed(q.session_rate.span),
    )
    return _refuse_session(
        q,
        Rule.RATE,
        (
            f"user {q.peer.user} has started {counted(used, 'session')} within the last {span}, "
            f"and {limit} is the limit"
        ),
        key="sessions.spawn_rate_limit",
        limit=limit,
        value=used,
        wait=q.session_rate.room_in(q.at),
    )


def _session_concurrency(q: Question) -> Refusal | None:
    rules = q.policy.sessions
    own = [run for run in q.sessions if run.user == q.peer.user]
    for live, limit, whose, key in (
        (
            own,
            rules.max_concurrent_per_user,
            f" of user {q.peer.user}",
            "sessions.max_concurrent_per_user",
        ),
        (q.sessions, rules.max_concurrent_global, "", "sessions.max_concurrent_global"),
    ):
        if len(live) >= limit:
            are = "is" if len(live) == 1 else "are"
            said = (
                f"{counted(len(live), 'session')}{whose} {are} already running, "
                f"and {limit} is the limit"
            )
            wait = _until_fewer(live, limit, q.at)
            return _refuse_session(
                q, Rule.CONCURRENCY, said, key=key, limit=limit, value=len(live), wait=wait
            )
    return None


def _until_fewer(live: Sequence[Run], limit: int, at: float) -> float | None:
    """Return the seconds until fewer than `limit` of the runs are left, if each takes all its time;
    `None` if one has no deadline, because it waits or is paused."""
    deadlines = sorted(run.deadline for run in live if run.deadline is not None)
    over = len(live) - limit
    return max(0.0, deadlines[over] - at) if over < len(deadlines) else None


def _refuse_session(
    q: Question, rule: Rule, said: str, *, key: str, limit: int, value: int, wait: float | None
) -> Refusal:
    when = "A start will be possible when one of them has ended"
    if wait is not None:
        moment = f"{format_moment(q.unix_time + wait)}, in {format_elapsed(wait)}"
        latest = (
            "" if rule is Rule.RATE else " at the latest: when one of them reaches its time limit"
        )
        when = f"A start will be possible at {moment}{latest}"
    waiting = "sessions_info" if q.run.asked.by_tool else "sfactl session info RUN --wait 60"
    advice = (
        (
            "Do not try again before; continue with what you already have, "
            f"or wait for your sessions with {waiting}"
        )
        if q.for_model
        else f"To allow more, {q.raised(key)}"
    )
    return Refusal(
        kind=rule,
        detail=f"{said} ({key}). {when}",
        message=f"'{q.run.name}' was not started: {said} ({key}). {when}. {advice}.",
        limit=limit,
        value=value,
        key=key,
        possible_in_s=None if wait is None else round(wait, 3),
    )


RULES: tuple[MayStart, ...] = (
    _enabled, _permission, _chain, _money, _unenforceable, _rate, _concurrency, _window,
)  # fmt: skip
"""In this order, because what cannot be fixed is told before what waiting would fix."""

GRANT_RULES = (_enabled, _permission, _unenforceable)
"""For a run that another node has granted: that one has asked the others, and has counted it."""

SESSION_RULES = (*RULES, _session_rate, _session_concurrency)

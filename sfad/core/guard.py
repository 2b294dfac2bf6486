"""May this run start? Ordered rules, first refusal wins (SPEC section 2). Reads memory only and fails closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..protocol.types import Bound, Refusal, Rule, Status
from ..protocol.units import counted
from .access import FULL, Peer, refuse_verb
from .budgets import Budget
from .events import Asked
from .quotas import SlidingWindow, Slots
from .run import Run
from .tree import spent_budget

FINISH = "Do not try again; finish your task with what you already have."
"""The advice to the model that reads a refusal. A model that is only told "no" retries (EVIDENCE: 970 spawns in 6 minutes)."""


@dataclass(frozen=True, slots=True)
class Question:
    """Everything the guard looks at."""

    at: float
    enabled: bool
    draining: bool
    peer: Peer
    asked: Asked
    identity: tuple[str, str]
    """Kind and name that the loop rule compares."""
    name: str
    parent: Run | None
    """The run that the peer is in."""
    above: Run | None
    """The parent of the run to be; `None` for a root, a detached run included."""
    origin: tuple[tuple[str | None, str], ...]
    """What is known of the chain above the root (`Run.origin`)."""
    claimed_depth: int
    """Runs above the root, as its peer claimed."""
    max_depth: Bound
    allow_detach: bool
    rate: SlidingWindow
    slots: Slots
    exhausted: Budget | None
    """A money budget of the peer's user with nothing left in it."""
    place: Callable[[str], str]
    """A config key with the file that sets it or would set it."""

    @property
    def for_model(self) -> bool:
        """Whether a model reads the answer: the peer is in a run, or says that it comes from one."""
        return self.peer.run is not None or bool(self.asked.claim.names) or self.asked.claim.depth > 0

    def message(self, why: str, way: str) -> str:
        """Return the message of a refusal: `why`, and for a model that it should finish, for a person the `way` to start it."""
        return f"'{self.name}' was not started: {why}. {FINISH if self.for_model else way}"

    def raised(self, key: str) -> str:
        """Return how a key of the config is raised."""
        return f"raise {self.place(key)}, then run: sfactl reload"

    @property
    def detached(self) -> bool:
        """A new root asked for from inside a run."""
        return self.asked.detach and self.parent is not None

    @property
    def chain_length(self) -> int:
        """Runs above the run to be, claimed ones included."""
        return (len(self.above.lineage) if self.above is not None else 0) + self.claimed_depth


def decide(question: Question) -> Refusal | None:
    """The first rule's refusal, or `None`: admitted. Changes nothing."""
    for rule in RULES:
        refusal = rule(question)
        if refusal is not None:
            return refusal
    return None


def _enabled(q: Question) -> Refusal | None:
    way = ""
    if q.draining:
        detail, way = "the daemon is stopping", "Start it again when the daemon is back: sfactl status"
    elif not q.enabled:
        detail, way = (
            "enabled = false in the daemon's config",
            f"To allow it, set {q.place('enabled')} to true, then run: sfactl reload",
        )
    elif q.parent is not None and q.parent.status in {Status.STOPPING, Status.RETRYING}:
        # nothing may be born into a tree that is being emptied
        detail = f"run {q.parent.id} ('{q.parent.name}') is being stopped"
    else:
        return None
    return Refusal(
        kind=Rule.ENABLED,
        detail=detail,
        message=q.message(f"{detail}. Nothing can be started now", way),
    )


def _permission(q: Question) -> Refusal | None:
    held = q.parent.permissions if q.parent is not None else FULL
    detail = refuse_verb(q.peer, "spawn", held)
    if detail is None and q.detached and not q.allow_detach:
        detail = f"run {q.peer.run} may not start a detached run (guard.allow_detach = false)"
    if detail is None:
        return None
    way = "Start a daemon of your own (sfad serve), or ask root" if not q.peer.owner else "Try again from a shell outside any run"
    return Refusal(kind=Rule.PERMISSION, detail=detail, message=q.message(detail, way))


def _loop(q: Question) -> Refusal | None:
    known = [run.identity for run in q.above.lineage] if q.above is not None else []
    # a claim says names only, so it matches either kind
    own_kind, own = q.identity
    chain = [(kind or own_kind, name) for kind, name in (*q.origin, *known)]
    if q.identity not in chain:
        return None
    names = [name for _, name in chain]
    path = [*names[chain.index(q.identity) :], own]
    shown = " → ".join(path)
    return Refusal(
        kind=Rule.LOOP,
        detail=f"{own_kind} '{own}' already runs higher in the chain: {shown}",
        message=q.message(f"it would call itself in a circle ({shown})", "").rstrip() + f" {_another(q)}",
        value=len(path) - 1,
        path=path,
    )


def _another(q: Question) -> str:
    if q.asked.identity is not None:
        return f"It is the registered agent '{q.asked.identity}', whatever its --name; another agent needs an entry of its own."
    return "If it really is a different agent, give it its own --name."


def _depth(q: Question) -> Refusal | None:
    value, limit = q.chain_length, q.max_depth
    if value < limit.value:
        return None
    return Refusal(
        kind=Rule.DEPTH,
        detail=f"the chain already holds {counted(value, 'run')}; max_depth is {limit.value}, set by {limit.source}",
        message=q.message(
            f"the chain of agents calling agents is already {value} deep and {limit.value} is the limit (max_depth, set by "
            f"{limit.source})",
            f"Start it with a higher --max-depth, or {q.raised('guard.max_depth')}",
        ),
        limit=limit.value,
        value=value,
    )


def _budget(q: Question) -> Refusal | None:
    spent = spent_budget(q.above)
    if spent is None:
        return None
    run, limit = spent
    return Refusal(
        kind=Rule.BUDGET,
        detail=f"run {run.id} ('{run.name}') has already admitted {counted(run.admitted, 'descendant')}; max_descendants is "
        f"{limit.value}, set by {limit.source}",
        message=q.message(
            f"'{run.name}' (run {run.id}) and the agents below it have started {counted(run.admitted, 'agent')} and {limit.value} "
            f"is the limit (max_descendants, set by {limit.source})",
            f"Start its root with a higher --max-descendants, or {q.raised('guard.max_descendants')}",
        ),
        limit=limit.value,
        value=run.admitted,
    )


def _money(q: Question) -> Refusal | None:
    if q.exhausted is None:
        return None
    return Refusal(
        kind=Rule.BUDGET,
        detail=q.exhausted.told,
        message=q.message(
            f"there is no money left in the budget: {q.exhausted.told}",
            f"Start it again then, or {q.raised(q.exhausted.key)}",
        ),
    )


def _rate(q: Question) -> Refusal | None:
    if q.above is not None or not q.rate.full(q.at):
        return None
    used, limit, wait = q.rate.used(q.at), q.rate.limit, q.rate.room_in(q.at)
    return Refusal(
        kind=Rule.RATE,
        detail=f"user {q.peer.user} started {counted(used, 'tree')} within the last {q.rate.span:.0f} s; quotas.spawns_per_hour is "
        f"{limit}; one more fits in {wait:.0f} s",
        message=q.message(
            f"{counted(used, 'start')} within the last hour, and {limit} is the limit (quotas.spawns_per_hour); the next can start "
            f"in {wait:.0f} s",
            f"Wait, or {q.raised('quotas.spawns_per_hour')}",
        ),
        limit=limit,
        value=used,
    )


def _concurrency(q: Question) -> Refusal | None:
    if q.above is not None or q.asked.queue or q.slots.free_for(q.peer.user):
        return None
    own = q.slots.user_count(q.peer.user) >= q.slots.per_user
    value, limit, key = (
        (q.slots.user_count(q.peer.user), q.slots.per_user, "quotas.trees_per_user")
        if own
        else (q.slots.count, q.slots.total, "quotas.trees")
    )
    whose = f" for user {q.peer.user}" if own else ""
    running = f"{counted(value, 'agent tree')} {'is' if value == 1 else 'are'} already running"
    return Refusal(
        kind=Rule.CONCURRENCY,
        detail=f"{running}{whose}; {key} is {limit}, and the request said not to queue",
        message=q.message(
            f"{running} and {limit} is the limit ({key})", f"Leave out --no-queue to wait for a slot, or {q.raised(key)}"
        ),
        limit=limit,
        value=value,
    )


RULES: tuple[Callable[[Question], Refusal | None], ...] = (
    _enabled, _permission, _loop, _depth, _budget, _money, _rate, _concurrency,
)  # fmt: skip
"""The order is the specification's: what cannot be fixed is told before what waiting would fix."""

"""What has to be remembered of a live run so that another daemon can go on with it: `Birth`, which never changes, and `State`.

They share the run's own parts instead of copying them: whoever keeps one encodes it before the next event is handled. Times
are those of the core's clock, and of no meaning after a reboot (`rebased`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..protocol.types import ApiTrouble, Bound, LimitKind, Reason, RunId, Status, Survivor
from .access import Permissions
from .account import Account
from .events import Asked, Token
from .limits import Limits
from .run import Clock, Exit, Run
from .stop import Stop


@dataclass(frozen=True, slots=True)
class Birth:
    """What is settled when a run is admitted."""

    id: RunId
    number: int
    name: str
    kind: str
    asked: Asked
    uid: int
    user: str
    channel: str
    parent: RunId | None
    created_at: float
    max_depth: Bound
    max_descendants: Bound
    max_time: float
    permissions: Permissions
    origin: tuple[tuple[str | None, str], ...]
    claimed_depth: int


@dataclass(frozen=True, slots=True)
class State:
    """What changes. The fields are those of `Run`."""

    status: Status
    limits: Limits
    committed: bool
    admitted: int
    attempt: int
    retry_at: float
    pid: int | None
    exit: Exit | None
    clock: Clock
    started_at: float | None
    ended_at: float | None
    frozen: bool
    frozen_until: float | None
    stop: Stop | None
    clearing: bool
    account: Account
    held_by: LimitKind | None
    held_reason: Reason | None
    held_until: float | None
    tools_said: frozenset[str]
    said_finished: bool
    said_failed: str | None
    outcome: Status | None
    reason: Reason | None
    tied_to: int | None
    admit_token: Token | None
    pause_tokens: list[Token]
    out_of_money: Reason | None = None
    by_hand: bool = False
    suspended: bool = False
    api_trouble: ApiTrouble | None = None
    max_time: float | None = None
    """`None` in what an older daemon has remembered: as in `Birth`."""


def birth_of(run: Run) -> Birth:
    """What to remember once."""
    return Birth(
        id=run.id,
        number=run.number,
        name=run.name,
        kind=run.kind,
        asked=run.asked,
        uid=run.uid,
        user=run.user,
        channel=run.channel,
        parent=run.parent.id if run.parent is not None else None,
        created_at=run.created_at,
        max_depth=run.max_depth,
        max_descendants=run.max_descendants,
        max_time=run.max_time,
        permissions=run.permissions,
        origin=run.origin,
        claimed_depth=run.claimed_depth,
    )


def state_of(run: Run) -> State:
    """What to remember after each change."""
    return State(
        status=run.status,
        limits=run.limits,
        committed=run.committed,
        admitted=run.admitted,
        attempt=run.attempt,
        retry_at=run.retry_at,
        pid=run.pid,
        exit=run.exit,
        clock=run.clock,
        started_at=run.started_at,
        ended_at=run.ended_at,
        frozen=run.frozen,
        frozen_until=run.frozen_until,
        stop=run.stop,
        clearing=run.clearing,
        account=run.account,
        held_by=run.held_by.limit.kind if run.held_by is not None else None,
        held_reason=run.held_reason,
        held_until=run.held_until,
        tools_said=frozenset(run.tools_said),
        said_finished=run.said_finished,
        said_failed=run.said_failed,
        outcome=run.outcome,
        reason=run.reason,
        tied_to=run.tied_to,
        admit_token=run.admit_token,
        pause_tokens=run.pause_tokens,
        out_of_money=run.out_of_money,
        by_hand=run.by_hand,
        suspended=run.suspended,
        api_trouble=run.api_trouble,
        max_time=run.max_time,
    )


def restored(birth: Birth, state: State, parent: Run | None) -> Run:
    """The run as it was when it was last remembered. Its parent does not know of it yet."""
    run = Run(
        id=birth.id,
        number=birth.number,
        name=birth.name,
        kind=birth.kind,
        asked=birth.asked,
        uid=birth.uid,
        user=birth.user,
        channel=birth.channel,
        parent=parent,
        status=state.status,
        created_at=birth.created_at,
        max_depth=birth.max_depth,
        max_descendants=birth.max_descendants,
        limits=state.limits,
        max_time=birth.max_time if state.max_time is None else state.max_time,
        permissions=birth.permissions,
        origin=birth.origin,
        claimed_depth=birth.claimed_depth,
    )
    run.held_by = state.limits.get(state.held_by) if state.held_by is not None else None
    run.tools_said = set(state.tools_said)
    for name in _AS_THEY_ARE:
        setattr(run, name, getattr(state, name))
    return run


_AS_THEY_ARE = (
    "committed", "admitted", "attempt", "retry_at", "pid", "exit", "clock", "started_at", "ended_at", "frozen", "frozen_until",
    "stop", "clearing", "account", "held_reason", "held_until", "said_finished", "said_failed", "outcome", "reason", "tied_to",
    "admit_token", "pause_tokens", "out_of_money", "by_hand", "suspended", "api_trouble",
)  # fmt: skip


def rebased(birth: Birth, state: State, at: float) -> tuple[Birth, State]:
    """The same for a clock that has begun anew since: what was to happen later happens from `at` on, and how long the run had been
    running when the machine went down nobody knows."""
    clock = Clock(spent=state.clock.spent)
    stop = state.stop
    if stop is not None:
        stop = replace(stop, began_at=at, grace_ends_at=at, killed_at=None if stop.killed_at is None else at)
    started_at = at if state.started_at is not None else None
    return replace(birth, created_at=at), replace(
        state, clock=clock, stop=stop, retry_at=at, started_at=started_at, frozen_until=None, held_until=None
    )


@dataclass(frozen=True, slots=True)
class Remembered:
    """A run that an earlier daemon held, and what there is of it now."""

    run: Run
    """As it was when it was last remembered (`restored`), but for its `pid`: of its main process, if that is alive now."""
    empty: bool = True
    """Nothing is alive in its containment, child runs included."""
    starting: bool = False
    """Its launch is in flight, and will be reported."""
    startable: bool = False
    """What it takes to start it is there: command, environment, descriptors."""
    begun: bool = True
    """The main process of its latest attempt was remembered. Else that has executed nothing."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A stop request that waits for its runs."""

    token: Token
    began_at: float
    pending: frozenset[RunId]
    stopped: tuple[RunId, ...]
    survivors: tuple[Survivor, ...]

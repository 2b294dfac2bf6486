"""What happened. Every event carries `at`, seconds on the shell's monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..protocol.types import ApiTrouble, Limit, LimitKind, RunId, Source, Survivor
from .access import Peer
from .account import Hold, Use
from .asked import Asked
from .budgets import Budget
from .policy import Policy
from .run import Token
from .snapshot import Remembered, Ticket
from .vocabulary import Timer


@dataclass(frozen=True, slots=True)
class At:
    """Base of all events."""

    at: float


@dataclass(frozen=True, slots=True)
class OfRun(At):
    """Something happened to a run. Nothing follows if the run has ended."""

    run: RunId


@dataclass(frozen=True, slots=True)
class OfPeer(At):
    """A peer asked for something."""

    token: Token
    peer: Peer


@dataclass(frozen=True, slots=True)
class OfPeerOnRun(OfPeer):
    """A peer asked for something of a run, which it may only with this verb."""

    verb: ClassVar[str]
    run: RunId


@dataclass(frozen=True, slots=True)
class SpawnRequested(OfPeer):
    """A peer asked for a run. Answered by `AnswerRequest(Admitted)` or `AnswerRequest(SpawnRefused)`."""

    asked: Asked


@dataclass(frozen=True, slots=True)
class StopRequested(OfPeer):
    """A peer asked to stop these runs. Answered by `AnswerRequest(StopDone)` once everything is gone or something survived."""

    runs: tuple[RunId, ...]
    signal: int = 15
    grace: float | None = None


@dataclass(frozen=True, slots=True)
class PauseRequested(OfPeerOnRun):
    """A peer asked to freeze a run and everything below it."""

    verb = "pause"
    suspended: bool = False
    """The peer is its foreground client, which is about to stop itself."""


@dataclass(frozen=True, slots=True)
class ResumeRequested(OfPeerOnRun):
    """A peer asked to thaw a paused run. `limits` give more room to what paused it."""

    verb = "resume"
    limits: tuple[Limit, ...] = ()
    suspended: bool = False
    """Only if it was paused as `suspended`."""


@dataclass(frozen=True, slots=True)
class ApproveRequested(OfPeerOnRun):
    """A peer granted the increase that a run waits for."""

    verb = "approve"
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class DenyRequested(OfPeerOnRun):
    """A peer refused the increase that a run waits for."""

    verb = "deny"


@dataclass(frozen=True, slots=True)
class LimitRequested(OfPeerOnRun):
    """A peer asked to change limits of a live run, up or down. Answered by `AnswerRequest(Changed)`."""

    verb = "limit"
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class ReportRequested(OfPeerOnRun):
    """A peer told what a run has used since it last did. Answered by `AnswerRequest(Changed)`."""

    verb = "report"
    more: Use


@dataclass(frozen=True, slots=True)
class ReserveRequested(OfPeerOnRun):
    """A peer asked whether a run may use so much. Answered by `AnswerRequest(ReserveAnswer)`."""

    verb = "reserve"
    hold: Hold


@dataclass(frozen=True, slots=True)
class SettleRequested(OfPeer):
    """A peer told what became of a reservation. Answered by `AnswerRequest(Changed)`."""

    reservation: str
    used: Use


@dataclass(frozen=True, slots=True)
class UseSeen(OfRun):
    """What a run has used in all its attempts, as a source tells it now."""

    source: Source
    use: Use


@dataclass(frozen=True, slots=True)
class ToolsCalled(OfRun):
    """The agent called these tools."""

    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AgentSaid(OfRun):
    """What this attempt's agent says of itself: whether its final result is out, why it failed, if it did, and whether it cannot
    reach its model."""

    finished: bool
    failed: str | None
    trouble: ApiTrouble | None = None


@dataclass(frozen=True, slots=True)
class LevelSeen(OfRun):
    """What the kernel tells of a run and its descendants: bytes of memory, or processes."""

    kind: LimitKind
    level: float
    refused: bool = False
    """The kernel has refused more, or killed for want of it."""


@dataclass(frozen=True, slots=True)
class AdviceLearned(At):
    """What the ledger taught about the limits of a type or name (`limits.advice_key`), for `limits.adaptive`."""

    key: str
    thresholds: Mapping[LimitKind, float]


@dataclass(frozen=True, slots=True)
class BudgetsKnown(At):
    """Money budgets of users and teams as they stand: at the start, after a change of the config, and when one is renewed."""

    budgets: tuple[Budget, ...]


@dataclass(frozen=True, slots=True)
class ClientGone(At):
    """A connection ended; runs tied to it end with it."""

    client: int


@dataclass(frozen=True, slots=True)
class ClientBack(OfRun):
    """A client that had lost its connection ties a run to the one it has now."""

    client: int


@dataclass(frozen=True, slots=True)
class Recovered(At):
    """What an earlier daemon held, parents before children. The first event of all: of these runs alone is anything alive."""

    runs: tuple[Remembered, ...]
    why: str
    """What became of that daemon, as the beginning of a sentence about a run: `the daemon was killed`."""
    continued: bool = False
    """It was this very process: requests and connections are still there."""
    tickets: tuple[Ticket, ...] = ()
    learnt: tuple[Event, ...] = ()
    """What was read of these runs since they were saved: their use, and what their agents said."""


@dataclass(frozen=True, slots=True)
class Committed(At):
    """The ledger holds the admission of these runs: they may start."""

    runs: tuple[RunId, ...]


@dataclass(frozen=True, slots=True)
class CommitFailed(At):
    """The ledger could not take the admission of these runs: they must not start."""

    runs: tuple[RunId, ...]
    error: str


@dataclass(frozen=True, slots=True)
class LaunchSucceeded(OfRun):
    """The run's command has been executed (execve returned into it)."""

    pid: int


@dataclass(frozen=True, slots=True)
class LaunchFailed(OfRun):
    """The run's command could not be executed. Nothing of this attempt is alive."""

    errno: int
    error: str
    kind: Literal["launch", "output"] = "launch"
    """`output`: not the command is to blame, but the place where its output, or what is remembered of it, was to go."""
    about: Literal["command", "directory"] = "command"
    """What the error is about, for `launch`."""


@dataclass(frozen=True, slots=True)
class MainExited(OfRun):
    """The run's main process has been reaped. It comes after `LaunchSucceeded`, and before `Emptied` of the run or of an
    ancestor."""

    code: int | None
    """The exit code, or `None` if a signal ended it."""
    signal: int | None = None
    """Neither: how it ended cannot be known, since it was not this process's child."""
    empty: bool = False
    """Nothing else is alive in the run's containment, child runs included."""


@dataclass(frozen=True, slots=True)
class Emptied(OfRun):
    """Nothing is alive in the run's containment, child runs included. Only reported for a run that is being emptied."""


@dataclass(frozen=True, slots=True)
class Frozen(OfRun):
    """The containment that `Freeze` named stands still."""


@dataclass(frozen=True, slots=True)
class Surveyed(OfRun):
    """The answer to `Survey`: what is still alive."""

    survivors: tuple[Survivor, ...]


@dataclass(frozen=True, slots=True)
class TimerFired(OfRun):
    """A timer that was armed has come due."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class DrainRequested(At):
    """The daemon was told to end: nothing starts any more and every tree is stopped. A second one skips the grace."""

    signal: int = 15
    cause: str | None = None
    """Why, in words, where more is known than the signal."""


@dataclass(frozen=True, slots=True)
class Reconfigured(At):
    """The configuration was read again. What was admitted keeps its own bounds; who waited may have room now."""

    policy: Policy


OfLauncher = LaunchSucceeded | LaunchFailed | MainExited | Emptied | Frozen | Surveyed
OfMeters = UseSeen | LevelSeen | ToolsCalled | AgentSaid
OfRuns = OfLauncher | OfMeters | ClientBack | TimerFired
OfAgentsOnRuns = ReportRequested | ReserveRequested
OfPeopleOnRuns = PauseRequested | ResumeRequested | ApproveRequested | DenyRequested | LimitRequested
OfPeersOnRuns = OfAgentsOnRuns | OfPeopleOnRuns
OfPeers = SpawnRequested | StopRequested | SettleRequested
OfDaemon = Committed | CommitFailed | ClientGone | BudgetsKnown | AdviceLearned | Reconfigured | DrainRequested | Recovered

Event = OfRuns | OfPeersOnRuns | OfPeers | OfDaemon

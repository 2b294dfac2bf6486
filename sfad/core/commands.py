"""What to do, and the outcome of an event that holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..protocol import types
from ..protocol.types import ErrorCode, LimitRefusal, Refusal, RunId, Survivor
from .run import Run, Token
from .vocabulary import Timer


@dataclass(frozen=True, slots=True)
class WithRun:
    """Base of commands about a run and its state."""

    run: Run


@dataclass(frozen=True, slots=True)
class WithId:
    """Base of commands about a run's processes."""

    run: RunId


@dataclass(frozen=True, slots=True)
class Admit(WithRun):
    """Save the run's first snapshot, write it to the ledger, and answer `Committed` or `CommitFailed`. Nothing is started
    before."""


@dataclass(frozen=True, slots=True)
class Save(WithRun):
    """Write the run as it is now to the ledger: it started, or it reached a terminal status."""


@dataclass(frozen=True, slots=True)
class Rebound(WithRun):
    """The run's limits have changed: tell what enforces memory, processes and output outside the core."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Add nano-dollars to what a user's or a team's budget has been charged in its present period."""

    scope: Literal["user", "team"]
    name: str
    nanos: int


@dataclass(frozen=True, slots=True)
class RecordRefusal(WithRun):
    """Write a refused run to the ledger."""


@dataclass(frozen=True, slots=True)
class CountRefusal(WithId):
    """Add one to the refusals counted in an earlier refused run's row."""


@dataclass(frozen=True, slots=True)
class Launch(WithRun):
    """Start the run's command in a containment nested in its parent's; answer `LaunchSucceeded` or `LaunchFailed`. If neither
    comes before the run's time is over, its timer `deadline` fires."""


@dataclass(frozen=True, slots=True)
class Terminate(WithId):
    """Freeze the run's containment, send `signal` to every process in it, thaw it. From now on report `Emptied`.

    It reaches launches in flight, which `Emptied` must not overtake, and it thaws the run and every child run that was
    frozen on its own: a signal is pending until then. It does not thaw ancestors.
    """

    signal: int


@dataclass(frozen=True, slots=True)
class Interrupt(WithId):
    """Send SIGINT to the run's main process alone, and nothing to any other process."""


@dataclass(frozen=True, slots=True)
class Kill(WithId):
    """SIGKILL everything in the run's containment, again and again until it is empty. Report `Emptied`."""


@dataclass(frozen=True, slots=True)
class Survey(WithId):
    """Tell what is still alive in the run's containment, and why as far as the kernel says; answer `Surveyed`."""


@dataclass(frozen=True, slots=True)
class Freeze(WithId):
    """Freeze the run's containment, child runs included; answer `Frozen`."""


@dataclass(frozen=True, slots=True)
class Thaw(WithId):
    """Undo `Freeze`. Child runs that were frozen on their own stay so, and so does everything below a frozen ancestor."""


@dataclass(frozen=True, slots=True)
class Release(WithId):
    """The run is terminal and empty: remove its containment and forget its resources. Children were released before."""


@dataclass(frozen=True, slots=True)
class Arm(WithId):
    """Feed `TimerFired(run, timer)` at time `at`; replaces an earlier one of the same name."""

    timer: Timer
    at: float


@dataclass(frozen=True, slots=True)
class Disarm(WithId):
    """Forget a timer, if there is one."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class Publish:
    """Number the event, write it to the ledger and the log, push it to each client that watches a run of `chain`."""

    event: types.Event
    chain: tuple[RunId, ...]
    """The event's run and its ancestors, root first."""


@dataclass(frozen=True, slots=True)
class ReportEnd(WithRun):
    """The run is terminal: answer the clients that wait for it. Always after its `Save`."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Answer the request that `token` names."""

    token: Token
    answer: Answer


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The daemon was told to end and nothing is alive any more."""


@dataclass(frozen=True, slots=True)
class Admitted(WithRun):
    """The run exists: it was started, could not be started (then it is `failed`), is queued or was cancelled meanwhile."""


@dataclass(frozen=True, slots=True)
class Known(WithId):
    """The run has been admitted before, for the same request."""


@dataclass(frozen=True, slots=True)
class SpawnRefused:
    """The guard's no. `run` is `None` where it was only counted."""

    refusal: Refusal
    run: RunId | None


@dataclass(frozen=True, slots=True)
class StopDone:
    """What a stop achieved."""

    stopped: tuple[RunId, ...]
    survivors: tuple[Survivor, ...]
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Changed(WithRun):
    """The request was carried out; the reply shows the run as it is now."""


@dataclass(frozen=True, slots=True)
class ReserveAnswer(WithRun):
    """The name of a reservation, or why there is none."""

    reservation: str | None
    refusal: LimitRefusal | None = None


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The request cannot be done."""

    code: ErrorCode
    message: str


Answer = Admitted | Known | SpawnRefused | StopDone | Changed | ReserveAnswer | ErrorAnswer

ToLauncher = Launch | Terminate | Interrupt | Kill | Survey | Freeze | Thaw | Release
ToLedger = Admit | Save | RecordRefusal | CountRefusal | Charge | Publish
ToLoop = Arm | Disarm | Rebound | ReportEnd | AnswerRequest | Shutdown

Command = ToLauncher | ToLedger | ToLoop


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one event calls for."""

    commands: list[Command] = field(default_factory=list)
    """In the order in which they are to be applied."""
    changed: dict[RunId, Run] = field(default_factory=dict)
    """Runs whose snapshots are saved before any command is applied. They hold the decision, so that a daemon that takes over
    carries it out, whichever commands this one had applied."""
    used: dict[RunId, Run] = field(default_factory=dict)
    """Runs that have used more. Their rows and snapshots may be saved later."""

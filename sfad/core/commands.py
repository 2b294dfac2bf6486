"""What to do, and the outcome of an event that holds it."""

from __future__ import annotations

from msgspec import Struct

from ..protocol import types
from ..protocol.requests.gateway import CallDecision
from ..protocol.types import CallInfo, ErrorCode, LimitRefusal, Refusal, RunId, Survivor, Unreached
from .events import AgentProcess
from .state.run import Run, Token
from .state.vocabulary import Timer


class WithRun(Struct, frozen=True):
    """Base of commands about a run and its state."""

    run: Run


class WithId(Struct, frozen=True):
    """Base of commands that need no more of a run than its id."""

    run: RunId


class Admit(WithRun, frozen=True):
    """Save the run's first snapshot, write it to the ledger, and answer `Committed` or
    `CommitFailed`. Nothing is launched before."""


class Record(WithRun, frozen=True):
    """Write the run as it is now to the ledger: what a list of runs shows of it has changed for
    good, as its status has."""


class Rebound(WithRun, frozen=True):
    """The run's limits have changed: tell what enforces memory, processes and output outside the
    core."""


class RecordRefusal(WithRun, frozen=True):
    """Write a refused run to the ledger."""


class CountRefusal(WithId, frozen=True):
    """Add one to the refusals counted in an earlier refused run's row."""


class OfCall(Struct, frozen=True):
    """Base of commands about a model call. `lineage`: of its run."""

    call: CallInfo
    lineage: tuple[RunId, ...]


class TellCall(OfCall, frozen=True):
    """A call begins to wait: tell the clients that watch calls of its run."""


class RecordCall(OfCall, frozen=True):
    """A call has ended, or is not made: write its row to the ledger, and tell these clients."""


class Launch(WithRun, frozen=True):
    """Execute the run's command in a containment nested in its parent's; answer `LaunchSucceeded`
    or `LaunchFailed`. If neither comes before the run's time is over, its timer `deadline`
    fires."""


class Place(WithRun, frozen=True):
    """Have the run executed on another machine, or go on with what executes there: tell that what
    is wanted of it. `HeardOf` tells what becomes of it."""


class Terminate(WithId, frozen=True):
    """Freeze the run's containment, send `signal` to every process in it, thaw it. From now on
    report `Emptied`.

    It reaches launches in flight, which `Emptied` must not overtake, and it thaws the run and every
    child run that was frozen on its own: a signal is pending until then. It does not thaw
    ancestors."""

    signal: int


class Interrupt(WithId, frozen=True):
    """Send SIGINT to the run's main process alone, and nothing to any other process."""


class Kill(WithId, frozen=True):
    """SIGKILL everything in the run's containment, again and again until it is empty. Report
    `Emptied`."""


class MeterAgent(WithId, frozen=True):
    """Read the session file of an agent program that the run has started without asking. It may be
    told again."""

    process: AgentProcess


class Survey(WithId, frozen=True):
    """Tell what is still alive in the run's containment, and why as far as the kernel says; answer
    `Surveyed`."""


class Freeze(WithId, frozen=True):
    """Freeze the run's containment, child runs included; answer `Frozen`."""


class Thaw(WithId, frozen=True):
    """Undo `Freeze`. Child runs that were frozen on their own stay so, and so does everything below
    a frozen ancestor."""


class Release(WithId, frozen=True):
    """The run is terminal and empty: remove its containment and forget its resources. Children were
    released before."""


class Arm(WithId, frozen=True):
    """Feed `TimerFired(run, timer)` at time `at`; replaces an earlier one of the same name."""

    timer: Timer
    at: float


class Disarm(WithId, frozen=True):
    timer: Timer


class Remind(Struct, frozen=True):
    """Feed `Reminded(feature, key)` at time `at`, instead of when it was asked for before; `None`:
    not any more."""

    feature: str
    key: str
    at: float | None


class SaveOf(Struct, frozen=True):
    """Save what a feature's half in the core keeps, with the snapshots. `soon`: within a second is
    early enough. `used`: it counts what runs have used, which is saved with it."""

    feature: str
    soon: bool = False
    used: bool = False


class Tell(Struct, frozen=True):
    """Tell a feature's part what its half in the core has decided. Only these two know what that
    means."""

    feature: str
    what: object


class Publish(Struct, frozen=True):
    """Number the event, write it to the ledger and the log, push it to each client that watches a
    run of `lineage`, which is empty for an event of the daemon."""

    event: types.Event
    lineage: tuple[RunId, ...]


class Retire(WithRun, frozen=True):
    """The run is terminal: it leaves the live runs. Who waits is told once its end is on record.
    Always after its `Record`."""


class AnswerRequest(Struct, frozen=True):
    token: Token
    answer: Answer


class Shutdown(Struct, frozen=True):
    """The daemon was told to end and nothing is alive any more."""


class SpawnDone(WithRun, frozen=True):
    """The run exists: it was launched, could not be launched (then it is `failed`), is queued or
    was cancelled meanwhile."""


class Known(WithId, frozen=True):
    """The run has been admitted before, for the same request."""


class SpawnRefused(Struct, frozen=True):
    """The guard's no. `run` is `None` where it was only counted."""

    refusal: Refusal
    run: RunId | None


class StopDone(Struct, frozen=True):
    stopped: tuple[RunId, ...]
    survivors: tuple[Survivor, ...]
    elapsed_s: float
    ended: tuple[RunId, ...] = ()
    """Those of `stopped` that had ended before the request."""
    unreached: tuple[Unreached, ...] = ()
    """Those that execute elsewhere and are not known to be gone."""


class Changed(WithRun, frozen=True):
    """The request was carried out; the reply shows the run as it is now."""


class ReserveAnswer(WithRun, frozen=True):
    reservation: str | None
    refusal: LimitRefusal | None = None


class OnRecord(Struct, frozen=True):
    """A reply of a feature, which is sent once what is saved is on disk."""

    reply: Struct
    failing: str
    """What is said if it cannot be."""


class ErrorAnswer(Struct, frozen=True):
    code: ErrorCode
    message: str


Answer = (
    SpawnDone
    | Known
    | SpawnRefused
    | StopDone
    | Changed
    | ReserveAnswer
    | CallDecision
    | OnRecord
    | ErrorAnswer
)

ToLauncher = Place | Launch | Terminate | Interrupt | Kill | Survey | Freeze | Thaw | Release
ToStorage = Admit | Record | RecordRefusal | CountRefusal | RecordCall | Publish | SaveOf
ToLoop = (
    TellCall
    | Tell
    | MeterAgent
    | Arm
    | Disarm
    | Remind
    | Rebound
    | Retire
    | AnswerRequest
    | Shutdown
)

Command = ToLauncher | ToStorage | ToLoop


class Outcome(Struct, frozen=True):
    commands: list[Command] = []
    changed: dict[RunId, Run] = {}
    """Runs whose snapshots are saved before any command is applied. They hold the decision, so that
    a daemon that takes over carries it out, whichever commands this one had applied."""
    used: dict[RunId, Run] = {}
    """Runs that have used more. Their rows and snapshots may be saved later."""

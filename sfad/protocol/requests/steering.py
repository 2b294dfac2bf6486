"""Stopping runs, pausing them, changing their limits, and writing to them."""

from __future__ import annotations

from msgspec import Struct

from ..types import ErrorCode, Limit, RunId, Survivor, Unreached
from .base import ALWAYS, Reply, Request


class Stop(Request, tag="stop"):
    """Stop runs and everything below them: `runs`, and the live ones that `everything`, `name` and
    `labels` choose together; `bad_request` without any of these. Inside a run they choose among the
    runs below it. A run that has ended counts as stopped. Answered by `Stopped` when no process is
    alive, or `stop.kill_wait` seconds after SIGKILL."""

    repeats = ALWAYS

    runs: list[str] = []
    everything: bool = False
    name: str | list[str] | None = None
    labels: dict[str, str | list[str]] = {}
    signal: int = 15
    """The signal that is sent first; any number."""
    grace: float | None = None
    """Seconds until SIGKILL, 0 to 60; else each run's own. It can only shorten a stop that is under
    way."""
    sessions: bool = False
    """Only sessions, and only for a client that may start them."""


class Stopped(Reply, tag="stopped"):
    stopped: list[RunId]
    """The runs without a live process."""
    survivors: list[Survivor]
    elapsed_s: float
    ended: list[RunId] = []
    """Those of `stopped` that had ended before the request."""
    unreached: list[Unreached] = []
    """Runs on nodes that do not answer, which may live on until they are heard of."""


class Select(Request, tag="select"):
    """Find the runs that a command line means: `runs` (at most 1024), by id, name or prefix, and
    those chosen as in `Stop`. Of those chosen, `pause` takes the topmost running ones, and `resume`
    those that are paused themselves. Answered by `Selected`."""

    repeats = 1

    verb: str
    """The verb that will be used on them. The client needs permission for it."""
    runs: list[str] = []
    everything: bool = False
    name: str | list[str] | None = None
    labels: dict[str, str | list[str]] = {}


class Failure(Struct, frozen=True, kw_only=True):
    """A word of `Select.runs` that means no run, several runs, or a run on which the client may not
    use the verb."""

    run: str
    """The word of the request."""
    code: ErrorCode
    message: str


class Selected(Reply, tag="selected"):
    """The answer to `Select`: each id once; first those named, in the order of the request, then
    those chosen, oldest first."""

    runs: list[RunId]
    """Whole ids, parents before children."""
    failed: list[Failure] = []
    """The words of `Select.runs` that mean no run, several runs, or a run on which the peer may not
    use the verb."""


class Pause(Request, tag="pause"):
    """Freeze a run and everything below it, and stop their clocks. Answered by `RunReply` when all
    processes stand still, or at once if the run is paused already; `wrong_state` if it is neither
    running nor paused."""

    repeats = 1

    run: str
    suspended: bool = False
    """The run's foreground client is about to stop itself (Ctrl-Z). A run that is already paused
    keeps its reason."""


class Resume(Request, tag="resume"):
    """Thaw a paused run. If the run waits for an approval, this is the approval. Answered by
    `RunReply`; `wrong_state` if only an ancestor is paused.

    `bad_request`, and nothing changes, if `limits` lacks a limit that holds the run, or a value
    exceeds an ancestor's or is not above what is used. `not_permitted` with `limits` inside a run.
    """

    run: str
    limits: list[Limit] = []
    """New values of the limits that hold the run; without one, they only warn from now on."""
    suspended: bool = False
    """The foreground client was continued: undo only its own `Pause`."""


class Approve(Request, tag="approve"):
    """Grant the increase for which the action `request_increase` has frozen a run, and thaw it.
    Answered by `RunReply`; `wrong_state` if the run waits for no approval."""

    run: str
    limits: list[Limit] = []
    """As in `Resume`."""


class Deny(Request, tag="deny"):
    """Refuse the increase that a run waits for, and stop the run as `terminate` would. Answered by
    `RunReply` as soon as the stop begins."""

    run: str


class ChangeLimits(Request, tag="limit"):
    """Change limits of a live run (docs/limits.md#giving-more-room); inside a run, only lower them.
    Answered by `RunReply` when the change has taken effect; `bad_request`, and nothing changes, if
    a limit is outside its range or above an ancestor's."""

    run: str
    limits: list[Limit]
    """At least one, at most one of a kind; without an action it keeps its present one."""


class Signal(Request, tag="signal"):
    """Send a signal to the run's main process only: SIGINT, SIGQUIT, SIGWINCH, SIGTSTP, SIGCONT,
    SIGUSR1, SIGUSR2 or SIGHUP. Answered by `Done`."""

    run: str
    signal: int


class Send(Request, tag="send"):
    """Write to the stdin of a run that was started with `stdin` = `"pipe"`. Answered by `Done` when
    the bytes are queued, not read; `wrong_state` if the run has no such pipe; `unavailable` if the
    pipe is full or closed."""

    answered_there = True

    run: str
    data: bytes
    """May be empty."""
    eof: bool = False
    """Close the run's stdin after these bytes."""

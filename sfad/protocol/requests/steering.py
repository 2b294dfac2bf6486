"""Stopping runs, pausing them, changing their limits, and writing to them."""

from __future__ import annotations

from ..structs import Struct
from ..types import ErrorCode, Limit, RunId, Survivor
from .base import ALWAYS, Reply, Request


class Stop(Request, tag="stop"):
    """Stop runs and everything below them: `runs`, and the live ones that `everything`, `name` and `labels` choose together.
    Answered by `Stopped` when none of their processes is alive, or if some still are `stop.kill_wait` after SIGKILL."""

    repeats = ALWAYS

    runs: list[str] = []
    everything: bool = False
    name: str | list[str] | None = None
    labels: dict[str, str | list[str]] = {}
    signal: int = 15
    grace: float | None = None
    sessions: bool = False
    """Only sessions, and only for a peer that may start them."""


class Stopped(Reply, tag="stopped"):
    stopped: list[RunId]
    survivors: list[Survivor]
    elapsed_s: float
    ended: list[RunId] = []
    """Those of `stopped` that had ended before the request."""


class Select(Request, tag="select"):
    """Find the runs that a command line means: `runs`, by id, name or prefix, and those chosen as in `Stop`. Answered by
    `Selected`. Of those chosen, `pause` takes the topmost running ones, and `resume` those that are paused themselves."""

    repeats = 1

    verb: str
    """The verb that will be used on them. The peer needs permission for it."""
    runs: list[str] = []
    everything: bool = False
    name: str | list[str] | None = None
    labels: dict[str, str | list[str]] = {}


class Failure(Struct, frozen=True, kw_only=True):
    run: str
    code: ErrorCode
    message: str


class Selected(Reply, tag="selected"):
    """The answer to `Select`: each id once; first those named, in the order of the request, then those chosen, oldest first."""

    runs: list[RunId]
    failed: list[Failure] = []
    """The words of `Select.runs` that mean no run, several runs, or a run on which the peer may not use the verb."""


class Pause(Request, tag="pause"):
    """Freeze a run's whole tree and stop its clocks. Answered by `RunReply` when it is frozen."""

    repeats = 1

    run: str
    suspended: bool = False
    """The run's foreground client is about to stop itself (Ctrl-Z). A run that is already paused keeps its reason."""


class Resume(Request, tag="resume"):
    """Thaw a paused run. Answered by `RunReply`. The limit that paused it gets the threshold in `limits`; without one it only
    warns from now on."""

    run: str
    limits: list[Limit] = []
    suspended: bool = False


class Approve(Request, tag="approve"):
    """Grant the increase for which the action `request_increase` has frozen a run, and thaw it. Answered by `RunReply`."""

    run: str
    limits: list[Limit] = []


class Deny(Request, tag="deny"):
    """Refuse the increase that a run waits for, and stop it. Answered by `RunReply` as soon as the stop has begun."""

    run: str


class ChangeLimits(Request, tag="limit"):
    """Change limits of a live run, up or down. Answered by `RunReply`. A peer inside a run may only lower them."""

    run: str
    limits: list[Limit]


class Signal(Request, tag="signal"):
    """Send a signal to the run's main process only (SIGQUIT, SIGWINCH, SIGINT of a terminal). Answered by `Done`."""

    run: str
    signal: int


class Send(Request, tag="send"):
    """Write to the stdin of a run that was started with `stdin = "pipe"`. Answered by `Done`."""

    run: str
    data: bytes
    eof: bool = False

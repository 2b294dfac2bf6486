"""Following a run: its end, its events and its output."""

from __future__ import annotations

from ..structs import Literal, Struct, datetime
from ..types import CallInfo, Event, RunId
from .base import ALWAYS, Reply, Request


class Wait(Request, tag="wait"):
    """Wait for the end of a run, until the ledger holds it, or for `timeout` seconds. Answered by `RunReply`."""

    repeats = ALWAYS

    run: str
    timeout: float | None = None
    tie: bool = False
    """As `Spawn.tied`, for the client of a foreground run that has lost its connection."""


class Watch(Request, tag="watch"):
    """Push the events of a run and its descendants from now on. Answered by `Done`, then by `EventPush` with the same id."""

    repeats = 1

    run: str
    calls: bool = False
    """Push their model calls instead, each when it begins to wait and when it has ended or is not made, by `CallPush`."""


class EventPush(Reply, tag="event"):
    event: Event


class CallPush(Reply, tag="call"):
    call: CallInfo


class Logs(Request, tag="logs"):
    """Open the run's output files, which exist from its admission on, for reading. Answered by `LogFiles` with two descriptors."""

    repeats = 1

    run: str
    form: Literal["raw", "text", "auto"] = "raw"
    times: bool = False
    """Tell when the output was written."""


class ReadOutput(Request, tag="read_output"):
    """Read a piece of a run's output, over a connection that no descriptor passes. Needs the permission for `logs`. Answered by
    `OutputPart`."""

    repeats = 1

    run: str
    stream: Literal["stdout", "stderr"]
    offset: int = 0
    """From here on; below 0: so many bytes before the end."""


class OutputPart(Reply, tag="output_part"):
    data: bytes
    offset: int
    """Where the data begins: later than asked for, if the bytes before it were freed."""
    ended: bool
    """The run had ended, and this is all."""


class OutputTime(Struct, frozen=True, gc=False):
    """The bytes of a file before `offset`, and after the one before, were written by `time`."""

    offset: int
    time: datetime
    exact: bool
    """Within a second before it."""


class LogFiles(Reply, tag="log_files"):
    """Two descriptors: stdout, stderr. `ended`: the run has ended already. `kept`: the run's output goes to these files."""

    run: RunId
    ended: bool
    kept: bool = True
    descriptors: int = 2
    text: bool = False
    name: str = ""
    out_times: list[OutputTime] = []
    """Of stdout, if `Logs.times`."""
    err_times: list[OutputTime] = []


class Text(Request, tag="text"):
    """Return more of the text in the events of a run's stdout, if `LogFiles.text` says so. Answered by `TextPart` at once."""

    repeats = 1

    run: str
    cursor: bytes = b""
    final: bool = False
    """No text but the final answer, in the last part."""


class TextPart(Reply, tag="text"):
    run: RunId
    text: bytes
    cursor: bytes
    tools: list[str] = []
    notes: list[str] = []
    more: bool = False
    ended: bool = False

"""Following a run: its end, its events and its output."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from ..types import CallInfo, Event, RunId
from .base import ALWAYS, Reply, Request


class Wait(Request, tag="wait"):
    """Wait for the end of a run. Answered by `RunReply` when the ledger has its end, or after
    `timeout`."""

    repeats = ALWAYS

    run: str
    timeout: float | None = None
    """Seconds; 0 answers at once."""
    tie: bool = False
    """Stop the run when this connection ends. It needs the permission for `stop`."""


class Watch(Request, tag="watch"):
    """Push the events of a run and its descendants from now on. Answered by `Done`, then by an
    `EventPush` for each event until the connection ends. No message marks the last one: wait for
    `run_completed`, `run_failed`, `run_timeout` or `run_cancelled` of the run itself."""

    repeats = 1

    run: str
    calls: bool = False
    """Push their model calls instead, as `CallPush`: each when it begins to wait, and when it has
    ended or is not made. It needs the permission for `calls`."""


class EventPush(Reply, tag="event"):
    """An event. It has the `id` of the request that asked for it: `Watch`, `Spawn` or `Events`."""

    event: Event
    cursor: str = ""
    """As `Events.cursor`."""


class CallPush(Reply, tag="call"):
    """A model call. It has the `id` of the `Watch`."""

    call: CallInfo


class Logs(Request, tag="logs"):
    """Open the run's output files for reading; they exist from its admission on. To follow them,
    read as they grow (inotify(7)) and send `Wait` on the same connection; after its reply read to
    the end once more. Answered by `LogFiles` with two descriptors; `wrong_state` if there are no
    files."""

    repeats = 1

    run: str
    form: Literal["raw", "text", "auto"] = "raw"
    """`auto`: text if the client is in a run that has a meter."""
    times: bool = False
    """Tell when the output was written."""


class ReadOutput(Request, tag="read_output"):
    """Read a piece of a run's output, over a connection that no descriptor passes. Needs the
    permission for `logs`. Answered by `OutputPart`."""

    repeats = 1
    answered_there = True

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
    """They were written within the second before it."""


class LogFiles(Reply, tag="log_files"):
    """The descriptors are those of stdout and stderr; of a run with a terminal, then that of the
    terminal's record (docs/terminals.md#what-is-kept)."""

    run: RunId
    ended: bool
    kept: bool = True
    """False: the files stay empty."""
    descriptors: int = 2
    text: bool = False
    """Ask for stdout with `Text`; the descriptor only tells when it grows."""
    terminal: bool = False
    name: str = ""
    out_times: list[OutputTime] = []
    """Of stdout, if `Logs.times`."""
    err_times: list[OutputTime] = []
    """Of stderr, likewise."""


class Text(Request, tag="text"):
    """Return the next part of the text in the events of a run's stdout; other lines come unchanged.
    Ask again when `more` is true, when stdout has grown, and when the run has ended, until a reply
    has `ended` without `more`. It needs the permission for `logs`. Answered by `TextPart` at once,
    except for the final answer; `wrong_state` if there is no meter or no output; `bad_request` for
    a cursor of another version of the daemon."""

    repeats = 1

    run: str
    cursor: bytes = b""
    """The one of the last reply; empty: from the beginning."""
    final: bool = False
    """Each part has an empty `text`, and the last one has the final answer."""


class TextPart(Reply, tag="text"):
    run: RunId
    text: bytes
    cursor: bytes
    """Where this part ends; opaque."""
    tools: list[str] = []
    """The tool calls in this part, one line each."""
    notes: list[str] = []
    """Why something is missing in this part."""
    more: bool = False
    """More is available already."""
    ended: bool = False
    """The run has ended."""

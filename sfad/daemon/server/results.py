"""The result of a run and its transcript for a language model, from the output that it left."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from heapq import merge
from io import BytesIO
from os import close
from pathlib import Path

from ...agents import AgentProgram, named
from ...agents.text import Cursor, TextReader, answer, final_answer, with_end
from ...core.state.vocabulary import BY_AGENT
from ...protocol import messages as m
from ...protocol.errors import RequestError, wrong_state
from ...protocol.messages import Transcript, TranscriptText
from ...protocol.texts.sanitise import SafeText, cut_oldest, newest_text, sanitise, wrap
from ...protocol.types import Event, RunInfo, Status
from ...storage.ledger.database import open_reader
from ...storage.ledger.queries import Reader
from ...storage.output.files import OutputFiles, Replaced

# ---- The result of a run, from the output that it left: in the daemon, and in
# `sfad.daemon.history` without one


MAX_RESULT = 1024 * 1024
"""Bytes of a result at most: it is meant for a model's context."""

MAX_SEARCHED = 8 * MAX_RESULT
"""Newest bytes of stdout in which the final answer is looked for: it is near their end."""

NOT_KEPT = (FileNotFoundError, NotADirectoryError, Replaced)
"""What reading raises if the output is not there."""


def result(output: OutputFiles, info: RunInfo, request: m.Result) -> m.ResultText:
    """Return the result of a run that has ended. Call this in a thread, as `final_text`. Raise
    `RequestError` if no output was kept, `OSError`."""
    most = max(1, min(request.max_bytes, MAX_RESULT))
    program = None if request.raw else named(info.meter)
    try:
        data, truncated = output.tail(info.id, most if program is None else MAX_SEARCHED)
    except NOT_KEPT as error:
        raise no_output(info, error) from None
    if program is not None:
        data = answer(program, data, begins_inside=truncated, ended_by=_ended_by(info))
        truncated = False
    elif not request.raw and (ended_by := _ended_by(info)):
        data = with_end(data, ended_by)
    if not request.wrapped:
        text = newest_text(data, most)
        return m.ResultText(
            id=request.id, run=info.id, text=text, truncated=truncated or len(data) > most
        )
    safe, cut = cut_oldest(sanitise(data), most)
    truncated = truncated or cut
    text = wrap(
        "subagent_result",
        safe,
        run_id=info.id,
        name=info.name,
        status=info.status.value,
        truncated=truncated,
    )
    return m.ResultText(id=request.id, run=info.id, text=text, truncated=truncated)


def _ended_by(run: RunInfo) -> str:
    """Return what has ended a run, such as a limit; empty if the agent has."""
    if run.status is Status.COMPLETED or run.reason is None or run.reason.kind in BY_AGENT:
        return ""
    return run.reason.message


def final_text(output: OutputFiles, run: RunInfo, program: AgentProgram) -> bytes:
    """Return the final answer of a run that has ended. Call this in a thread: decoding the run's
    events takes some 20 ms, and a second if an agent means harm. Raise `RequestError` if no output
    was kept, `OSError`."""
    try:
        data, truncated = output.tail(run.id, MAX_SEARCHED)
    except NOT_KEPT as error:
        raise no_output(run, error) from None
    return final_answer(program, data, begins_inside=truncated)[-MAX_RESULT:]


def no_output(run: RunInfo, error: OSError) -> RequestError:
    missing = f"the output of run {run.id} is not there: it was not kept, or has been removed since"
    if run.started_at is None and run.status is not Status.LOST:
        missing = (
            f"run {run.id} has never started, so it has no output; sfactl why {run.id} says why"
        )
    return wrong_state(error.message if isinstance(error, Replaced) else missing)


# ---- The transcript of a run, for a language model: its events, and the newest lines of its output
#
# A session's events say how much output there was when they happened, so output stands between the
# right events. Between two events stdout comes before stderr.


MAX_LINES = 2000

MAX_READ = 256 * 1024
"""Newest bytes of stdout, and of stderr, that are looked at."""

MAX_TEXT = 64 * 1024
"""Bytes of a transcript: it is meant for a model's context."""

_Line = tuple[float, int, str]
"""Where it belongs among the events: its number, or between two numbers; the stream; the text."""

Written = tuple[int, bytes]
"""The newest bytes of a stream, and the offset of the first."""


def transcript(
    ledger: Path, output: OutputFiles, info: RunInfo, request: Transcript
) -> TranscriptText:
    """Return the transcript. Call this in a thread. Raise `OSError`, `sqlite3.Error`."""
    with closing(Reader(open_reader(ledger))) as reader:
        events = reader.events_of(info.id, info.created_at.timestamp())
    text, truncated = composed(info, events, _written(output, info), request.tail)
    return TranscriptText(id=request.id, run=info.id, text=text, truncated=truncated)


def composed(
    info: RunInfo, events: Sequence[Event], written: Sequence[Written], tail: int
) -> tuple[str, bool]:
    """Return the newest `tail` lines of the events and of what was written to stdout and stderr,
    and whether there are more."""
    streams: list[Iterable[_Line]] = [
        [(number, 0, _event_line(event)) for number, event in enumerate(events)]
    ]
    marks = [event.stdout_bytes for event in events], [event.stderr_bytes for event in events]
    for stream, (start, data) in enumerate(written):
        program = named(info.meter) if stream == 0 else None
        streams.append(
            _lines(
                ("stdout", "stderr")[stream], stream + 1, _said(program, start, data), marks[stream]
            )
        )
    lines: deque[str] = deque(maxlen=tail)
    count = 0
    for _, _, text in merge(*streams):
        lines.append(text)
        count += 1
    safe, cut = cut_oldest(SafeText("\n".join(map(_one_line, lines))), MAX_TEXT)
    truncated = cut or count > tail or any(start > 0 for start, _ in written)
    block = wrap(
        "subagent_transcript",
        safe,
        run_id=info.id,
        name=info.name,
        status=info.status.value,
        truncated=truncated,
    )
    return block, truncated


def _one_line(text: str) -> str:
    # each line by itself: a control string that begins in one line must not hide the events up to
    # where it ends
    return sanitise(text.encode("utf-8", "replace")).replace("\n", " ")


def _written(output: OutputFiles, info: RunInfo) -> list[Written]:
    try:
        descriptors = output.open_for_reader(info.id)
    except NOT_KEPT:
        return []
    try:
        return [output.newest(descriptor, MAX_READ) for descriptor in descriptors]
    finally:
        for descriptor in descriptors:
            close(descriptor)


def _lines(
    name: str, stream: int, said: Iterable[tuple[int, str]], marks: Sequence[int | None]
) -> Iterator[_Line]:
    for offset, line in said:
        yield _place(offset, marks), stream, f"{name}: {line}"


def _event_line(event: Event) -> str:
    at = f"{event.time:%Y-%m-%d %H:%M:%S} UTC " if event.time else ""
    return f"{at}{event.type}" + (f": {event.message}" if event.message else "")


def _place(offset: int, marks: Sequence[int | None]) -> float:
    """Return the place of a line that begins at this offset: after the last event before which
    there was less output."""
    place = 0
    for number, mark in enumerate(marks):
        if mark is None or mark <= offset:
            place = number
        else:
            break
    return place + 0.5


def _said(program: AgentProgram | None, start: int, data: bytes) -> Iterator[tuple[int, str]]:
    """Yield each line with its offset; of an agent's events what they say, and which tools they
    call."""
    if start:
        cut = data.find(b"\n") + 1
        start, data = start + cut, data[cut:]
    cursor, at, end, begun, text = Cursor(), start, 0, start, b""
    for line in BytesIO(data):
        end += len(line)
        if program is None:
            text, tools = line, []
        else:
            # a reader for each line, because a tool call stands between the texts
            shown = TextReader(program, cursor, partial(_part, data[:end]), end).step(
                ended=end == len(data)
            )
            begun, text, tools = begun if text else at, text + bytes(shown.text), shown.tools
        whole = text.rfind(b"\n") + 1 if end < len(data) else len(text)
        yield from (
            (begun if program else at, part)
            for part in text[:whole].decode("utf-8", "replace").splitlines()
        )
        text = text[whole:]
        yield from ((at, f"[calls the tool {tool}]") for tool in tools)
        at += len(line)


def _part(data: bytes, offset: int, size: int) -> tuple[int, bytes]:
    return offset, data[offset : offset + size]

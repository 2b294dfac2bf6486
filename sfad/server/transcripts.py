"""The transcript of a run, for a language model: its events, and the newest lines of its output.

A session's events say how much output there was when they happened, so output stands between the right events. Between two events
stdout comes before stderr.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from heapq import merge
from io import BytesIO
from os import close
from pathlib import Path

from ..ledger.database import open_reader
from ..ledger.reader import Reader
from ..meters import AgentProgram, named
from ..meters.text import Cursor, TextReader
from ..output.files import OutputFiles
from ..protocol.messages import Transcript, TranscriptText
from ..protocol.sanitise import cut_oldest, sanitise, wrap
from ..protocol.types import Event, RunInfo
from .results import NOT_KEPT

MAX_LINES = 2000

MAX_READ = 256 * 1024
"""Newest bytes of stdout, and of stderr, that are looked at."""

MAX_TEXT = 64 * 1024
"""Bytes of a transcript: it is meant for a model's context."""

_Line = tuple[float, int, str]
"""Where it belongs among the events: its number, or between two numbers; the stream; the text."""


def transcript(ledger: Path, output: OutputFiles, info: RunInfo, request: Transcript) -> TranscriptText:
    """Return the transcript. Call this in a thread. Raise `OSError`, `sqlite3.Error`."""
    with closing(Reader(open_reader(ledger))) as reader:
        events = reader.events_of(info.id, info.created_at.timestamp())
    lines: deque[str] = deque(maxlen=request.tail)
    count = 0
    for _, _, text in merge(*_streams(output, info, events)):
        lines.append(text)
        count += 1
    safe, cut = cut_oldest(sanitise("\n".join(lines).encode("utf-8", "replace")), MAX_TEXT)
    truncated = cut or count > request.tail
    text = wrap("subagent_transcript", safe, run_id=info.id, name=info.name, status=info.status.value, truncated=truncated)
    return TranscriptText(id=request.id, run=info.id, text=text, truncated=truncated)


def _streams(output: OutputFiles, info: RunInfo, events: list[Event]) -> Iterator[list[_Line]]:
    yield [(number, 0, _event_line(event)) for number, event in enumerate(events)]
    program = named(info.meter)
    try:
        descriptors = output.open_for_reader(info.id)
    except NOT_KEPT:
        return
    try:
        for stream, descriptor in enumerate(descriptors):
            start, data = output.newest(descriptor, MAX_READ)
            marks = [event.stdout_bytes if stream == 0 else event.stderr_bytes for event in events]
            words = _said(program if stream == 0 else None, start, data)
            name = "stderr" if stream else "stdout"
            yield [(_place(at, marks), stream + 1, f"{name}: {line}") for at, line in words]
    finally:
        for descriptor in descriptors:
            close(descriptor)


def _event_line(event: Event) -> str:
    at = f"{event.time:%Y-%m-%d %H:%M:%S} UTC " if event.time else ""
    return f"{at}{event.type}" + (f": {event.message}" if event.message else "")


def _place(offset: int, marks: list[int | None]) -> float:
    """Return the place of a line that begins at this offset: after the last event before which there was less output."""
    place = 0
    for number, mark in enumerate(marks):
        if mark is None or mark <= offset:
            place = number
        else:
            break
    return place + 0.5


def _said(program: AgentProgram | None, start: int, data: bytes) -> Iterator[tuple[int, str]]:
    """Yield each line with its offset; of an agent's events what they say, and which tools they call."""
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
            shown = TextReader(program, cursor, partial(_part, data[:end]), end).step(ended=end == len(data))
            begun, text, tools = begun if text else at, text + bytes(shown.text), shown.tools
        whole = text.rfind(b"\n") + 1 if end < len(data) else len(text)
        yield from ((begun if program else at, part) for part in text[:whole].decode("utf-8", "replace").splitlines())
        text = text[whole:]
        yield from ((at, f"[calls the tool {tool}]") for tool in tools)
        at += len(line)


def _part(data: bytes, offset: int, size: int) -> tuple[int, bytes]:
    return offset, data[offset : offset + size]

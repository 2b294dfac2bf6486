"""The text in an agent's events: what `run --text` and `result` give instead of JSON.

    bytes of stdout ─▶ lines ─ events ─▶ AgentProgram.speech ─ WholeText, TextDelta … ─▶ Shown
                             └ other lines pass through unchanged

`TextReader` shows a stream as it grows. All that it remembers is in a `Cursor`, which travels to
the client and back: the daemon keeps nothing for a reader, so a reader survives the daemon.
`answer` finds the final answer of a stream that has ended.
"""

import re
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Annotated, Any

import msgspec
from msgspec import Struct, field

from .counters import printable
from .lenient import mended
from .line_meter import (
    BOM,
    AgentFailure,
    FinalText,
    Speech,
    TextBreak,
    TextDelta,
    ToolCall,
    WholeText,
)
from .program import AgentProgram

READ_SIZE = 64 << 10
MAX_EVENT = 1 << 20
"""Bytes of the longest line that is decoded, during which every client of the daemon waits: 80 ms
for the densest JSON. A longer line is left out if it begins like an event, and shown otherwise.
Larger events are outputs of tools, which say nothing to the user."""
MAX_ABOUT = 120
"""Characters that describe the arguments of a tool call."""
FORM = 1
"""The version of `Cursor`; the daemon refuses any other."""

_OPENERS = (b"{", BOM[:1])
_TYPE = b'"type"'
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that could steer a terminal. JSON escapes them, so the run's own output could not
steer it."""
_LIKE_EVENT = re.compile(rb'\{[^\n]{0,4096}"type"[ \t]*:[ \t]*"')


class Cursor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """How far a reader has come. A client keeps it, and may send anything in its place."""

    form: int = FORM
    offset: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] = 0
    """Where the first line begins that was not shown, or its rest."""
    scanned: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] = 0
    """There is no newline between `offset` and here."""
    inside: bool = False
    """`offset` is in the middle of a line that is shown unchanged."""
    skipping: bool = False
    """`offset` is in the middle of a line that is left out."""
    length: int = 0
    """Bytes of the part that was shown last; `sum` is its CRC-32. They tell whether a text was
    shown already."""
    sum: int = 0
    streaming: bool = False
    """That part came as deltas; more deltas, or the whole part, may follow."""
    open: bool = False
    """What was shown last lacks a newline, which must come before anything else."""


class Shown(Struct):
    text: bytearray = field(default_factory=bytearray)
    tools: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    more: bool = False


Read = Callable[[int, int], tuple[int, bytes]]
"""Takes an offset and a number of bytes; returns at most so many bytes of the stream, and their
offset, which is higher if the bytes at the given offset were freed."""


class TextReader:
    def __init__(self, program: AgentProgram, cursor: Cursor, read: Read, size: int) -> None:
        """`size`: the present size of the stream. `cursor` is changed in place."""
        self._program = program
        self._cursor = cursor
        self._read = read
        self._size = size
        self._shown = Shown()

    def step(self, *, ended: bool) -> Shown:
        """Show what comes next. `ended`: nothing will be added, so a last line needs no newline."""
        cursor, shown = self._cursor, self._shown
        if self._size < cursor.offset:
            shown.notes.append("the run truncated its output; starting again at its beginning")
            cursor.offset, cursor.scanned, cursor.inside, cursor.skipping = 0, 0, False, False
        start, data = self._read(cursor.offset, READ_SIZE)
        if start > cursor.offset:
            freed = start - cursor.offset
            shown.notes.append(
                f"{freed} bytes were freed before they were read (the output limit, "
                "or a full disk, keeps only the newest)"
            )
            cursor.offset, cursor.inside, cursor.skipping = start, False, True
        self._rest_of_line(data)
        self._lines(data[cursor.offset - start :], ended=ended)
        if ended and cursor.offset >= self._size:
            self._close()
        shown.more = start < cursor.offset < self._size
        return shown

    def _rest_of_line(self, data: bytes) -> None:
        cursor = self._cursor
        if not (cursor.inside or cursor.skipping):
            return
        end = data.find(b"\n") + 1
        part = data[: end or None]
        if cursor.inside:
            self._shown.text += part
        cursor.offset += len(part)
        if end:
            cursor.inside = cursor.skipping = False

    def _lines(self, data: bytes, *, ended: bool) -> None:
        whole = data.rfind(b"\n") + 1
        # unlike `splitlines`, it does not split at a carriage return
        for line in BytesIO(data[:whole]):
            self._line(line)
        self._cursor.offset += whole
        rest = data[whole:]
        if rest and not rest.startswith(_OPENERS):
            self._pass(rest)
            self._cursor.inside = True
        elif rest and not whole:
            self._long(rest, ended=ended)

    def _long(self, begun: bytes, *, ended: bool) -> None:
        cursor = self._cursor
        begin = cursor.offset
        at, end = max(begin + len(begun), cursor.scanned), 0
        while not end and at < min(self._size, begin + MAX_EVENT):
            at, data = self._read(at, READ_SIZE)
            if not data:
                break
            end = at + data.find(b"\n") + 1 if b"\n" in data else 0
            at += len(data)
        whole = end > 0 or (ended and at >= self._size)
        if whole and (end or at) - begin <= MAX_EVENT:
            self._line(self._read(begin, (end or at) - begin)[1])
            cursor.offset = end or at
        elif not whole and at - begin < MAX_EVENT:
            cursor.scanned = at
        elif _LIKE_EVENT.match(begun):
            self._shown.notes.append(
                f"an event of more than {MAX_EVENT} bytes is left out; the run's log has it"
            )
            cursor.skipping = True
            cursor.offset += len(begun)
        else:
            self._pass(begun)
            cursor.inside = True

    def _line(self, line: bytes) -> None:
        event = decoded(self._program, line)
        if event is None:
            self._close()
            self._shown.text += line
            return
        for said in self._program.speech(event):
            self._show(said)

    def _pass(self, part: bytes) -> None:
        self._close()
        self._shown.text += part
        self._cursor.offset += len(part)

    def _show(self, said: Speech) -> None:
        cursor = self._cursor
        match said:
            case TextDelta(text):
                if not cursor.streaming:
                    self._begin()
                    cursor.streaming = True
                self._part(text)
            case WholeText(text):
                if not (cursor.streaming and self._was_shown(text)):
                    self._begin()
                    self._part(text)
                cursor.streaming = False
                self._close()
            case FinalText(text) if not self._was_shown(text):
                self._begin()
                self._part(text)
                self._close()
            case TextBreak() | FinalText():
                cursor.streaming = False
                self._close()
            case ToolCall(name, about):
                self._shown.tools.append(_call(name, about))

    def _was_shown(self, text: str) -> bool:
        data = _harmless(text)
        return (self._cursor.length, self._cursor.sum) == (len(data), zlib.crc32(data))

    def _begin(self) -> None:
        self._close()
        self._cursor.length = self._cursor.sum = 0

    def _part(self, text: str) -> None:
        data, cursor = _harmless(text), self._cursor
        self._shown.text += data
        cursor.length += len(data)
        cursor.sum = zlib.crc32(data, cursor.sum)
        cursor.open = not data.endswith(b"\n") if data else cursor.open

    def _close(self) -> None:
        if self._cursor.open:
            self._shown.text += b"\n"
            self._cursor.open = False


def _harmless(text: str) -> bytes:
    return _CONTROLS.sub("", text).encode()


def answer(
    program: AgentProgram, stream: bytes, *, begins_inside: bool = False, ended_by: str = ""
) -> bytes:
    """Return the final answer of a stream that has ended, and why the agent failed, if it did.
    Without an answer, return all lines that are not events. `begins_inside`: the stream lacks its
    beginning, so its first line may be the end of an event. `ended_by`: what has ended the run, if
    not the agent; then it stands in the place of what the agent says of that."""
    said, passed, failed = _ending(program, stream, begins_inside=begins_inside)
    answered = said.encode() or passed
    if ended_by or not failed:
        return with_end(answered, ended_by)
    return _joined(answered, f"The agent failed: {failed}")


def with_end(answered: bytes, ended_by: str) -> bytes:
    """Return an answer with what has ended the run, if that is not empty."""
    return _joined(answered, f"The run was not completed: {ended_by}" if ended_by else "")


def _joined(answered: bytes, why: str) -> bytes:
    return b"\n".join(part.rstrip(b"\n") for part in (answered, why.encode()) if part)


def final_answer(program: AgentProgram, stream: bytes, *, begins_inside: bool = False) -> bytes:
    """Return what `answer` does for a terminal or a pipe: without control characters, and without
    why the agent failed, which the run's reason says."""
    said, passed, _ = _ending(program, stream, begins_inside=begins_inside)
    text = _harmless(said) or passed
    return text if not text or text.endswith(b"\n") else text + b"\n"


def _ending(program: AgentProgram, stream: bytes, *, begins_inside: bool) -> tuple[str, bytes, str]:
    """Return the final answer, the lines that are not events, and why the agent failed; each may be
    empty."""
    if begins_inside:
        stream = stream[stream.find(b"\n") + 1 :]
    found: list[str] = []
    passed, failed, streaming = bytearray(), "", False
    for line in BytesIO(stream):
        event = decoded(program, line)
        if event is None:
            passed += b"" if _left_out(line) else line
            continue
        for said in program.speech(event):
            match said:
                case TextDelta(text):
                    found, streaming = found if streaming else [], True
                    found.append(text)
                case WholeText(text) | FinalText(text):
                    found, streaming, failed = [text], False, ""
                case TextBreak():
                    streaming = False
                case AgentFailure(words):
                    failed = words
    return "".join(found), bytes(passed), failed


def _left_out(line: bytes) -> bool:
    return len(line) > MAX_EVENT and _LIKE_EVENT.match(line) is not None


def decoded(program: AgentProgram, line: bytes) -> dict[str, Any] | None:
    if not line.startswith(_OPENERS) or _TYPE not in line or len(line) > MAX_EVENT:
        return None
    line = line.removeprefix(BOM)
    for repair in (bytes, mended):
        try:
            event = msgspec.json.decode(repair(line))
        except RecursionError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        return event if _is_event(program, event) else None
    return None


def _is_event(program: AgentProgram, value: Any) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and (program.event_types is None or kind in program.event_types)


def _call(name: Any, about: Any) -> str:
    if isinstance(about, dict):
        about = next((value for value in about.values() if isinstance(value, str)), None)
    return ": ".join(
        part
        for part in (printable(name, MAX_ABOUT) or "a tool", printable(about, MAX_ABOUT))
        if part
    )

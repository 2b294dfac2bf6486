"""The output of a run with a terminal: its text, its screen now, and its recording."""

import codecs
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sfad.features.terminals.recorded import Shown, entries
from sfad.features.terminals.screen import TOKEN, Line
from sfad.protocol.encoding import to_json
from sfad.protocol.texts.redaction import secrets

from .. import output
from ..options.shared import Tail
from ..showing.follower import Follower, data_from
from .replay import PIECE, Replay


def screen(descriptors: Sequence[int]) -> None:
    """Print the screen as it is now, or was at the run's end."""
    replay = Replay(descriptors[0], descriptors[2])
    replay.take_all()
    coloured = os.isatty(1) and not os.environ.get("NO_COLOR")
    lines = _without_end(replay.screen.lines)
    for line in lines:
        text = f"{line.drawn()}\x1b[m" if coloured else line.text
        os.write(1, f"{text}\n".encode())


def _without_end(lines: Sequence[Line]) -> Sequence[Line]:
    """Return lines without the empty ones at their end."""
    end = len(lines)
    while end and not lines[end - 1].text:
        end -= 1
    return lines[:end]


# ---- The text: lines that have left the screen, and those that are on it


def text_of(kind: type[Follower]) -> Callable[..., Follower]:
    """Return what makes a follower as `kind` is, which copies the text of a terminal. It takes what
    `kind` takes, and `record`, `follows`, `tail`."""

    class Text(kind):  # type: ignore[misc, valid-type]
        def __init__(
            self, *given: Any, record: int, follows: bool, tail: Tail | None, **more: Any
        ) -> None:
            super().__init__(*given, **more)
            self._lines: list[str] = []
            self._wrapped = ""
            self._replay = Replay(self.source, record, whole=True, left=self._left)
            self._tail = tail
            self._follows = follows
            self._finished = False

        def _left(self, line: Line) -> None:
            text = self._wrapped + ("".join(line.characters) if line.wrapped else line.text)
            self._wrapped = text if line.wrapped else ""
            if not line.wrapped:
                self._lines.append(text)
            self._lines += "\n".join(line.closed).rstrip().splitlines()

        def fill(self, *, last: bool = False) -> bool:
            while not self._pending:
                more = self._replay.take() is not None
                if self._tail is not None or not self._follows:
                    self._replay.take_all()
                    more = False
                if not more and (last or not self._follows) and not self._finished:
                    self._finished = True
                    shown = self._replay.screen
                    for line in _without_end(shown.main):
                        self._left(line)
                    if shown.alternate:
                        for line in _without_end(shown.lines):
                            self._left(line)
                if self._lines or not more:
                    break
            if self._lines:
                self._give()
            return bool(self._pending)

        def _give(self) -> None:
            if self._tail is not None and self._tail.lines:
                del self._lines[: -self._tail.amount or None]
            data = "".join(f"{line}\n" for line in self._lines).encode()
            if self._tail is not None and not self._tail.lines:
                data = data[-self._tail.amount :] if self._tail.amount else b""
            self._tail = None
            self._lines = []
            self._pending = memoryview(data if self._shown is None else self._shown(data))

    return Text


# ---- The recording: asciinema's asciicast v2


def recording(run: str, descriptors: Sequence[int]) -> Iterator[bytes]:
    """Yield the lines of a recording. What looks like a key is left out."""
    out, _, record = descriptors
    begin = data_from(out, 0) or 0
    shown = list(entries(record))
    first = next((each for each in reversed(shown) if each.offset <= begin), None)
    first = first or (shown[0] if shown else Shown(0, 0, 24, 80))
    yield to_json({
        "version": 2, "width": first.columns, "height": first.rows,
        "timestamp": first.milliseconds // 1000, "title": f"sfad run {run}",
        "env": {"TERM": "xterm-256color"},
    }) + b"\n"  # fmt: skip
    for seconds, kind, text in _covered(_events(out, begin, first, shown)):
        yield to_json([round(seconds, 3), kind, text]) + b"\n"


Event = tuple[float, str, str]


def _events(out: int, begin: int, first: Shown, shown: Sequence[Shown]) -> Iterator[Event]:
    """Yield time, kind and text of what was shown."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    size = os.fstat(out).st_size
    rows, columns = first.rows, first.columns
    following = [*(each.offset for each in shown[1:]), size]
    for each, end in zip(shown, following, strict=False):
        seconds = max(0, each.milliseconds - first.milliseconds) / 1000
        if (each.rows, each.columns) != (rows, columns):
            rows, columns = each.rows, each.columns
            yield seconds, "r", f"{columns}x{rows}"
        at = max(each.offset, begin)
        while at < end and (data := os.pread(out, min(PIECE, end - at), at)):
            at += len(data)
            if text := decode(data, final=at >= size):
                yield seconds, "o", text


WINDOW, OVERLAP = 1 << 18, 1 << 14
"""Characters that are searched for keys at once, and those that are searched again with the next: a
key may come in pieces, because a program writes, or a person types, one character after another."""


def _covered(events: Iterator[Event]) -> Iterator[Event]:
    """Yield events with `*` in place of each character of what looks like a key."""
    held: list[Event] = []
    size = 0
    for each in events:
        held.append(each)
        size += len(each[2])
        if size >= WINDOW and (not _cover(held) or size >= 4 * WINDOW):
            while held and size - len(held[0][2]) >= OVERLAP:
                size -= len(held[0][2])
                yield held.pop(0)
    _cover(held)
    yield from held


def _cover(events: list[Event]) -> bool:
    """Cover keys in events. Return whether one reaches their end, and may go on."""
    parts, begins, places = [], [], []
    at = 0
    for number, (_, kind, text) in enumerate(events):
        for token in TOKEN.finditer(text) if kind == "o" else ():
            if token.lastgroup == "text" or token[0] in "\r\n\t":
                parts.append(token[0])
                begins.append(at)
                places.append((number, token.start()))
                at += len(token[0])
    end = 0
    for begin, end in secrets("".join(parts)):
        here = begin
        while here < end:
            part = bisect_right(begins, here) - 1
            stop = min(end, begins[part] + len(parts[part]))
            number, start = places[part]
            start += here - begins[part]
            seconds, kind, text = events[number]
            covered = re.sub(r"[^\s]", "*", text[start : start + stop - here])
            events[number] = seconds, kind, text[:start] + covered + text[start + stop - here :]
            here = stop
    return 0 < at == end


def record(run: str, descriptors: Sequence[int]) -> None:
    """Print the recording."""
    if os.isatty(1):
        output.note(
            f"sfactl: a recording is for a file: sfactl logs --asciicast {run} > {run}.cast"
        )
    for line in recording(run, descriptors):
        data = line
        while data:
            data = data[os.write(1, data) :]

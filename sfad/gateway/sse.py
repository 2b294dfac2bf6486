"""Server-sent events, piece by piece (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import re
from collections.abc import Iterator

MAX_EVENT = 4 << 20
"""Bytes of one event. A longer one is skipped: the events that tell usage and the whole reply have some hundred kilobytes."""
_LINE_END = re.compile(rb"\r\n|\r|\n")
"""In JSON none of them occurs unescaped."""
_BLANK_LINES = re.compile(rb"(?:\r\n|\r|\n){3,}")
"""The same as one. Each line takes half a microsecond, and a compressed piece of the stream may hold a million."""


class EventStream:
    """Splits a stream into the data of its events. The name of an event is not needed: the data of each API say it too."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._kept = 0
        """Bytes of these."""
        self._size = 0
        """Bytes of the event so far."""
        self._after_cr = False

    @property
    def held(self) -> int:
        """Bytes that are kept of the event that is not whole."""
        return len(self._line) + self._kept

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of each event that the piece completes."""
        if not piece:
            return
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        *ends, rest = _LINE_END.split(_BLANK_LINES.sub(b"\n\n", piece))
        for end in ends:
            self._add(end)
            yield from self._end_line()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= MAX_EVENT:
            self._line += part
        elif part and not self._line:
            self._line += part[:1]  # a line that is skipped must not look empty

    def _end_line(self) -> Iterator[bytes]:
        line = bytes(self._line)
        self._line.clear()
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._kept += len(line)
        elif not line:
            if self._data and self._size <= MAX_EVENT:
                yield b"\n".join(self._data)
            self._data.clear()
            self._size = self._kept = 0

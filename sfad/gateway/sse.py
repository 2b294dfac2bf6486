"""Server-sent events, piece by piece (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from collections.abc import Iterator

MAX_EVENT = 4 << 20
"""Bytes of the data of one event. A longer one is skipped: the largest events that tell usage have some kilobytes."""


class Events:
    """Splits a stream into the data of its events. The name of an event is not needed: the data of all three APIs say it too."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of each event that the piece completes."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        # CR, LF and CRLF end a line; in JSON none of them occurs unescaped
        *lines, rest = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if self._line or self._size > MAX_EVENT:
                line = bytes(self._line) + line
                self._line.clear()
            yield from self._take(line)
        if self._size <= MAX_EVENT:
            self._size += len(rest)
            self._line += rest if self._size <= MAX_EVENT else b""

    def _take(self, line: bytes) -> Iterator[bytes]:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._size += len(line)
        elif not line:
            if self._data and self._size <= MAX_EVENT:
                yield b"\n".join(self._data)
            self._data.clear()
            self._size = 0

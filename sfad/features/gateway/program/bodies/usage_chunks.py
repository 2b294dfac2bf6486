"""Takes the chunks out of a stream of Chat Completions that say only what was used.

The gateway asks for them (`include_usage`) where the client has not. They have no choices, and
clients that read `choices[0]` of each chunk crash at them.
"""

import re
from typing import Any

import msgspec

_END = re.compile(rb"(?:\r\n|\r|\n){2}")
_LINES = re.compile(rb"\r\n|\r|\n")
MOST_HELD = 64 << 10
"""Bytes of an event that is held until it is whole. One of usage has some hundred."""


class _Chunk(msgspec.Struct):
    choices: Any = None
    usage: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class UsageChunks:
    def __init__(self) -> None:
        self._held = bytearray()
        self._passes = False
        """The event that has begun is too long to be one of usage."""

    def feed(self, data: bytes) -> bytes:
        """Take a piece of a stream, and return what of it the client gets now."""
        self._held += data
        kept, start = bytearray(), 0
        for end in _END.finditer(self._held):
            event = bytes(self._held[start : end.end()])
            if self._passes or not _tells_usage_only(event):
                kept += event
            self._passes, start = False, end.end()
        del self._held[:start]
        if self._passes or len(self._held) > MOST_HELD:
            kept += self.end()
            self._passes = True
        return bytes(kept)

    def end(self) -> bytes:
        """Return what is left of the stream."""
        rest = bytes(self._held)
        self._held.clear()
        return b"" if not self._passes and _tells_usage_only(rest) else rest


def _tells_usage_only(event: bytes) -> bool:
    if b'"usage"' not in event:
        return False
    lines = _LINES.split(event.removeprefix(b"\xef\xbb\xbf"))
    data = b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))
    try:
        chunk = _CHUNK.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return not chunk.choices and bool(chunk.usage)

"""Copy output files line by line: with their run, with the time a line was seen, or as JSON."""

import os
import time
from typing import Any, NamedTuple

from sfad.protocol.structs import to_json

from . import output
from .follower import Follower

LONGEST = 1 << 20
"""Maximum bytes of a line that waits for its end; a longer line is shown in pieces."""
OLD = "sfactl: the time of lines marked ≤ is that of the last write to their file; when each was written is not recorded"


class Source(NamedTuple):
    """A file of output, and where to copy it."""

    stream: str
    file: int
    target: int
    """The descriptor of this process to write to."""


class LineForm:
    """How to show a line of one file."""

    def __init__(self, source: Source, *, run: str | None, prefix: str, colour: int, stamped: bool, json: bool) -> None:
        """`run` and `prefix` name the run if several are shown; `colour` is an SGR number (ECMA-48)."""
        self._run = run
        coloured = prefix and not json and os.isatty(source.target) and not os.environ.get("NO_COLOR")
        self._prefix = f"\x1b[{colour}m{prefix}\x1b[0m" if coloured else prefix
        self._stream = source.stream
        self._stamped = stamped
        self._json = json
        self._written = os.fstat(source.file).st_mtime

    @property
    def plain(self) -> bool:
        return not (self._prefix or self._stamped or self._json)

    def __call__(self, line: bytes, seen: float | None) -> bytes:
        """Return `line`, which has no newline, as it is shown. `seen` is in Unix seconds, `None` for a line from before."""
        if self._json:
            return to_json(self._object(line, seen)) + b"\n"
        stamp = "" if not self._stamped else f"{' ' if seen else '≤'}{_local(seen or self._written)} "
        return f"{self._prefix}{stamp}".encode() + line + b"\n"

    def _object(self, line: bytes, seen: float | None) -> dict[str, Any]:
        shown: dict[str, Any] = {} if self._run is None else {"run": self._run}
        shown |= {"stream": self._stream, "text": line.decode(errors="backslashreplace")}
        if self._stamped:
            shown |= {"time": None if seen is None else _utc(seen), "not_after": _utc(seen or self._written)}
        return shown


def _local(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _utc(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1000):03}Z"


class LineFollower(Follower):
    """Collect lines and write each in its form. Writes may block, because a signal ends `sfactl logs` anyway."""

    def __init__(self, source: Source, offset: int, form: LineForm) -> None:
        super().__init__(source.file, source.target, output.note, offset)
        self._form = form
        self._there_before = os.fstat(source.file).st_size
        self._partial = b""

    def flush(self) -> None:
        *complete, self._partial = (self._partial + self.take()).split(b"\n")
        position = self.offset - len(self._partial) - sum(len(line) + 1 for line in complete)
        shown = []
        for line in complete:
            position += len(line) + 1
            shown.append(self._shown(line, position))
        if len(self._partial) > LONGEST:
            shown.append(self._shown(self._partial, self.offset))
            self._partial = b""
        self._write(b"".join(shown))

    def finish(self) -> None:
        """Write the last line, if the run did not end it with a newline."""
        if self._partial:
            self._write(self._shown(self._partial, self.offset))
            self._partial = b""

    def _shown(self, line: bytes, end: int) -> bytes:
        if end <= self._there_before:
            return self._form(line, None)
        return self._form(line, time.time())

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.target, data) :]

    def _continue_at(self, offset: int, why: str) -> None:
        self.finish()
        if offset < self.offset:
            self._there_before = 0  # the file was truncated: everything in it is new
        super()._continue_at(offset, why)

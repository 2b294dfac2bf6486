"""Copy output files line by line: with their run, with the time a line was seen, or as JSON."""

import os
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sfad.protocol.requests.following import OutputTime
from sfad.protocol.structs import to_json

from . import output
from .follower import Follower

LONGEST = 1 << 20
"""Maximum bytes of a line that waits for its end; a longer line is shown in pieces."""
OLD = "sfactl: lines marked ≤ were written by that time; when exactly is not recorded"


class Source(NamedTuple):
    """A file of output, and where to copy it."""

    stream: str
    file: int
    target: int
    """The descriptor of this process to write to."""


class LineForm:
    """How to show a line of one file."""

    def __init__(
        self,
        source: Source,
        *,
        run: str | None,
        prefix: str,
        colour: int,
        stamped: bool,
        json: bool,
        times: Sequence[OutputTime] = (),
    ) -> None:
        """`run` and `prefix` name the run if several are shown; `colour` is an SGR number (ECMA-48). `times`: when the file was
        written."""
        self._run = run
        coloured = prefix and not json and os.isatty(source.target) and not os.environ.get("NO_COLOR")
        self._prefix = f"\x1b[{colour}m{prefix}\x1b[0m" if coloured else prefix
        self._stream = source.stream
        self._stamped = stamped
        self._json = json
        status = os.fstat(source.file)
        self._times = [*times] or [OutputTime(status.st_size, datetime.fromtimestamp(status.st_mtime, UTC), exact=False)]

    def has_old_lines(self, offset: int) -> bool:
        """Return whether the time of a line from `offset` on is not exact."""
        return any(not each.exact for each in self._times if each.offset > offset)

    def forget(self) -> None:
        """The file was truncated, and everything in it is new."""
        self._times.clear()

    @property
    def plain(self) -> bool:
        return not (self._prefix or self._stamped or self._json)

    def __call__(self, line: bytes, end: int) -> bytes:
        """Return `line`, which has no newline, as it is shown. `end`: the offset behind it. If no time is told, it is now."""
        written = None
        if self._stamped:
            at = bisect_left(self._times, end, key=lambda each: each.offset)
            written = self._times[at] if at < len(self._times) else OutputTime(end, datetime.now(UTC), exact=True)
        if self._json:
            return to_json(self._object(line, written)) + b"\n"
        stamp = "" if written is None else f"{' ' if written.exact else '≤'}{output.local(written.time)} "
        return f"{self._prefix}{stamp}".encode() + line + b"\n"

    def _object(self, line: bytes, written: OutputTime | None) -> dict[str, Any]:
        shown: dict[str, Any] = {} if self._run is None else {"run": self._run}
        shown |= {"stream": self._stream, "text": line.decode(errors="backslashreplace")}
        if written is not None:
            by = written.time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            shown |= {"time": by if written.exact else None, "not_after": by}
        return shown


class LineFollower(Follower):
    """Collect lines and write each in its form. Writes may block, because a signal ends `sfactl logs` anyway."""

    def __init__(self, source: Source, offset: int, form: LineForm) -> None:
        super().__init__(source.file, source.target, output.note, offset)
        self._form = form
        self._partial = b""

    def flush(self) -> None:
        *complete, self._partial = (self._partial + self.take()).split(b"\n")
        position = self.offset - len(self._partial) - sum(len(line) + 1 for line in complete)
        shown = []
        for line in complete:
            position += len(line) + 1
            shown.append(self._form(line, position))
        if len(self._partial) > LONGEST:
            shown.append(self._form(self._partial, self.offset))
            self._partial = b""
        self._write(b"".join(shown))

    def finish(self) -> None:
        """Write the last line, if the run did not end it with a newline."""
        if self._partial:
            self._write(self._form(self._partial, self.offset))
            self._partial = b""

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.target, data) :]

    def _continue_at(self, offset: int, why: str) -> None:
        self.finish()
        if offset < self.offset:
            self._form.forget()
        super()._continue_at(offset, why)

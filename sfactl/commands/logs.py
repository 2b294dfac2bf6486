"""`sfactl logs RUN`

What the run wrote, unchanged: its stdout on stdout and its stderr on stderr. With --stdout or --stderr only that one, on
stdout. -f follows until the run ends, over restarts of the daemon too; it may begin before the run does. A note on stderr tells
of what the output limit has freed before it was read.

With --json, one object a line of output: {"stream", "text"}; bytes that are not UTF-8 appear as \\xNN.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress

from sfad.protocol import messages as m

from .. import follow, loop, output
from ..connection import AGAIN, Client, ConnectionLost, check
from ..exits import Exit, UsageError
from ..history import connect
from ..options import COMMON, RUN, Option, Parameter

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    RUN,
    Option(("--follow", "-f"), "follow_", "Go on until the run ends"),
    Option(("--stdout",), "stdout", "Only stdout"),
    Option(("--stderr",), "stderr", "Only stderr"),
    Option(("--tail", "-n"), "tail", "Begin N lines before the end, or so many bytes: 20, 4096B, 64KiB", "N"),
)

STREAMS = ("stdout", "stderr")
SIZES = {"B": 1, "K": 1 << 10, "KIB": 1 << 10, "M": 1 << 20, "MIB": 1 << 20}
BLOCK = 64 * 1024

Source = tuple[str, int, int]
"""Stream, descriptor of its file, our descriptor that it is copied to."""


def main(
    *,
    run: str,
    follow_: bool = False,
    stdout: bool = False,
    stderr: bool = False,
    tail: str | None = None,
    socket: str | None = None,
    json: bool = False,
) -> int:
    """Prints a run's output."""
    start = _start_of(tail)
    with connect(socket) as client:
        files, descriptors = client.ask(m.Logs(id=client.next_id(), run=run), m.LogFiles)
        if not files.kept:
            output.note(f"sfactl: {files.run} keeps no output (--no-log, or --stdio inherit)")
        both = stdout == stderr
        wanted = [both or stdout, both or stderr]
        sources = [
            (name, file, 2 if both and name == "stderr" else 1)
            for name, file, is_wanted in zip(STREAMS, descriptors, wanted, strict=True)
            if is_wanted
        ]
        if json:
            _as_json(client, files, sources, start, follow_)
        else:
            _copy(client, files, sources, start, follow_)
    return Exit.DONE


def _copy(client: Client, files: m.LogFiles, sources: Sequence[Source], start: Start, following: bool) -> None:
    followers = [follow.Follower(file, target, output.note, start(file)) for _, file, target in sources]
    _until_end(client, files, follow.Copying(followers), following)


def _until_end(client: Client, files: m.LogFiles, copying: follow.Copying, following: bool) -> None:
    waiting = following and not files.ended
    if waiting:
        _await(client, files.run)
    while waiting or not copying.drained():
        ready = loop.wait([client.fileno()] if waiting else [], [copying])
        copying.advance(ready)
        if waiting and client.fileno() in ready:
            waiting = not _ended(client, files.run, copying)


def _ended(client: Client, run: str, copying: follow.Copying) -> bool:
    """Whether the answer has come. A daemon that went away is waited for, and asked again; the files are there meanwhile."""
    try:
        answers = client.arrived()
    except ConnectionLost:
        client.reconnect("the run may go on", lambda: loop.carry_on([copying], AGAIN))
        _await(client, run)
        return False
    for answer in answers:
        check(answer.reply)
    return bool(answers)


def _await(client: Client, run: str) -> None:
    with suppress(ConnectionLost):  # `arrived` tells of that as well
        client.send(m.Wait(id=client.next_id(), run=run))


class Start:
    """Where to begin in a file: the last lines or bytes of what it holds now."""

    def __init__(self, lines: int | None = None, size: int | None = None) -> None:
        self._lines = lines
        self._size = size

    def __call__(self, file: int) -> int:
        end = os.fstat(file).st_size
        if self._size is not None:
            return max(end - self._size, 0)
        return 0 if self._lines is None else last_lines(file, end, self._lines)


def last_lines(file: int, end: int, count: int) -> int:
    """The offset at which the last `count` lines of the first `end` bytes begin; 0 if there are not so many. Reads backwards,
    no more than needed, and not into the hole where the oldest bytes were freed."""
    if count == 0:
        return end
    first = follow.data_from(file, 0) or 0
    # A newline that ends the last line begins no line of its own.
    position = end - 1 if end and os.pread(file, 1, end - 1) == b"\n" else end
    while position > first:
        begin = max(position - BLOCK, first)
        block = os.pread(file, position - begin, begin)
        newlines = block.count(b"\n")
        if newlines >= count:
            return begin + _nth_newline_from_end(block, count) + 1
        count -= newlines
        position = begin
    return 0


def _nth_newline_from_end(block: bytes, count: int) -> int:
    at = len(block)
    for _ in range(count):
        at = block.rindex(b"\n", 0, at)
    return at


def _start_of(tail: str | None) -> Start:
    if tail is None:
        return Start()
    match = re.fullmatch(r"([0-9]{1,18})\s*([A-Za-z]*)", tail, re.ASCII)
    unit = match[2].upper() if match else "?"
    if match is None or (unit and unit not in SIZES):
        raise UsageError(f"--tail: {tail[:80]!r} is neither a number of lines (20) nor a size (4096B, 64KiB, 1M)")
    return Start(size=int(match[1]) * SIZES[unit]) if unit else Start(lines=int(match[1]))


def _as_json(client: Client, files: m.LogFiles, sources: Sequence[Source], start: Start, following: bool) -> None:
    with Pipes(sources, start) as pipes:
        _until_end(client, files, pipes, following)


class Pipes(follow.Copying):
    """Like copying, but a line at a time and as JSON. Writes may block: nobody waits for a signal here."""

    def __init__(self, sources: Sequence[Source], start: Start) -> None:
        self._lines = [LineFollower(name, file, start(file)) for name, file, _ in sources]
        super().__init__(self._lines)

    def __enter__(self) -> Pipes:
        return self

    def __exit__(self, *_: object) -> None:
        for follower in self._lines:
            follower.finish()


class LineFollower(follow.Follower):
    """Gathers lines and prints each as an object."""

    def __init__(self, stream: str, source: int, offset: int) -> None:
        super().__init__(source, 1, output.note, offset)
        self._stream = stream
        self._partial = b""

    def flush(self) -> None:
        """Prints every line that is complete."""
        *complete, self._partial = (self._partial + self.take()).split(b"\n")
        for line in complete:
            self._print(line)

    def finish(self) -> None:
        """Prints what the run never ended with a newline."""
        if self._partial:
            self._print(self._partial)
            self._partial = b""

    def _go_on(self, offset: int, why: str) -> None:
        self.finish()
        super()._go_on(offset, why)

    def _print(self, line: bytes) -> None:
        output.print_json({"stream": self._stream, "text": line.decode(errors="backslashreplace")})

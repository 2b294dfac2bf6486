"""Print the output of runs unchanged, or follow it.

stdout goes to stdout and stderr to stderr. With --stdout or --stderr, only that one is printed, on stdout. With several runs, each
line begins with its run; without -f the runs come one after the other. --name, --label and --all choose the same runs as for
`sfactl list`, including ended ones. A note on stderr reports bytes that the output limit has freed before they were read.

-f follows until the runs end, also when the daemon restarts. It may begin before a run does. With `sfactl send` it is what other
tools call attach.

--timestamps shows when each line was written, to a second, also of ended runs. A line from a time without a daemon is marked ≤: it
was written by then. So is one of a run that has printed for more than an hour.

With --json, one object for each line of output: {"stream", "text"}, with "run" for several runs, and "time" and "not_after" with
--timestamps ("time" is null for a line that is marked ≤); bytes that are not UTF-8 appear as \\xNN.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Unpack

from sfad.protocol.requests.following import LogFiles, Logs, Wait
from sfad.protocol.structs import replace
from sfad.protocol.units import parse_size

from .. import output
from ..activity import carry_on, wait
from ..connection import AGAIN, Client, ConnectionLost, check
from ..exits import ExitCode, UsageError
from ..follower import Copying, Follower, data_from
from ..history import connect
from ..in_flight import RequestsInFlight
from ..line_follower import OLD, LineFollower, LineForm, Source
from ..options import COMMON, FLEET, LABEL, NAME, RUNS, Option, Parameter
from ..selection import RunSelection, SelectionOptions

PARAMETERS: tuple[Parameter, ...] = (
    *COMMON,
    FLEET,
    replace(RUNS, required=False),
    Option(("--all",), "everything", "The live runs and the last 50 that ended"),
    NAME,
    LABEL,
    Option(("--follow", "-f"), "follow_", "Follow the output until the runs end"),
    Option(("--timestamps", "-t"), "timestamps", "Show when each line was written"),
    Option(("--stdout",), "stdout", "Only stdout"),
    Option(("--stderr",), "stderr", "Only stderr"),
    Option(("--tail", "-n"), "tail", "Begin N lines or bytes before the end: 20, 4096B, 64KiB (default: the beginning)", "N"),
)

STREAMS = ("stdout", "stderr")
BLOCK = 64 * 1024
COLOURS = (36, 33, 32, 35, 34)
"""Colours of prefixes, in turn (ECMA-48, SGR). Red is left out: elsewhere it means failure."""
Shown = tuple[LogFiles, list[Follower]]
"""A run, and the followers of its output."""


Start = Callable[[int], int]
"""Returns the offset to begin at in an open file, as the file is now."""


class View(NamedTuple):
    following: bool
    stdout: bool
    stderr: bool
    start: Start
    stamped: bool
    json: bool

    def sources(self, descriptors: Sequence[int]) -> list[Source]:
        """Return the files to show. stdout and stderr go to their own streams; one alone, and JSON, goes to stdout."""
        both = self.stdout == self.stderr
        wanted = [both or self.stdout, both or self.stderr]
        return [
            Source(name, file, 2 if both and name == "stderr" and not self.json else 1)
            for name, file, is_wanted in zip(STREAMS, descriptors, wanted, strict=True)
            if is_wanted
        ]


def main(
    *,
    follow_: bool = False,
    timestamps: bool = False,
    stdout: bool = False,
    stderr: bool = False,
    tail: str | None = None,
    socket: str | None = None,
    json: bool = False,
    **chosen: Unpack[SelectionOptions],
) -> int:
    view = View(follow_, stdout, stderr, _start_of(tail), timestamps, json)
    selection = RunSelection("logs", **chosen).checked()
    with connect(socket) as client:
        if selection.filtered:
            from .list import listed  # not needed if the runs are named

            selection = listed(client, selection)
            if not selection.runs:
                output.note("no run matches")
                return ExitCode.DONE
        opened: list[tuple[LogFiles, list[int]]] = []
        code = selection.each(client, lambda run: opened.append(_open(client, run, times=timestamps)))
        _show(client, opened, view, several=len(selection.runs) > 1)
    return code


def _open(client: Client, run: str, *, times: bool) -> tuple[LogFiles, list[int]]:
    files, descriptors = client.ask(Logs(id=0, run=run, times=times), LogFiles)
    if not files.kept:
        output.note(f"sfactl: {files.run} keeps no output (--no-log, or --stdio inherit)")
    return files, descriptors


def _show(client: Client, opened: Sequence[tuple[LogFiles, list[int]]], view: View, *, several: bool) -> None:
    names = [f"{files.run} {output.plain(files.name)}".strip() for files, _ in opened]
    columns = max(map(output.width, names), default=0)
    shown: list[Shown] = []
    old = False
    for number, (files, descriptors) in enumerate(opened):
        prefix = names[number] + " " * (columns - output.width(names[number])) + " | " if several else ""
        form = partial(LineForm, run=files.run if several else None, prefix=prefix, colour=COLOURS[number % len(COLOURS)],
                       stamped=view.stamped, json=view.json)  # fmt: skip
        times = dict(zip(STREAMS, (files.out_times, files.err_times), strict=True))
        forms = [(source, form(source, times=times[source.stream])) for source in view.sources(descriptors)]
        made = [_follower(source, each, view) for source, each in forms]
        shown.append((files, made))
        old |= any(each.has_old_lines(follower.offset) for (_, each), follower in zip(forms, made, strict=True))
    if view.stamped and not view.json and old:
        output.note(OLD)
    for group in [shown] if view.following else [[one] for one in shown]:
        _copy(client, group, view.following)


def _follower(source: Source, form: LineForm, view: View) -> Follower:
    offset = view.start(source.file)
    if form.plain:
        return Follower(source.file, source.target, output.note, offset)
    return LineFollower(source, offset, form)


def _copy(client: Client, group: Sequence[Shown], following: bool) -> None:
    followers = [follower for _, made in group for follower in made]
    copying = Copying(followers)
    waits = RequestsInFlight(client, output.note)
    for files, _ in group:
        if following and not files.ended:
            waits.ask(Wait(id=0, run=files.run), lambda reply, _descriptors: check(reply))
    try:
        while waits or not copying.drained():
            ready = wait([client.fileno()] if waits else [], [copying])
            copying.advance(ready)
            if client.fileno() in ready:
                _receive(waits, copying)
    finally:
        for follower in followers:
            if isinstance(follower, LineFollower):
                follower.finish()


def _receive(waits: RequestsInFlight, copying: Copying) -> None:
    """Take the ends of runs that have come. If the daemon went away, wait for it and ask again; the files stay readable."""

    def turn(timeout: float) -> None:
        copying.advance(wait([], [copying], timeout))

    try:
        waits.receive(lambda _event: None)
    except ConnectionLost:
        waits.repeat(waits.reconnect("the runs may continue", lambda: carry_on(turn, AGAIN)))


def last_lines(file: int, end: int, count: int) -> int:
    """Return the offset at which the last `count` lines of the first `end` bytes begin; 0 if there are fewer. Read
    backwards, no more than needed, and never in the hole where the oldest bytes were freed."""
    if count == 0:
        return end
    first = data_from(file, 0) or 0
    # A newline at the end does not begin another line.
    position = end - 1 if end and os.pread(file, 1, end - 1) == b"\n" else end
    while position > first:
        begin = max(position - BLOCK, first)
        block = os.pread(file, position - begin, begin)
        newlines = block.count(b"\n")
        if newlines >= count:
            return begin + len(block.rsplit(b"\n", count)[0]) + 1
        count -= newlines
        position = begin
    return 0


def _start_of(tail: str | None) -> Start:
    if tail is None:
        return lambda _file: 0
    try:
        if tail.isascii() and tail.isdecimal():
            lines = int(tail)
            return lambda file: last_lines(file, os.fstat(file).st_size, lines)
        size = parse_size(tail)
    except ValueError:
        raise UsageError(f"--tail: {tail[:80]!r} is neither a number of lines (20) nor a size (4096B, 64KiB, 1M)") from None
    return lambda file: max(os.fstat(file).st_size - size, 0)

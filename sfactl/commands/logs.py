import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Annotated, Any, NamedTuple

from sfad.protocol.encoding import to_json
from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.following import LogFiles, Logs, OutputTime, Wait
from sfad.protocol.requests.listing import Info
from sfad.protocol.types import ErrorCode

from .. import output
from ..app import OverFleet, app
from ..connecting.connection import AGAIN, Client, ConnectionLost, DaemonError, check
from ..connecting.history import connect
from ..connecting.in_flight import RequestsInFlight, carry_on, wait
from ..exits import ExitCode, Quit, UsageError
from ..features import has
from ..options.selection import ListedSelection, RunSelection
from ..options.shared import Tail, Value, flag, tail
from ..options.spreading import spread
from ..showing.follower import Copying, Follower, data_from

# ---- Copy output files line by line: with their run, with the time a line was seen, or as JSON

LONGEST = 1 << 20
"""Maximum bytes of a line that waits for its end; a longer line is shown in pieces."""
OLD = "sfactl: lines marked ≤ were written by that time; when exactly is not recorded"


MOST = 400
"""Runs that filters may choose: two files of each are open at once, of the usual 1024."""


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
        """`run` and `prefix` name the run if several are shown; `colour` is an SGR number
        (ECMA-48). `times`: when the file was written."""
        self._run = run
        coloured = (
            prefix and not json and os.isatty(source.target) and not os.environ.get("NO_COLOR")
        )
        self._prefix = f"\x1b[{colour}m{prefix}\x1b[0m" if coloured else prefix
        self._stream = source.stream
        self._at_terminal = os.isatty(source.target)
        self._stamped = stamped
        self._json = json
        status = os.fstat(source.file)
        self._times = [*times] or [
            OutputTime(status.st_size, datetime.fromtimestamp(status.st_mtime, UTC), exact=False)
        ]

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
        """Return `line`, which has no newline, as it is shown. `end`: the offset behind it. If no
        time is told, it is now."""
        written = None
        if self._stamped:
            at = bisect_left(self._times, end, key=lambda each: each.offset)
            written = (
                self._times[at]
                if at < len(self._times)
                else OutputTime(end, datetime.now(UTC), exact=True)
            )
        if self._json:
            return to_json(self._object(line, written)) + b"\n"
        stamp = (
            ""
            if written is None
            else f"{' ' if written.exact else '≤'}{output.local(written.time)} "
        )
        if self._at_terminal:  # a carriage return would let a run write over the prefix
            text = line.removesuffix(b"\r").decode(errors="backslashreplace")
            line = output.harmless(text).encode()
        return f"{self._prefix}{stamp}".encode() + line + b"\n"

    def _object(self, line: bytes, written: OutputTime | None) -> dict[str, Any]:
        shown: dict[str, Any] = {} if self._run is None else {"run": self._run}
        shown |= {"stream": self._stream, "text": line.decode(errors="backslashreplace")}
        if written is not None:
            by = (
                written.time.astimezone(UTC)
                .isoformat(timespec="milliseconds")
                .replace("+00:00", "Z")
            )
            shown |= {"time": by if written.exact else None, "not_after": by}
        return shown


class LineFollower(Follower):
    """Collect lines and write each in its form. Writes may block, because a signal ends `sfactl
    logs` anyway."""

    def __init__(self, source: Source, offset: int, form: LineForm) -> None:
        super().__init__(source.file, source.target, output.note, offset)
        self._shown = None  # the form sees to it, because it counts the bytes of the file
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


class RawFollower(Follower):
    """Copies bytes as they are, also to a terminal."""

    def __init__(self, source: int, target: int, note: Callable[[str], None], offset: int) -> None:
        super().__init__(source, target, note, offset)
        self._shown = None


# ---- Print the output of runs, or follow it


STREAMS = ("stdout", "stderr")
BLOCK = 64 * 1024
COLOURS = (36, 33, 32, 35, 34)
"""Colours of prefixes, in turn (ECMA-48, SGR). Red is left out: elsewhere it means failure."""
Shown = tuple[LogFiles, list[Follower]]
"""A run, and the followers of its output."""


def start_of(tail: Tail | None, file: int) -> int:
    """Return the offset to begin at in an open file, as the file is now."""
    if tail is None:
        return 0
    size = os.fstat(file).st_size
    return last_lines(file, size, tail.amount) if tail.lines else max(size - tail.amount, 0)


class View(NamedTuple):
    following: bool
    raw: bool
    stdout: bool
    stderr: bool
    tail: Tail | None
    stamped: bool
    json: bool

    def sources(self, descriptors: Sequence[int]) -> list[Source]:
        """Return the files to show. stdout and stderr go to their own streams; one alone, and JSON,
        goes to stdout."""
        if self.raw or len(descriptors) > 2:  # a terminal has one stream
            return [Source("stdout", descriptors[0], 1)]
        both = self.stdout == self.stderr
        wanted = [both or self.stdout, both or self.stderr]
        return [
            Source(name, file, 2 if both and name == "stderr" and not self.json else 1)
            for name, file, is_wanted in zip(STREAMS, descriptors, wanted, strict=True)
            if is_wanted
        ]


@app.command(cls=OverFleet)
@spread(ListedSelection)
def logs(
    chosen: ListedSelection,
    follow_: Annotated[
        bool, flag("Follow the output until the runs end", "--follow", "-f")
    ] = False,
    timestamps: Annotated[
        bool, flag("Show when each line was written", "--timestamps", "-t")
    ] = False,
    check: Annotated[
        bool, flag("What its checks and its setup have printed, instead of its own output")
    ] = False,
    stdout: Annotated[bool, flag("Only stdout")] = False,
    stderr: Annotated[bool, flag("Only stderr")] = False,
    raw: Annotated[
        bool, flag("Of a run with a terminal: the bytes that it wrote, also to this terminal")
    ] = False,
    screen: Annotated[bool, flag("Of a run with a terminal: what it shows now")] = False,
    asciicast: Annotated[
        bool, flag("Of a run with a terminal: a recording for asciinema (asciicast v2)")
    ] = False,
    tail: Annotated[
        Tail | None,
        Value("N", tail).option(
            "Begin N lines or bytes before the end: 20, 4096B, 64KiB (default: the beginning)",
            "--tail",
            "-n",
        ),
    ] = None,
) -> int:
    r"""Print the output of runs, or follow it.

    It is unchanged, but a terminal gets control characters, and bytes that are not UTF-8, as
    \xNN: an agent's escapes must not steer it.

    stdout goes to stdout and stderr to stderr. They are two files, so the order of their lines
    is not known: what is there already comes as stdout first, then stderr. With --stdout or
    --stderr, only that one is printed, on stdout. With several runs, each line begins with its
    run; without -f the runs come one after the other. --name, --label and --all choose the same
    runs as for `sfactl list`, including ended ones. A note on stderr reports bytes that were
    freed before they were read, by the output limit or for a full disk.

    Of a run with a terminal of its own it prints the text: the lines that have left the screen,
    then those on it; with -f, a line once it has left the screen. --raw prints the bytes,
    --screen what is on the screen, with its colours at a terminal, and --asciicast a recording
    without what looks like a key.

    -f follows until the runs end, also when the daemon restarts. It may begin before a run
    does. With `sfactl send` it is what other tools call attach.

    --timestamps shows when each line was written, to a second, also of ended runs. A line from
    a time without a daemon is marked ≤: it was written by then. So is one of a run that has
    printed for more than an hour.

    With --json, one object for each line of output: {"stream", "text"}, with "run" for several
    runs, and "time" and "not_after" with --timestamps ("time" is null for a line that is marked
    ≤); bytes that are not UTF-8 appear as \xNN.
    """
    view = View(follow_, raw, stdout, stderr, tail, timestamps, chosen.json)
    chosen.check()
    _check_of_terminal(view, screen=screen, asciicast=asciicast)
    if check:
        return _of_checks(chosen, view)
    with connect(chosen.socket) as client:
        if client.fleet is not None:
            from ..running.fleet_run import (
                logs as of_node,  # of a run that may be on another machine
            )

            return of_node(client, chosen, stdout, stderr, tail, follow=follow_, stamped=timestamps)
        found: RunSelection = chosen
        if chosen.filtered:
            from ..showing.pages import listed  # not needed if the runs are named

            found = RunSelection(list(islice(listed(client, chosen), MOST + 1)))
            if len(found.runs) > MOST:
                raise Quit(
                    ExitCode.UNAVAILABLE,
                    f"more than {MOST} runs match, whose files cannot all be open at once; "
                    "name fewer",
                )
        opened: list[tuple[LogFiles, list[int]]] = []

        def open_(run: str) -> None:
            try:
                opened.append(_open(client, run, times=timestamps))
            except DaemonError as error:
                alone = len(found.runs) == 1 and not (screen or asciicast or raw)
                refused = error.error is ErrorCode.WRONG_STATE
                if not (refused and alone and _is_elsewhere(client, run)):
                    raise
                from ..running.fleet_run import logs as of_node

                of_node(client, found, stdout, stderr, tail, follow=follow_, stamped=timestamps)

        code = found.each_of(client, "logs", open_)
        if screen or asciicast:
            _show_terminals(opened, screen=screen)
        else:
            _show(client, opened, view, several=len(found.runs) > 1)
    return code


def _is_elsewhere(client: Client, run: str) -> bool:
    """Return whether a run executes on another node, which alone has its files."""
    try:
        place = client.call(Info(id=0, run=run), RunReply).run.fleet
    except DaemonError:  # not permitted: why there are no logs is the better answer
        return False
    return place is not None and bool(place.run)


def _check_of_terminal(view: View, *, screen: bool, asciicast: bool) -> None:
    for given, option in ((screen, "--screen"), (asciicast, "--asciicast"), (view.raw, "--raw")):
        for other, excluded in (
            (screen and option != "--screen", "--screen"),
            (asciicast and option != "--asciicast", "--asciicast"),
            (view.following and option != "--raw", "-f"),
            (view.tail is not None and option != "--raw", "--tail"),
            (view.stamped, "--timestamps"),
            (view.json, "--json"),
            (view.stderr, "--stderr"),
        ):
            if given and other:
                raise UsageError(f"{option} and {excluded} exclude each other")


def _show_terminals(opened: Sequence[tuple[LogFiles, list[int]]], *, screen: bool) -> None:
    from ..terminals import printing  # most runs have none

    for files, descriptors in opened:
        if not files.terminal:
            raise Quit(
                ExitCode.UNAVAILABLE,
                f"run {files.run} has no terminal of its own; leave the option out to see its "
                "output",
            )
        if screen:
            printing.screen(descriptors)
        else:
            printing.record(files.run, descriptors)


def _of_checks(chosen: ListedSelection, view: View) -> int:
    if view.stamped or view.stdout or view.stderr or view.raw or chosen.filtered:
        raise UsageError("--check takes the names of runs, --follow, --tail and --json only")
    if not has("checks"):
        raise Quit(ExitCode.UNAVAILABLE, "this sfad has no checks")
    from ..showing.check_output import show  # of a feature

    return chosen.each(
        "logs",
        lambda client, run: show(
            client, run, tail=view.tail, json=view.json, follow=view.following
        ),
    )


def _open(client: Client, run: str, *, times: bool) -> tuple[LogFiles, list[int]]:
    files, descriptors = client.ask(Logs(id=0, run=run, times=times), LogFiles)
    if not files.kept:
        output.note(f"sfactl: {files.run} keeps no output (--no-log, or --stdio inherit)")
    return files, descriptors


def _show(
    client: Client, opened: Sequence[tuple[LogFiles, list[int]]], view: View, *, several: bool
) -> None:
    names = [f"{files.run} {output.plain(files.name)}".strip() for files, _ in opened]
    columns = max(map(output.width, names), default=0)
    shown: list[Shown] = []
    old = False
    for number, (files, descriptors) in enumerate(opened):
        prefix = (
            names[number] + " " * (columns - output.width(names[number])) + " | " if several else ""
        )
        form = partial(LineForm, run=files.run if several else None, prefix=prefix,
                       colour=COLOURS[number % len(COLOURS)], stamped=view.stamped,
                       json=view.json)  # fmt: skip
        times = dict(zip(STREAMS, (files.out_times, files.err_times), strict=True))
        forms = [
            (source, form(source, times=times[source.stream]))
            for source in view.sources(descriptors)
        ]
        record = descriptors[2] if files.terminal and not view.raw else None
        made = [_follower(source, each, view, record) for source, each in forms]
        shown.append((files, made))
        old |= any(
            each.has_old_lines(follower.offset)
            for (_, each), follower in zip(forms, made, strict=True)
        )
    if view.stamped and not view.json and old:
        output.note(OLD)
    for group in [shown] if view.following else [[one] for one in shown]:
        _copy(client, group, view.following)


def _follower(source: Source, form: LineForm, view: View, record: int | None) -> Follower:
    if record is not None:
        from ..terminals.printing import text_of

        given = {"record": record, "follows": view.following, "tail": view.tail}
        if form.plain:
            return text_of(Follower)(source.file, source.target, output.note, **given)
        return text_of(LineFollower)(source, 0, form, **given)
    offset = start_of(view.tail, source.file)
    if view.raw:
        return RawFollower(source.file, source.target, output.note, offset)
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
    """Take the ends of runs that have come. If the daemon went away, wait for it and ask again; the
    files stay readable."""

    def turn(timeout: float) -> None:
        copying.advance(wait([], [copying], timeout))

    try:
        waits.receive(lambda _event: None)
    except ConnectionLost:
        waits.repeat(waits.reconnect("the runs may continue", lambda: carry_on(turn, AGAIN)))


def last_lines(file: int, end: int, count: int) -> int:
    """Return the offset at which the last `count` lines of the first `end` bytes begin; 0 if there
    are fewer. Read backwards, no more than needed, and never in the hole where the oldest bytes
    were freed."""
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

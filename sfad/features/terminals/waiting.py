"""Which runs wait for a person, what says so, and when that is over.

What a program says counts at once: by `sfactl report --waiting`, as a hook of it does, and by its
terminal's title or a notification. The bell, and a process that reads the terminal, count once the
screen has stood still for `STILL` seconds. It is over when something is typed, when the program
says so, when it draws for `MOVES` looks in a row, or when the run ends.

    a run writes ─▶ inotify, once ─▶ STILL seconds later: a look ─▶ it has written: look again
                                                                 └▶ it stands still: who reads?

A terminal that stands still wakes no one: inotify tells of the next byte only, and a prompt that is
not read yet is looked at a few times more, ever later.
"""

import math
import os
import re
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Literal

import msgspec
import trio
from msgspec import Struct, field

from ...core import events as e
from ...core.state.run import Run
from ...daemon.loop.seam import Heart
from ...host.clock import wall_clock
from ...host.linux import displacement
from ...host.tasks import in_thread
from ...protocol.event_types import EventType
from ...protocol.texts.redaction import redacted
from ...protocol.types import Event, LimitKind, PersonAwaited, RunId, Status
from ...runs.live import Live
from .feature import SAVED
from .notices import Notice, Notices
from .reading import is_read
from .recorded import sizes
from .screen import Screen

STILL = 5.0
"""Seconds for which a screen stands still at a prompt. Agent programs draw several times a second
while they work: Claude Code 2.1.330, Codex 0.169, Gemini CLI 0.61 and opencode 1.18 do."""
MOVES = 3
"""Looks between which it has written, so that it goes on. One redraw, as for another size, is no
answer of a person."""
LOOKS = 6
"""Further looks at a screen that stands still and that no one reads, each after twice the time."""
MOST_SEEN = 256 << 10
"""Bytes in which notices are looked for at once: what was written before is passed over."""
MOST_DRAWN = 512 << 10
"""Bytes of which the screen is made."""
LINES, MOST_IN_LINE = 12, 200
"""Of the screen, for people who are elsewhere."""

_REPORTS = re.compile(rb"\x1b\[[IO]|\x1b\[<[0-9;]*[Mm]|\x1b\[M...", re.DOTALL)
"""What terminals send without a key: that they have the focus, and where the mouse is."""
_EVENT = struct.Struct("iIII")
"""struct inotify_event."""

Source = Literal["program", "bell", "notification", "title", "prompt"]


def is_typed(data: bytes) -> bool:
    """Return whether there is a key in what a viewer's terminal has sent."""
    return bool(_REPORTS.sub(b"", data))


class _Watched(Struct):
    """A run with a terminal."""

    live: Live
    due: float | None
    """When it is looked at, on trio's clock; `None`: when it writes."""
    offset: int = -1
    """Up to here its output was read; below 0: from the next byte on."""
    looks: int = 0
    """At the same still screen."""
    moves: int = 0
    notices: Notices = field(default_factory=Notices)
    bell: bool = False
    """It has rung since something was typed."""


class _Waits(Struct):
    since: float
    """On trio's clock."""
    limit: float | None
    """When its limit is looked at."""


class Waiting:
    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self._live = heart.catalogue.live
        self._output = heart.resources.output
        self._spool = heart.resources.spool.values
        self._watched: dict[RunId, _Watched] = {}
        self._waits: dict[RunId, _Waits] = {}
        self._inotify = -1
        self._names: dict[int, RunId] = {}
        """By watches of inotify."""
        self._woken = trio.CancelScope()

    def begin(self) -> None:
        """Go on with what an earlier daemon knew."""
        for run in [key.removeprefix(SAVED) for key in self._spool.items if key.startswith(SAVED)]:
            live, found = self._live.get(run), self._spool.decoded(SAVED + run, PersonAwaited)
            if live is None or found is None:
                self._spool.write_soon({SAVED + run: None})
            elif run not in self._waits:
                self._show(live, found)

    def watch(self, live: Live) -> None:
        """Look at the terminal of a run from now on."""
        self._watched[live.run.id] = _Watched(live, trio.current_time() + STILL)
        self._wake()

    def changed(self, runs: Collection[Run]) -> None:
        """Look again at those that go on after a pause, and at limits that were changed."""
        for run in runs:
            if (waits := self._waits.get(run.id)) is not None:
                waits.limit = self._next_level(run, waits.since, trio.current_time())
                self._wake()
            if (watched := self._watched.get(run.id)) is not None and watched.due == math.inf:
                watched.due, watched.looks = trio.current_time() + STILL, 0
                self._wake()

    def forget(self, run: RunId) -> None:
        """A run has ended, or begins another attempt."""
        self._watched.pop(run, None)
        self.over(run)

    # What says that one waits, and that it does not.

    def tell(self, live: Live, source: Source, words: str, screen: list[str]) -> None:
        """A run waits for a person."""
        shown: PersonAwaited | None = live.shown.get("waiting")
        if shown is not None and (source == "prompt" or shown.source == source):
            return
        told = PersonAwaited(
            since=wall_clock() if shown is None else shown.since,
            source=source,
            words=words,
            screen=screen or ([] if shown is None else shown.screen),
        )
        self._show(live, told)
        self._spool.write_soon({SAVED + live.run.id: msgspec.msgpack.encode(told)})
        if shown is not None:
            return
        last = words or next(reversed(screen), "")
        event = Event(
            type=EventType.RUN_WAITING,
            severity="medium",
            message=f"waits for a person{f': {last}' if last else ''}",
            screen=screen,
        )
        self._heart.feed(e.Did(trio.current_time(), live.run.id, event))

    def say(self, live: Live, words: str) -> None:
        """The program of a run says that it waits."""
        if live.run.id in self._watched:
            self._heart.background.start_soon(self._say, live, words)
        else:
            self.tell(live, "program", words, [])

    async def _say(self, live: Live, words: str) -> None:
        self.tell(live, "program", words, await self._screen(live))

    def _show(self, live: Live, told: PersonAwaited) -> None:
        live.show(activity="waiting", waiting=told)
        now = trio.current_time()
        since = now - max(0.0, (wall_clock() - told.since).total_seconds())
        self._waits[live.run.id] = _Waits(since, self._next_level(live.run, since, now))
        self._wake()

    def over(self, run: RunId) -> None:
        """It does not wait any more."""
        if (watched := self._watched.get(run)) is not None:
            watched.bell, watched.moves, watched.looks = False, 0, 0
            if watched.due is None:
                watched.due = trio.current_time() + STILL
                self._wake()
        known = self._waits.pop(run, None) is not None
        live = self._live.get(run)
        if known:
            self._spool.write_soon({SAVED + run: None})
        if live is None or live.run.status.terminal:
            return
        if known:
            live.show(activity=None, waiting=None)
        hold = live.run.limit_hold
        if known or (hold is not None and hold.kind is LimitKind.WAITING):
            self._heart.feed(
                e.LevelSeen(trio.current_time(), run, LimitKind.WAITING, 0.0, over=True)
            )

    # Its limit.

    def _next_level(self, run: Run, since: float, now: float) -> float | None:
        """Return when its limit of waiting is near, or reached."""
        active = run.limits.get(LimitKind.WAITING)
        if active is None or active.over:
            return None
        nearing = self._heart.machine.policy.limits.nearing
        due = since + active.threshold * (1.0 if active.near else nearing)
        return max(now, due)

    def _levels(self, now: float) -> None:
        for run, waits in list(self._waits.items()):
            if waits.limit is not None and waits.limit <= now and (live := self._live.get(run)):
                waits.limit = None
                self._heart.feed(
                    e.LevelSeen(now, run, LimitKind.WAITING, round(now - waits.since, 3))
                )
                if run in self._waits:
                    waits.limit = self._next_level(live.run, waits.since, now)

    # Looking.

    def _wake(self) -> None:
        self._woken.cancel()

    async def serve(self) -> None:
        """Look at screens that stand still, until cancelled."""
        with suppress(OSError):  # without an instance, output is looked at every now and then
            self._inotify = displacement.new_instance()
        try:
            while True:
                self._woken = trio.CancelScope(deadline=self._next())
                with self._woken:
                    if self._inotify >= 0:
                        await trio.lowlevel.wait_readable(self._inotify)
                        self._take()
                    else:
                        await trio.sleep_forever()
                now = trio.current_time()
                for watched in [each for each in self._watched.values() if _is_due(each, now)]:
                    await self._look(watched)
                self._levels(trio.current_time())
        finally:
            if self._inotify >= 0:
                os.close(self._inotify)
                self._inotify = -1

    def _next(self) -> float:
        dues = [each.due for each in self._watched.values() if each.due is not None]
        levels = [each.limit for each in self._waits.values() if each.limit is not None]
        return min([*dues, *levels], default=math.inf)

    def _take(self) -> None:
        """Look at runs that have written, once they may stand still."""
        try:
            data = os.read(self._inotify, 65536)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, _, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            watched = self._watched.get(self._names.pop(watch, ""))
            if watched is not None and watched.due is None:
                watched.due, watched.looks = trio.current_time() + STILL, 0

    async def _look(self, watched: _Watched) -> None:
        live = watched.live
        run, now = live.run, trio.current_time()
        if run.status is not Status.RUNNING or run.latest.stage:
            watched.due = math.inf  # until it changes
            return
        if watched.looks == 0:
            self._await_writing(run.id)
        try:
            still, notice = await in_thread(self._read, run.id, watched)
        except OSError:
            still, notice = math.inf, None
        if self._watched.get(run.id) is not watched:
            return  # it has ended meanwhile
        if notice is not None and notice.source == "bell":
            watched.bell = True
        elif notice is not None:
            self.tell(live, notice.source, notice.words, await self._screen(live))
        if still < STILL:
            self._moves(watched, now + STILL - still)
            return
        watched.moves = 0
        waits = run.id in self._waits or await self._stands(watched)
        last = waits or watched.looks >= LOOKS
        watched.due = None if last and self._inotify >= 0 else now + STILL * 2**watched.looks
        watched.looks = min(watched.looks + 1, LOOKS)

    def _moves(self, watched: _Watched, due: float) -> None:
        """It has written since the last look."""
        watched.looks, watched.due = 0, due
        watched.moves += 1
        if watched.moves >= MOVES:
            watched.bell = False
            self.over(watched.live.run.id)
            watched.moves = 1

    async def _stands(self, watched: _Watched) -> bool:
        """Tell of a run whose screen stands still if it waits. Return whether it does."""
        live = watched.live
        if live.run.account.reservations:
            return False  # it waits for its model
        pid = live.run.pid
        reads = False
        with suppress(OSError):
            reads = pid is not None and await in_thread(is_read, pid)
        if not (reads or watched.bell):
            return False
        screen = await self._screen(live)
        if live.run.status is not Status.RUNNING or live.run.id not in self._watched:
            return False
        self.tell(live, "bell" if watched.bell else "prompt", "", screen)
        return True

    def _await_writing(self, run: RunId) -> None:
        """Have inotify tell of the next byte that a run writes, once."""
        if self._inotify < 0:
            return
        path = self._output.directory / f"{run}.out"
        try:
            number = displacement.add_watch(
                self._inotify, path, displacement.MODIFY | displacement.ONESHOT
            )
        except OSError:  # it is not there, or there are too many watches
            return
        self._names[number] = run

    def _read(self, run: RunId, watched: _Watched) -> tuple[float, Notice | None]:
        """Return for how many seconds the screen of a run has stood still, and what was told since
        the last look. In a thread. Raises `OSError`."""
        with self._output.stdout(run) as file:
            status = os.fstat(file)
            size = status.st_size
            if watched.offset < 0 or watched.offset > size:
                watched.offset = size if watched.offset > size else 0
            start = max(watched.offset, size - MOST_SEEN)
            data = os.pread(file, size - start, start)
            watched.offset = size
        still = time.time() - status.st_mtime
        return max(0.0, still), watched.notices(data) if data else None

    async def _screen(self, live: Live) -> list[str]:
        try:
            return await in_thread(self._drawn, live.run.id)
        except OSError:
            return []

    def _drawn(self, run: RunId) -> list[str]:
        """Return the last lines that a terminal shows. Raises `OSError`."""
        record = self._output.open_shown(run, os.O_RDONLY)
        try:
            found = sizes(record)
        finally:
            os.close(record)
        rows, columns = (found[-1].rows, found[-1].columns) if found else (24, 80)
        screen = Screen(rows, columns)
        with self._output.stdout(run) as file:
            screen.feed(self._output.newest(file, MOST_DRAWN)[1])
        return list(_last(screen.text()))


def _is_due(watched: _Watched, now: float) -> bool:
    return watched.due is not None and watched.due <= now


def _last(lines: list[str]) -> Iterator[str]:
    """Yield the last lines with text."""
    found = [line.rstrip() for line in lines if line.strip()]
    for line in found[-LINES:]:
        yield redacted(line)[:MOST_IN_LINE]

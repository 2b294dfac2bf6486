"""The runs as the daemon tells of them, once for all open pages: rows that are encoded, each with
the version of its last change.

A page that comes back names the version that it has, and gets the rows that have changed since, and
the ids of those that are gone. The daemon measures memory and CPU only while a client watches, so
the feed watches only while a page is open.
"""

import secrets
import time
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import nan

import msgspec
import trio

from sfad.protocol import messages as m
from sfad.protocol.types import RunId, RunInfo

from ..connecting.connection import Client, DaemonError, Unreachable
from ..exits import Quit
from ..showing.pages import QUEUED
from ..top.table import WAITS, RunTable
from . import views
from .source import Source

STATUS_AGAIN = 5.0
"""Seconds between two looks at the alerts and the cost of the last hour, which passes without a
change of any run."""
AGAIN = 0.5
"""Seconds between attempts to reach a daemon that is away."""
LINGER = 30.0
"""Seconds that the daemon is watched after the last page has gone: a page that is loaded again
needs no new start."""
GONE = 10_000
"""Ids that are remembered of runs that are not told of any more."""
POINTS = 120
"""Points of a run's use that are kept. When there are twice as many, every other one is dropped."""
_encode = msgspec.json.encode


class Feed:
    def __init__(self, source: Source, nursery: trio.Nursery) -> None:
        self.epoch = secrets.token_hex(4)
        """Versions of another process of the console mean nothing here."""
        self.version = 1
        self.table = RunTable()
        self.away: str | None = None
        """Why the daemon cannot be asked."""
        self.trouble = ""
        """Which nodes of the fleet do not answer."""
        self.ready = False
        """Whether the first runs have come."""
        self.status: m.DaemonStatus | None = None
        self.status_version = 0
        self.points: dict[RunId, Points] = {}
        self._source, self._nursery = source, nursery
        self._rows: dict[RunId, tuple[int, bytes]] = {}
        self._gone: deque[tuple[int, RunId]] = deque(maxlen=GONE)
        self._forgotten = 0
        """Runs that went at this version or before are not remembered."""
        self.changes = 0
        """Changes so far, also of what has no version."""
        self._changed = trio.Event()
        self._watchers = 0
        self._running = False
        self._idle_since = 0.0

    # ---- for pages

    def enter(self) -> None:
        """A page begins to watch."""
        self._watchers += 1
        if not self._running:
            self._running = True
            self._nursery.start_soon(self._run)

    def leave(self) -> None:
        self._watchers -= 1
        self._idle_since = trio.current_time()

    async def change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def since(
        self, version: int, only: RunId | None = None
    ) -> tuple[bool, Sequence[bytes], Sequence[RunId]]:
        """Return whether the page must forget what it has, rows that have changed after `version`,
        and ids of runs that are gone. `only`: the tree below this run, which is included."""
        fresh = version < self._forgotten or version == 0
        rows = [
            row
            for run, (at, row) in self._rows.items()
            if (fresh or at > version) and (only is None or self._below(run, only))
        ]
        return fresh, rows, [] if fresh else [run for at, run in self._gone if at > version]

    def _below(self, run: RunId | None, top: RunId) -> bool:
        while run is not None and run != top:
            known = self.table.runs.get(run)
            run = known.parent_id if known is not None else None
        return run == top

    # ---- the daemon

    def _is_wanted(self) -> bool:
        return self._watchers > 0 or trio.current_time() - self._idle_since < LINGER

    async def _run(self) -> None:
        try:
            while self._is_wanted():
                client: Client | None = None
                try:
                    client = await trio.to_thread.run_sync(self._source.connect)
                    await self._follow(client)
                except Quit as error:
                    self._lose(error)
                finally:
                    if client is not None:
                        client.close()
                await trio.sleep(AGAIN)
        finally:
            self._running, self.ready = False, False

    async def _follow(self, client: Client) -> None:
        """Take what comes until the connection ends, or no page is open. Raise `Unreachable`,
        `DaemonError`."""
        runs = client.send(m.WatchRuns(id=0, queued=QUEUED))
        aside = {client.send(m.Events(id=0, types=["alert_*"], rows=1, follow=True))}
        due = 0.0
        while self._is_wanted():
            if trio.current_time() >= due:
                aside.add(client.send(m.DaemonInfo(id=0)))
                due = trio.current_time() + STATUS_AGAIN
            with trio.move_on_at(due):
                await trio.lowlevel.wait_readable(client.fileno())
                for answer in client.arrived():
                    reply = answer.reply
                    if isinstance(reply, m.EventPush):
                        due = 0.0
                    elif isinstance(reply, m.RunList | m.RunsPush):
                        self._take(reply)
                    elif isinstance(reply, m.DaemonStatus):
                        self._take_status(reply)
                    elif isinstance(reply, m.Error) and reply.id == runs:
                        raise DaemonError(reply.code, reply.message)
                    # other errors: a console inside a run may see runs, but no alerts

    def _take(self, reply: m.RunList | m.RunsPush) -> None:
        before, runs, whole = set(self._rows), reply.runs, isinstance(reply, m.RunList)
        (self.table.replace if whole else self.table.update)(runs, time.monotonic())
        self.table.left_out = reply.queued
        # those that are missing have ended, and were forgotten at once because many have
        known = [self.table.runs[run.id] for run in runs if run.id in self.table.runs]
        self._encode(known)
        now = time.time()
        for run in known:
            self.points.setdefault(run.id, Points()).add(run, now, after_gap=whole)
        for run_id in before - self.table.runs.keys():
            del self._rows[run_id]
            self.points.pop(run_id, None)
            if len(self._gone) == GONE:
                self._forgotten = self._gone[0][0]
            self._gone.append((self.version, run_id))
        self.ready, self.away = True, None
        self._note_unanswered(reply)
        self._tell()

    def _encode(self, runs: Iterable[RunInfo]) -> None:
        """Encode the lines of these runs, as changed."""
        self.version += 1
        now = datetime.now(UTC)
        for run in runs:
            self._rows[run.id] = (self.version, _encode(views.row(run, self.table, now)))

    def _take_status(self, status: m.DaemonStatus) -> None:
        self.status = status
        self._note_unanswered(status)
        if status.limit_share != self.table.limit_share:
            self.table.warn_from(status.limit_share)
            self._encode(self.table.runs.values())
        # what a run waits for has times that go on
        self._encode([run for run in self.table.runs.values() if self.table.rank(run) == WAITS])
        self.version += 1
        self.status_version = self.version
        self._tell()

    def _lose(self, error: Quit) -> None:
        why = self._said(error)
        if self.away != why:
            self.away = why
            self._tell()

    def _said(self, error: Quit) -> str:
        gone = isinstance(error, Unreachable) and error.kind in ("missing", "refused", "gone")
        return "the daemon is away" if gone else error.message

    def _note_unanswered(self, reply: m.Reply) -> None:
        lost = [f"node {node}: {why}" for node, why in sorted(reply.unanswered.items())]
        whose = "its" if len(lost) == 1 else "their"
        self.trouble = f"{'; '.join(lost)}; {whose} runs are shown as they were" if lost else ""

    def _tell(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed = trio.Event()


class Points:
    """What a run and those below it had used at some moments: time, USD, tokens. NaN is unknown: a
    figure without a source, and both figures while the feed did not watch the daemon."""

    def __init__(self) -> None:
        self._numbers = array("d")

    def add(self, run: RunInfo, now: float, *, after_gap: bool = False) -> None:
        """`after_gap`: what happened between the last point and this one is unknown."""
        whole = run.in_all
        if whole.cost_usd is None and whole.tokens is None:
            return
        values = (_known(whole.cost_usd), _known(whole.tokens))
        if len(self._numbers) >= 3 and repr(tuple(self._numbers[-2:])) == repr(values):
            return
        if after_gap and self._numbers:
            self._numbers.extend((now, nan, nan))
        self._numbers.extend((now, *values))
        if len(self._numbers) >= 6 * POINTS:
            kept = array("d")
            for at in range(0, len(self._numbers), 6):
                kept.extend(self._numbers[at : at + 3])
            self._numbers = kept

    def listed(self) -> list[tuple[float, float, float]]:
        """Return the points, the oldest first. JSON has null for NaN."""
        numbers = self._numbers
        return [(numbers[at], numbers[at + 1], numbers[at + 2]) for at in range(0, len(numbers), 3)]


def _known(value: float | None) -> float:
    return nan if value is None else float(value)

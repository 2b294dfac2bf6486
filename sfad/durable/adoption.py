"""Takes over what an earlier daemon held (SPEC section 10).

spool ─▶ what it remembered ┐
ledger ─▶ what is on record ┼─▶ rows to mend, and `Recovered` for the core
launcher ─▶ what is alive   ┘
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import trio

from ..core import events as e
from ..core.run import Run
from ..core.snapshot import Remembered, rebased, restored
from ..faults import effect
from ..launch.base import Adopted, Remains
from ..launch.pidfd import exit_status
from ..ledger import RunExtra
from ..metering.metering import bounds_of
from ..meters import named
from ..protocol.types import Reason, RunId, RunInfo, Status
from ..protocol.units import counted
from ..runs.live import Live, name_of_main, wall_clock
from ..runs.stdin import StdinPipe
from .handover import Handover, Held
from .journal import Entry

if TYPE_CHECKING:
    from ..loop.runtime import Runtime

NOT_HELD = Held(None, [], None)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found. `rows` go into the ledger before it takes anything else, `event` is the core's first."""

    event: e.Recovered
    rows: list[tuple[RunInfo, RunExtra]]
    notes: list[str]
    """What could not be taken over, a line each."""
    never: list[RunId]
    """Runs of which nobody was ever told."""
    over: list[RunId]
    """Runs that are known to have ended, and those of which nothing can be read."""
    unwritten: tuple[tuple[RunInfo, RunExtra], ...] = ()
    """Of `rows`, what the ledger could not take."""

    def __str__(self) -> str:
        live = sum(1 for one in self.event.runs if one.run.pid is not None)
        queued = sum(1 for one in self.event.runs if one.run.status is Status.QUEUED)
        retrying = sum(1 for one in self.event.runs if one.run.status is Status.RETRYING)
        forgotten = sum(1 for info, _ in self.rows if info.status.terminal)
        ended = len(self.event.runs) - live - queued - retrying
        return (
            f"{counted(live, 'run')} alive and supervised again, {queued} queued, {retrying} between two attempts, {ended} ended "
            f"meanwhile, {forgotten} of which nothing but the end was left to write down"
        )

    @property
    def held(self) -> frozenset[RunId]:
        """Runs of which something may be alive, by intention."""
        return frozenset(one.run.id for one in self.event.runs)


def recover(runtime: Runtime, handed: Handover | None, stored: Mapping[str, int] = MappingProxyType({})) -> Recovery:
    """Finds what is left of an earlier daemon's runs, and holds it. `stored`: pidfds of main processes that somebody has kept, by
    name (`name_of_main`). Raises `OSError` where the launcher cannot tell."""
    return _Recoverer(runtime, handed, stored).recovery()


class _Recoverer:
    def __init__(self, runtime: Runtime, handed: Handover | None, stored: Mapping[str, int]) -> None:
        self._runtime = runtime
        self._stored = stored
        self._handed = handed
        self._memory = runtime.memory
        self._now = trio.current_time()
        self._wall = wall_clock()
        self._open = {info.id: info for info in runtime.ledger.left}
        self._runs: dict[RunId, Run] = {}
        if handed is not None:
            self._why = "the daemon restarted itself"
        else:
            rebooted = self._memory.found and not self._memory.same_boot
            self._why = "the machine was restarted" if rebooted else "the daemon died"

    def recovery(self) -> Recovery:
        effect("recover")
        entries, broken = self._memory.entries()
        tickets = tuple(self._handed.tickets) if self._handed is not None else ()
        held: list[Remembered] = []
        rows: list[tuple[RunInfo, RunExtra]] = []
        never: list[RunId] = []
        over = list(broken)
        notes = [f"run {run}: what was remembered of it cannot be read; it is ended" for run in broken]
        for entry in sorted(entries.values(), key=lambda each: each.origin.birth.number):
            live = self._live(entry)
            if self._over(live.run):
                over.append(live.run.id)
            elif live.run.status.terminal:
                rows.append(self._row(live))
            elif self._never_was(live.run):
                never.append(live.run.id)
            else:
                held.append(self._hold(live, entry))
                if live.run.id not in self._open:
                    rows.append(self._row(live))
        rows += self._lost(entries.keys() - over)
        event = e.Recovered(self._now, tuple(_with_descendants(held)), self._why, self._handed is not None, tickets)
        return Recovery(event, rows, notes, never, over)

    def _live(self, entry: Entry) -> Live:
        origin, progress = entry.origin, entry.progress
        birth, state = origin.birth, progress.state
        if not self._memory.same_boot and self._handed is None:
            birth, state = rebased(birth, state, self._now)
        run = restored(birth, state, self._runs.get(birth.parent) if birth.parent is not None else None)
        self._runs[run.id] = run
        spawn = self._memory.spawn(run.id) or origin.spawn
        return Live(
            run,
            spawn,
            self._runtime.launcher,
            origin.created_at,
            named(origin.program) if origin.program is not None else None,
            nonce=origin.nonce,
            asker=origin.asker,
            started_at=progress.started_at,
            ended_at=progress.ended_at,
            main=progress.main,
            attempted_at=progress.attempted_at,
            sessions=progress.sessions,
        )

    def _never_was(self, run: Run) -> bool:
        """Nothing of it has run, no client heard of it, and it is not on record: drop it silently."""
        return run.attempt == 0 and run.status is not Status.QUEUED and run.id not in self._open

    def _over(self, run: Run) -> bool:
        """What was remembered is older than what is on record, as after a power cut or from a copy that was put back: it has ended,
        or has begun since and is not to do so again."""
        on_record = self._open.get(run.id) or self._runtime.ledger.get(run.id)
        return on_record is not None and (on_record.status.terminal or on_record.attempts > run.attempt)

    def _hold(self, live: Live, entry: Entry) -> Remembered:
        run = live.run
        held = self._handed.runs.get(run.id, NOT_HELD) if self._handed is not None else NOT_HELD
        live.descriptors = list(held.descriptors)
        if held.stdin is not None:
            live.stdin = StdinPipe.resumed(held.stdin)
        found = self._found(live, held)
        ended = self._ended(run, found)
        if ended is None:  # else the core is told in a moment that it is over
            run.pid = found.pid
        self._runtime.take_over(live, entry.meter, ended)
        effect("adopted")
        begun = self._may_have_begun(live)
        return Remembered(run, empty=found.empty, starting=found.starting, startable=self._startable(live), begun=begun)

    def _may_have_begun(self, live: Live) -> bool:
        """What is remembered tells it, unless some of that may be missing: it is not synced, for it is of processes."""
        remembered = live.main is not None and live.main.attempt == live.run.attempt
        complete = self._memory.sound and (self._memory.same_boot or self._handed is not None)
        return remembered or not complete

    def _found(self, live: Live, held: Held) -> Adopted:
        run = live.run
        if not run.attempt or not (self._memory.same_boot or self._handed is not None):
            return Adopted(None, empty=True)
        remains = held.remains or _remains(live)
        return self._runtime.launcher.adopt(run.id, run.parent.id if run.parent is not None else None, remains)

    def _ended(self, run: Run, found: Adopted) -> e.MainExited | None:
        """How a main process has ended that is not there any more, if the kernel tells who kept its pidfd."""
        pidfd = self._stored.get(name_of_main(run))
        status = exit_status(pidfd) if run.pid and found.pid is None and pidfd is not None else None
        if status is None:
            return None
        code = os.waitstatus_to_exitcode(status)
        return e.MainExited(self._now, run.id, code if code >= 0 else None, -code if code < 0 else None, found.empty)

    def _startable(self, live: Live) -> bool:
        spawn = live.spawn
        descriptors = 3 if spawn.stdio == "inherit" else 1 if spawn.stdin == "descriptor" else 0
        return bool(spawn.argv) and len(live.descriptors) >= descriptors

    def _row(self, live: Live) -> tuple[RunInfo, RunExtra]:
        return live.info(self._now), live.extra

    def _lost(self, remembered: Set[RunId]) -> Iterator[tuple[RunInfo, RunExtra]]:
        """On record as not ended, but not remembered: what may be alive of it is ended by the sweep."""
        reason = Reason(
            kind="daemon", message="it was on record as live, and nothing was remembered of it; what was left was ended"
        )
        for run, info in self._open.items():
            if run not in remembered:
                ended = msgspec.structs.replace(
                    info, status=Status.LOST, reason=reason, ended_at=self._wall, pid=None, deadline=None
                )
                yield ended, self._runtime.ledger.details(run) or RunExtra()


def _remains(live: Live) -> Remains:
    """What was not remembered has executed nothing, and is not looked for."""
    run, main = live.run, live.main
    if run.exit is not None or main is None or main.attempt != run.attempt:
        return Remains(live.nonce, bounds_of(run))
    return Remains(live.nonce, bounds_of(run), main.pid, main.started, executed=run.status is not Status.STARTING)


def _with_descendants(held: list[Remembered]) -> list[Remembered]:
    """What a launcher without cgroups calls empty is a run alone."""
    inhabited: set[RunId] = set()
    for one in reversed(held):
        if (not one.empty or one.run.id in inhabited) and one.run.parent is not None:
            inhabited.add(one.run.parent.id)
    return [replace(one, empty=one.empty and one.run.id not in inhabited) for one in held]

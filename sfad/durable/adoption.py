"""What an earlier daemon left: its runs, where their processes are now, and the rows of the ledger
that are out of date.

spool ────▶ snapshots of live runs ┐
ledger ───▶ rows without an end    ┼▶ `Adoption`: live runs, rows to correct, the core's first event
launcher ─▶ what is alive          ┘
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from functools import cached_property

import msgspec
import trio
from msgspec import Struct, field
from msgspec.structs import replace

from ..agents import named, session_files_of
from ..core import events as e
from ..core.life.stages import following
from ..core.state.run import Run
from ..core.state.tree import Remembered, rebased
from ..host.clock import wall_clock
from ..host.faults import crash_point
from ..host.systemd import FdStore
from ..processes.kernel import exit_status, is_alive
from ..processes.launcher import Adopted, Launcher, LaunchRecord
from ..protocol.texts.units import counted
from ..protocol.types import CallInfo, Reason, RunId, RunInfo, Status
from ..runs.live import Live, StdinPipe, bounds_of, descriptors_of
from ..runs.showing import info_of
from ..storage.ledger import OpenedLedger, RunExtra
from ..storage.ledger.rows import is_damaged
from .handover import HandedRun, Handover
from .snapshots import RunSnapshot
from .spool import Spool

# ---- Pidfds of main processes, kept by systemd while no daemon is there
#
# They tell the next daemon how a process ended in the meantime, where the kernel does
# (PIDFD_GET_INFO, Linux 6.15).


def name_of_main(run: Run) -> str:
    """Return the name under which systemd keeps the pidfd of the main process of this attempt, or
    of its stage."""
    stage = f".{run.latest.stage}" if run.latest.stage else ""
    return f"{run.id}.{run.attempt}{stage}"


class StoredPidfds:
    """Has systemd keep the pidfd of each main process, where it starts the daemon and listens."""

    def __init__(self) -> None:
        self._store = FdStore()
        self.there = self._store.there
        """Whether it would keep one. Else none need be given to it."""

    def keep(self, run: Run, pid: int) -> None:
        """Have it kept from the launch on. Where that fails, the next daemon will not learn how the
        process ended."""
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            self._store.keep(name_of_main(run), pidfd)
            os.close(pidfd)

    def forget(self, run: Run) -> None:
        self._store.forget(name_of_main(run))

    def forget_others(self, names: Iterable[str], runs: Iterable[Run]) -> None:
        """Of what an earlier daemon had kept under `names`, forget all but the main processes of
        these runs."""
        for name in set(names) - {name_of_main(run) for run in runs}:
            self._store.forget(name)

    def close(self) -> None:
        self._store.close()


# ---- Runs and rows of an earlier daemon


Rows = list[tuple[RunInfo, RunExtra]]

NOTHING_HANDED = HandedRun(None, [], None)


class AdoptedRun(Struct, frozen=True):
    """A run that the core adopts. The launcher has adopted what is alive of it."""

    live: Live
    meter: bytes | None
    exited: e.MainExited | None
    """How its main process ended while no daemon was there, if the kernel tells."""


class Adoption(Struct, frozen=True):
    """What was found. `rows` go into the ledger before anything else, and `event` is the core's
    first."""

    event: e.RunsAdopted
    runs: list[AdoptedRun]
    rows: Rows
    calls: list[CallInfo]
    """They go into the ledger with the rows, unless they are there."""
    notes: list[str]
    """What could not be adopted, a line each."""
    never: list[RunId]
    """Runs that no client heard of."""
    over: list[RunId]
    """Runs that are known to have ended, and runs whose snapshot cannot be read."""

    def __str__(self) -> str:
        live = sum(1 for one in self.event.runs if one.run.pid is not None)
        queued = sum(1 for one in self.event.runs if one.run.status is Status.QUEUED)
        retrying = sum(1 for one in self.event.runs if one.run.status is Status.RETRYING)
        recorded = sum(1 for info, _ in self.rows if info.status.terminal)
        ended = len(self.event.runs) - live - queued - retrying
        return (
            f"{counted(live, 'run')} alive and supervised again, {queued} queued, "
            f"{retrying} between two attempts, {ended} ended meanwhile, "
            f"{recorded} more whose end was not on record"
        )

    @property
    def spared(self) -> frozenset[RunId]:
        """Runs whose processes the sweep must spare. A run of which no process was saved has
        executed nothing, but its cgroup may be there."""
        return frozenset(one.run.id for one in self.event.runs if one.run.attempt)


class EarlierRuns(Struct, dict=True):
    """Finds what is left of an earlier daemon's runs, and has the launcher adopt it. `stored` are
    pidfds of main processes that systemd has kept, by `name_of_main`."""

    spool: Spool
    ledger: OpenedLedger
    launcher: Launcher
    handed: Handover | None
    stored: Mapping[str, int]
    now: float = field(default_factory=trio.current_time)
    runs: dict[RunId, Run] = field(default_factory=dict)
    adopted: list[AdoptedRun] = field(default_factory=list)

    @cached_property
    def _open(self) -> dict[RunId, RunInfo]:
        return {info.id: info for info in self.ledger.left}

    @property
    def _same_boot(self) -> bool:
        return self.spool.earlier.same_boot or self.handed is not None

    def adoption(self) -> Adoption:
        """Raises `OSError` where the launcher cannot tell what is alive."""
        crash_point("recover")
        snapshots, broken = self.spool.earlier.snapshots()
        tickets = tuple(self.handed.tickets) if self.handed is not None else ()
        remembered: list[Remembered] = []
        rows: Rows = []
        calls: list[CallInfo] = []
        never: list[RunId] = []
        over = list(broken)
        notes = [
            (
                f"run {run}: its snapshot in the spool cannot be read, "
                f"so it is ended: {error}; {self.spool.earlier.set_aside(run)}"
            )
            for run, error in broken.items()
        ]
        for saved in sorted(snapshots.values(), key=lambda each: each.origin.birth.number):
            live = self._live(saved)
            if self._over(live.run):
                over.append(live.run.id)
                continue
            calls += saved.progress.calls
            if live.run.status.terminal:
                rows.append(self._row(live))
            elif self._never_was(live.run):
                never.append(live.run.id)
            else:
                remembered.append(self._adopt(live, saved))
                if live.run.id not in self._open or live.run.id in self.ledger.damaged:
                    rows.append(self._row(live))
        rows += self._lost(snapshots.keys() - over)
        event = e.RunsAdopted(
            self.now,
            tuple(_with_descendants(remembered)),
            self._why(),
            self.handed is not None,
            tickets,
            ended=self._ends_awaited(remembered),
        )
        return Adoption(event, self.adopted, rows, calls, notes, never, over)

    def _ends_awaited(self, remembered: list[Remembered]) -> dict[RunId, Status]:
        """Return how the runs have ended that one of these waits for, as far as it is known. A row
        is newer than a snapshot."""
        found: dict[RunId, Status] = {}
        awaits = (after for one in remembered for after in one.run.awaits)
        for awaited in {after.run for after in awaits if after.at is None}:
            row, saved = self.ledger.records.get(awaited), self.runs.get(awaited)
            if row is not None and row.status.terminal and not is_damaged(row):
                found[awaited] = row.status
            elif saved is not None and saved.status.terminal:
                found[awaited] = saved.status
        return found

    def _why(self) -> str:
        if self.handed is not None:
            return "the daemon restarted itself"
        rebooted = self.spool.earlier.found and not self.spool.earlier.same_boot
        return "the machine was restarted" if rebooted else "the daemon died"

    def _live(self, saved: RunSnapshot) -> Live:
        origin, progress = saved.origin, saved.progress
        birth, state = origin.birth, progress.state
        if not self._same_boot:
            birth, state = rebased(birth, state, self.now)
        run = Run(birth, state, self.runs.get(birth.parent) if birth.parent is not None else None)
        self.runs[run.id] = run
        startable = self.spool.spawns.read(run.id)
        handed = (
            self.handed.runs.get(run.id, NOTHING_HANDED)
            if self.handed is not None
            else NOTHING_HANDED
        )
        return Live(
            run,
            startable.command if startable is not None else origin.command,
            origin.output,
            origin.parts,
            self.launcher,
            origin.created_at,
            named(origin.program) if origin.program is not None else None,
            session_files_of(origin.output.meter, birth.asked.shown.argv),
            nonce=origin.nonce,
            order=startable.order if startable is not None else None,
            caller=origin.caller,
            request_key=origin.request_key,
            credentials=origin.user,
            setups=origin.setups,
            descriptors=list(handed.descriptors),
            stdin=StdinPipe(handed.stdin) if handed.stdin is not None else None,
            started_at=progress.started_at,
            ended_at=progress.ended_at,
            main=progress.main,
            attempted_at=progress.attempted_at,
            sessions=progress.sessions,
            milestone=progress.milestone,
            for_recall=origin.request,
        )

    def _never_was(self, run: Run) -> bool:
        """No client heard of this run: it executed nothing, and it has no row."""
        return run.attempt == 0 and run.status is not Status.QUEUED and run.id not in self._open

    def _over(self, run: Run) -> bool:
        """Whether the snapshot is older than the row, as after a power cut or where an old copy was
        put back. By its row the run has ended, or has begun another attempt, which must not begin
        twice."""
        row = self._open.get(run.id) or self.ledger.records.get(run.id)
        return (
            row is not None
            and not is_damaged(row)
            and (row.status.terminal or row.attempts > run.attempt)
        )

    def _adopt(self, live: Live, saved: RunSnapshot) -> Remembered:
        run = live.run
        found = self._found(live)
        exited = self._exited(run, found)
        if exited is None:  # else the core is told in a moment that it is over
            run.adopt(found.pid)
        self.adopted.append(AdoptedRun(live, saved.meter, exited))
        crash_point("adopted")
        begun = self._may_have_begun(live)
        return Remembered(
            run, empty=found.empty, starting=found.starting, startable=_startable(live), begun=begun
        )

    def _may_have_begun(self, live: Live) -> bool:
        """A main process is saved before it executes anything. That is not synced, so it tells
        nothing after a reboot."""
        saved = live.main is not None and live.main.is_of(live.run)
        complete = self.spool.earlier.sound and self._same_boot
        return saved or not complete

    def _found(self, live: Live) -> Adopted:
        run = live.run
        if not run.attempt or run.remote is not None or not self._same_boot:
            return Adopted(None, empty=True)
        if run.asked.in_program:
            return self._in_program(live)
        handed = (
            self.handed.runs.get(run.id, NOTHING_HANDED)
            if self.handed is not None
            else NOTHING_HANDED
        )
        return self.launcher.adopt(
            run.id,
            run.parent.id if run.parent is not None else None,
            handed.record or _record_of(live),
        )

    def _in_program(self, live: Live) -> Adopted:
        """Adopt a run that a program carries out, if that is alive, and what it contains."""
        run, main = live.run, live.main
        parent = run.parent.id if run.parent is not None else None
        record = LaunchRecord(live.nonce, bounds_of(run))
        empty = self.launcher.adopt(run.id, parent, record).empty
        if main is None or not is_alive(main.pid, main.started):
            return Adopted(None, empty=empty)
        self.launcher.enter(run.id, parent, record)
        return Adopted(main.pid, empty=False)

    def _exited(self, run: Run, found: Adopted) -> e.MainExited | None:
        """How a main process ended that is gone, if systemd kept its pidfd and the kernel tells by
        that."""
        pidfd = self.stored.get(name_of_main(run))
        status = exit_status(pidfd) if run.pid and found.pid is None and pidfd is not None else None
        if status is None:
            return None
        code = os.waitstatus_to_exitcode(status)
        return e.MainExited(
            self.now, run.id, code if code >= 0 else None, -code if code < 0 else None, found.empty
        )

    def _row(self, live: Live) -> tuple[RunInfo, RunExtra]:
        return info_of(live, self.now), live.extra

    def _lost(self, saved: Set[RunId]) -> Iterator[tuple[RunInfo, RunExtra]]:
        """Runs whose rows have no end and that have no snapshot. The sweep ends what is alive of
        them."""
        reason = Reason(
            kind="daemon",
            message=(
                "the ledger has it as live, but the spool has no snapshot of it; "
                "what was left of it was ended"
            ),
        )
        now = wall_clock()
        for run, info in self._open.items():
            if run not in saved:
                ended = msgspec.structs.replace(
                    info, status=Status.LOST, reason=reason, ended_at=now, pid=None, deadline=None
                )
                yield ended, self.ledger.records.details(run) or RunExtra()


def _startable(live: Live) -> bool:
    if live.run.asked.stages and following(live.run):
        return bool(live.command.argv)  # a stage has descriptors of its own
    has_command = bool(live.command.argv) or live.order is not None
    return has_command and len(live.descriptors) >= descriptors_of(live.output)


def _record_of(live: Live) -> LaunchRecord:
    """A main process that was not saved has executed nothing, so it is not looked for."""
    run, main = live.run, live.main
    over = run.latest.exit is not None and not run.latest.stage
    if over or main is None or not main.is_of(run):
        return LaunchRecord(live.nonce, bounds_of(run))
    executed, sandboxed = run.status is not Status.STARTING, live.parts.sandbox is not None
    return LaunchRecord(
        live.nonce, bounds_of(run), main.pid, main.started, executed=executed, sandboxed=sandboxed
    )


def _with_descendants(remembered: list[Remembered]) -> list[Remembered]:
    """Without cgroups, the launcher calls a run empty that has child runs with processes."""
    inhabited: set[RunId] = set()
    for one in reversed(remembered):
        if (not one.empty or one.run.id in inhabited) and one.run.parent is not None:
            inhabited.add(one.run.parent.id)
    return [replace(one, empty=one.empty and one.run.id not in inhabited) for one in remembered]

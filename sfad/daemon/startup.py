"""Opens everything that a daemon needs, and adopts what an earlier one left."""

import hashlib
import os
import socket
import sqlite3
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path

import trio
from msgspec import Struct

from .. import config as configuration
from ..durable.adoption import Adoption, EarlierRuns, Rows
from ..durable.handover import Handover
from ..durable.spool import EarlierSpool, Spool
from ..features.listed import FEATURES
from ..host import systemd
from ..host.clock import MonotonicClock, Timers
from ..host.counts import Counts
from ..host.faults import crash_point
from ..host.files import Damages
from ..host.headroom import DiskReserve
from ..host.linux.descriptors import keep_back
from ..host.log import Log
from ..host.socket_file import PathError, Users, directory_mode, prepare_socket, serves_all
from ..host.state_dir import StateLock, resume_lock, take_state_dir
from ..host.tasks import LoopRounds
from ..processes.local_launcher import choose_launcher
from ..processes.sweep import sweep
from ..protocol.texts.units import counted
from ..protocol.types import RunId
from ..storage.ledger import Ledger, LedgerError, OpenedLedger
from ..storage.output.files import OutputFiles
from ..storage.store import StoreError
from .loop.resources import EarlyEvents, Resources
from .loop.seam import corrected


class DaemonHome(Struct, frozen=True):
    socket: Path
    state_dir: Path
    config_files: tuple[list[Path], bool]
    """The files, and whether each has to be there."""

    @property
    def instance(self) -> str:
        """Twelve hex digits that name this state directory in cgroup names and cookies."""
        return hashlib.sha256(os.fsencode(self.state_dir.resolve())).hexdigest()[:12]


def open_log(setting: configuration.LogConfig, *, replaces: bool) -> Log:
    """Open the log. Raises `PathError`; a daemon that takes over the runs of another uses stderr
    instead."""
    try:
        return Log(
            level=setting.level, file=Path(setting.file) if setting.file is not None else None
        )
    except OSError as error:
        if not replaces:
            raise PathError(
                f"log.file = {setting.file} cannot be opened: {error.strerror}"
            ) from error
        log = Log(level=setting.level)
        log.error(
            f"log.file = {setting.file} cannot be opened: {error.strerror}; going on with stderr"
        )
        return log


def inherited_listener(
    home: DaemonHome, handed: Handover | None, stored: dict[str, int]
) -> socket.socket | None:
    """Return the socket on which systemd listens for this daemon, or the daemon before it did.
    Raises `PathError`."""
    if handed is not None:
        return socket.socket(fileno=handed.listener)
    fd = stored.pop(systemd.SOCKET_UNIT, None)
    if fd is None:
        return None
    listener = socket.socket(fileno=fd)
    if listener.getsockname() != str(home.socket):
        raise PathError(
            f"{systemd.SOCKET_UNIT} listens at {listener.getsockname()}, "
            f"and the daemon is to serve {home.socket}; "
            "set ListenStream= of the one and --socket or SFAD_SOCKET of the other to the same path"
        )
    return listener


def take_lock(
    home: DaemonHome, users: Users, handed: Handover | None, *, listening: bool
) -> StateLock:
    """Take the state directory. `listening`: the socket is there already. Raises `PathError`."""
    path, instance = home.state_dir, home.instance
    if handed is not None:
        return resume_lock(
            path, instance, directory=handed.directory, file=handed.lock, claim=handed.claim
        )
    lock = take_state_dir(path, instance)
    if not listening:
        #  a daemon that adopts runs and then cannot serve ends them
        prepare_socket(home.socket, held=path, directory_mode=directory_mode(users, home.socket))
    return lock


def open_state(
    home: DaemonHome, loaded: configuration.Loaded, lock: StateLock, log: Log, stack: ExitStack,
    handed: Handover | None, stored: dict[str, int],
) -> tuple[Resources, Adoption, Rows]:  # fmt: skip
    """Open what is in the state directory, choose the launcher, and adopt what lives. Return what
    the loop needs, what was found, and the rows that the ledger could not take. `stored`: pidfds
    that systemd has kept.

    Raises `PathError`, `LedgerError`, `CgroupImpossible`."""
    state_dir, timers, rounds, early_events = (
        home.state_dir,
        Timers(log.internal_error),
        LoopRounds(),
        EarlyEvents(),
    )
    damages = Damages(log.error)
    try:
        spool = Spool(state_dir / "spool", timers, rounds, log.error, lock.lost, damages)
        stack.callback(spool.close)
        output = OutputFiles(state_dir / "output", log.error, rounds=rounds)
    except StoreError as error:
        raise PathError(str(error)) from error
    except OSError as error:
        raise PathError(f"the state directory {state_dir} cannot be used: {error}") from error
    trio.lowlevel.add_instrument(rounds)
    _refuse_moved(state_dir, spool.earlier)
    for note in spool.notes:
        (log.warning if spool.earlier.sound else damages)(note)
    with ExitStack() as opening:
        opened = _open_ledger(state_dir, spool, output, log, damages)
        opening.callback(opened.close)
        containment = loaded.config.containment
        launcher = choose_launcher(
            instance=home.instance, mode=containment.mode, cgroup_parent=containment.cgroup_parent,
            emit=early_events.put, clock=MonotonicClock.current_time, complain=log.warning,
            together=early_events.in_one_go,
        )  # fmt: skip
        stack.callback(launcher.close)
        everyone = serves_all(loaded.config.access.users, home.socket, launcher.containment)
        keep_back()  # after the launcher has seen the limit that runs are to have
        try:
            adoption = EarlierRuns(spool, opened, launcher, handed, stored).adoption()
        except OSError as error:
            raise PathError(f"the runs of an earlier daemon cannot be adopted: {error}") from error
        for note in adoption.notes:
            damages(note)
        unwritten = _correct_ledger(opened, adoption, loaded.config, spool, log)
        opening.pop_all()
    ledger = Ledger(opened, rounds, lock.lost)
    stack.callback(lambda: _tell_unwritten(ledger.close(), log))
    resources = Resources(
        log, timers, rounds, spool, ledger, output, launcher, early_events, str(home.socket),
        str(state_dir), lock.lost, handed.counts if handed is not None else Counts(), damages,
        everyone,
    )  # fmt: skip
    return resources, adoption, unwritten


def _refuse_moved(here: Path, earlier: EarlierSpool) -> None:
    alive, before = earlier.moved_alive(here), earlier.place
    if alive:
        raise PathError(
            f"{here.resolve()} was {before} when {counted(len(alive), 'run')} began that "
            f"are still alive ({', '.join(alive[:8])}), and by that path they are known: "
            f"move it back, or end them with 'sfad sweep --state-dir {before}'"
        )


def _open_ledger(
    state_dir: Path, spool: Spool, output: OutputFiles, log: Log, damages: Damages
) -> OpenedLedger:
    floor, ballast = max(output.highest_number(), spool.numbers.highest_run), DiskReserve(state_dir)
    try:
        ledger = OpenedLedger(state_dir, floor_number=floor)
        ballast.fill()
    except LedgerError as error:
        if not (error.full and ballast.release()):
            raise
        log.error(f"{error}; trying again with the room that was kept for this")
        ledger = OpenedLedger(state_dir, floor_number=floor)
    for note in ledger.notes:
        damages(note)
    if ledger.is_new and floor and not ledger.notes:
        log.warning(
            f"there was no ledger in {state_dir}, though runs have been there: "
            "one was begun, without those that had ended"
        )
    return ledger


def _tell_unwritten(count: int, log: Log) -> None:
    if count:
        log.error(f"{count} records could not be written to the ledger before the end")
        print(f"sfad: {count} records could not be written to the ledger", file=sys.stderr)


def _correct_ledger(
    ledger: OpenedLedger,
    adoption: Adoption,
    config: configuration.Configuration,
    spool: Spool,
    log: Log,
) -> Rows:
    """Bring the ledger in line with what was found. Return the rows that it could not take."""
    unwritten: Rows = []
    try:
        crash_point("correct")
        ledger.upsert(adoption.rows, adoption.calls)
        crash_point("corrected")
    except sqlite3.Error as error:
        log.error(
            f"the ledger cannot be brought in line with what was found: {error}; "
            "it will be when it can be written"
        )
        unwritten = adoption.rows
    for note in corrected(FEATURES, config, ledger, spool):
        log.error(note)
    return unwritten


def close_all(descriptors: dict[str, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def sweep_others(
    home: DaemonHome,
    cgroup_parent: str | None,
    log: Log,
    spare: frozenset[RunId],
    keep: str | None = None,
) -> None:
    """Kill what carries this daemon's name and belongs to no run of `spare`. `keep`: the cgroup
    where runs are contained."""
    try:
        crash_point("sweep")
        report = sweep(home.instance, cgroup_parent, spare, keep)
    except Exception as error:  # noqa: BLE001 - a daemon that starts serves what it has, and one that dies says why it does
        log.error(
            (
                f"what a dead daemon may have left could not be looked for: {error}; "
                "run 'sfad sweep' later"
            ),
            traceback=traceback.format_exc(),
        )
        return
    if report.pids:
        log.warning(
            "killed processes that a dead daemon left, which belong to no known run",
            pids=report.pids,
        )

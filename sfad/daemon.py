"""Start-up, signals and shutdown of `sfad serve`."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import socket
import sqlite3
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from . import __version__, reexec
from . import config as configuration
from .core.events import DrainRequested
from .durable.adoption import Recovery, recover
from .durable.budgets import rebuild
from .durable.handover import Handover
from .durable.journal import Memory
from .faults import effect
from .host import logout, systemd
from .host.descriptors import hold_back
from .host.lasting import lasting
from .host.paths import PathError, bind_socket, prepare_socket, unbind_socket
from .host.peers import identify
from .host.priority import go_ahead
from .host.reserve import Ballast
from .host.state_dir import StateLock, resume_lock, take_state_dir
from .launch.base import Launcher
from .launch.choose import choose
from .launch.sweep import sweep
from .launch.watch.reaper import ChildSignals
from .ledger import Ledger, LedgerError, is_full
from .loop.runtime import Runtime
from .observe.log import Log
from .output.files import OutputStore
from .protocol.messages import Change, Setting
from .protocol.types import RunId
from .protocol.units import counted
from .runs.live import name_of_main
from .server.server import Server
from .spool import JournalError

LAST_WORDS = 2.0
"""Seconds that clients have to take their last replies when the daemon ends."""

DRAIN_SPARE = 2.0
"""Seconds beyond grace and `stop.kill_wait` after which a daemon that was told to end does so, whatever is still alive."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a daemon lives."""

    socket: Path
    state_dir: Path
    config_files: tuple[list[Path], bool]

    @property
    def instance(self) -> str:
        """Twelve hex digits that name this state directory in cgroup names and cookies."""
        return hashlib.sha256(os.fsencode(self.state_dir.resolve())).hexdigest()[:12]


class Daemon:
    """One daemon on one state directory."""

    def __init__(
        self, place: Place, loaded: configuration.Loaded, *, handed: Handover | None = None, ready_fd: int | None = None
    ) -> None:
        """`handed`: this process has executed itself anew, and goes on."""
        self._place = place
        self._loaded = loaded
        self._handed = handed
        self._ready_fd = ready_fd if handed is None else None  # that was told long ago, and its number may be another file's
        self._drained = trio.Event()
        self.left: list[RunId] = []
        """Runs that could not be ended: what the kernel keeps alive must not keep the daemon."""
        self._renewing = False
        """It is about to execute itself anew."""
        self._runtime: Runtime
        self._lock: StateLock
        self._inherited: socket.socket | None = None
        """The listening socket, if it is not to be made."""
        self._nofile = 0
        """The soft limit of descriptors that it was started with."""

    async def serve(self) -> None:
        """Serves until told to end and every tree is gone. Raises `PathError`, `LedgerError`, `CgroupImpossible`."""
        go_ahead()  # before the runs of an earlier daemon are taken over: they may keep every processor busy
        with ExitStack() as stack:
            stored = systemd.FdStore.taken()  # before any descriptor is opened
            stack.callback(_close_all, stored)
            children = ChildSignals()
            stack.callback(children.close)
            log = self._open_log()
            stack.callback(log.close)
            self._inherited = self._listener(stored)
            self._take_state_dir(stack)
            memory, output, ledger = self._open_state(stack, log)
            launcher = self._choose_launcher(stack, log)
            # after the launcher has seen the limit that runs are to have
            self._nofile = hold_back()
            runtime = self._make_runtime(ledger, output, launcher, memory, log)
            stack.callback(runtime.close)
            recovery = self._recover(runtime, stored, log)
            # what start-up has made lives as long as the daemon, and every collection would walk it again
            gc.freeze()
            gc.enable()
            try:
                await self._run(runtime, recovery, log, stack, children)
            except Exception:
                if not systemd.manages():
                    # nobody starts another daemon soon: one that cannot go on leaves nothing unmanaged behind
                    self._sweep(log, frozenset())
                raise

    def _open_log(self) -> Log:
        setting = self._loaded.config.log
        try:
            return Log(level=setting.level, file=_file(setting.file))
        except OSError as error:
            if self._handed is None:
                raise PathError(f"log.file = {setting.file} cannot be opened: {error.strerror}") from error
            log = Log(level=setting.level)
            log.error(f"log.file = {setting.file} cannot be opened: {error.strerror}; going on with stderr")
            return log

    def _listener(self, stored: dict[str, int]) -> socket.socket | None:
        """Return the socket on which systemd listens for this daemon, or the daemon before it did. Raises `PathError`."""
        if self._handed is not None:
            return socket.socket(fileno=self._handed.listener)
        fd = stored.pop(systemd.SOCKET_UNIT, None)
        if fd is None:
            return None
        listener = socket.socket(fileno=fd)
        if listener.getsockname() != str(self._place.socket):
            raise PathError(
                f"{systemd.SOCKET_UNIT} listens at {listener.getsockname()}, and the daemon is to serve {self._place.socket}; set "
                "ListenStream= of the one and --socket or SFAD_SOCKET of the other to the same path"
            )
        return listener

    def _take_state_dir(self, stack: ExitStack) -> None:
        path, instance, handed = self._place.state_dir, self._place.instance, self._handed
        if handed is None:
            self._lock = take_state_dir(path, instance)
            if self._inherited is None:
                prepare_socket(self._place.socket, held=path)  # a daemon that adopts runs and then cannot serve ends them
        else:
            self._lock = resume_lock(path, instance, directory=handed.directory, file=handed.lock, claim=handed.claim)
        stack.callback(self._lock.close)

    def _open_state(self, stack: ExitStack, log: Log) -> tuple[Memory, OutputStore, Ledger]:
        state_dir = self._place.state_dir
        try:
            memory = Memory(state_dir / "spool", log.error, self._lock.lost)
            stack.callback(memory.close)
            output = OutputStore(state_dir / "output", log.error)
        except JournalError as error:
            raise PathError(str(error)) from error
        except OSError as error:
            raise PathError(f"the state directory {state_dir} cannot be used: {error}") from error
        self._refuse_moved(memory)
        floor = max(output.highest_number(), memory.highest_number)
        ledger = self._open_ledger(floor, log)
        stack.callback(lambda: _tell_unwritten(ledger.close(), log))
        for note in (*memory.notes, *ledger.notes):
            log.warning(note)
        if ledger.begun_anew and floor and not ledger.notes:
            log.warning(
                f"there was no ledger in {state_dir}, though runs have been there: one was begun, without those that had ended"
            )
        return memory, output, ledger

    def _refuse_moved(self, memory: Memory) -> None:
        here, before = self._place.state_dir, memory.place
        alive = memory.moved_alive(here)
        if alive:
            raise PathError(
                f"{here} was {before} when {counted(len(alive), 'run')} began that are still alive ({', '.join(alive[:8])}), and "
                f"by that path they are known: move it back, or end them with 'sfad sweep --state-dir {before}'"
            )

    def _open_ledger(self, floor: int, log: Log) -> Ledger:
        state_dir, handed_over = self._place.state_dir, self._handed is not None
        ballast = Ballast(state_dir)
        try:
            ledger = Ledger(state_dir, floor_number=floor, handed_over=handed_over)
        except LedgerError as error:
            if not (error.full and ballast.throw_away()):
                raise
            log.error(f"{error}; trying again with the room that was kept for this")
            return Ledger(state_dir, floor_number=floor, handed_over=handed_over)
        ballast.take_on()
        return ledger

    def _choose_launcher(self, stack: ExitStack, log: Log) -> Launcher:
        containment = self._loaded.config.containment
        launcher = choose(
            instance=self._place.instance,
            mode=containment.mode,
            cgroup_parent=containment.cgroup_parent,
            emit=lambda event: self._runtime.reported(event),
            clock=trio.current_time,
            complain=log.warning,
        )
        stack.callback(launcher.close)
        return launcher

    def _make_runtime(self, ledger: Ledger, output: OutputStore, launcher: Launcher, memory: Memory, log: Log) -> Runtime:
        self._runtime = Runtime(
            loaded=self._loaded,
            ledger=ledger,
            output=output,
            launcher=launcher,
            log=log,
            socket=str(self._place.socket),
            state_dir=str(self._place.state_dir),
            memory=memory,
            on_shutdown=self._drained.set,
            reload=lambda: self._reload(self._runtime, log),
            state_dir_lost=self._lock.lost,
        )
        return self._runtime

    def _recover(self, runtime: Runtime, stored: dict[str, int], log: Log) -> Recovery:
        """Takes over what lives, and brings the ledger in line with it."""
        try:
            recovery = recover(runtime, self._handed, stored)
        except OSError as error:
            raise PathError(f"what an earlier daemon left cannot be taken over: {error}") from error
        for note in recovery.notes:
            log.error(note)
        ledger = runtime.ledger
        try:
            effect("mend")
            self._mend(recovery, ledger, log)
            effect("mended")
        except sqlite3.Error as error:
            log.error(f"the ledger cannot be brought in line with what was found: {error}; it will be when it can be written")
            recovery = replace(recovery, unwritten=tuple(recovery.rows))
        try:
            for note in rebuild(self._loaded.config.budgets, ledger, runtime.memory):
                log.error(note)
        except sqlite3.Error as error:
            log.error(f"the ledger was not told what budgets were charged: {error}; what is remembered counts")
        ledger.start(
            on_committed=runtime.committed,
            on_failed=runtime.commit_failed,
            on_ended=runtime.recorded,
            on_trouble=runtime.trouble,
            on_put_back=runtime.put_back,
            lost=self._lock.lost,
            on_checkpointed=runtime.checkpointed,
        )
        for name in set(stored) - {name_of_main(one.run) for one in recovery.event.runs if one.run.pid is not None}:
            runtime.fd_store.forget(name)
        _close_all(stored)
        return recovery

    def _mend(self, recovery: Recovery, ledger: Ledger, log: Log) -> None:
        try:
            ledger.mend(recovery.rows)
        except sqlite3.Error as error:
            if not (is_full(error) and Ballast(self._place.state_dir).throw_away()):
                raise
            log.error(f"the ledger cannot be written: {error}; trying again with the room that was kept for this")
            ledger.mend(recovery.rows)

    async def _sweep_others(self, recovery: Recovery, log: Log) -> None:
        """Ends what carries our name and is no run that is known: a run of which nothing was remembered."""
        if self._handed is None or recovery.notes:
            await trio.to_thread.run_sync(self._sweep, log, recovery.held, self._runtime.launcher.detail)

    def _sweep(self, log: Log, spare: frozenset[RunId], home: str | None = None) -> None:
        try:
            effect("sweep")
            report = sweep(self._place.instance, self._loaded.config.containment.cgroup_parent, spare, home)
        except Exception as error:  # noqa: BLE001 - a daemon that starts serves what it has, and one that dies says why it does
            log.error(
                f"what a dead daemon may have left could not be looked for: {error}; run 'sfad sweep' later",
                traceback=traceback.format_exc(),
            )
            return
        if report.pids:
            log.warning("killed processes that a dead daemon left and nobody remembers", pids=report.pids)

    async def _run(self, runtime: Runtime, recovery: Recovery, log: Log, stack: ExitStack, children: ChildSignals) -> None:
        place, handed = self._place, self._handed
        listener = self._inherited or bind_socket(place.socket, held=place.state_dir)
        if not systemd.listens(listener):  # to look whether it is stale would make systemd start the service again
            stack.callback(_unbind, place, log)
        inode = handed.inode if handed is not None else None
        server = Server(listener, runtime, lambda sock: identify(sock, runtime.launcher), log, inode)
        stack.callback(server.close)
        if handed is not None:
            server.take_over(handed.clients, handed.last_token)
            runtime.machine.admitted, runtime.machine.refused = handed.admitted, handed.refused
            runtime.began = handed.began
        # outside the nursery: trio's receiver breaks a task that still iterates over it when it is closed
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # blocked across execve(2)
            async with trio.open_nursery() as nursery:
                await nursery.start(runtime.serve)
                await self._sweep_others(recovery, log)
                if handed is not None:
                    server.go_on(handed.clients)  # who watches is told what has happened meanwhile
                await runtime.recover(recovery)
                nursery.start_soon(lasting, server.serve, runtime.internal_error)
                nursery.start_soon(lasting, server.look_after_socket, runtime.internal_error)
                nursery.start_soon(children.serve, runtime.launcher.child_signalled)
                nursery.start_soon(self._obey, signals, runtime, server, log, nursery)
                nursery.start_soon(systemd.feed_watchdog)
                self._announce(log, runtime, recovery)
                await self._drained.wait()
                _notify("STOPPING=1", log)
                with trio.move_on_after(LAST_WORDS), suppress(OSError):
                    await runtime.ledger.flush()  # who waits for an end is told when it is recorded
                    await server.drained()
                nursery.cancel_scope.cancel()
        log.info("stopped")

    def _announce(self, log: Log, runtime: Runtime, recovery: Recovery) -> None:
        launcher = runtime.launcher
        log.info(
            "serving", socket=str(self._place.socket), state_dir=str(self._place.state_dir), pid=os.getpid(),
            containment=launcher.containment, detail=launcher.detail,
        )  # fmt: skip
        runtime.tell_recovered(recovery)
        _notify("READY=1", log)
        if self._ready_fd is not None:
            with suppress(BrokenPipeError):  # whoever started us may be gone
                os.write(self._ready_fd, b"ready\n")
            os.close(self._ready_fd)

    async def _obey(self, signals: AsyncIterator[int], runtime: Runtime, server: Server, log: Log, nursery: trio.Nursery) -> None:
        """Waits for none of them to be carried out: SIGTERM may come while the daemon is about to execute itself anew."""
        async for number in signals:
            if number == signal.SIGHUP:
                _notify(systemd.reloading(), log)
                with suppress(configuration.ConfigError):  # the log has it
                    self._reload(runtime, log)
                if (installed := reexec.installed_version()) not in (None, __version__):
                    log.info("another version is installed", running=__version__, installed=installed)
                    nursery.start_soon(self._execute_anew, runtime, server, log)
                else:
                    _notify("READY=1", log)
            elif number == signal.SIGUSR2:
                nursery.start_soon(self._execute_anew, runtime, server, log)
            else:
                # before anything waits: a daemon that is about to execute itself anew must see that it is draining
                cause = logout.cause() if number == signal.SIGTERM else None
                log.info("stopping every tree", signal=signal.Signals(number).name, cause=cause, live=len(runtime.live))
                server.stop_accepting()
                runtime.feed(DrainRequested(trio.current_time(), number, cause))
                nursery.start_soon(self._bound_drain, runtime, log)

    async def _bound_drain(self, runtime: Runtime, log: Log) -> None:
        await trio.sleep_until(runtime.machine.drained_by(trio.current_time()) + DRAIN_SPARE)
        if self._drained.is_set():
            return
        self.left = sorted(runtime.live)
        log.error(f"ending, though processes cannot be killed; their runs are left to the next daemon: {', '.join(self.left)}")
        self._drained.set()

    async def _execute_anew(self, runtime: Runtime, server: Server, log: Log) -> None:
        """Returns only if that cannot be; then everything goes on as before."""
        if runtime.machine.draining or self._renewing:
            log.warning(f"SIGUSR2 is ignored: the daemon is being {'renewed' if self._renewing else 'stopped'}")
            return
        self._renewing = True
        try:
            if (lost := self._lock.lost()) is not None:
                raise reexec.Unfit(f"the next program would find nothing of what this one holds: {lost}")
            await reexec.check(runtime.state_dir)
            log.info("executing itself anew", version=__version__, live=len(runtime.live))
            _notify(systemd.reloading(), log)
            await reexec.execute(runtime, server, self._lock, self._nofile)
        except Exception as error:  # noqa: BLE001 - whatever it was, it must not leave every tree without a supervisor
            log.error(f"the daemon goes on as it is, and was not executed anew: {error or type(error).__name__}")
            _notify("READY=1", log)
        finally:
            self._renewing = False

    def _reload(self, runtime: Runtime, log: Log) -> tuple[configuration.Loaded, list[Change]]:
        """Read the config again; what was read, and what is different now. Raises `ConfigError`, and the old one stays."""
        files, required = self._place.config_files
        try:
            log.reopen()  # it may have been rotated away
            loaded = configuration.load(files, required=required)
        except (configuration.ConfigError, OSError) as error:
            log.error(f"the config was not reloaded: {error}")
            raise configuration.ConfigError(str(error)) from error
        changed = _changes(self._loaded.settings, loaded.settings)
        self._loaded = replace(loaded, settings=_in_force(self._loaded.settings, loaded.settings))
        runtime.reconfigure(self._loaded)
        log.info("config reloaded", files=[str(path) for path in loaded.files])
        if waiting := [change.key for change in changed if change.waits]:
            log.warning("these take effect at the next start", keys=waiting)
        return self._loaded, changed


def _close_all(descriptors: dict[str, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def _unbind(place: Place, log: Log) -> None:
    try:
        unbind_socket(place.socket, held=place.state_dir)
    except PathError as error:
        log.warning(str(error))  # the next daemon finds it stale and replaces it


def _notify(state: str, log: Log) -> None:
    try:
        systemd.notify(state)
    except OSError as error:
        log.warning(f"NOTIFY_SOCKET is set, but nobody can be told {state}: {error}")


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


REMOVED = "removed"
"""The source of a setting that no file has any more."""

_AT_START = ("containment.", "log.")
"""Settings that a running daemon cannot change."""


def _in_force(old: list[Setting], new: list[Setting]) -> list[Setting]:
    """The settings after a reload: some keep their old value until a restart."""
    before = {setting.key: setting for setting in old}
    return [before[setting.key] if setting.key.startswith(_AT_START) else setting for setting in new]


def _changes(old: list[Setting], new: list[Setting]) -> list[Change]:
    """What a reload changes, key by key. A key of a table of names may be there on one side only."""
    before, after = ({setting.key: setting for setting in settings} for settings in (old, new))
    found = []
    for key in dict.fromkeys([*before, *after]):
        was, now = (None if setting is None else setting.value for setting in (before.get(key), after.get(key)))
        if was != now:
            source = after[key].source if key in after else REMOVED
            found.append(Change(key=key, old=was, new=now, source=source, waits=key.startswith(_AT_START)))
    return found


def _file(path: str | None) -> Path | None:
    return Path(path) if path is not None else None


def _tell_unwritten(count: int, log: Log) -> None:
    if count:
        log.error(f"{count} records could not be written to the ledger before the end")
        print(f"sfad: {count} records could not be written to the ledger", file=sys.stderr)

"""Start-up, signals and shutdown of `sfad serve`."""

from __future__ import annotations

import gc
import hashlib
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from . import config as configuration
from . import systemd
from .core.events import DrainRequested
from .launch import choose
from .launch.base import Launcher
from .launch.reaper import ChildSignals
from .launch.sweep import sweep
from .ledger import Ledger
from .observe.log import Log
from .output.files import OutputStore
from .paths import PathError, bind_socket, lock_state_dir, prepare_state_dir, unbind_socket
from .peers import identify
from .protocol.messages import Setting
from .runtime.live import wall_clock
from .runtime.runtime import Runtime
from .server.server import Server

LAST_WORDS = 2.0
"""Seconds that clients have to take their last replies when the daemon ends."""


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

    def __init__(self, place: Place, loaded: configuration.Loaded, *, ready_fd: int | None = None) -> None:
        self._place = place
        self._loaded = loaded
        self._ready_fd = ready_fd
        self._drained = trio.Event()
        self._runtime: Runtime

    async def serve(self) -> None:
        """Serves until told to end and every tree is gone. Raises `PathError`, `LedgerError`, `CgroupImpossible`."""
        with ExitStack() as stack:
            children = ChildSignals()
            stack.callback(children.close)
            log = self._open_log()
            stack.callback(log.close)
            prepare_state_dir(self._place.state_dir)
            stack.callback(os.close, lock_state_dir(self._place.state_dir))
            ledger, output = self._open_state(stack, log)
            launcher = self._choose_launcher(stack, log)
            # after the launcher has seen the limit that runs are to have
            _raise_descriptor_limit()
            runtime = self._make_runtime(ledger, output, launcher, log)
            stack.callback(runtime.close)
            # what start-up has made lives as long as the daemon, and every collection would walk it again
            gc.collect()
            gc.freeze()
            try:
                await self._run(runtime, log, stack, children)
            except Exception:
                # a daemon that cannot go on leaves nothing unmanaged behind
                self._sweep_leftovers(log)
                raise

    def _open_log(self) -> Log:
        setting = self._loaded.config.log
        try:
            return Log(level=setting.level, file=_file(setting.file))
        except OSError as error:
            raise PathError(f"log.file = {setting.file} cannot be opened: {error.strerror}") from error

    def _open_state(self, stack: ExitStack, log: Log) -> tuple[Ledger, OutputStore]:
        place = self._place
        self._sweep_leftovers(log)
        output = OutputStore(place.state_dir / "output")
        ledger = Ledger(place.state_dir, floor_number=output.highest_number())
        stack.callback(lambda: _tell_unwritten(ledger.close(), log))
        for note in ledger.notes:
            log.warning(note)
        left = [run.id for run in ledger.open_runs()]
        if left:
            ledger.close_lost(left, wall_clock(), "the daemon died while it ran; what was left of it was killed at the next start")
            log.warning("closed runs that a dead daemon left as lost", runs=left)
        return ledger, output

    def _sweep_leftovers(self, log: Log) -> None:
        try:
            report = sweep(self._place.instance, self._loaded.config.containment.cgroup_parent)
        except OSError as error:
            log.error(f"what a dead daemon may have left could not be looked for: {error}; run 'sfad sweep' later")
            return
        if report.pids:
            log.warning("killed processes that a dead daemon left", pids=report.pids)

    def _choose_launcher(self, stack: ExitStack, log: Log) -> Launcher:
        containment = self._loaded.config.containment
        launcher = choose(
            instance=self._place.instance,
            forced=containment.mode,
            cgroup_parent=containment.cgroup_parent,
            emit=lambda event: self._runtime.reported(event),
            clock=trio.current_time,
            complain=log.warning,
        )
        stack.callback(launcher.close)
        return launcher

    def _make_runtime(self, ledger: Ledger, output: OutputStore, launcher: Launcher, log: Log) -> Runtime:
        self._runtime = Runtime(
            loaded=self._loaded,
            ledger=ledger,
            output=output,
            launcher=launcher,
            log=log,
            socket=str(self._place.socket),
            state_dir=str(self._place.state_dir),
            on_shutdown=self._drained.set,
        )
        ledger.start(
            on_committed=self._runtime.committed,
            on_failed=self._runtime.commit_failed,
            on_ended=self._runtime.recorded,
            on_trouble=self._runtime.trouble,
        )
        return self._runtime

    async def _run(self, runtime: Runtime, log: Log, stack: ExitStack, children: ChildSignals) -> None:
        place = self._place
        listener = bind_socket(place.socket)
        stack.callback(_unbind, place.socket, log)
        server = Server(listener, runtime, lambda sock: identify(sock, runtime.launcher), log)
        stack.callback(server.close)
        # outside the nursery: trio's receiver breaks a task that still iterates over it when it is closed
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            async with trio.open_nursery() as nursery:
                await nursery.start(runtime.serve)
                nursery.start_soon(server.serve)
                nursery.start_soon(children.serve, runtime.launcher.child_signalled)
                nursery.start_soon(self._obey, signals, runtime, server.stop_accepting, log)
                self._announce(log, runtime.launcher)
                await self._drained.wait()
                _notify("STOPPING=1", log)
                with trio.move_on_after(LAST_WORDS), suppress(OSError):
                    await runtime.ledger.flush()  # who waits for an end is told when it is recorded
                    await server.drained()
                nursery.cancel_scope.cancel()
        log.info("stopped")

    def _announce(self, log: Log, launcher: Launcher) -> None:
        log.info(
            "serving", socket=str(self._place.socket), state_dir=str(self._place.state_dir), pid=os.getpid(),
            containment=launcher.containment, detail=launcher.detail,
        )  # fmt: skip
        _notify("READY=1", log)
        if self._ready_fd is not None:
            with suppress(BrokenPipeError):  # whoever started us may be gone
                os.write(self._ready_fd, b"ready\n")
            os.close(self._ready_fd)

    async def _obey(self, signals: AsyncIterator[int], runtime: Runtime, stop_accepting: Callable[[], None], log: Log) -> None:
        async for number in signals:
            if number == signal.SIGHUP:
                self._reload(runtime, log)
            elif number == signal.SIGUSR2:
                log.warning("SIGUSR2: re-executing in place is not in this release; stop and start the daemon")
            else:
                log.info("stopping every tree", signal=signal.Signals(number).name, live=len(runtime.live))
                stop_accepting()
                runtime.feed(DrainRequested(trio.current_time(), number))

    def _reload(self, runtime: Runtime, log: Log) -> None:
        files, required = self._place.config_files
        try:
            log.reopen()  # it may have been rotated away
            loaded = configuration.load(files, required=required)
        except (configuration.ConfigError, OSError) as error:
            log.error(f"the config was not reloaded: {error}")
            return
        settings, waiting = _in_force(self._loaded.settings, loaded.settings)
        self._loaded = configuration.Loaded(loaded.config, settings, loaded.files)
        runtime.reconfigure(self._loaded)
        log.info("config reloaded", files=[str(path) for path in loaded.files])
        if waiting:
            log.warning("these take effect at the next start", keys=waiting)


def _unbind(socket: Path, log: Log) -> None:
    try:
        unbind_socket(socket)
    except PathError as error:
        log.warning(str(error))  # the next daemon finds it stale and replaces it


def _notify(state: str, log: Log) -> None:
    try:
        systemd.notify(state)
    except OSError as error:
        log.warning(f"NOTIFY_SOCKET is set, but nobody can be told {state}: {error}")


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


_AT_START = ("containment.", "log.")
"""Settings that a running daemon cannot change."""


def _in_force(old: list[Setting], new: list[Setting]) -> tuple[list[Setting], list[str]]:
    """The settings after a reload, and the keys whose new value has to wait for a restart."""
    before = {setting.key: setting for setting in old}
    settings = [before[setting.key] if setting.key.startswith(_AT_START) else setting for setting in new]
    return settings, [setting.key for setting, kept in zip(new, settings, strict=True) if setting.value != kept.value]


def _file(path: str | None) -> Path | None:
    return Path(path) if path is not None else None


def _raise_descriptor_limit() -> None:
    """Every live run costs up to four descriptors; the usual soft limit of 1 024 is for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tell_unwritten(count: int, log: Log) -> None:
    if count:
        log.error(f"{count} records could not be written to the ledger before the end")
        print(f"sfad: {count} records could not be written to the ledger", file=sys.stderr)

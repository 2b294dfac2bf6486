"""A daemon from its start to its end: `serve`, and what it does on signals."""

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import trio
from msgspec import Struct, field

from .. import __version__
from .. import config as configuration
from ..core.events import DrainRequested
from ..durable.adoption import Adoption, Rows
from ..durable.handover import VARIABLE, Handover, to_memfd
from ..host import systemd
from ..host.faults import carried, crash_point
from ..host.headroom import raise_priority
from ..host.installed import other_version
from ..host.linux import descriptors
from ..host.log import Log
from ..host.socket_file import bind_socket, directory_mode, socket_mode
from ..host.state_dir import StateLock
from ..host.tasks import keep_serving
from ..processes.launcher import ChildSignals
from ..protocol.event_types import EventType
from ..protocol.inherited import STRAY, survive_stray_signals
from ..protocol.types import RunId
from ..usage.metering import Metering
from .loop.runtime import Runtime
from .reloading import ConfigFiles
from .server.lost_runs import continue_lost
from .server.peers import identify
from .server.server import Server
from .startup import (
    DaemonHome,
    close_all,
    inherited_listener,
    open_log,
    open_state,
    sweep_others,
    take_lock,
)

# ---- Re-execution: on SIGUSR2, and on SIGHUP after an upgrade, the daemon becomes the installed
# program in place. It keeps its
# pid, its children, its socket with the clients that wait there, and every connection.
#
#     check ─▶ rest: no new requests ─▶ earlier requests are in the ledger
#           ─▶ hand over ─▶ execve(2) ─▶ `handover.taken`

# -P: `-m` alone looks for sfad in the working directory first, where a run may have put a program
# of that name
PROGRAM = (sys.executable, "-P", "-m", "sfad")
"""The installed program, as words of a command."""

CHECK_TIMEOUT = 30.0
"""Seconds that the installed program may take to check that it works."""

CLOSE_TIMEOUT = 1.0
"""Seconds that closing files which clients sent may take."""

MAX_FLUSHES = 100
"""Flushes of the ledger. Retries and the queue may admit more runs in the meantime."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
"""Those that the daemon handles. They would end a program that has not installed its handlers yet:
they are blocked from its start on, and stay pending until then."""
HELD_BACK = (*SIGNALS, signal.SIGCHLD)
"""Those that are blocked when the next program begins after a re-execution, and may be pending."""


class Unfit(Exception):
    """The installed program does not work, so the daemon must not become it."""


async def check(state_dir: Path, config_files: tuple[list[Path], bool]) -> None:
    """Check that the installed program starts, and reads the config and what this one has written.
    Raises `Unfit`, `OSError`."""
    # In a thread: a thread's child is not taken for an orphan of a run (`watch.Orphans`). The
    # timeout of subprocess.run begins after the child's execve(2), which closes a copy of each file
    # that a client has sent; closing the last copy may block for long (`host.descriptors`).
    files, required = config_files
    chosen = ["--config", str(files[0])] if required else []
    command = [*PROGRAM, "check-start", "--state-dir", str(state_dir), *chosen]
    done = None
    with trio.move_on_after(CHECK_TIMEOUT + 1):
        done = await trio.to_thread.run_sync(_check, command, abandon_on_cancel=True)
    if done is None:
        raise Unfit(f"'sfad check-start' did not start within {CHECK_TIMEOUT:g} s")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise Unfit(
            "the installed program does not work: "
            f"'sfad check-start' exited with code {done.returncode}: {said}"
        )


def _check(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHECK_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unfit(f"'sfad check-start' did not end within {CHECK_TIMEOUT:g} s") from error


async def execute(runtime: Runtime, server: Server, lock: StateLock, nofile: int) -> None:
    """Become the installed program, and do not return. `nofile`: the soft limit of descriptors that
    this process was started with. Raises `OSError`, `Unfit`, and then everything is as it was."""
    await runtime.launcher_events.none_pending()
    await runtime.parts.rest()
    await runtime.commands.rest()
    server.rest(resting=True)
    try:
        await _threads_done(runtime.metering)
        with _signals_held_back():
            # write something, to learn whether the ledger can be written: the next program does not
            # start if it cannot
            runtime.announcer.tell(
                EventType.DAEMON_REEXECUTING, f"sfad {__version__} re-executes itself"
            )
            ledger = runtime.resources.ledger
            for _ in range(MAX_FLUSHES):
                runtime.launcher_events.feed_all()
                if not await ledger.flush():
                    raise Unfit(f"the ledger cannot be written: {ledger.trouble}")
                if all(live.run.committed for live in runtime.catalogue.live.values()):
                    break
            else:
                raise Unfit(f"the ledger does not take what was admitted: {ledger.trouble}")
            # the task that handles signals has seen those that came before
            await trio.lowlevel.checkpoint()
            if runtime.machine.draining:
                raise Unfit("the daemon was told to end in the meantime")
            _execute(runtime, server, lock, nofile)
    finally:
        server.rest(resting=False)
        runtime.commands.go_on()
        runtime.parts.go_on()


async def _threads_done(metering: Metering) -> None:
    # execve(2) waits for every other thread to end, and one that waits for a FUSE server cannot be
    # killed
    with trio.move_on_after(CLOSE_TIMEOUT):
        while descriptors.threads() or metering.waiting:  # noqa: ASYNC110 - a thread that waits for the kernel can set no event
            await trio.sleep(0.01)
    if senders := descriptors.unkillable():
        who = ", ".join(senders)
        raise Unfit(
            f"the kernel does not close files that were sent by {who}; "
            "end what is behind them, such as a FUSE server"
        )
    if metering.waiting:
        raise Unfit("a file system with session files of an agent does not answer; unmount it")


@contextmanager
def _signals_held_back() -> Iterator[None]:
    # blocked in this thread, they stay pending for the program that it becomes; another thread
    # passes on what it gets
    thread = threading.get_ident()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, *STRAY))
    handlers = {
        each: signal.signal(each, lambda number, _: signal.pthread_kill(thread, number))
        for each in SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _execute(runtime: Runtime, server: Server, lock: StateLock, nofile: int) -> None:
    # nothing awaits from here on: what is handed over must stay as it is on record
    ledger = runtime.resources.ledger
    if not ledger.flush_now():
        raise Unfit(
            f"the ledger cannot be written: {ledger.trouble or 'it takes longer than a second'}"
        )
    crash_point("hand over")
    handover = Handover(
        listener=server.listener.fileno(),
        inode=server.listener.inode,
        lock=lock.file,
        directory=lock.directory,
        claim=lock.claim,
        runs=runtime.succession.hand_over(),
        tickets=list(runtime.machine.tickets()),
        last_token=runtime.requests.last_token,
        clients=server.handover.hand_over(),
        admitted=runtime.machine.admitted,
        refused=runtime.machine.refused,
        began=runtime.began,
        counts=runtime.resources.counts,
    )
    try:
        memory = to_memfd(handover)
        descriptors = [*handover.descriptors(), memory]
        crash_point("handed over")
        _become(descriptors, memory, nofile)
    except Exception:
        runtime.resources.launcher.take_back()
        raise


def _become(descriptors: Iterable[int], memory: int, nofile: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # that of runs is taken from it
        resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, limits[1]))
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        os.execve(
            sys.executable,
            [*PROGRAM, *sys.argv[1:]],
            os.environ | {VARIABLE: str(memory)} | carried(),
        )
    except OSError:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        os.close(memory)
        raise


# ---- A daemon from its start to its end: `serve`, and what it does on signals

LAST_WORDS = 2.0
"""Seconds that clients have to take their last replies when the daemon ends."""

DRAIN_SPARE = 2.0
"""Seconds beyond grace and `stop.kill_wait` after which a daemon that was told to end does so,
whatever is still alive."""


async def serve(
    home: DaemonHome,
    loaded: configuration.Loaded,
    *,
    handed: Handover | None = None,
    ready_fd: int | None = None,
) -> list[RunId]:
    """Serve until told to end. Return the runs whose processes could not be killed. `handed`: this
    process was re-executed.

    Raises `PathError`, `LedgerError`, `CgroupImpossible`."""
    # before the runs of an earlier daemon are adopted: they may keep every processor busy
    raise_priority()
    with ExitStack() as stack:
        stored = systemd.FdStore.taken()  # before any descriptor is opened
        stack.callback(close_all, stored)
        children = ChildSignals()
        stack.callback(children.close)
        log = open_log(
            loaded.config.log, replaces=handed is not None or loaded.rejected is not None
        )
        stack.callback(log.close)
        listener = inherited_listener(home, handed, stored)
        users = loaded.config.access.users
        lock = take_lock(home, users, handed, listening=listener is not None)
        stack.callback(lock.close)
        nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        resources, adoption, unwritten = open_state(home, loaded, lock, log, stack, handed, stored)
        drained = trio.Event()
        files = ConfigFiles(home.config_files, loaded, log, home.state_dir)
        began = handed.began if handed is not None else None
        runtime = Runtime(
            resources, loaded, shut_down=drained.set, read_config=files.read, began=began
        )
        stack.callback(runtime.close)
        runtime.succession.adopt(adoption)
        runtime.pidfds.forget_others(
            stored, [one.run for one in adoption.event.runs if one.run.pid is not None]
        )
        close_all(stored)
        # what start-up has made lives as long as the daemon, and every collection would walk it
        # again
        gc.freeze()
        gc.enable()
        try:
            listener = listener or bind_socket(
                home.socket,
                held=home.state_dir,
                mode=socket_mode(everyone=resources.everyone),
                directory_mode=directory_mode(users, home.socket),
            )
            server = Server(
                listener,
                runtime,
                lambda sock: runtime.parts.peer(
                    identify(
                        sock, resources.launcher, runtime.leading.caller_at, runtime.parts.is_own
                    )
                ),
                handed,
            )
            stack.callback(server.close)
            # a daemon that was re-executed has told its readiness long ago, and the number may be
            # another file's
            daemon = Daemon(
                home,
                runtime,
                server,
                lock,
                log,
                files,
                nofile,
                drained,
                ready_fd if handed is None else None,
            )
            await daemon.run(adoption, unwritten, handed, children)
        except Exception:
            # then no other daemon starts soon, so no run may be left without a supervisor
            if not systemd.manages():
                sweep_others(home, loaded.config.containment.cgroup_parent, log, frozenset())
            raise
        if not daemon.left:
            files.forget()
        log.info("stopped")
        return daemon.left


class Daemon(Struct):
    home: DaemonHome
    runtime: Runtime
    server: Server
    lock: StateLock
    log: Log
    files: ConfigFiles
    nofile: int
    """The soft limit of descriptors that it was started with."""
    drained: trio.Event
    ready_fd: int | None
    left: list[RunId] = field(default_factory=list)
    """Runs whose processes could not be killed. They must not keep the daemon."""
    _reexecuting: bool = False

    async def run(
        self, adoption: Adoption, unwritten: Rows, handed: Handover | None, children: ChildSignals
    ) -> None:
        runtime, server, log = self.runtime, self.server, self.log
        if handed is not None:
            runtime.machine.count_before(admitted=handed.admitted, refused=handed.refused)
        # When trio's receiver closes, it restores the earlier handlers and sends again each signal
        # that was not read. Without these handlers, a second SIGTERM would kill the daemon before
        # it has removed its cgroup.
        survive_stray_signals(*SIGNALS)
        # outside the nursery: trio's receiver breaks a task that still iterates over it when it is
        # closed
        with trio.open_signal_receiver(*SIGNALS) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked since the start
            async with trio.open_nursery() as nursery:
                await nursery.start(runtime.serve)
                if handed is None or adoption.notes:
                    # processes of runs without a snapshot
                    parent, detail = (
                        runtime.in_force.config.containment.cgroup_parent,
                        runtime.resources.launcher.detail,
                    )
                    await trio.to_thread.run_sync(
                        sweep_others, self.home, parent, log, adoption.spared, detail
                    )
                if handed is not None:
                    # they are told what has happened since
                    server.handover.continue_watching(handed.clients)
                await runtime.succession.supervise(adoption, unwritten)
                # not before the sweep, which would end what is started
                runtime.parts.begin()
                if handed is not None:
                    # the core knows the runs and what those may do
                    server.handover.continue_waiting(handed.clients)
                nursery.start_soon(keep_serving, server.serve, log.internal_error)
                nursery.start_soon(keep_serving, server.listener.look_after, log.internal_error)
                runtime.resources.launcher.watch_children(children)
                nursery.start_soon(keep_serving, runtime.parts.serve, log.internal_error)
                nursery.start_soon(self._obey, signals, nursery)
                nursery.start_soon(systemd.feed_watchdog)
                self.files.keep()
                self._announce(adoption)
                if handed is None:
                    runtime.background.start_soon(continue_lost, runtime)
                await self.drained.wait()
                self._notify("STOPPING=1")
                with trio.move_on_after(LAST_WORDS), suppress(OSError):
                    # so that features are told of the last ends
                    await runtime.resources.ledger.flush()
                await runtime.parts.finish()
                await runtime.commands.rest()
                with trio.move_on_after(LAST_WORDS), suppress(OSError):
                    # clients that wait for an end are told when it is recorded
                    await runtime.resources.ledger.flush()
                    await server.drained()
                nursery.cancel_scope.cancel()

    def _announce(self, adoption: Adoption) -> None:
        launcher = self.runtime.resources.launcher
        self.log.info(
            "serving", socket=str(self.home.socket), state_dir=str(self.home.state_dir),
            pid=os.getpid(), containment=launcher.containment, detail=launcher.detail,
        )  # fmt: skip
        self.runtime.succession.tell_adopted(adoption)
        # READY=1 lets "systemctl status" run: it counts the adopted runs
        self.runtime.status_text.tell()
        self._notify("READY=1")
        if self.ready_fd is not None:
            with suppress(BrokenPipeError):  # the process that started this one may be gone
                os.write(self.ready_fd, b"ready\n")
            os.close(self.ready_fd)

    async def _obey(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        # it waits for none of them to be carried out: SIGTERM may come during a re-execution
        async for number in signals:
            if number == signal.SIGHUP:
                self._reload(nursery)
            elif number == signal.SIGUSR2:
                nursery.start_soon(self._reexecute)
            else:
                self._drain(number, nursery)

    def _reload(self, nursery: trio.Nursery) -> None:
        self._notify(systemd.reloading())
        with suppress(configuration.ConfigError):  # the log has it
            self.runtime.reload()
        if (installed := other_version()) is not None:
            self.log.info("another version is installed", running=__version__, installed=installed)
            nursery.start_soon(self._reexecute)
        else:
            self._notify("READY=1")

    def _drain(self, number: int, nursery: trio.Nursery) -> None:
        # before anything waits: a re-execution that is under way must see that the daemon is
        # draining
        cause = systemd.cause() if number == signal.SIGTERM else None
        live = len(self.runtime.catalogue.live)
        self.log.info(
            "stopping every tree", signal=signal.Signals(number).name, cause=cause, live=live
        )
        self.server.listener.close()
        self.runtime.feed(DrainRequested(trio.current_time(), number, cause))
        nursery.start_soon(self._bound_drain)

    async def _bound_drain(self) -> None:
        await trio.sleep_until(self.runtime.machine.drained_at(trio.current_time()) + DRAIN_SPARE)
        if self.drained.is_set():
            return
        live = self.runtime.catalogue.live
        elsewhere = [
            each.id
            for each in (live[name].run for name in sorted(live))
            if each.remote is not None or each.waits_for_unreached
        ]
        self.left = sorted(live.keys() - set(elsewhere))
        if elsewhere:
            self.log.warning(
                "ending before other nodes have answered; what runs there ends with its lease at "
                f"the latest, and is left to the next daemon: {', '.join(elsewhere)}"
            )
        if self.left:
            self.log.error(
                "ending, though processes cannot be killed; "
                f"their runs are left to the next daemon: {', '.join(self.left)}"
            )
        self.drained.set()

    async def _reexecute(self) -> None:
        """Become the installed program. Return only if that fails; then this daemon continues as
        before."""
        if self.runtime.machine.draining or self._reexecuting:
            doing = "renewed" if self._reexecuting else "stopped"
            self.log.warning(f"SIGUSR2 is ignored: the daemon is being {doing}")
            return
        self._reexecuting = True
        try:
            if (lost := self.lock.lost()) is not None:
                raise Unfit(f"the next program would find nothing of what this one holds: {lost}")
            await check(self.home.state_dir, self.home.config_files)
            self.log.info(
                "re-executing", version=__version__, live=len(self.runtime.catalogue.live)
            )
            self._notify(systemd.reloading())
            await execute(self.runtime, self.server, self.lock, self.nofile)
        except Exception as error:  # noqa: BLE001 - whatever it was, it must not leave every tree without a supervisor
            self.log.error(
                "the daemon was not re-executed, "
                f"and goes on as it is: {error or type(error).__name__}"
            )
            self._notify("READY=1")
        finally:
            self._reexecuting = False

    def _notify(self, state: str) -> None:
        try:
            systemd.notify(state)
        except OSError as error:
            self.log.warning(f"cannot send {state} to systemd: {error}")

"""Re-execution: on SIGUSR2, and on SIGHUP after an upgrade, the daemon becomes the installed program in place. It keeps its
pid, its children, its socket with the clients that wait there, and every connection.

    check ─▶ rest: no new requests ─▶ earlier requests are in the ledger ─▶ hand over ─▶ execve(2) ─▶ `handover.taken`
"""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from .. import __version__
from ..durable.handover import VARIABLE, Handover, to_memfd
from ..host import descriptors
from ..host.faults import carried, crash_point
from ..host.state_dir import StateLock
from ..protocol.event_types import EventType
from ..usage.metering import Metering
from .loop.runtime import Runtime
from .server.server import Server

# -P: `-m` alone looks for sfad in the working directory first, where a run may have put a program of that name
PROGRAM = (sys.executable, "-P", "-m", "sfad")
"""The installed program, as words of a command."""

CHECK_TIMEOUT = 30.0
"""Seconds that the installed program may take to check that it works."""

CLOSE_TIMEOUT = 1.0
"""Seconds that closing files which clients sent may take."""

MAX_FLUSHES = 100
"""Flushes of the ledger. Retries and the queue may admit more runs in the meantime."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
"""Those that the daemon handles. They would end a program that has not installed its handlers yet, and stay pending until then."""


class Unfit(Exception):
    """The installed program does not work, so the daemon must not become it."""


def installed_version() -> str | None:
    """Return the version of the program that would be executed, if it is known."""
    from importlib import metadata  # takes a twentieth of a start, and no start needs it

    try:
        return metadata.version("sfad")
    except metadata.PackageNotFoundError:
        return None


async def check(state_dir: Path, config_files: tuple[list[Path], bool]) -> None:
    """Check that the installed program starts, and reads the config and what this one has written. Raises `Unfit`, `OSError`."""
    # In a thread: a thread's child is not taken for an orphan of a run (`reaper`). The timeout of subprocess.run begins
    # after the child's execve(2), which closes a copy of each file that a client has sent; closing the last copy may block for
    # long (`closing`).
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
        raise Unfit(f"the installed program does not work: 'sfad check-start' exited with code {done.returncode}: {said}")


def _check(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECK_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unfit(f"'sfad check-start' did not end within {CHECK_TIMEOUT:g} s") from error


async def execute(runtime: Runtime, server: Server, lock: StateLock, nofile: int) -> None:
    """Become the installed program, and do not return. `nofile`: the soft limit of descriptors that this process was started with.
    Raises `OSError`, `Unfit`, and then everything is as it was."""
    await runtime.arrivals.none_pending()
    await runtime.hooking.rest()
    server.rest(resting=True)
    try:
        await _threads_done(runtime.metering)
        with _signals_held_back():
            # write something, to learn whether the ledger can be written: the next program does not start if it cannot
            runtime.announcer.tell(EventType.DAEMON_REEXECUTING, f"sfad {__version__} re-executes itself")
            for _ in range(MAX_FLUSHES):
                runtime.arrivals.feed_all()
                if not await runtime.ledger.flush():
                    raise Unfit(f"the ledger cannot be written: {runtime.ledger.trouble}")
                if all(live.run.committed for live in runtime.catalogue.live.values()):
                    break
            else:
                raise Unfit(f"the ledger does not take what was admitted: {runtime.ledger.trouble}")
            await trio.lowlevel.checkpoint()  # the task that handles signals has seen those that came before
            if runtime.machine.draining:
                raise Unfit("the daemon was told to end in the meantime")
            _execute(runtime, server, lock, nofile)
    finally:
        server.rest(resting=False)
        runtime.hooking.go_on()


async def _threads_done(metering: Metering) -> None:
    # execve(2) waits for every other thread to end, and one that waits for a FUSE server cannot be killed
    with trio.move_on_after(CLOSE_TIMEOUT):
        while descriptors.threads() or metering.waiting:  # noqa: ASYNC110 - a thread that waits for the kernel can set no event
            await trio.sleep(0.01)
    if senders := descriptors.unkillable():
        who = ", ".join(senders)
        raise Unfit(f"the kernel does not close files that were sent by {who}; end what is behind them, such as a FUSE server")
    if metering.waiting:
        raise Unfit("a file system with session files of an agent does not answer; unmount it")


@contextmanager
def _signals_held_back() -> Iterator[None]:
    # blocked in this thread, they stay pending for the program that it becomes; another thread passes on what it gets
    thread = threading.get_ident()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    handlers = {each: signal.signal(each, lambda number, _: signal.pthread_kill(thread, number)) for each in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _execute(runtime: Runtime, server: Server, lock: StateLock, nofile: int) -> None:
    # nothing awaits from here on: what is handed over must stay as it is on record
    if not runtime.ledger.flush_now():
        raise Unfit(f"the ledger cannot be written: {runtime.ledger.trouble or 'it takes longer than a second'}")
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
        counts=runtime.counts,
    )
    try:
        memory = to_memfd(handover)
        descriptors = [*handover.descriptors(), memory]
        crash_point("handed over")
        _become(descriptors, memory, nofile)
    except Exception:
        runtime.launcher.take_back()
        raise


def _become(descriptors: Iterable[int], memory: int, nofile: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, limits[1]))  # that of runs is taken from it
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        os.execve(sys.executable, [*PROGRAM, *sys.argv[1:]], os.environ | {VARIABLE: str(memory)} | carried())
    except OSError:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        os.close(memory)
        raise

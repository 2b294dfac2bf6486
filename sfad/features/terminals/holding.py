"""A terminal and its holder: the process that has the terminal's other side, and so keeps it alive
when clients and daemons end. It writes what programs show to the run's output file, types what it
is told, and answers what programs ask of a terminal.

The holder is a process of its own for each run, beside the run's containment: it is not killed with
the run, but ends when no process has the terminal any more, or when it is told. Its descriptors:

    0  the terminal's master side, which does not block
    1  the output file
    2  orders, a FIFO: `k`, a length (2 bytes, little-endian) and what is to be typed; `s` and a
       struct winsize; `e`: keep what programs have written, and end
    3  the record (`recorded`)

Weighed, for one run with 80 columns and 24 rows (USS; all survive a kill of the daemon):

    tmux      2.0 MiB  has to be installed; interprets the output, so that its bytes are lost; a
                       client of it that a run starts reaches each socket of the user; its server
                       has its parent's environment
    dtach     0.2 MiB  has to be installed; keeps nothing; asks programs to draw again, which shells
                       do not
    Python    4.9 MiB  what else there is on machines other than x86_64
    holder.c  0.1 MiB  comes with sfad, has no environment, no socket, and no code of a library

It follows the cursor and nothing else of the screen: who looks makes the screen of the output
(`screen`), so that no one waits for that but the person who looks.
"""

import errno
import fcntl
import os
import signal
import struct
import sys
import termios
from collections.abc import Container
from contextlib import ExitStack, suppress
from pathlib import Path

import trio

from ...processes import kernel
from ...processes.own_processes import Owner
from ...processes.trampoline.executable import in_memory
from ...protocol.types import Terminal
from .image import IMAGE

TYPED_AT_ONCE = 4000
"""Bytes of an order, which the FIFO takes whole or not at all (PIPE_BUF in pipe(7))."""
END_WAIT = 2.0
"""Seconds that a holder may take to keep what there is. It is killed if it waits for the disk
then."""

_IUTF8 = 0o40000
"""termios(3): Ctrl-H and the like delete whole characters."""


class Holder:
    """The holder of a live run, which this daemon or an earlier one has started."""

    def __init__(self, pid: int, started: int, orders: Path, owner: Owner) -> None:
        """Raises `OSError`: it has ended."""
        self._pidfd = os.pidfd_open(pid)
        self.pid, self.started = pid, started
        if not kernel.is_alive(pid, started):
            os.close(self._pidfd)
            raise ProcessLookupError(errno.ESRCH, "the holder has ended")
        self._orders = orders
        self._owner = owner
        owner.own(pid)
        self.size: tuple[int, int] | None = None
        """Rows and columns, as far as this daemon knows."""
        self.ended = trio.Event()

    async def watch(self) -> None:
        """Reap it when it ends."""
        try:
            await trio.lowlevel.wait_readable(self._pidfd)
            with suppress(ChildProcessError):  # that of an earlier daemon
                os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222
            self._owner.disown(self.pid)
        finally:
            os.close(self._pidfd)
            self._pidfd = -1
            self.ended.set()

    def order(self, *orders: bytes) -> int:
        """Give it orders, as far as there is room, and return how many. Raises `OSError`, `ENXIO`
        if it has ended."""
        fifo = os.open(self._orders, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            for count, order in enumerate(orders):
                try:
                    os.write(fifo, order)
                except BlockingIOError:
                    return count
            return len(orders)
        finally:
            os.close(fifo)

    async def end(self) -> None:
        """Have it keep what there is, and end."""
        with suppress(OSError):  # it has ended
            self.order(b"e")
        with trio.move_on_after(END_WAIT):
            await self.ended.wait()
            return
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with trio.move_on_after(END_WAIT):  # it may hang in the kernel
            await self.ended.wait()


def typing(data: bytes) -> list[bytes]:
    """Return the orders that type this."""
    pieces = (data[at : at + TYPED_AT_ONCE] for at in range(0, len(data), TYPED_AT_ONCE))
    return [b"k" + len(piece).to_bytes(2, "little") + piece for piece in pieces]


def sizing(rows: int, columns: int) -> bytes:
    """Return the order that gives the terminal this size."""
    return b"s" + _winsize(rows, columns)


def _winsize(rows: int, columns: int) -> bytes:
    return struct.pack("=4H", rows, columns, 0, 0)


class Maker:
    """Makes terminals with holders. `directory`: where their orders come in."""

    def __init__(self, directory: Path, owner: Owner) -> None:
        self._directory = directory
        self._owner = owner
        image = in_memory(IMAGE, "sfad-holder")
        if image is not None:
            self._words = ["sfad-holder"]
            self._path = f"/proc/self/fd/{image}"
        else:
            program = str(Path(__file__).with_name("in_python.py"))
            self._words = [sys.executable, "-I", "-S", "-X", "utf8", program]
            self._path = sys.executable

    def _orders(self, run: str) -> Path:
        return self._directory / run

    def _known(self, run: str) -> Path:
        return self._directory / f"{run}.holder"

    def found(self, run: str) -> Holder:
        """Return the holder of a run that an earlier daemon has started. Raises `OSError`."""
        try:
            pid, started = map(int, self._known(run).read_text().split())
        except ValueError:
            raise OSError(errno.EINVAL, "not a holder", str(self._known(run))) from None
        return Holder(pid, started, self._orders(run), self._owner)

    def remove(self, run: str) -> None:
        """Remove what there is of a run that is over."""
        self._orders(run).unlink(missing_ok=True)
        self._known(run).unlink(missing_ok=True)

    def remove_others(self, live: Container[str]) -> None:
        """Remove what there is of runs that are not live."""
        with suppress(FileNotFoundError):
            for each in self._directory.iterdir():
                if each.name.partition(".")[0] not in live:
                    self.remove(each.name.partition(".")[0])

    def make(
        self, run: str, terminal: Terminal, output: int, record: int, owner: int | None
    ) -> tuple[int, Holder]:
        """Return a new terminal's descriptor for the run, the caller's to close, and its holder.
        `owner`: the user who executes the run, if not this one. Raises `OSError`."""
        with ExitStack() as opened:
            master, slave = os.openpty()
            opened.callback(os.close, master)
            try:
                size = terminal.rows, terminal.columns
                fcntl.ioctl(master, termios.TIOCSWINSZ, _winsize(*size))
                modes = termios.tcgetattr(slave)
                modes[0] |= _IUTF8
                termios.tcsetattr(slave, termios.TCSANOW, modes)
                if owner is not None:
                    os.fchown(slave, owner, -1)
                os.set_blocking(master, False)
                holder = self._start(run, master, output, record)
            except BaseException:
                os.close(slave)
                raise
            holder.size = size
            return slave, holder

    def _start(self, run: str, master: int, output: int, record: int) -> Holder:
        self._directory.mkdir(0o700, exist_ok=True)
        fifo = self._orders(run)
        fifo.unlink(missing_ok=True)  # that of an earlier attempt may hold what was typed then
        os.mkfifo(fifo, 0o600)
        orders = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        given = (master, output, orders, record)
        try:
            # above 3, because they are set one after the other
            above = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, len(given)) for each in given]
            try:
                pid = os.posix_spawn(
                    self._path,
                    self._words,
                    {},
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, each, number) for number, each in enumerate(above)
                    ],
                    setsid=True,
                    setsigmask=signal.valid_signals(),
                    setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
                )
            finally:
                for each in above:
                    os.close(each)
        finally:
            os.close(orders)
        found = kernel.stat(pid)
        started = found.started if found is not None else 0
        # before the run's command is executed: if this daemon dies first, the holder ends with the
        # trampoline
        self._known(run).write_text(f"{pid} {started}\n")
        return Holder(pid, started, fifo, self._owner)

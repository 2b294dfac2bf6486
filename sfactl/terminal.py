"""A pseudo-terminal between the user's terminal and an interactive run (`--stdio inherit`).

The run cannot use the user's terminal: it is the controlling terminal of the user's session, and a
terminal controls only one session. So the run gets a pseudo-terminal with its own job control and
Ctrl-C, and this process copies bytes both ways, with the user's terminal in raw mode.
"""

import errno
import fcntl
import os
import select
import signal
import struct
import termios
import tty
from contextlib import suppress
from typing import Any

CHUNK = 64 * 1024
STATE = 0.25
"""Seconds between checks whether the program has stopped itself. The kernel tells only its parent:
the daemon, and after a crash of the daemon no process of sfad."""
TIOCGSID = 0x5429
"""ioctl_tty(2): the session of a terminal."""
_LOCAL_MODES = 3
"""In what tcgetattr(3) returns."""
LAST_WORDS = 0.5
"""Seconds without output after which an ended run's terminal is closed, although an escaped process
still has it open."""


class Terminal:
    """The relay between both terminals, as an `Activity`. The run gets `slave`; close it with
    `handed_over` once it is sent."""

    def __init__(self) -> None:
        self.timeout = STATE
        self._ending = False
        self._was_stopped = False
        self.master, self.slave = os.openpty()
        self._saved: list[Any] | None = None
        if in_foreground():  # else the shell edits its command line there
            self._saved = termios.tcgetattr(0)
            termios.tcsetattr(self.slave, termios.TCSANOW, self._saved)
        self._to_run = b""
        self._to_user = b""
        self._hung_up = False
        self._input_open = True
        self.raw = False

    def resize(self) -> None:
        """Give the run's terminal the size of ours. The kernel sends SIGWINCH to the run."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))

    def handed_over(self) -> None:
        """Close our copy of the slave. With it open, the master would not hang up at the end of the
        run."""
        os.close(self.slave)
        self.slave = -1

    def begin(self) -> None:
        """Give the run's terminal our size, and enter raw mode if this process is in the
        foreground. In the background the run can only write, as any job of a shell."""
        self.resize()
        if in_foreground():
            self.enter_raw()

    def enter_raw(self) -> None:
        """Give the run's terminal our size, and pass every key to the run from now on. Raise
        `InterruptedError` for a signal in the background."""
        self.resize()
        await_foreground()
        self._saved = self._saved or termios.tcgetattr(0)
        tty.setraw(0, termios.TCSADRAIN)
        self.raw = True

    def leave_raw(self) -> None:
        if self.raw and self._saved:
            termios.tcsetattr(0, termios.TCSADRAIN, self._saved)
            self.raw = False

    def expect_end(self) -> None:
        """Note that the run has ended: its last output may still arrive, but input is not read any
        more."""
        self.timeout = LAST_WORDS
        self._ending = True
        self._input_open = False

    def program_stopped(self) -> bool:
        """Return whether the run's main program has stopped since the last call, or has changed its
        terminal while this process is in the background, at which a job stops. A job of a shell
        does not count, because the shell takes the terminal back from it."""
        try:
            leader = struct.unpack("i", fcntl.ioctl(self.master, TIOCGSID, b"\0" * 4))[0]
            stopped = os.tcgetpgrp(self.master) == leader and _state(leader) == "T"
            stopped = stopped or (
                not self.raw and not termios.tcgetattr(self.master)[_LOCAL_MODES] & termios.ICANON
            )
        except (OSError, termios.error):  # it has ended, so the terminal has no session
            stopped = False
        since, self._was_stopped = stopped and not self._was_stopped, stopped
        return since

    def proceed(self) -> None:
        """Continue the program in the run's foreground. It must draw its screen again even if it
        did not stop itself, and the kernel sends SIGWINCH only if the size changes, so change the
        size twice."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, b"\0" * 8)
        self.resize()
        with suppress(OSError):  # it has ended, or belongs to another user
            os.killpg(os.tcgetpgrp(self.master), signal.SIGCONT)
        self._was_stopped = False

    def interests(self) -> dict[int, int]:
        """Read one chunk at a time in each direction, so that a slow side delays only its own
        direction."""
        wanted: dict[int, int] = {}
        if self.raw and self._input_open and not self._to_run:
            wanted[0] = select.POLLIN
        if self._to_user:
            wanted[1] = select.POLLOUT
        if not self._hung_up:
            reading = 0 if self._to_user else select.POLLIN
            wanted[self.master] = reading | (select.POLLOUT if self._to_run else 0)
        return {descriptor: mask for descriptor, mask in wanted.items() if mask}

    def advance(self, ready: dict[int, int]) -> None:
        if not ready and self._ending:
            self._hung_up = True
        if not self.raw and not self._ending and in_foreground():
            with suppress(InterruptedError):  # the signal is handled first
                self.enter_raw()
        if self._to_user and 1 in ready:
            self._to_user = self._to_user[os.write(1, self._to_user[:4096]) :]
        if ready.get(0, 0) & (select.POLLIN | select.POLLHUP) and self._input_open:
            self._to_run = os.read(0, 4096)
            self._input_open = bool(self._to_run)
        at_master = ready.get(self.master, 0)
        if at_master & select.POLLOUT and self._to_run:
            self._to_run = self._to_run[os.write(self.master, self._to_run[:4096]) :]
        if at_master & (select.POLLIN | select.POLLHUP) and not self._to_user:
            self._read_run()

    def _read_run(self) -> None:
        try:
            self._to_user = os.read(self.master, CHUNK)
        except OSError as error:
            # EIO at the master means that no process has the other side open any more.
            if error.errno != errno.EIO:
                raise
            self._hung_up = True

    def drained(self) -> bool:
        """Whether the run's last output has reached the user."""
        return self._hung_up and not self._to_user

    def close(self) -> None:
        """Restore the user's terminal and close the pseudo-terminal."""
        self.leave_raw()
        os.close(self.master)
        if self.slave >= 0:
            self.handed_over()


class LentTerminal:
    """The user's terminal as the stdin of a run whose output this process copies, as an `Activity`.

    Ctrl-C and Ctrl-Z belong to this process, which stops or pauses the run. A program that reads
    single keys from its stdin, such as `gemini -p`, makes them bytes for itself, so they are made
    signals again. A program that is killed leaves the terminal so."""

    timeout = STATE

    def __init__(self, saved: list[Any]) -> None:
        """`saved`: the modes of the terminal before the run could change them, as tcgetattr(3)
        returns them."""
        self._saved = saved

    def interests(self) -> dict[int, int]:
        return {}

    def advance(self, ready: dict[int, int]) -> None:  # noqa: ARG002 - an `Activity`
        with suppress(termios.error):  # it is gone
            modes = termios.tcgetattr(0)
            if (
                self._saved[_LOCAL_MODES] & termios.ISIG
                and not modes[_LOCAL_MODES] & termios.ISIG
                and in_foreground()
            ):
                modes[_LOCAL_MODES] |= termios.ISIG
                termios.tcsetattr(0, termios.TCSANOW, modes)

    def drained(self) -> bool:
        return True

    def close(self) -> None:
        """Restore the modes, unless a shell has the terminal again."""
        with suppress(termios.error):
            if in_foreground() and termios.tcgetattr(0) != self._saved:
                termios.tcsetattr(0, termios.TCSADRAIN, self._saved)


def in_foreground() -> bool:
    """Return whether this process is in the foreground of its terminal, descriptor 0."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # another session's terminal
        return True


def await_foreground() -> None:
    """Wait until this process is in the foreground of its terminal, descriptor 0: the kernel stops
    it while it is not. Raise `InterruptedError` for a signal."""
    try:
        # changes nothing; a change from the background is SIGTTOU
        termios.tcsetattr(0, termios.TCSANOW, termios.tcgetattr(0))
    except termios.error as error:
        raise OSError(*error.args) from None


def _state(pid: int) -> str | None:
    """Return the state letter of a process, as in proc_pid_stat(5); `None` if it is gone or
    hidden."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return chr(file.read().rsplit(b") ", 1)[1][0])
    except OSError:
        return None

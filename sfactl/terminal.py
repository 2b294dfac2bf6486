"""A pseudo-terminal between the user's terminal and an interactive run (`--stdio inherit`).

The run must not get the user's own terminal: that one is the controlling terminal of the user's session, and a terminal
controls one session only. So the run gets a new one, with job control and Ctrl-C of its own, and this process copies
bytes both ways, unread, with its own terminal in raw mode.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
import termios
import tty
from contextlib import suppress

from .poll import await_foreground

CHUNK = 64 * 1024

STATE = 0.25
"""Seconds between looks at whether the program has stopped itself. The kernel tells nobody but its parent, the daemon, and after
a crash of the daemon nobody."""

TIOCGSID = 0x5429
"""ioctl_tty(2): the session of a terminal."""

LAST_WORDS = 0.5
"""Seconds of silence after which an ended run's terminal is given up, should a process that escaped still hold it open."""


class Terminal:
    """The relay, as an `Activity`. `slave` is what the run gets; close it with `handed_over` once it has been sent."""

    def __init__(self) -> None:
        self.timeout = STATE
        self._ending = False
        self._was_stopped = False
        self.master, self.slave = os.openpty()
        self._saved = termios.tcgetattr(0)
        termios.tcsetattr(self.slave, termios.TCSANOW, self._saved)
        self.resize()
        self._to_run = b""
        self._to_user = b""
        self._hung_up = False
        self._input_open = True
        self.raw = False

    def resize(self) -> None:
        """Gives the run's terminal the size of ours. The kernel tells the run (SIGWINCH)."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))

    def handed_over(self) -> None:
        """The run has its own copy: without ours, the end of the run hangs the master up."""
        os.close(self.slave)
        self.slave = -1

    def enter_raw(self) -> None:
        """Pass every key to the run from now on. Raises `InterruptedError` for a signal in the background."""
        await_foreground()
        tty.setraw(0, termios.TCSADRAIN)
        self.raw = True

    def leave_raw(self) -> None:
        """Our terminal as it was."""
        if self.raw:
            termios.tcsetattr(0, termios.TCSADRAIN, self._saved)
            self.raw = False

    def expect_end(self) -> None:
        """The run is over: what it wrote last may still be on its way, but nothing new will come."""
        self.timeout = LAST_WORDS
        self._ending = True
        self._input_open = False

    def program_stopped(self) -> bool:
        """Return whether the run's main program has stopped since the last look, and not a job of a shell: the shell takes its
        terminal back from those."""
        stopped = self._stopped()
        since, self._was_stopped = stopped and not self._was_stopped, stopped
        return since

    def _stopped(self) -> bool:
        try:
            leader = struct.unpack("i", fcntl.ioctl(self.master, TIOCGSID, b"\0" * 4))[0]
            return os.tcgetpgrp(self.master) == leader and _state(leader) == "T"
        except OSError:  # it has ended, and the terminal is nobody's
            return False

    def proceed(self) -> None:
        """Continue the program in the run's foreground. If it did not stop itself it still has to draw its screen again: the kernel
        tells it (SIGWINCH) of a size only where that is another."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, b"\0" * 8)
        self.resize()
        with suppress(OSError):  # it has ended, or is another user's
            os.killpg(os.tcgetpgrp(self.master), signal.SIGCONT)
        self._was_stopped = False

    def interests(self) -> dict[int, int]:
        """Reads one chunk each way at a time: a side that is slow holds up only its own direction."""
        wanted: dict[int, int] = {}
        if self._input_open and not self._to_run:
            wanted[0] = select.POLLIN
        if self._to_user:
            wanted[1] = select.POLLOUT
        if not self._hung_up:
            reading = 0 if self._to_user else select.POLLIN
            wanted[self.master] = reading | (select.POLLOUT if self._to_run else 0)
        return {descriptor: mask for descriptor, mask in wanted.items() if mask}

    def advance(self, ready: dict[int, int]) -> None:
        """Moves what is ready."""
        if not ready and self._ending:
            self._hung_up = True
        if self._to_user and 1 in ready:
            self._to_user = self._to_user[os.write(1, self._to_user[:4096]) :]
        if ready.get(0, 0) & (select.POLLIN | select.POLLHUP) and self._input_open:
            self._read_user()
        at_master = ready.get(self.master, 0)
        if at_master & select.POLLOUT and self._to_run:
            self._to_run = self._to_run[os.write(self.master, self._to_run[:4096]) :]
        if at_master & (select.POLLIN | select.POLLHUP) and not self._to_user:
            self._read_run()

    def _read_user(self) -> None:
        self._to_run = os.read(0, 4096)
        self._input_open = bool(self._to_run)

    def _read_run(self) -> None:
        try:
            self._to_user = os.read(self.master, CHUNK)
        except OSError as error:
            # EIO is how the master says that nobody holds the other side any more.
            if error.errno != errno.EIO:
                raise
            self._hung_up = True

    def drained(self) -> bool:
        """Whether the run's last words have reached the user."""
        return self._hung_up and not self._to_user

    def close(self) -> None:
        """Restores the user's terminal and closes the pseudo-terminal."""
        self.leave_raw()
        os.close(self.master)
        if self.slave >= 0:
            self.handed_over()


def _state(pid: int) -> str | None:
    """The letter of proc_pid_stat(5) for what a process does; `None` if it is gone, or not to be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return chr(file.read().rsplit(b") ", 1)[1][0])
    except OSError:
        return None

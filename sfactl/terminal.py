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
import termios
import tty

CHUNK = 64 * 1024

LAST_WORDS = 0.5
"""Seconds of silence after which an ended run's terminal is given up, should a process that escaped still hold it open."""


class Terminal:
    """The relay, as an `Activity`. `slave` is what the run gets; close it with `handed_over` once it has been sent."""

    def __init__(self) -> None:
        self.timeout: float | None = None
        self.master, self.slave = os.openpty()
        self._saved = termios.tcgetattr(0)
        termios.tcsetattr(self.slave, termios.TCSANOW, self._saved)
        self.resize()
        self._to_run = b""
        self._to_user = b""
        self._hung_up = False
        self._input_open = True
        self._raw = False

    def resize(self) -> None:
        """Gives the run's terminal the size of ours. The kernel tells the run (SIGWINCH)."""
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def handed_over(self) -> None:
        """The run has its own copy: without ours, the end of the run hangs the master up."""
        os.close(self.slave)
        self.slave = -1

    def enter_raw(self) -> None:
        """From now on every key goes to the run."""
        tty.setraw(0, termios.TCSADRAIN)
        self._raw = True

    def leave_raw(self) -> None:
        """Our terminal as it was."""
        if self._raw:
            termios.tcsetattr(0, termios.TCSADRAIN, self._saved)
            self._raw = False

    def expect_end(self) -> None:
        """The run is over: what it wrote last may still be on its way, but nothing new will come."""
        self.timeout = LAST_WORDS
        self._input_open = False

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
        if not ready and self.timeout is not None:
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

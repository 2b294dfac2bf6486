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
import time
import tty
from contextlib import suppress
from typing import Any

CHUNK = 64 * 1024
STATE = 0.25
"""Seconds between checks whether the program has stopped itself. The kernel tells only its parent:
the daemon, and after a crash of the daemon no process of sfad."""
TIOCGSID = 0x5429
"""ioctl_tty(2): the session of a terminal."""
_LOCAL_MODES, _CHARACTERS = 3, 6
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
        self._paused = False
        """The run is paused, and was not seen to go on."""
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
            stopped = os.tcgetpgrp(self.master) == leader and (_stat(leader) or [])[:1] == [b"T"]
            stopped = stopped or (
                not self.raw and not termios.tcgetattr(self.master)[_LOCAL_MODES] & termios.ICANON
            )
        except (OSError, termios.error):  # it has ended, so the terminal has no session
            stopped = False
        if self._paused and stopped:
            return False
        since = stopped and not self._was_stopped
        self._was_stopped, self._paused = stopped, False
        return since

    def run_paused(self) -> None:
        """Take the stop of a program that stands, by itself or by the daemon, for an old one."""
        self._paused = True

    def proceed(self) -> None:
        """Continue the program in the run's foreground if it stands still: where the daemon pauses
        by SIGSTOP it goes on by itself, and may have stopped again. It must draw its screen again,
        and the kernel sends SIGWINCH only if the size changes, so change the size twice."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, b"\0" * 8)
        self.resize()
        if self._paused:
            with suppress(OSError):  # it has ended, or belongs to another user
                os.killpg(os.tcgetpgrp(self.master), signal.SIGCONT)
            self._was_stopped = self._paused = False

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


class TerminalInput:
    """A pseudo-terminal as the stdin of a run whose output this process copies, as an `Activity`.

    The run cannot have the user's terminal itself: it belongs to another session, so the kernel
    would not stop it where a background job reads, and it would take what is typed at the shell.
    This process reads only in the foreground, and a line at a time: what the run does not want is
    left to the shell. Modes that the program sets, as for a password or for single keys, become
    those of the user's terminal, but Ctrl-C and Ctrl-Z belong to this process."""

    timeout = STATE

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        self._own: list[Any] | None = None
        """The modes of the user's terminal; `None` until this process was in the foreground, since
        a shell has its own there."""
        self._shown: list[Any] | None = None
        """The modes that this process has given it, or found."""
        self._first = termios.tcgetattr(self.slave)
        self._to_run = b""
        self._given = b""
        """What was typed, until the run has read a part of it."""
        self._given_at = 0.0
        self._reads = False
        self._open = True
        with suppress(OSError):
            size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self.slave, termios.TIOCSWINSZ, size)
        self._follow_modes()

    def interests(self) -> dict[int, int]:
        writing = select.POLLOUT if self._to_run else 0
        wanted = {self.master: select.POLLIN | writing}
        return wanted | {0: select.POLLIN} if self._may_read() else wanted

    def advance(self, ready: dict[int, int]) -> None:
        if ready.get(self.master, 0) & select.POLLIN:
            with suppress(OSError):
                os.read(self.master, CHUNK)  # the echo, which the user's terminal makes
        self._follow_modes()
        if ready.get(0, 0) & (select.POLLIN | select.POLLHUP) and self._may_read():
            self._read()
        if self._to_run:
            with suppress(BlockingIOError):
                self._to_run = self._to_run[os.write(self.master, self._to_run) :]

    def _may_read(self) -> bool:
        """Return whether the run may want a line that is typed now: nothing else reads there, and
        it has taken the one before."""
        if not self._open or self._to_run or not in_foreground() or not self._has_modes():
            return False
        # the kernel takes a moment to put what was written where the run reads it
        settled = time.monotonic() - self._given_at >= STATE
        return self._reads or not self._given or (settled and not self._unread())

    def _unread(self) -> bytes:
        """Return what was typed, if the run has read nothing of it."""
        left = struct.unpack("i", fcntl.ioctl(self.slave, termios.FIONREAD, b"\0" * 4))[0]
        if self._given and left + len(self._to_run) < len(self._given):
            self._reads, self._given = True, b""
        return self._given

    def _has_modes(self) -> bool:
        """Return whether the user's terminal has the modes that this process knows of. Else another
        program uses it, such as a pager behind a pipe."""
        try:
            return self._shown is not None and termios.tcgetattr(0) == self._shown
        except termios.error:  # it is gone
            self._open = False
            return False

    def _read(self) -> None:
        try:
            typed = os.read(0, 4096)
        except OSError:
            self._open = False
            return
        if not self._reads:
            self._given, self._given_at = typed, time.monotonic()
        modes = termios.tcgetattr(self.slave)
        by_line = modes[_LOCAL_MODES] & termios.ICANON
        ended = not by_line or typed.endswith(b"\n")
        self._to_run = typed if ended else typed + modes[_CHARACTERS][termios.VEOF]

    def _follow_modes(self) -> None:
        """Give the user's terminal the modes of the run's, if this process is in the foreground."""
        try:
            if not in_foreground():
                return
            if self._own is None:
                self._own = self._shown = termios.tcgetattr(0)
                if termios.tcgetattr(self.slave) == self._first:
                    termios.tcsetattr(self.slave, termios.TCSANOW, self._own)
            self._show(self._of_run(self._own))
        except termios.error:  # it is gone
            self._open = False

    def _of_run(self, own: list[Any]) -> list[Any]:
        modes = termios.tcgetattr(self.slave)
        self._reads = self._reads or modes[_LOCAL_MODES] != own[_LOCAL_MODES]
        keys = modes[_LOCAL_MODES] & ~termios.ISIG | own[_LOCAL_MODES] & termios.ISIG
        return [modes[0], *own[1:_LOCAL_MODES], keys, *own[_LOCAL_MODES + 1 : -1], modes[-1]]

    def _show(self, modes: list[Any]) -> None:
        if modes != self._shown and self._has_modes():
            termios.tcsetattr(0, termios.TCSADRAIN, modes)
            self._shown = termios.tcgetattr(0)

    def leave(self) -> None:
        """Restore the modes of the user's terminal, unless a shell has it again, which may change
        them."""
        if self._own is not None and in_foreground():
            with suppress(termios.error):
                self._show(self._own)
        self._own = self._shown = None

    def drained(self) -> bool:
        return True

    def close(self) -> None:
        """Restore the user's terminal, and give back what was typed for the next program."""
        self.leave()
        if self._open and in_foreground():
            # not what the run's terminal holds: the run could put words there
            for byte in self._unread():
                with suppress(OSError):  # newer kernels forbid it
                    fcntl.ioctl(0, termios.TIOCSTI, bytes([byte]))
        os.close(self.master)
        os.close(self.slave)


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
        # It changes nothing, and from the background it is SIGTTOU. To set the modes as they are
        # would set those of the shell's line editor, which were read before the wait.
        termios.tcflow(0, termios.TCOON)
    except termios.error as error:
        raise OSError(*error.args) from None


class HangUp:
    """The end of a terminal of which the kernel does not tell this process, as an `Activity`, which
    raises SIGHUP then."""

    timeout = None

    def __init__(self, descriptor: int) -> None:
        self._wanted = {descriptor: 0}  # POLLHUP needs no bit

    def interests(self) -> dict[int, int]:
        return self._wanted

    def advance(self, ready: dict[int, int]) -> None:
        if any(ready.get(each, 0) & select.POLLHUP for each in self._wanted):
            self._wanted = {}
            signal.raise_signal(signal.SIGHUP)

    def drained(self) -> bool:
        return True

    def close(self) -> None:
        """Close nothing: the terminal is the user's."""


def foreign_terminal() -> int | None:
    """Return a descriptor of the terminal in which a process of another session waits for this one,
    as `su -c` does. What `setsid` has left alone there is to outlive it."""
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return None  # it has a terminal of its own session
    leader = _stat(os.getsid(0))
    above = leader and _stat(int(leader[1]))
    number = int(above[4]) if above else 0
    return next(
        (each for each in range(3) if os.isatty(each) and os.fstat(each).st_rdev == number), None
    )


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of a process from its state letter on, as in proc_pid_stat(5); `None` if it
    is gone or hidden."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b") ", 1)[1].split()
    except OSError:
        return None

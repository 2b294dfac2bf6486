"""The terminal of a run in that of the person: what is shown goes from the run's output file to
descriptor 1, and what is typed from descriptor 0 to the daemon, which tells the holder.

If both terminals have the same size, bytes pass as they are, but for those that could leave the
screen (`Harmless`). If not, because another viewer has typed last, the part around the cursor is
drawn."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import termios
import time
import tty
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sfad.features.terminals.messages import Keys
from sfad.features.terminals.screen import LEAVE, Harmless
from sfad.protocol.requests.base import Error, Reply, RunReply
from sfad.protocol.requests.following import LogFiles, Logs, Wait
from sfad.protocol.requests.starting import Refused, Spawn
from sfad.protocol.types import ErrorCode, RunInfo

from .. import exits, output
from ..connecting.connection import AGAIN, Client, ConnectionLost, check
from ..connecting.in_flight import RequestsInFlight, carry_on, wait
from ..running.foreground import SignalPipe
from ..showing.follower import FileWatch
from .keys import name_of, one_key
from .replay import Replay

DETACH = "SFACTL_DETACH_KEY"
"""The variable that names the key which detaches."""
TWICE = 0.5
"""Seconds within which that key has to be typed again to go through."""
FAR_BEHIND = 1 << 20
"""Bytes of output: if more wait, only the screen after them is drawn."""
PASTE = 16 << 10
"""Bytes of keys in one request."""
DRAWN_APART = 0.05
"""Seconds between drawings of a screen of another size."""


def need_terminal(what: str) -> None:
    """Raise `UsageError` where the person has no terminal."""
    if not (os.isatty(0) and os.isatty(1)):
        raise exits.UsageError(
            f"{what} needs a terminal as stdin and stdout; without one, `sfactl logs --screen RUN` "
            "shows the screen, and `sfactl send RUN --keys` types"
        )


def own_size() -> tuple[int, int]:
    """Return rows and columns of the person's terminal."""
    rows, columns = struct.unpack("=4H", fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8)))[:2]
    return rows or 24, columns or 80


def detach_key(option: str | None) -> bytes:
    """Return what the key sends that detaches. Raise `UsageError`."""
    named = option or os.environ.get(DETACH) or "C-]"
    where = "--detach-key" if option else DETACH
    try:
        return one_key(named)
    except ValueError as error:
        raise exits.UsageError(f"{where}: {error}") from None


def start(client: Client, message: Spawn, *, quiet: bool) -> int:
    """Start a run in a terminal of its own, show that, and return the run's exit code; 0 if the
    person detached. Raise `Quit`."""
    key = detach_key(None)
    reply, _ = client.ask(message, Reply)
    if isinstance(reply, Refused):
        raise output.refusal(reply, as_json=False)
    assert isinstance(reply, RunReply)  # `ask` raises for an error
    if reply.run.status.terminal:
        output.note(output.failure(reply.run, own=False) or "")
        return exits.of_run(reply.run)
    return Viewer(client, reply.run.id, key, quiet=quiet).stay(own=True)


class Viewer:
    def __init__(
        self, client: Client, run: str, key: bytes, *, read_only: bool = False, quiet: bool = False
    ) -> None:
        self._client = client
        self._run = run
        self._key = key
        self._read_only = read_only
        self._quiet = quiet
        self._requests = RequestsInFlight(client, lambda _text: None)
        self._signals = SignalPipe((signal.SIGWINCH, signal.SIGHUP, signal.SIGTERM))
        self._watch = FileWatch()
        self._final: RunInfo | None = None
        self._leaves = self._hung_up = False
        self._key_at: float | None = None
        """When the key was typed that detaches."""
        self._size = own_size()
        self._drawn_at = 0.0
        self._dirty = True
        """The whole screen is to be drawn."""
        self._harmless = Harmless()
        self._modes: list[Any] | None = None

    def stay(self, *, own: bool = False) -> int:
        """Show the terminal until the run ends or the person leaves. Return the exit code. Raise
        `Quit`. `own`: this client has started the run."""
        files, descriptors = self._client.ask(Logs(id=0, run=self._run), LogFiles)
        try:
            if not files.terminal:
                raise exits.Quit(
                    exits.ExitCode.UNAVAILABLE,
                    f"run {files.run} has no terminal of its own; start one with --terminal, or "
                    f"follow its output: sfactl logs -f {files.run}",
                )
            if files.ended and not own:
                raise exits.Quit(
                    exits.ExitCode.UNAVAILABLE,
                    f"run {files.run} has ended; its last screen: sfactl logs --screen {files.run}",
                )
            self._run = files.run
            self._replay = Replay(descriptors[0], descriptors[2])
            self._watch.watch(descriptors[0])
            self._watch.watch(descriptors[2])
            self._replay.take_all()
            return self._show()
        finally:
            self._watch.close()
            for each in descriptors:
                os.close(each)

    def _show(self) -> int:
        self._requests.ask(Wait(id=0, run=self._run), self._ended)
        self._modes = termios.tcgetattr(0)
        try:
            with self._signals:
                tty.setraw(0, termios.TCSANOW)
                # what stands on the person's screen scrolls away, and is not lost
                _write(b"\n" * self._size[0] + b"\x1b[H\x1b[2J")
                self._type(b"")
                while not self._leaves and self._final is None:
                    self._step()
                while self._copy():
                    pass
                if self._dirty:
                    self._draw()
        finally:
            with suppress(OSError, termios.error):  # it has hung up
                _write(LEAVE.encode() + self._below())
                termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
        return self._outcome()

    def _below(self) -> bytes:
        """Return what begins a line below what the screen shows."""
        lines, rows = self._replay.screen.main, self._size[0]
        used = max((row for row, line in enumerate(lines, 1) if line.text), default=0)
        return b"\x1b[%d;1H" % (used + 1) if used < rows else b"\x1b[%d;1H\r\n" % rows

    def _outcome(self) -> int:
        run = self._final
        if run is None:
            if not (self._quiet or self._hung_up):
                output.note(f"[detached from {self._run}; sfactl attach {self._run} comes back]")
            return exits.ExitCode.DONE
        if words := output.failure(run, own=False):
            output.note(words)
        return exits.of_run(run)

    def _ended(self, reply: Reply, _descriptors: Sequence[int]) -> None:
        check(reply)
        if isinstance(reply, RunReply):
            self._final = reply.run

    def _step(self) -> None:
        try:
            ready = self._turn([0, self._client.fileno()], None)
            if self._leaves:
                return
            if self._client.fileno() in ready:
                self._requests.receive(lambda _event: None)
            if 0 in ready:
                self._read()
        except ConnectionLost:
            lost = self._requests.reconnect(
                f"the run may continue: sfactl attach {self._run}",
                lambda: carry_on(lambda left: self._turn([], left), AGAIN),
            )
            self._requests.repeat(lost)

    def _turn(self, fixed: Sequence[int], timeout: float | None) -> dict[int, int]:
        """Show what there is, wait once, and take signals. Return the ready descriptors."""
        while self._copy():
            pass
        waits = [timeout, self._watch.timeout]
        if self._dirty:
            waits.append(DRAWN_APART)
        if self._key_at is not None:
            waits.append(max(0.0, self._key_at + TWICE - time.monotonic()))
        limits = [each for each in waits if each is not None]
        watched = [self._watch.descriptor] if self._watch.descriptor >= 0 else []
        ready = wait(
            [self._signals.descriptor, *watched, *fixed], [], min(limits) if limits else None
        )
        self._watch.drain()
        for number in self._signals.taken():
            if number == signal.SIGWINCH:
                self._size = own_size()
                self._dirty = True
                self._type(b"")
            else:
                self._leaves, self._hung_up = True, number == signal.SIGHUP
        if self._key_at is not None and time.monotonic() - self._key_at >= TWICE:
            self._leaves = True
        if ready.get(0, 0) & (select.POLLHUP | select.POLLERR):
            self._leaves = self._hung_up = True
        return ready

    # What is shown.

    def _copy(self) -> bool:
        """Show the next piece. Return whether there may be more."""
        screen = self._replay.screen
        if self._replay.behind > FAR_BEHIND:
            self._replay.take_all()
            self._dirty = True
        data = self._replay.take()
        if data is None:
            if self._dirty and time.monotonic() - self._drawn_at >= DRAWN_APART:
                self._draw()
            return False
        alike = (screen.rows, screen.columns) == self._size
        if self._dirty or not data or not alike:
            self._dirty = True
        else:
            _write(self._harmless(data))
        return True

    def _draw(self) -> None:
        screen = self._replay.screen
        self._drawn_at = time.monotonic()
        self._harmless = screen.follower()
        self._dirty = False
        _write(LEAVE.encode() + b"\x1b[?25l\x1b[H\x1b[2J" + screen.drawn(*self._size))

    # What is typed.

    def _read(self) -> None:
        typed = os.read(0, PASTE)
        if not typed:
            self._leaves = True
        if self._key_at is not None:
            if not typed.startswith(self._key):
                self._leaves = True
                return
            self._key_at = None
            self._type(self._key)
            typed = typed[1:]
        while self._key in typed:
            before, typed = typed.split(self._key, 1)
            self._type(before)
            if typed.startswith(self._key):
                self._type(self._key)
                typed = typed[1:]
            elif typed:
                self._leaves = True
                return
            else:
                self._key_at = time.monotonic()
        if typed:
            self._type(typed)

    def _type(self, data: bytes) -> None:
        if self._read_only:
            return
        rows, columns = self._size

        def typed(reply: Reply, _descriptors: Sequence[int]) -> None:
            if not isinstance(reply, Error):
                return
            # it waits for its start, has ended, or does not read
            if reply.code not in (ErrorCode.WRONG_STATE, ErrorCode.UNAVAILABLE):
                check(reply)
            if data:
                _write(b"\a")

        self._requests.ask(Keys(id=0, run=self._run, data=data, rows=rows, columns=columns), typed)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def explain(key: bytes) -> str:
    """Return how to leave."""
    return f"{name_of(key)} leaves it"

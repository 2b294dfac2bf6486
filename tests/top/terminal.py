"""A terminal with the real program in it, read as a person would: by what is on its screen."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import pyte

from tests.harness import PATIENCE

ESCAPE, ENTER, UP, DOWN, HOME, CTRL_C = "\x1b", "\r", "\x1b[A", "\x1b[B", "\x1b[H", "\x03"
WHEEL_UP, WHEEL_DOWN = "\x1b[<64;5;4M", "\x1b[<65;5;4M"
"""Over the tree."""


class _Screen(pyte.Screen):
    """pyte knows none of the private sequences that Textual sends, and takes `CSI > 1 u` for a
    restored cursor."""

    def restore_cursor(self) -> None:
        return None

    def report_device_status(self, *_modes: int, **_options: object) -> None:
        return None

    def set_margins(
        self, top: int | None = None, bottom: int | None = None, **options: object
    ) -> None:
        if not options:
            super().set_margins(top, bottom)

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        if not private:
            super().select_graphic_rendition(*attributes)


class Terminal:
    """What a command shows that is executed in it."""

    def __init__(
        self,
        env: Mapping[str, str],
        command: Sequence[str],
        columns: int,
        lines: int,
        cwd: str = ".",
    ) -> None:
        self._screen = _Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.pid, self._master = os.forkpty()
        if self.pid == 0:
            os.chdir(cwd)
            kept = {
                key: value
                for key, value in env.items()
                if not key.startswith(("TEXTUAL", "NO_COLOR", "COLUMNS", "LINES"))
            }
            os.execvpe(command[0], [*command], kept | {"TERM": "xterm-256color", "TZ": "UTC"})
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    def line_of(self, name: str) -> str:
        """Return the line of the tree with this run."""
        return next(
            (line for line in self.lines[2:] if re.search(rf"^[! ][ │├└─]*\w+ {name} ", line)), ""
        )

    def colour(self, line: int, column: int) -> str:
        return str(self._screen.buffer[line][column].fg)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def click(self, name: str) -> None:
        """Click the line of a run."""
        at = f"5;{self.lines.index(self.line_of(name)) + 1}"
        self.press(f"\x1b[<0;{at}M\x1b[<0;{at}m")

    def until(self, pattern: str | Callable[[], object]) -> None:
        """Read until the screen has this, or the condition holds."""
        condition = pattern if callable(pattern) else lambda: re.search(pattern, self.text)
        end = time.monotonic() + PATIENCE
        while not condition():
            left = end - time.monotonic()
            assert left > 0, f"not on the screen: {pattern}\n{self.text}"
            self.read(left)

    def read(self, timeout: float) -> bool:
        """Take what the program writes. Return whether it can write more."""
        if not select.select([self._master], [], [], max(timeout, 0))[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the program has closed the terminal
            return False
        self._stream.feed(data)
        return bool(data)

    def skip(self, timeout: float) -> bytes:
        """Return what the program writes next, without drawing it; nothing after `timeout`
        seconds."""
        return (
            os.read(self._master, 1 << 20)
            if select.select([self._master], [], [], max(timeout, 0))[0]
            else b""
        )

    def exit_code(self) -> int:
        end = time.monotonic() + PATIENCE
        while self.read(end - time.monotonic()):
            assert time.monotonic() < end, self.text
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED)
        assert ended is not None
        self.pid = 0
        return ended.si_status

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitid(os.P_PID, self.pid, os.WEXITED)
        os.close(self._master)


@contextmanager
def top(
    env: Mapping[str, str], *words: str, columns: int = 80, lines: int = 24
) -> Iterator[Terminal]:
    with closing(
        Terminal(env, [sys.executable, "-m", "sfactl", "top", *words], columns, lines)
    ) as terminal:
        yield terminal

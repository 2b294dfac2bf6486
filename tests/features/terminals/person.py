"""A person at a terminal in which `sfactl` runs."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from sfad.features.terminals.screen import Screen
from tests.harness import PATIENCE, Daemon


class Person:
    def __init__(self, daemon: Daemon, *words: str, rows: int = 24, columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        self.screen = Screen(rows, columns)
        self.seen = b""
        self.resize(rows, columns)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sfactl", *words],
            stdin=slave, stdout=slave, stderr=slave, env=daemon.env | {"TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("=4H", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: the client has ended
            return False
        self.seen += data
        self.screen.feed(data)
        return bool(data)

    @property
    def text(self) -> str:
        return "\n".join(self.screen.text()).rstrip()

    def until(self, condition: Callable[[str], object]) -> str:
        """Read until the screen is so; return its text."""
        end = time.monotonic() + PATIENCE
        while not condition(self.text):
            assert time.monotonic() < end, self.text
            if not self._read(0.1) and self.process.poll() is not None and not self._read(0):
                assert condition(self.text), self.text
        return self.text

    def sees(self, words: str) -> str:
        return self.until(lambda text: words in text)

    def leaves(self) -> int:
        """Read to the client's end; return its exit code."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, self.text
            self._read(0.05)
        while self._read(0):
            pass
        return self.process.wait()

    def hang_up(self) -> int:
        """Close the terminal; return the client's exit code."""
        os.close(self._master)
        self._master = -1
        return self.process.wait(PATIENCE)

"""A program in tmux, as a person would have it without sfad."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sfad.features.terminals.screen import Line, Screen

FORGOTTEN = ("TMUX", "TMUX_PANE", "TERM_PROGRAM", "TERM_PROGRAM_VERSION")
"""Variables by which a program would know that it is in tmux."""


class Pane:
    """The one pane of a server of its own."""

    def __init__(self, directory: Path, rows: int, columns: int) -> None:
        self._socket = str(directory / "tmux")
        self._exit_code = directory / "exit_code"
        self.rows, self.columns = rows, columns

    def tmux(self, *words: str, env: Mapping[str, str] | None = None, cwd: str = "/") -> str:
        return subprocess.run(
            ["tmux", "-S", self._socket, "-f", "/dev/null", *words],
            env=env, cwd=cwd, check=True, capture_output=True, text=True, timeout=60,
        ).stdout  # fmt: skip

    def start(self, command: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        without = [word for name in FORGOTTEN for word in ("-u", name)]
        kept = ["TERM=xterm-256color", "COLORTERM=truecolor"]
        size = ["-x", str(self.columns), "-y", str(self.rows)]
        self.tmux(
            "set", "-g", "status", "off", ";", "set", "-g", "remain-on-exit", "on", ";",
            "set", "-g", "escape-time", "0", ";",
            "new-session", "-d", *size, "env", *without, *kept,
            "sh", "-c", 'trap : INT; "$@"; echo $? >"$0"', str(self._exit_code), *command,
            env=env, cwd=cwd,
        )  # fmt: skip

    def type(self, keys: bytes) -> None:
        self.tmux("send-keys", "-H", *(f"{each:x}" for each in keys))

    def resize(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def lines(self) -> list[Line]:
        """Return the screen: characters and how each looks."""
        found = self.tmux("capture-pane", "-p", "-e", "-N").split("\n")[: self.rows]
        screen = Screen(len(found), self.columns)
        for number, line in enumerate(found, 1):  # how a line looks at its end, the next begins
            screen.feed(f"\x1b[{number};1H\x1b[?7l{line}".encode())
        return screen.lines

    @property
    def exit_code(self) -> int | None:
        """The program's; `None` while it runs."""
        # tmux 3.3 has now and then a pane that is dead, and no status of it
        code = self._exit_code.read_text() if self._exit_code.exists() else ""
        return int(code) if code else None


@contextmanager
def pane(directory: Path, rows: int, columns: int) -> Iterator[Pane]:
    one = Pane(directory, rows, columns)
    try:
        yield one
    finally:
        subprocess.run(
            ["tmux", "-S", str(directory / "tmux"), "kill-server"], check=False, capture_output=True
        )

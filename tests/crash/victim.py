"""A daemon that may die at any moment and is started again, and the agents that write down what
happened to them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfad.host.faults import STATUS, VARIABLE
from sfad.protocol.types import RunId
from tests.harness import PATIENCE, Daemon


class Victim(Daemon):
    """`sfad serve` that ends itself at the effect `crash_at` (see `sfad.host.faults`), if that is
    not empty."""

    def __init__(self, directory: Path, *, config: str, mode: str, crash_at: str = "") -> None:
        self.crash_at = crash_at
        self.serving = False
        """Whether the present process has come as far as that."""
        super().__init__(directory, config=config, mode=mode)

    def _start(self, *_: Any, **__: Any) -> subprocess.Popen[bytes]:
        """Unlike any other daemon this one may die before it serves."""
        read, write = os.pipe()
        crash = {VARIABLE: self.crash_at} if self.crash_at else {}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "sfad", "serve", "--ready-fd", str(write)],
                pass_fds=[write],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env | crash,
            )
        os.close(write)
        with os.fdopen(read, "rb") as ready:
            self.serving = ready.read() == b"ready\n"
        return process

    def start_again(self, crash_at: str = "") -> None:
        """The next one."""
        self.process.wait(PATIENCE)
        self.crash_at = crash_at
        self.process = self._start()

    @property
    def fallen(self) -> str | None:
        """The effect at which it has ended itself; `None` while it is alive. Another end fails."""
        code = self.process.poll()
        if code is None:
            return None
        if code == -signal.SIGKILL:
            return "killed"
        said = [
            line
            for line in self.log.read_text().splitlines()
            if line.startswith("ended at effect ")
        ]
        if code != STATUS or not said:
            raise AssertionError(f"the daemon ended with {code}: {self.log.read_text()[-3000:]}")
        return said[-1].partition(": ")[2]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an agent wrote down when it began."""

    label: str
    run: RunId
    number: int
    pid: int


@dataclass(slots=True)
class Diary:
    """What all agents wrote down."""

    begun: list[Attempt] = field(default_factory=list)
    codes: dict[tuple[RunId, int], int] = field(default_factory=dict)
    """By run and attempt: what it was about to exit with."""

    def of(self, run: RunId) -> list[Attempt]:
        """The attempts of a run."""
        return [attempt for attempt in self.begun if attempt.run == run]

    @property
    def runs(self) -> dict[str, set[RunId]]:
        """By label."""
        found: dict[str, set[RunId]] = defaultdict(set)
        for attempt in self.begun:
            found[attempt.label].add(attempt.run)
        return found


_PROGRAM = """\
label=$1
say() { echo "$1 $label $SFA_RUN_ID $SFA_ATTEMPT ${2:-$$}" >> DIARY; }
end() { say end "$1"; exit "$1"; }
say begin
eval "$2"
"""


class Agents:
    """Shell scripts that say when they begin, and before they `end CODE`."""

    def __init__(self, directory: Path) -> None:
        self.diary = directory / "diary"
        self._program = directory / "agent.sh"
        if not self._program.exists():
            self.diary.touch()
            self._program.write_text(_PROGRAM.replace("DIARY", f"'{self.diary}'"))
        self._shell = shutil.which("dash") or "/bin/sh"

    def argv(self, label: str, script: str) -> list[str]:
        """A command."""
        return [self._shell, str(self._program), label, script]

    def sfactl(self, *words: str) -> str:
        """For a script: the command line from within a run."""
        return " ".join([sys.executable, "-m", "sfactl", *words])

    def inside(self, label: str, script: str) -> str:
        """For a script within double quotes: another agent's command."""
        return f"{self._shell} {self._program} {label} '{script}'"

    def read(self) -> Diary:
        """What was written so far, the line that is being written aside."""
        diary = Diary()
        for line in self.diary.read_text().splitlines(keepends=True):
            words = line.split()
            if len(words) != 5 or not line.endswith("\n"):
                continue
            what, label, run, number, figure = words
            if what == "begin":
                diary.begun.append(Attempt(label, run, int(number), int(figure)))
            else:
                diary.codes[run, int(number)] = int(figure)
        return diary

"""What a peer can be asked for. Its own way to do that is in a module of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psutil

from tests.harness import wait_until

Argv = list[str]
Runs = Sequence[tuple[Argv, int]]
"""Commands, and how often each will be run."""
GRACE = 1.0
"""Seconds from SIGTERM to SIGKILL."""


class Requests(NamedTuple):
    """A request for a unix socket, to be repeated. `framing`: see floor.c."""

    path: Path
    framing: str
    greeting: bytes
    request: bytes


Load = Requests | Argv | Callable[[int, float], list[float]]
"""A request, a command, or a function of clients and seconds that returns the seconds that each
answer took."""


class Peer:
    """A supervisor with its files in a directory of its own."""

    name: ClassVar[str]
    program: ClassVar[str]
    processes: ClassVar[frozenset[str]]
    """Names of its own processes, as in /proc/PID/comm."""
    without: ClassVar[frozenset[str]] = frozenset()
    """Rows that it cannot take part in."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.opened = ExitStack()
        """What `close` closes when the processes have ended."""
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("SFA", "PYTHON"))
        }
        self.env = kept | {"BENCH_PLACE": str(place)}

    @classmethod
    def installed(cls) -> bool:
        return shutil.which(cls.program) is not None

    def start(self, runs: Runs) -> None:
        """Start the daemon; return when it serves. `runs` are those that it will be asked for: some
        peers run only what they knew before they started."""

    def close(self) -> None:
        """Kill it and its runs."""

        def gone() -> bool:
            left = self.ours()
            for one in left:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            return not left

        wait_until(gone, f"the end of {self.name}")
        self.opened.close()

    def ours(self) -> list[psutil.Process]:
        """Return its live processes and runs, which have inherited a variable."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if (
                    process.environ().get("BENCH_PLACE") == str(self.place)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
        return found

    def pids(self) -> list[int]:
        """Return its own processes, without runs."""
        return [one.pid for one in self.ours() if one.name() in self.processes]

    def submit(self, argv: Argv) -> Any:
        """Start a run. Return it when the peer has taken it."""
        raise NotImplementedError

    def submit_all(self, argv: Argv, count: int) -> list[Any]:
        """Start many runs, as fast as the peer takes them."""
        return [self.submit(argv) for _ in range(count)]

    def wait(self, run: Any) -> None:
        """Wait until a client can know that the run has ended."""
        raise NotImplementedError

    def wait_all(self, runs: Sequence[Any]) -> None:
        """Wait until a client can know that all have ended."""
        for run in runs:
            self.wait(run)

    def list(self) -> object:
        """Ask for all runs."""
        return self.call(*self.commands(None)["list"])

    def status(self, run: Any) -> object:
        """Ask for one run."""
        return self.call(*self.commands(run)["status"])

    def stop(self, run: Any) -> None:
        """Stop a run, as thoroughly as the peer can."""
        raise NotImplementedError

    def output(self, run: Any) -> Path:
        """Return the file with the run's output."""
        raise NotImplementedError

    def load(self, kind: str, run: Any) -> Load:
        """Return how to ask for the `status` of a run, or for the `list`."""
        return self.commands(run)[kind]

    def commands(self, run: Any) -> dict[str, Argv]:
        """Return command lines by what they do: `list` the runs, show the `status` of one, `spawn`
        /bin/true."""
        raise NotImplementedError

    def call(self, *words: str) -> str:
        """Run a command to its end, and return its output."""
        return subprocess.run(
            words,
            env=self.env,
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        ).stdout

    def serve(self, *words: str) -> None:
        """Start the daemon as a child."""
        null = subprocess.DEVNULL
        process = subprocess.Popen(
            words, env=self.env, cwd=self.place, stdin=null, stdout=null, stderr=null
        )
        self.opened.callback(process.wait)

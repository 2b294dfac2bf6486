"""Where an agent sits: the daemon that starts it, the model that it asks, and what a test looks at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.clis import Cli
from tests.agents.model import Model, Talk
from tests.harness import PATIENCE, Daemon, wait_until


@dataclass(frozen=True)
class Desk:
    """A daemon, a model and agents that know both."""

    daemon: Daemon
    model: Model
    env: dict[str, str]

    def sfactl(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command line, in the agents' environment."""
        return subprocess.run(
            [sys.executable, "-m", "sfactl", *words],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            env=self.env,
            cwd=self.env["HOME"],
        )

    def json(self, *words: str) -> Any:
        """What a command prints with `--json`."""
        done = self.sfactl(*words, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def listed(self, *words: str) -> list[dict[str, Any]]:
        """Runs, the oldest first."""
        return sorted(self.json("list", *words)["runs"], key=lambda run: str(run["id"]))

    def spawn(self, name: str, *argv: str) -> str:
        """Starts a run in the background; its id."""
        done = self.sfactl("spawn", "--name", name, "--", *argv)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def running(self, run: str) -> dict[str, Any]:
        """What `info` tells of a run that must not have ended."""
        info: dict[str, Any] = self.json("info", run)
        assert info["status"] == "running", info
        return info

    def events(self, run: str) -> list[dict[str, Any]]:
        """What the agent has printed so far, a half line left out."""
        whole, _, _ = self.sfactl("logs", run).stdout.rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def talk(self, cli: Cli) -> Talk:
        """Between an agent and the model."""
        return self.model.talks[cli.name]


@contextmanager
def held_up(gate: Path) -> Iterator[str]:
    """A command for the shell tool that ends when the body does, and has begun before."""
    os.mkfifo(gate)
    yield f"cat {gate}"
    os.close(wait_until(lambda: _opened(gate), "the shell tool reads the gate"))


def _opened(gate: Path) -> int | None:
    with suppress(OSError):  # nobody reads it yet
        return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    return None

"""The surroundings of an agent: the daemon that starts it, the model that it calls, and what a test
looks at."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

from tests.harness import PATIENCE, Daemon, wait_until
from tests.real_agents.clis import Cli
from tests.real_agents.model import Model, Talk
from tests.unprivileged import Place


@dataclass(frozen=True)
class Desk:
    """A daemon, a model, and agents that use both."""

    daemon: Daemon
    model: Model
    env: dict[str, str]
    nobody: Place | None = None
    """Of an ordinary user, where root runs the tests."""

    def command(self, *words: str) -> list[str]:
        """Return the words that execute the command line as the user whose desk it is."""
        own = [self.daemon.python, "-m", "sfactl", *words]
        return (
            own if self.nobody is None else self.nobody.command("env", "-C", self.env["HOME"], *own)
        )

    def sfactl(self, *words: str, stdin: int | None = None) -> subprocess.CompletedProcess[str]:
        """The command line, in the agents' environment."""
        return subprocess.run(
            self.command(*words),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            env=self.env,
            cwd=self.env["HOME"],
        )

    @contextmanager
    def client(self, *words: str) -> Iterator[Popen[bytes]]:
        """Run the command line in the agents' environment, and discard its output. The body ends
        before the client must."""
        client = Popen(
            self.command(*words),
            stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env=self.env, cwd=self.env["HOME"],
        )  # fmt: skip
        try:
            yield client
            client.wait(PATIENCE)
        finally:
            client.kill()
            client.wait()

    def json(self, *words: str) -> Any:
        """Return what a command prints with `--json`."""
        done = self.sfactl(*words, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def listed(self, *words: str) -> list[dict[str, Any]]:
        """Return all runs, the oldest first."""
        return sorted(self.json("list", *words)["runs"], key=lambda run: str(run["id"]))

    def spawn(self, name: str, *argv: str) -> str:
        """Start a run in the background. Return its id."""
        done = self.sfactl("spawn", "--name", name, "--", *argv)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def running(self, run: str) -> dict[str, Any]:
        """Return what `info` tells of a run that must not have ended."""
        info: dict[str, Any] = self.json("info", run)
        assert info["status"] == "running", info
        return info

    def events(self, run: str) -> list[dict[str, Any]]:
        """Return what the agent has printed so far, without an incomplete line."""
        whole, _, _ = self.sfactl("logs", run).stdout.rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def talk(self, cli: Cli) -> Talk:
        """Between an agent and the model."""
        return self.model.talks[cli.name]


class Gate:
    """A command that a tool runs and that ends when the gate is opened."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.command = f"cat {path}"
        self._path = path
        self._writer: int | None = None

    @property
    def reached(self) -> bool:
        """Return whether the command runs."""
        if self._writer is None:
            with suppress(OSError):  # no process reads it yet
                self._writer = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        return self._writer is not None

    def open(self) -> None:
        """Let the command end."""
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None


@contextmanager
def gate_of(path: Path) -> Iterator[Gate]:
    """Yield a gate that is opened at the end."""
    gate = Gate(path)
    try:
        yield gate
    finally:
        gate.open()


@contextmanager
def held_up(path: Path) -> Iterator[str]:
    """Yield a command for the shell tool that has begun and ends with the body."""
    with gate_of(path) as gate:
        yield gate.command
        wait_until(lambda: gate.reached, "the shell tool reads the gate")


@contextmanager
def in_a_terminal(at: Desk, *words: str) -> Iterator[Popen[bytes]]:
    """Run a client in a terminal of its own, and discard its output."""
    ours, theirs = pty.openpty()
    # it fails when the terminal is gone
    reader = Popen(["cat"], stdin=ours, stdout=DEVNULL, stderr=DEVNULL)
    os.close(ours)
    client = Popen(
        at.command(*words), stdin=theirs, stdout=theirs, stderr=theirs, env=at.env,
        cwd=at.env["HOME"], start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield client
        client.wait(PATIENCE)
    finally:
        for each in (client, reader):
            each.kill()
            each.wait()

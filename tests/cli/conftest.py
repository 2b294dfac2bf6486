"""A daemon, one for all tests of a module that do not need their own, and ways to call `sfactl` at
it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sfactl.connecting.connection import Client
from tests.harness import stopped, unlocked, wait_until
from tests.template import Child, fork_daemon, run_forked

from .night import fill

PATIENCE = 60.0
"""Seconds after which a test gives up, because the machine may be loaded."""

SFACTL = (sys.executable, "-m", "sfactl")


class World:
    """A private place for a daemon, and the environment that names it."""

    def __init__(self, directory: Path, config: str = "") -> None:
        self.directory = directory
        self.socket = directory / "sock"
        self.state = directory / "state"
        self.config = directory / "sfad.toml"
        self.config.write_text(config)
        self._daemon: Child | None = None
        self.env = os.environ | {
            "HOME": str(directory),  # shells keep a history
            "SFAD_SOCKET": str(self.socket),
            "SFAD_STATE_DIR": str(self.state),
            "SFAD_CONFIG": str(self.config),
            "SFAD_AUTOSTART": "0",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "SFACTL": f"{sys.executable} -m sfactl",
        }

    @contextmanager
    def served(self) -> Iterator[None]:
        """Run the body with a daemon, which must end with 0."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def stop_all(self) -> None:
        """Stop each run."""
        with Client(self.socket) as client:
            stopped(client, everything=True, grace=0)

    def begin(self) -> None:
        """Start the daemon, and wait until it serves."""
        wait_until(lambda: unlocked(self.state), "no process has the locks of the daemon before")
        readable, writable = os.pipe()
        with open(self.directory / "log", "ab") as log:
            self._daemon = fork_daemon(self.env, log.fileno(), writable)
        os.close(writable)
        try:
            ready = select.select([readable], [], [], PATIENCE)[0] and os.read(readable, 16)
        finally:
            os.close(readable)
        assert ready, (self.directory / "log").read_text()

    def end(self) -> None:
        """Stop the daemon, which must end with 0."""
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGTERM)
        assert self._daemon.wait(PATIENCE) == 0, (self.directory / "log").read_text()

    def kill(self) -> None:
        """Kill the daemon with SIGKILL; its runs stay."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait()

    def sfactl(
        self, *words: str, stdin: str = "", code: int | None = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `sfactl` to its end, and check its exit code."""
        done = run_forked("sfactl", words, self.env | env, stdin=stdin, timeout=PATIENCE)
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *words: str, code: int | None = 0) -> Any:
        """Return the object that `sfactl … --json` prints."""
        return msgspec.json.decode(self.sfactl(words[0], "--json", *words[1:], code=code).stdout)

    def spawn(self, *words: str) -> str:
        """Start a run in the background. Return its id."""
        return self.sfactl("spawn", *words).stdout.strip()

    def status(self, run: str) -> str:
        """Return the status of a run."""
        found: str = self.json("info", run)["status"]
        return found

    def owns(self, pid: str | int) -> bool:
        """Return whether a process is a client or in a run of this daemon. Other daemons' are on
        this machine too."""
        try:
            return os.fsencode(self.socket) + b"\0" in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start `sfactl` with pipes, for tests that talk to it while it runs."""
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen([*SFACTL, *words], env=self.env, bufsize=0, **(pipes | options))


@pytest.fixture
def config() -> str:
    """The daemon's config; a test that wants another one parametrizes it."""
    return ""


@pytest.fixture
def world(tmp_path: Path, config: str) -> World:
    """A place without a daemon."""
    return World(tmp_path, config)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A place with a daemon for the tests of a module."""
    world = World(tmp_path_factory.mktemp("shared"))
    with world.served():
        yield world


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon that finds a ledger of 700 runs."""
    world = World(tmp_path_factory.mktemp("night"))
    fill(world.state)
    with world.served():
        yield world


@pytest.fixture
def daemon(request: pytest.FixtureRequest, shared: World, config: str) -> Iterator[World]:
    """A place with a daemon. A test that is marked `alone` or has a config gets its own daemon; the
    others of a module share one, in which each run is stopped after the test."""
    if config or request.node.get_closest_marker("alone"):
        world = request.getfixturevalue("world")
        with world.served():
            yield world
    else:
        yield shared
        shared.stop_all()


@pytest.fixture
def start(daemon: World) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start clients, which are killed after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, **options: Any) -> subprocess.Popen[bytes]:
        started.append(daemon.popen(*words, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()

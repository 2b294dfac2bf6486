"""A daemon of its own for each test, and ways to call `sfactl` at it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

PATIENCE = 20.0
"""Seconds after which a test gives up; nothing here takes long on an idle machine."""

SFACTL = (sys.executable, "-m", "sfactl")


class World:
    """A private place for a daemon, and the environment that names it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "sock"
        self.state = directory / "state"
        self.config = directory / "sfad.toml"
        self._daemon: subprocess.Popen[bytes] | None = None
        ours = {key: value for key, value in os.environ.items() if not key.startswith(("SFA_", "SFAD_"))}
        self.env = ours | {
            "SFAD_SOCKET": str(self.socket),
            "SFAD_STATE_DIR": str(self.state),
            "SFAD_CONFIG": str(self.config),
            "SFAD_AUTOSTART": "0",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "SFACTL": f"{sys.executable} -m sfactl",
        }

    def begin(self) -> None:
        """Starts the daemon and waits until it serves."""
        readable, writable = os.pipe()
        with open(self.directory / "log", "ab") as log:
            self._daemon = subprocess.Popen(
                [sys.executable, "-m", "sfad", "serve", "--ready-fd", str(writable)],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writable,),
            )
        os.close(writable)
        try:
            ready = select.select([readable], [], [], PATIENCE)[0] and os.read(readable, 16)
        finally:
            os.close(readable)
        assert ready, (self.directory / "log").read_text()

    def end(self) -> None:
        """Tells the daemon to end, which it must do with 0."""
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGTERM)
        assert self._daemon.wait(PATIENCE) == 0, (self.directory / "log").read_text()

    def kill(self) -> None:
        """What nobody should do to a daemon."""
        assert self._daemon is not None
        self._daemon.kill()
        self._daemon.wait()

    def sfactl(self, *words: str, stdin: str = "", code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs `sfactl` to its end and checks its exit code."""
        done = subprocess.run(
            [*SFACTL, *words], env=self.env | env, input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *words: str, code: int | None = 0) -> Any:
        """The object that `sfactl … --json` prints."""
        return msgspec.json.decode(self.sfactl(words[0], "--json", *words[1:], code=code).stdout)

    def spawn(self, *words: str) -> str:
        """Starts a run in the background. Returns its id."""
        return self.sfactl("spawn", *words).stdout.strip()

    def status(self, run: str) -> str:
        """Where the run is in its life."""
        found: str = self.json("info", run)["status"]
        return found

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Starts `sfactl` with pipes, for tests that talk to it while it runs."""
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen([*SFACTL, *words], env=self.env, bufsize=0, **(pipes | options))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where bytecode goes, so that hundreds of clients do not compile themselves and the checkout stays as it is."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def config() -> str:
    """The daemon's config; a test that wants another one parametrizes it."""
    return ""


@pytest.fixture
def world(tmp_path: Path, compiled: Path, config: str) -> World:
    """A place without a daemon."""
    world = World(tmp_path)
    world.config.write_text(config)
    world.env.pop("PYTHONDONTWRITEBYTECODE", None)
    world.env["PYTHONPYCACHEPREFIX"] = str(compiled)
    return world


@pytest.fixture
def daemon(world: World) -> Iterator[World]:
    """A place with a daemon, which must end with 0 when it is told to."""
    world.begin()
    try:
        yield world
    finally:
        world.end()


@pytest.fixture
def start(daemon: World) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts clients that are ended with the test."""
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

"""Three nodes of Ray and their three daemons on one machine. Everything that Ray starts is ended by
pid."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sfad.features.fleet.messages import FleetState, FleetStatus
from tests.harness import Daemon, running, wait_until

NAMES = ("n1", "n2", "n3")
LEASE = 5
MARK = "SFAD_TEST_CLUSTER"
"""Variable that all processes of the cluster have, so that they are found."""
RAY = Path(sys.executable).with_name("ray")
STORE = 80_000_000
"""Bytes of each node's object store."""


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@dataclass
class Cluster:
    """Nodes of Ray with the labels of the daemons."""

    directory: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    port: int = field(default_factory=_free_port)

    @property
    def env(self) -> dict[str, str]:
        """What daemons and drivers need to join."""
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.mark * 2,
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the head, then the others. On a busy machine Ray gives up after 30 s, and can be
        asked again."""
        head = (
            f"--port={self.port}",
            "--head",
            f"--temp-dir={self.directory}",
            "--include-dashboard=false",
        )
        self._until_started(NAMES[0], *head)
        for name in NAMES[1:]:
            self.join(name)

    def join(self, name: str) -> None:
        """Start a node that is not the head."""
        self._until_started(name, f"--address={self.address}")

    def _until_started(self, name: str, *words: str) -> None:
        for _ in range(4):
            if self.launch(name, *words).wait(240) == 0:
                return
        raise AssertionError(self._log(name))

    def launch(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [
                    RAY, "start", *words, f"--labels=sfad-node={name}", "--num-cpus=4",
                    "--memory=500000000", f"--object-store-memory={STORE}",
                    "--node-ip-address=127.0.0.1", "--include-log-monitor=false",
                    "--disable-usage-stats",
                ],
                env=os.environ | self.env | {MARK: self.mark},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def processes(self) -> list[psutil.Process]:
        """Return all that Ray has started. Its agents overwrite their environment with a title:
        they are children of others."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    found |= {
                        each.pid: each for each in (process, *process.children(recursive=True))
                    }
        return [process for process in found.values() if _lives(process)]

    def stop(self) -> None:
        for _ in range(3):  # a raylet that is killed late may have started a worker
            found = self.processes()
            for process in found:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(found, timeout=20)
        assert self.processes() == []


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        status: str = process.status()
        return status != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def cluster() -> Iterator[Cluster]:
    directory = Path(tempfile.mkdtemp(prefix="flt"))  # the paths of Ray's sockets must be short
    made = Cluster(directory)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(directory, ignore_errors=True)


CONFIG = """
[fleet]
address = "{address}"
node = "{name}"
lease = {lease}
[quotas]
trees = 1000
trees_per_user = 1000
spawns_per_hour = 100000
[log]
level = "debug"
"""


@contextmanager
def daemons(made: Cluster, directory: Path) -> Iterator[Mapping[str, Daemon]]:
    """Run a daemon for each node, until all have an actor."""
    before = {name: os.environ.get(name) for name in made.env}
    os.environ.update(made.env)
    try:
        with ExitStack() as stack:
            found = {}
            for name in NAMES:
                (directory / name).mkdir()
                config = CONFIG.format(address=made.address, name=name, lease=LEASE)
                found[name] = stack.enter_context(
                    running(directory / name, config=config, executed=True)
                )
            for daemon in found.values():
                wait_until(
                    lambda daemon=daemon: connected(daemon),  # type: ignore[misc]
                    "its actor is connected",
                    seconds=240,
                )
            yield found
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def connected(daemon: Daemon) -> bool:
    with daemon.client() as client:
        return client.call(FleetStatus(id=0), FleetState).connected


def actor_pid(daemon: Daemon) -> int:
    """Return the process of the actor that is connected to a daemon."""
    lines = [line for line in daemon.log.read_text().splitlines() if '"name":"fleet actor ' in line]
    return int(lines[-1].partition("fleet actor ")[2].partition('"')[0])


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)

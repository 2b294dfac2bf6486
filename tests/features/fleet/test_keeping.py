"""What keeps Ray where no systemd does: a guard that ends with the daemon, and a keeper that
outlives it. A program in the place of Ray writes a line whenever it is started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from sfad.features.fleet.ray.keeping import MARK
from tests.harness import wait_until

ROOT = Path(__file__).parents[3]


class Machine:
    def __init__(self, directory: Path) -> None:
        self.lock, self._begun = directory / "ray", directory / "begun"
        self._bin = directory / "bin"
        self._bin.mkdir()
        (self._bin / "python").symlink_to(os.path.realpath("/proc/self/exe"))
        ray = self._bin / "ray"
        ray.write_text(f'#!/bin/sh\necho "$$ $*" >> {self._begun}\nsleep 1000 &\nwait\n')
        ray.chmod(0o755)
        self._env = os.environ | {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}"}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.head = "{}:{}".format(*self.address)
        self._guards: list[subprocess.Popen[bytes]] = []

    def guard(self) -> subprocess.Popen[bytes]:
        words = ["-m", "sfad.features.fleet.ray.keeping", "--lock", str(self.lock)]
        guard = subprocess.Popen(
            [str(self._bin / "python"), *words, "--node", "n2", self.head],
            env=self._env,
            stdin=subprocess.PIPE,
        )
        self._guards.append(guard)
        return guard

    @property
    def keeper(self) -> int:
        return int(next(iter(self.lock.read_text().split()), 0))

    def begun(self, count: int) -> list[int]:
        """Return the processes of so many starts, once there were so many."""

        def lines() -> list[str]:
            return self._begun.read_text().splitlines() if self._begun.exists() else []

        wait_until(lambda: len(lines()) >= count, f"it was started {count} times")
        assert len(lines()) == count
        assert not count or "start --block --labels=sfad-node=n2" in lines()[-1]
        return [int(line.split()[0]) for line in lines()]

    def alive(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == str(self.lock):
                    found.append(process)
        return found

    def end(self) -> None:
        for guard in self._guards:
            guard.kill()
            guard.communicate()
        with suppress(OSError, ValueError):
            if self.keeper:  # 0 would be this process's group
                os.kill(self.keeper, signal.SIGTERM)
        wait_until(lambda: not self.alive(), "all has ended")
        self.listener.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.end()


def test_ray_is_started_again_and_outlives_the_daemon(machine: Machine) -> None:
    guard = machine.guard()
    (first,) = machine.begun(1)
    os.kill(first, signal.SIGKILL)
    machine.begun(2)
    keeper = machine.keeper
    assert guard.stdin is not None
    guard.stdin.close()  # the daemon has ended
    assert guard.wait(60) == 0
    assert psutil.pid_exists(keeper)
    machine.guard()  # of the next one
    _, second = machine.begun(2)
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: machine.keeper != keeper, "there is another keeper")
    assert psutil.pid_exists(second)  # which has it: else the head's would end the cluster
    os.kill(second, signal.SIGKILL)
    third = machine.begun(3)[-1]
    assert psutil.pid_exists(third)
    wait_until(
        lambda: sum("sleep" in each.cmdline() for each in machine.alive()) == 1,
        "one has what a Ray starts",
    )


def test_ray_is_started_once_the_head_takes_connections(machine: Machine) -> None:
    machine.listener.close()
    machine.guard()
    wait_until(lambda: machine.lock.exists() and machine.keeper, "there is a keeper")
    machine.begun(0)
    machine.listener = socket.create_server(machine.address)
    machine.begun(1)


def test_the_end_of_a_keeper_is_that_of_ray(machine: Machine) -> None:
    guard = machine.guard()
    machine.begun(1)
    guard.kill()
    guard.communicate()
    os.kill(machine.keeper, signal.SIGTERM)
    wait_until(lambda: not machine.alive(), "nothing of it is left")

"""Who is at the other end, by the kernel."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import trio

from sfad.core.events import LaunchSucceeded, MainExited
from sfad.daemon.server import peers
from sfad.host.probe import UCRED, peer_pidfd
from tests.harness import PYTHON
from tests.processes.fake import FakeLauncher
from tests.processes.rig import Rig, rigged
from tests.users import as_user, needs_root

CONNECT = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
if "die" not in sys.argv:
    s.recv(1)
"""


@pytest.fixture
async def rig(containment: str) -> AsyncIterator[Rig]:
    async with rigged(containment) as made:
        yield made


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(str(tmp_path / "s"))
        made.listen()
        yield made


async def accept(listener: socket.socket) -> socket.socket:
    with trio.fail_after(60):
        await trio.lowlevel.wait_readable(listener)
    return listener.accept()[0]


async def test_a_peer_outside_any_run(rig: Rig, listener: socket.socket) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(listener.getsockname())
        with closing(await accept(listener)) as server:
            peer = peers.identify(server, rig.launcher)
    assert (peer.uid, peer.run, peer.unidentified, peer.owner) == (os.geteuid(), None, "", True)
    assert peer.user == pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.parametrize(
    "disguise", ["", "env -i", "setsid --fork", "env -i setsid --fork sh -c '\"$@\" &' x"]
)
async def test_a_peer_inside_a_run(
    rig: Rig, listener: socket.socket, tmp_path: Path, disguise: str
) -> None:
    (tmp_path / "connect").write_text(CONNECT)
    command = f"{disguise} {PYTHON} {tmp_path}/connect {listener.getsockname()}; sleep 1000"
    rig.launch("a1", "sleep", "1000")
    rig.launch("a2", "sh", "-c", command, parent="a1")
    with closing(await accept(listener)) as server:
        assert peers.identify(server, rig.launcher).run == "a2"
        began = time.perf_counter()
        for _ in range(100):
            peers.identify(server, rig.launcher)
        assert time.perf_counter() - began < 10
    await rig.wait(LaunchSucceeded, "a1")
    await rig.stop("a2", "a1")


async def test_a_peer_that_has_died(rig: Rig, listener: socket.socket, tmp_path: Path) -> None:
    """It is in its run, or refused: never outside."""
    (tmp_path / "connect").write_text(CONNECT)
    rig.launch("a1", sys.executable, f"{tmp_path}/connect", listener.getsockname(), "die")
    with closing(await accept(listener)) as server:
        with trio.fail_after(60):
            await trio.lowlevel.wait_readable(server)
        await rig.wait(MainExited, "a1")
        peer = peers.identify(server, rig.launcher)
    assert peer.run == "a1" or peer.unidentified
    await rig.stop("a1")


async def test_kernel_without_pidfds(
    monkeypatch: pytest.MonkeyPatch, rig: Rig, listener: socket.socket
) -> None:
    monkeypatch.setattr(peers, "SO_PEERPIDFD", 9999)
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(listener.getsockname())
        with closing(await accept(listener)) as server:
            assert peers.identify(server, rig.launcher).unidentified == ""


class Answers:
    """A connection of which the kernel says what the test wants."""

    def __init__(self, pid: int, uid: int) -> None:
        self.credentials = UCRED.pack(pid, uid, uid)

    def getsockopt(self, level: int, option: int, length: int) -> bytes:  # noqa: ARG002 - its signature
        if option == socket.SO_PEERCRED:
            return self.credentials
        raise ProcessLookupError(3, "No such process")

    def fileno(self) -> int:
        return -1


def test_another_user_whose_process_is_gone() -> None:
    peer = peers.identify(
        cast(socket.socket, Answers(1, 54321)), FakeLauncher(emit=lambda _event: None)
    )
    assert (peer.user, peer.owner) == ("54321", False)
    assert "ended" in peer.unidentified


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")]
)
def test_a_kernel_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    launcher = FakeLauncher(emit=lambda _event: None)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(launcher, "run_of", fail)
    monkeypatch.setattr(peers, "peer_pidfd", lambda _connection: None)
    peer = peers.identify(cast(socket.socket, Answers(os.getpid(), os.geteuid())), launcher)
    assert peer.run is None
    assert "could not be looked at" in peer.unidentified


@needs_root
@pytest.mark.parametrize("count", [0, 3, 256, 257, 5000])
async def test_all_groups_of_a_peer_are_known(listener: socket.socket, count: int) -> None:
    groups = list(range(62000, 62000 + count))
    with closing(socket.socket(socket.AF_UNIX)) as client:
        as_user(0, lambda: client.connect(listener.getsockname()), gid=61001, groups=groups)
        with closing(await accept(listener)) as server:
            assert sorted(peers.peer_groups(server)) == groups
            assert peers.all_groups(server, 61001) == {61001, *groups}


def connected_and_died(path: str) -> int:
    program = subprocess.Popen([sys.executable, "-c", CONNECT, path, "die"])
    program.wait()
    return program.pid


@dataclass
class OneGateway:
    uid: int | None


def gateway_is(process: int, uid: int | None) -> Callable[[int], OneGateway | None]:
    return lambda pid: OneGateway(uid) if pid == process else None


async def test_a_process_with_the_gateways_pid_is_not_the_gateway(
    rig: Rig, listener: socket.socket
) -> None:
    """The peer has ended; by now its pid is that of the gateway. It was passed to nobody, so the
    kernel may use it again."""
    if not peer_pidfd():
        pytest.skip("the kernel does not give the peer's pidfd (Linux 6.5)")
    program = connected_and_died(listener.getsockname())
    with closing(await accept(listener)) as server:
        assert (
            peers.identify(server, rig.launcher, gateway_at=gateway_is(program, None)).gateway
            is False
        )
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(listener.getsockname())
        with closing(await accept(listener)) as server:
            for uid in (None, 61001):
                found = peers.identify(server, rig.launcher, gateway_is(os.getpid(), uid))
                assert (found.gateway, found.gateway_uid) == (True, uid)

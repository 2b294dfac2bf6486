"""The messages to systemd, and the descriptors from it. The tests play the other end."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from sfad.host import systemd
from sfad.host.systemd import FdStore


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which systemd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


def test_a_reload_says_when_it_began(manager: socket.socket) -> None:
    before = time.monotonic_ns() // 1000
    systemd.notify(systemd.reloading())
    first, second = manager.recv(4096).decode().splitlines()
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


async def test_the_watchdog_is_fed_twice_as_often_as_required(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert systemd.watchdog_interval() == 0.02
    async with trio.open_nursery() as nursery:
        nursery.start_soon(systemd.feed_watchdog)
        for _ in range(3):
            assert await trio.to_thread.run_sync(manager.recv, 4096) == b"WATCHDOG=1"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("limit", "pid"), [("", ""), ("0", ""), ("x", ""), ("9" * 5000, ""), ("40000", "1")]
)
async def test_no_watchdog(limit: str, pid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", limit)
    monkeypatch.setenv("WATCHDOG_PID", pid)
    with trio.fail_after(60):
        await systemd.feed_watchdog()


def test_descriptors_are_kept(manager: socket.socket) -> None:
    store, (near, far) = FdStore(), os.pipe()
    assert store.keep("a1", far)
    state, descriptors, _, _ = socket.recv_fds(manager, 4096, 4)
    assert state == b"FDSTORE=1\nFDNAME=a1\nFDPOLL=0"
    os.write(descriptors[0], b"x")
    assert os.read(near, 1) == b"x"
    store.forget("a1")
    assert manager.recv(4096) == b"FDSTOREREMOVE=1\nFDNAME=a1"
    store.close()
    for descriptor in (near, far, *descriptors):
        os.close(descriptor)


def test_systemd_is_not_waited_for_and_closes_everything_in_the_end(manager: socket.socket) -> None:
    store = FdStore()
    asked = 0
    while store.flush():
        store.forget(f"a{asked}")
        asked += 1
    assert not store.keep("a0", 0)  # systemd would close it again
    told: list[bytes] = []
    while len(told) < asked:
        told.append(manager.recv(4096))
        store.flush()
    assert told == [f"FDSTOREREMOVE=1\nFDNAME=a{number}".encode() for number in range(asked)]
    store.close()


def test_no_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    store = FdStore()
    assert not store.keep("a1", 0)
    store.forget("a1")
    store.close()
    assert FdStore.taken() == {}


@pytest.mark.parametrize("address", ["/nowhere", "x" * 5000, "@"])
def test_nothing_is_kept_if_systemd_does_not_listen(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    store = FdStore()
    assert not store.keep("a1", 0)
    store.close()


@pytest.mark.parametrize("count", ["9" * 5000, "-1", "3"])
def test_descriptors_that_were_not_passed_are_not_taken(
    count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "FIRST_PASSED", 1_000_000)  # no descriptor of this process
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", count)
    monkeypatch.setenv("LISTEN_FDNAMES", "a:b:c")
    assert FdStore.taken() == {}


@pytest.mark.parametrize(
    ("result", "follows"),
    [("success", False), ("exit-code", True), ("watchdog", True), (None, False)],
)
def test_whether_another_daemon_follows(
    result: str | None, follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if result is None:
        monkeypatch.delenv("SERVICE_RESULT", raising=False)
    else:
        monkeypatch.setenv("SERVICE_RESULT", result)
    assert systemd.another_follows() is follows

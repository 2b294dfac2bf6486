"""Hostile and broken clients: the daemon keeps serving the others, and keeps nothing of them."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REPLY, MAX_REQUEST, SUPPORTED, FrameDecoder, frame
from sfad.protocol.types import Claim, ErrorCode, Status
from sfad.start.checks import MAX_LARGE
from tests.conftest import Start
from tests.harness import (
    IMPATIENT,
    PATIENCE,
    Daemon,
    ended,
    running,
    spawn,
    started,
    stopped,
    wait_until,
)
from tests.tiers import first, variant


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all tests: whatever a test does to it, it must serve the next one."""
    with running(
        tmp_path_factory.mktemp("hostile"), config="[quotas]\nspawns_per_hour = 100000"
    ) as one:
        yield one


def raw(daemon: Daemon) -> socket.socket:
    """A connection before its handshake."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # blocking: with a timeout a full backlog would be an error at once
    sock.connect(os.fspath(daemon.socket))
    sock.settimeout(PATIENCE)
    return sock


def greeted(daemon: Daemon) -> socket.socket:
    """A connection after its handshake."""
    sock = raw(daemon)
    sock.sendall(m.pack_message(m.Hello(id=1, versions=list(SUPPORTED))))
    assert isinstance(replies(sock, 1)[0], m.Welcome)
    return sock


def replies(sock: socket.socket, count: int) -> list[m.Reply]:
    """Return the next `count` replies, or as many as come before the end."""
    decoder = FrameDecoder(MAX_REPLY)
    found: list[m.Reply] = []
    while len(found) < count:
        try:
            data = sock.recv(65536)
        except ConnectionResetError:
            break
        if not data:
            break
        found += [m.unpack_reply(body) for body in decoder.feed(data)]
    return found


def serves(daemon: Daemon) -> bool:
    """Return whether the daemon serves an ordinary client."""
    with daemon.client() as client:
        return client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).pid == daemon.pid


GARBAGE = {
    "not a frame": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "random bytes": random.Random(1).randbytes(5000),
    "a huge announcement": struct.pack(">I", 0xFFFFFFFF) + b"x" * 1000,
    "one byte over": struct.pack(">I", MAX_REQUEST + 1),
    "an empty frame": frame(b""),
    "deep nesting": frame(b"\x91" * 100_000 + b"\xc0"),
    "bad utf-8": frame(b"\x81\xa4type\xa5hel\xff\xff"),
    "not a request": frame(msgspec.msgpack.encode({"type": "welcome", "id": 1})),
    "no handshake": m.pack_message(m.DaemonInfo(id=5)),
    "an unknown field": frame(
        msgspec.msgpack.encode({"type": "hello", "id": 1, "versions": [1], "root": True})
    ),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_answered_and_dropped(daemon: Daemon, what: str) -> None:
    with raw(daemon) as sock:
        sock.sendall(GARBAGE[what])
        (reply,) = replies(sock, 2)
        assert isinstance(reply, m.Error)
        assert reply.code is ErrorCode.BAD_REQUEST
        assert reply.message
    assert serves(daemon)


def test_a_bad_request_after_the_handshake_does_not_end_the_connection(daemon: Daemon) -> None:
    with greeted(daemon) as sock:
        sock.sendall(frame(msgspec.msgpack.encode({"type": "info", "id": 7, "run": 5})))
        sock.sendall(frame(msgspec.msgpack.encode({"type": "no such verb", "id": 8})))
        sock.sendall(m.pack_message(m.DaemonInfo(id=9)))
        first, second, third = replies(sock, 3)
        assert [first.id, second.id, third.id] == [7, 8, 9]
        assert isinstance(first, m.Error)
        assert isinstance(second, m.Error)
        assert isinstance(third, m.DaemonStatus)


def test_no_version_in_common(daemon: Daemon) -> None:
    with raw(daemon) as sock:
        sock.sendall(m.pack_message(m.Hello(id=1, versions=[99] * 100_000)))
        (reply,) = replies(sock, 2)
        assert isinstance(reply, m.Error)
        assert reply.code is ErrorCode.UNSUPPORTED_VERSION
        assert "99" in reply.message
        assert len(reply.message) < 1000


def test_every_split_of_a_request_is_understood(daemon: Daemon) -> None:
    hello = m.pack_message(m.Hello(id=1, versions=list(SUPPORTED)))
    for cut in range(1, len(hello)):
        with raw(daemon) as sock:
            sock.sendall(hello[:cut])
            sock.sendall(hello[cut:])
            assert isinstance(replies(sock, 1)[0], m.Welcome)


@pytest.mark.rest("at scale")
def test_a_thousand_bad_connections_leave_nothing(daemon: Daemon) -> None:
    assert serves(daemon)
    before, memory = daemon.descriptors(), psutil.Process(daemon.pid).memory_info().rss
    chance = random.Random(7)
    for _ in range(20):
        with ExitStack() as stack:
            for _ in range(50):
                sock = stack.enter_context(raw(daemon))
                sock.setblocking(False)
                half = struct.pack(">I", MAX_REQUEST) + bytes(chance.randrange(100_000))
                what = chance.choice([*GARBAGE.values(), half, b"", b"\0"])
                try:
                    sock.sendall(what)
                except OSError:
                    # the daemon has hung up already, or its buffer is full: both are fine
                    continue
    assert serves(daemon)
    wait_until(lambda: daemon.descriptors() <= before, "descriptors are given back")
    grown = psutil.Process(daemon.pid).memory_info().rss - memory
    # half a frame each, held and given back; some of it stays with the allocator
    assert grown < 32 * 1024 * 1024


def test_an_unfinished_frame_has_a_bound_and_a_time(start: Start) -> None:
    daemon = start(program=IMPATIENT)
    with greeted(daemon) as sock, daemon.client() as other:
        sock.sendall(struct.pack(">I", 1000) + b"x")
        assert other.call(m.DaemonInfo(id=other.next_id()), m.DaemonStatus).connections == 2
        (reply,) = replies(sock, 2)  # after `FRAME_TIME`
        assert isinstance(reply, m.Error)
        assert "the rest of a frame did not come" in reply.message


def test_a_client_that_does_not_read_is_dropped(daemon: Daemon) -> None:
    with daemon.client() as client:
        for _ in range(60):
            started(client, ["true", "x" * 100_000])
        with greeted(daemon) as sock:
            sock.setblocking(False)
            ask = m.pack_message(m.List(id=1, rows=1000))
            wait_until(lambda: _hung_up(sock, ask), "the daemon gives up on it")
        assert serves(daemon)


def _hung_up(sock: socket.socket, ask: bytes) -> bool:
    try:
        sock.send(ask)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def test_descriptors_that_no_request_takes_are_closed(daemon: Daemon, tmp_path: Path) -> None:
    assert serves(daemon)
    before = daemon.descriptors()
    with (tmp_path / "f").open("w") as file:
        for count in (1, 3, 16, 200):
            with greeted(daemon) as sock:
                message = m.pack_message(m.DaemonInfo(id=2))
                try:
                    socket.send_fds(sock, [message], [file.fileno()] * count)
                except OSError:
                    continue
                replies(sock, 1)
        with daemon.client() as client:
            spawn = m.Spawn(
                id=client.next_id(),
                argv=[b"true"],
                cwd=b"/",
                env=[],
                stdio="inherit",
                descriptors=1,
            )
            client.send(spawn, [file.fileno()])
            (answer,) = client.arrived()
            assert isinstance(answer.reply, m.Error)
            assert "takes 3 descriptors; 1 announced" in answer.reply.message
    wait_until(lambda: daemon.descriptors() <= before, "descriptors are given back")


@contextmanager
def lingering(count: int) -> Iterator[list[socket.socket]]:
    """TCP sockets with unsent data: close(2) of the last descriptor of each blocks for an hour, or
    until the `with` block ends."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made = [socket.create_connection(listener.getsockname()) for _ in range(count)]
        for one in made:
            stack.enter_context(listener.accept()[0])
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
            one.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    one.send(bytes(65536))
        yield made


@first(1)
@pytest.mark.parametrize(("count", "announced"), [(3, 2), (3, 3), (3, None)])
def test_files_whose_close_blocks_do_not_stop_the_daemon(
    daemon: Daemon, count: int, announced: int | None
) -> None:
    assert serves(daemon)
    before = daemon.descriptors()
    with lingering(count) as files, greeted(daemon) as sock:
        request = m.Spawn(
            id=2,
            argv=[b"true"],
            cwd=b"/",
            env=[b"PATH=/bin"],
            stdio="inherit",
            descriptors=announced or 0,
        )
        message = m.pack_message(request)
        socket.send_fds(sock, [message[:1]], [file.fileno() for file in files])
        for file in files:
            file.close()  # the daemon's, or those on their way to it, are the last ones
        if announced is not None:
            sock.sendall(message[1:])
            replies(sock, 1)
        sock.close()
        assert serves(daemon)
        with daemon.client() as client:
            assert ended(client, started(client, ["true"]).id).exit_code == 0
    wait_until(lambda: daemon.descriptors() <= before, "descriptors are given back")


def states() -> list[tuple[object, str]]:
    """Return local addresses and states of TCP sockets."""
    return [(tuple(each.laddr), each.status) for each in psutil.net_connections("tcp4")]


@variant
def test_files_that_linger_delay_no_reexecution(start: Start) -> None:
    daemon = start()
    with lingering(70) as files, greeted(daemon) as sock:
        message = m.pack_message(m.DaemonInfo(id=2))
        socket.send_fds(sock, [message[:1]], [file.fileno() for file in files])
        for file in files:
            file.close()
        sock.close()
        daemon.reexecute()
        assert serves(daemon)


def test_clients_that_disappear_at_any_moment(daemon: Daemon) -> None:
    assert serves(daemon)
    before = daemon.descriptors()
    for _ in range(50):
        client = daemon.client()
        client.send(
            m.Spawn(
                id=client.next_id(),
                argv=[b"sleep", b"100"],
                cwd=b"/",
                env=[b"PATH=/bin:/usr/bin"],
                tied=True,
            )
        )
        client.send(m.Wait(id=client.next_id(), run="a1"))
        client.close()

    def idle() -> bool:
        with daemon.client() as other:
            return other.call(m.DaemonInfo(id=other.next_id()), m.DaemonStatus).live == 0

    wait_until(idle, "every tied run is gone")
    wait_until(lambda: daemon.descriptors() <= before, "descriptors are given back")


@pytest.mark.rest("at scale")
def test_connections_beyond_the_bound_are_refused(start: Start) -> None:
    daemon = start()
    with ExitStack() as stack:
        for _ in range(2048):
            stack.enter_context(raw(daemon))
        (reply,) = replies(stack.enter_context(raw(daemon)), 2)
        assert isinstance(reply, m.Error)
        assert reply.code is ErrorCode.UNAVAILABLE
    wait_until(lambda: serves(daemon), "room again")


TOO_MUCH: dict[str, dict[str, Any]] = {
    "a long cwd": {"cwd": b"/" + b"x" * 5000},
    "many labels": {"labels": {str(number): "" for number in range(65)}},
    "many words": {"argv": [b""] * 700_000},
    "a long label": {"labels": {"k": "v" * 257}},
    "a long type": {"run_type": "t" * 65},
    "a long claim": {"claim": Claim(names=["n"] * 65)},
    "a newline in a label": {"labels": {"k": "a\nb"}},
    "an escape sequence in a key": {"labels": {"\x1b[31m": ""}},
    "a reversed type": {"run_type": "\u202etxt"},
    "a bell in the channel": {"channel": "\a"},
    "a long key": {"key": "x" * 65},
    "a umask beyond the modes": {"umask": 0o1000},
    "a negative umask": {"umask": -1},
    "a NUL in argv": {"argv": [b"a\0b"]},
    "a relative cwd": {"cwd": b"here"},
    "an unknown verb": {"deny": ["fly"]},
    "no command": {"argv": []},
    "a bad name": {"name": "no spaces"},
    "an endless grace": {"grace": float("inf")},
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_spawn_with_a_value_outside_its_range_says_which(daemon: Daemon, what: str) -> None:
    with daemon.client() as client:
        before = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).admitted
        fields = {"argv": [b"true"], "cwd": b"/", "env": list[bytes]()} | TOO_MUCH[what]
        client.send(m.Spawn(id=client.next_id(), **fields))
        (answer,) = client.arrived()
        assert isinstance(answer.reply, m.Error)
        assert answer.reply.code is ErrorCode.BAD_REQUEST
        assert len(answer.reply.message) > 20
        assert client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).admitted == before


def test_only_a_part_of_a_long_command_is_shown_and_kept(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        for _ in range(20):
            started(client, ["true", *["x" * 100_000] * 10])
        runs = client.call(m.List(id=client.next_id()), m.RunList).runs
        assert len(runs) == 20
        assert sum(len(word) for run in runs for word in run.argv) < 20 * 5000


def test_a_user_does_not_fill_memory_with_environments(start: Start) -> None:
    daemon = start(config="[quotas]\ntrees = 1\n")
    large = {"env": [b"%d=" % n + b"x" * 100_000 for n in range(40)]}
    with daemon.client() as client:
        started(client, ["sleep", "1000"], env=[])
        for _ in range(MAX_LARGE // 4_000_000):
            started(client, ["sleep", "1000"], **large)
        started(client, ["sleep", "1000"], env=[])
        refused = spawn(client, ["sleep", "1000"], **large)
        assert isinstance(refused, m.Error)
        assert refused.code is ErrorCode.UNAVAILABLE
        assert f"at most {MAX_LARGE} together" in refused.message
        stopped(client, everything=True, grace=0)
        started(client, ["sleep", "1000"], **large)
        stopped(client, everything=True, grace=0)


def test_a_stop_of_thousands_of_names_is_refused(daemon: Daemon) -> None:
    with daemon.client() as client:
        client.send(m.Stop(id=client.next_id(), runs=["a1"] * 100_000))
        (answer,) = client.arrived()
        assert isinstance(answer.reply, m.Error)
        assert "at most 1024" in answer.reply.message


def test_more_labels_than_a_run_can_have_are_refused(daemon: Daemon) -> None:
    labels: dict[str, str | list[str]] = {str(number): "" for number in range(20_000)}
    with daemon.client() as client:
        for request in (
            m.List(id=1000, labels=labels),
            m.List(id=1003, labels={"k": list(labels)}),
            m.List(id=1004, labels={key: [] for key in labels}),
            m.Stop(id=1001, labels=labels),
            m.List(id=1002, status=[Status.FAILED] * 20_000),
        ):
            client.send(request)
            (answer,) = client.arrived()
            assert isinstance(answer.reply, m.Error)
            assert answer.reply.code is ErrorCode.BAD_REQUEST
            assert "at most 64" in answer.reply.message


@first(1)
@pytest.mark.parametrize("seconds", [1e300, -1e300, float("nan"), float("inf"), 1e12])
def test_times_outside_the_calendar_are_refused(daemon: Daemon, seconds: float) -> None:
    with daemon.client() as client:
        for request in (
            m.Summarise(id=1000, since=seconds),
            m.Prune(id=1001, older_than=seconds, dry_run=True),
        ):
            client.send(request)
            (answer,) = client.arrived()
            assert isinstance(answer.reply, m.Error)
            assert answer.reply.code is ErrorCode.BAD_REQUEST


@pytest.mark.rest("at scale")
def test_a_client_that_connects_in_a_loop_does_not_delay_the_others(daemon: Daemon) -> None:
    stop = threading.Event()

    def storm() -> None:
        while not stop.is_set():
            with suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.connect(os.fspath(daemon.socket))

    threads = [threading.Thread(target=storm) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        with daemon.client() as client:
            for _ in range(15):
                client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
    finally:
        stop.set()
        for thread in threads:
            thread.join()

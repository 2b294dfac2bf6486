"""What the kernel says of real connections."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from sfad.host.linux.callers import Caller, ConnectionTable, Opened


@contextmanager
def connection(
    family: socket.AddressFamily = socket.AF_INET,
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a client's end and the accepted one."""
    host = "::1" if family is socket.AF_INET6 else "127.0.0.1"
    with (
        socket.create_server((host, 0), family=family) as listener,
        socket.create_connection(listener.getsockname()[:2]) as client,
    ):
        accepted, _ = listener.accept()
        with accepted:
            yield client, accepted


@pytest.fixture
def table() -> Iterator[ConnectionTable]:
    made = ConnectionTable()
    yield made
    made.close()


def own_cgroup() -> int | None:
    """Return the inode of the cgroup of this process; `None` if it cannot be seen here."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            directory = Path(f"/sys/fs/cgroup{line[3:]}")
            return directory.stat().st_ino if (directory / "cgroup.procs").exists() else None
    return None


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    "family", [socket.AF_INET, socket.AF_INET6] if has_ipv6() else [socket.AF_INET]
)
def test_a_caller_has_its_user_and_its_cgroup(
    table: ConnectionTable, family: socket.AddressFamily
) -> None:
    with connection(family) as (_, accepted):
        caller = table.caller(accepted)
    assert caller is not None
    assert caller.uid == os.getuid()
    assert caller.cgroup == (own_cgroup() or caller.cgroup)


def test_it_is_the_other_end_that_is_asked_for(table: ConnectionTable) -> None:
    with connection() as (client, accepted):
        here = Caller(os.getuid(), own_cgroup() or getattr(table.caller(accepted), "cgroup", None))
        assert table.caller(accepted) == table.caller(client) == here


@pytest.mark.needs("root")
def test_a_process_of_another_user(table: ConnectionTable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.seteuid(65534)  # a socket belongs to the user that makes it
        try:
            client = socket.create_connection(listener.getsockname())
        finally:
            os.seteuid(0)
        accepted, _ = listener.accept()
        with client, accepted:
            caller = table.caller(accepted)
    assert caller is not None
    assert caller.uid == 65534


def test_a_closed_peer_is_nobody(table: ConnectionTable) -> None:
    with connection() as (client, accepted):
        client.sendall(b"bye")
        client.close()
        assert table.caller(accepted) is None


def test_a_peer_that_reset_the_connection_is_nobody(table: ConnectionTable) -> None:
    with connection() as (client, accepted):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        assert table.caller(accepted) is None


def test_a_socket_that_was_handed_on_keeps_its_cgroup(table: ConnectionTable) -> None:
    with connection() as (client, accepted):
        before = table.caller(accepted)
        with client.dup():
            client.close()
            assert table.caller(accepted) == before


def test_many_connections_at_the_same_time(table: ConnectionTable) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(100)]
        accepted = [listener.accept()[0] for _ in clients]
        for client in clients[::2]:
            client.close()
        gone = {client.getsockname() for client in clients[1::2]}
        for each in accepted:
            assert (table.caller(each) is not None) == (each.getpeername() in gone)
            each.close()
        for client in clients:
            client.close()


def test_an_answer_to_an_earlier_question_is_not_taken(table: ConnectionTable) -> None:
    with connection() as (client, accepted):
        table.caller(accepted)
        with (
            mock.patch.object(socket.socket, "recv", side_effect=TimeoutError),
            pytest.raises(TimeoutError),
        ):
            table.caller(accepted)  # its answer stays unread
        client.close()
        assert table.caller(accepted) is None


@pytest.mark.parametrize(
    "family", [socket.AF_INET, socket.AF_INET6] if has_ipv6() else [socket.AF_INET]
)
def test_the_connections_to_a_port_have_the_cgroups_that_opened_them(
    table: ConnectionTable, family: socket.AddressFamily
) -> None:
    with connection(family) as (client, accepted):
        host, port = client.getpeername()[:2]
        caller = table.caller(accepted)
        assert caller is not None
        assert caller.cgroup is not None
        assert [each[:3] for each in table.connections({port})] == [
            (caller.cgroup, socket.inet_pton(family, host), port)
        ]
        assert table.connections({1}) == set()
        with connection(family) as (other, _):
            both = {client.getpeername()[1], other.getpeername()[1]}
            assert {each.port for each in table.connections(both)} == both
            assert table.caller(accepted) == caller, "single questions go on"
    assert table.connections({port}) == set()


def test_a_connection_tells_what_it_has_carried(table: ConnectionTable) -> None:
    with connection() as (client, accepted):
        port = client.getpeername()[1]

        def carried() -> Opened:
            (found,) = table.connections({port})
            return found

        before = carried()
        client.sendall(b"x" * 5000)
        assert len(accepted.recv(5000, socket.MSG_WAITALL)) == 5000
        accepted.sendall(b"y" * 70)
        assert len(client.recv(70, socket.MSG_WAITALL)) == 70
        after = carried()
        # the other end has read it, so it has acknowledged it
        assert (after.number, after.sent - before.sent) == (before.number, 5000)
        assert after.received - before.received == 70
        assert after.segments > before.segments
    with connection() as (client, _):
        (other,) = table.connections({client.getpeername()[1]})
        assert other.number != before.number


def test_an_ipv4_address_in_an_ipv6_socket_is_an_ipv4_address(table: ConnectionTable) -> None:
    if not has_ipv6():
        pytest.skip("no IPv6")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_INET6) as client,
    ):
        port = listener.getsockname()[1]
        client.connect(("::ffff:127.0.0.1", port))
        assert {each.host for each in table.connections({port})} == {bytes((127, 0, 0, 1))}

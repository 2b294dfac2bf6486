"""Tunnels between two nodes, without Ray: calls are made by hand."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sfad.features.fleet.ray.tunnels import DATA, OPEN, PIECE, Message, Tunnels
from tests.harness import wait_until

Then = Callable[[list[str] | None], None]


class Pair:
    """Two nodes. What one calls arrives at the other in a thread of its own, unless the way is
    cut."""

    def __init__(self, directory: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(directory / "s"))
        self.listener.listen()
        self.cut = False
        self.opened: list[socket.socket] = []
        self.calls = 0
        self.nodes = {
            name: Tunnels(str(directory / "s"), name, self._caller(name)) for name in ("a", "b")
        }

    def _caller(self, sender: str) -> Callable[[str, list[Message], Then], None]:
        turns = threading.Lock()

        def call(node: str, messages: list[Message], then: Then) -> None:
            self.calls += 1
            if self.cut or node not in self.nodes:
                then(None)
                return
            with turns:
                unknown = self.nodes[node].deliver(sender, messages)
            then(unknown)

        return call

    def open(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a tunnel from `a` to the daemon of `b`."""
        mine, theirs = socket.socketpair()
        self.nodes["a"].open("b", theirs)
        self.listener.settimeout(20)
        far, _ = self.listener.accept()
        for each in (mine, far):
            each.settimeout(20)
        self.opened += [mine, far]
        return mine, far

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
        for each in (self.listener, *self.opened):
            each.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def _received(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := sock.recv(PIECE)):
        data += piece
    return data


def test_bytes_go_both_ways_in_their_order(pair: Pair) -> None:
    mine, far = pair.open()
    sent = bytes(range(256)) * 8192
    threading.Thread(target=mine.sendall, args=(sent,), daemon=True).start()
    assert _received(far, len(sent)) == sent
    threading.Thread(target=far.sendall, args=(sent[::-1],), daemon=True).start()
    assert _received(mine, len(sent)) == sent[::-1]


def test_a_call_that_comes_after_the_end_reaches_no_other_file(pair: Pair) -> None:
    pair.open()
    pair.nodes["b"].close()
    # one of them has the number of what it woke its thread by
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(64)]
    try:
        assert pair.nodes["b"].deliver("a", [("a.x.1", OPEN, b"1"), ("a.x.1", DATA, b"x")]) == [
            "a.x.1",
            "a.x.1",
        ]
        for each in others:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(each)
    finally:
        for each in others:
            os.close(each)


def test_an_end_reaches_the_other_end_after_the_last_byte(pair: Pair) -> None:
    mine, far = pair.open()
    sent = b"x" * 1_000_000

    def send_and_end() -> None:
        far.sendall(sent)
        far.close()

    threading.Thread(target=send_and_end, daemon=True).start()
    assert _received(mine, len(sent) + 1) == sent
    assert mine.recv(1) == b""


def test_a_client_that_does_not_read_holds_up_no_other(pair: Pair) -> None:
    lazy, far = pair.open()
    far.settimeout(20)
    filler = threading.Thread(target=lambda: _fill(far), daemon=True)
    filler.start()
    mine, other = pair.open()
    for _ in range(20):
        mine.sendall(b"ping")
        assert _received(other, 4) == b"ping"
        other.sendall(b"pong")
        assert _received(mine, 4) == b"pong"
    filler.join(20)
    assert not filler.is_alive()  # its tunnel was closed
    lazy.close()


def _fill(sock: socket.socket) -> None:
    try:
        while True:
            sock.sendall(b"y" * PIECE)
    except OSError:
        return


def test_a_node_that_cannot_be_reached_closes_the_tunnel(pair: Pair) -> None:
    mine, _far = pair.open()
    pair.cut = True
    mine.sendall(b"hello")
    assert mine.recv(1) == b""


def test_another_version_is_refused_with_both() -> None:
    said: list[Message] = []

    def call(_node: str, messages: list[Message], then: Then) -> None:
        said.extend(messages)
        then([])

    node = Tunnels("/nonexistent", "c", call)
    assert node.deliver("b", [("t", OPEN, b"99")]) == []
    wait_until(lambda: len(said) == 2, "the refusal was sent")
    assert b"node c has version 1 of the fleet's messages, and node b version 99" in said[0][2]
    node.close()

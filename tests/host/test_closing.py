"""Descriptors of clients are closed soon, even if close(2) fails for one, or waits."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from sfad.host.linux import descriptors
from tests.harness import wait_until

LINGER = struct.pack("ii", 1, 3600)


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:
    yield
    wait_until(lambda: descriptors.threads() == 0, "no thread is left")


def test_a_descriptor_that_cannot_be_closed_does_not_stop_the_others() -> None:
    read, write = os.pipe()
    descriptors.close_soon([1 << 20, write], "user ann")
    assert os.read(read, 1) == b"", "the write end was closed"
    os.close(read)


def test_lingering_sockets_are_closed_at_once() -> None:
    """close(2) of each would wait an hour, because its other end does not read."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=100))
        near = [socket.create_connection(listener.getsockname()) for _ in range(70)]
        for sock in near:
            stack.enter_context(listener.accept()[0])
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            with suppress(BlockingIOError):
                while sock.send(bytes(1 << 20)):
                    pass
        descriptors.close_soon([sock.detach() for sock in near], "user ann")
        wait_until(lambda: descriptors.threads() == 0, "all are closed")


def test_what_one_sender_keeps_from_being_closed_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A close(2) that waits, as for a FUSE server: here for the other end of a pipe."""
    gate, go = os.pipe()
    ready, told = os.pipe()
    close = os.close

    def slow(descriptor: int) -> None:
        if descriptor in held:
            os.write(told, b"x")
            os.read(gate, 1)
        close(descriptor)

    held = {os.open("/dev/null", os.O_RDONLY) for _ in range(descriptors.CLOSERS + 1)}
    read, write = os.pipe()
    monkeypatch.setattr(os, "close", slow)
    monkeypatch.setattr(descriptors, "STUCK", 0.0)
    try:
        descriptors.close_soon(held, "user ann")
        for _ in range(descriptors.CLOSERS):
            os.read(ready, 1)
        assert descriptors.threads() == descriptors.CLOSERS
        wait_until(lambda: "user ann" in (descriptors.refusal("user ann") or ""), "it is stuck")
        descriptors.close_soon([write], "user bob")
        assert os.read(read, 1) == b"", "the write end was closed"
        wait_until(lambda: descriptors.unkillable() == ["user ann"], "only one of them waits")
        assert descriptors.refusal("user bob") is None
    finally:
        os.write(go, bytes(len(held)))
        wait_until(lambda: descriptors.threads() == 0, "no thread is left")
        monkeypatch.undo()
        for descriptor in (gate, go, ready, told, read):
            os.close(descriptor)
    assert descriptors.refusal("user ann") is None


def test_what_is_unwelcome_waits_for_no_other_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is started inherits what is still open. The sender is refused until all of it is
    closed."""
    count = 3 * descriptors.CLOSERS
    begun, told = os.pipe()
    gate, go = os.pipe()
    held = {os.open("/dev/null", os.O_RDONLY) for _ in range(count)}
    close = os.close

    def slow(descriptor: int) -> None:
        if descriptor in held:
            os.write(told, b"x")
            os.read(gate, 1)
        close(descriptor)

    monkeypatch.setattr(os, "close", slow)
    try:
        descriptors.close_soon(held, "user ann", unwelcome=True)
        assert "user ann" in (descriptors.refusal("user ann") or "")
        for _ in range(count):
            os.read(begun, 1)
    finally:
        os.write(go, bytes(count))
        wait_until(lambda: descriptors.threads() == 0, "no thread is left")
        monkeypatch.undo()
        for descriptor in (begun, told, gate, go):
            os.close(descriptor)
    assert descriptors.refusal("user ann") is None

"""The conversation of protocol.md with a real daemon, by somebody who knows frames and bytes and nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from sfad.core.limits import amount
from sfad.protocol import messages as m
from sfad.protocol.errors import ErrorCode
from sfad.protocol.framing import MAX_REPLY, FrameDecoder
from sfad.protocol.types import LimitKind, LimitState, Status
from tests.docs.examples import EXAMPLES, REFUSAL
from tests.docs.test_protocol import example
from tests.harness import Daemon


class Stranger:
    """A client that sends bytes."""

    def __init__(self, daemon: Daemon) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(daemon.socket))
        self._decoder = FrameDecoder(MAX_REPLY)
        self._replies: list[m.Reply] = []
        self.descriptors: list[int] = []

    def say(self, name: str, descriptors: tuple[int, ...] = ()) -> None:
        self.send(example(name)[1], descriptors)

    def send(self, frame: bytes, descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self._socket, [frame], descriptors)

    def hear(self) -> m.Reply:
        while not self._replies:
            data, descriptors, _, _ = socket.recv_fds(self._socket, 65536, 3)
            assert data, "the daemon closed the connection"
            self.descriptors += descriptors
            self._replies += map(m.unpack_reply, self._decoder.feed(data))
        return self._replies.pop(0)

    def close(self) -> None:
        self._socket.close()
        for descriptor in self.descriptors:
            os.close(descriptor)


@pytest.fixture
def stranger(daemon: Daemon) -> Iterator[Stranger]:
    client = Stranger(daemon)
    yield client
    client.close()


def test_the_conversation(stranger: Stranger) -> None:
    stranger.say("hello")
    welcome = stranger.hear()
    assert isinstance(welcome, m.Welcome)
    assert (welcome.id, welcome.version, welcome.run) == (1, 1, None)
    _start_and_watch(stranger)
    _descriptors(stranger)
    _refused(stranger)
    _stopped(stranger)
    stranger.say("info")
    assert stranger.hear() == EXAMPLES["error"]


def _start_and_watch(stranger: Stranger) -> None:
    stranger.say("spawn")
    reply = stranger.hear()
    assert isinstance(reply, m.RunReply)
    shown = EXAMPLES["run"]
    assert isinstance(shown, m.RunReply)
    own = {name: getattr(reply.run, name) for name in ("pid", "user", "deadline", "created_at", "started_at", "usage", "limits")}
    assert reply.run == msgspec.structs.replace(shown.run, **own)
    assert [comparable(limit) for limit in reply.run.limits] == [comparable(limit) for limit in shown.run.limits]
    stranger.say("watch")
    assert stranger.hear() == EXAMPLES["done"]


def comparable(limit: LimitState) -> LimitState:
    """Without what depends on the moment and on the machine."""
    enforced_by = "kernel" if limit.enforced_by == "watching" and limit.kind is LimitKind.PIDS else limit.enforced_by
    return msgspec.structs.replace(limit, used=None, enforced_by=enforced_by)


def test_limits_and_money(stranger: Stranger) -> None:
    for name in ("hello", "spawn"):
        stranger.say(name)
        stranger.hear()
    stranger.say("report")
    reported = stranger.hear()
    assert isinstance(reported, m.RunReply)
    assert (reported.id, reported.run.usage.turns, reported.run.usage.cost_usd) == (10, 1, 0.02)
    stranger.say("reserve")
    held = stranger.hear()
    shown = EXAMPLES["reserved"]
    assert isinstance(held, m.Reserved)
    assert isinstance(shown, m.Reserved)
    # how much is the library's to say, and the name is the daemon's
    assert held == msgspec.structs.replace(shown, cost_usd=held.cost_usd, reservation=held.reservation)
    assert held.cost_usd
    assert held.reservation
    stranger.send(m.pack_message(msgspec.structs.replace(EXAMPLES["settle"], reservation=held.reservation)))
    settled = stranger.hear()
    assert isinstance(settled, m.RunReply)
    assert (settled.id, settled.run.usage.cost_usd, settled.run.usage.output_tokens) == (12, 0.07, 900)
    stranger.say("recommend")
    advised = stranger.hear()
    assert isinstance(advised, m.Recommended)
    assert [one.source for one in advised.in_force[:2]] == ["type developer"] * 2
    _too_much(stranger)


def _too_much(stranger: Stranger) -> None:
    stranger.say("reserve too much")
    refused = stranger.hear()
    shown = EXAMPLES["not reserved"]
    assert isinstance(refused, m.Reserved)
    assert isinstance(shown, m.Reserved)
    assert refused.refused is not None
    assert shown.refused is not None
    its_own = {name: getattr(refused.refused, name) for name in ("used", "asked", "message")}
    assert refused == msgspec.structs.replace(shown, refused=msgspec.structs.replace(shown.refused, **its_own))
    assert its_own["message"] == shown.refused.message.replace("1.05 USD", amount(LimitKind.COST, refused.refused.asked))
    stranger.say("wait")
    over = stranger.hear()
    assert isinstance(over, m.RunReply)
    assert (over.run.status, over.run.reason and over.run.reason.limit_kind) == (Status.FAILED, "cost")


def _descriptors(stranger: Stranger) -> None:
    stranger.say("logs")
    assert stranger.hear() == EXAMPLES["log_files"]
    assert len(stranger.descriptors) == 2
    null = os.open(os.devnull, os.O_RDONLY)
    stranger.say("spawn with a descriptor", (null,))
    os.close(null)
    reply = stranger.hear()
    assert isinstance(reply, m.RunReply)
    assert (reply.id, reply.run.id, reply.run.name) == (5, "a2", "cat")


def _refused(stranger: Stranger) -> None:
    stranger.say("spawn with a claim")
    reply = stranger.hear()
    assert reply == EXAMPLES["refused"]
    assert isinstance(reply, m.Refused)
    assert reply.refused == REFUSAL


def _stopped(stranger: Stranger) -> None:
    stranger.say("wait")
    stranger.say("stop")
    event, stopped, over = (stranger.hear() for _ in range(3))
    assert isinstance(event, m.EventPush)
    assert (event.id, event.event.type, event.event.run_id) == (3, "run_cancelled", "a1")
    assert isinstance(stopped, m.Stopped)
    assert (stopped.id, stopped.stopped, stopped.survivors) == (8, ["a1"], [])
    assert isinstance(over, m.RunReply)
    assert (over.id, over.run.status, over.run.signal) == (7, Status.CANCELLED, 15)


def test_a_connection_that_is_lost(stranger: Stranger, daemon: Daemon) -> None:
    for name in ("hello", "spawn with a key"):
        stranger.say(name)
    assert isinstance(stranger.hear(), m.Welcome)
    first = stranger.hear()
    again = Stranger(daemon)
    for name in ("hello", "spawn with a key", "wait and tie"):
        again.say(name)
    assert isinstance(again.hear(), m.Welcome)
    second = again.hear()
    assert isinstance(first, m.RunReply)
    assert isinstance(second, m.RunReply)
    assert (first.run.id, second.run.id) == ("a1", "a1")
    again.close()
    stranger.say("wait")
    over = stranger.hear()
    assert isinstance(over, m.RunReply)
    assert (over.run.status, over.run.reason and over.run.reason.kind) == (Status.CANCELLED, "client")


def _error(reply: m.Reply) -> tuple[int, ErrorCode]:
    assert isinstance(reply, m.Error)
    return reply.id, reply.code


def test_the_descriptors_of_an_id_in_use_are_closed(stranger: Stranger) -> None:
    for name in ("hello", "spawn"):
        stranger.say(name)
        stranger.hear()
    stranger.say("wait")
    never, other = os.pipe()
    with open(never, "rb"), open(other, "wb"), open(os.devnull, "rb") as null:
        spawn = EXAMPLES["spawn with a descriptor"]
        stranger.send(m.pack_message(msgspec.structs.replace(spawn, id=7)), (never,))
        assert _error(stranger.hear()) == (7, ErrorCode.BAD_REQUEST)
        stranger.say("spawn with a descriptor", (null.fileno(),))
        reply = stranger.hear()
        assert isinstance(reply, m.RunReply)
        # were the first descriptor still there, it would be given to this one, and there is no end to it
        stranger.send(m.pack_message(m.Wait(id=8, run=reply.run.id)))
        over = stranger.hear()
    assert isinstance(over, m.RunReply)
    assert (over.id, over.run.status) == (8, Status.COMPLETED)


def test_a_body_that_cannot_be_read(stranger: Stranger) -> None:
    stranger.say("hello")
    stranger.hear()
    body = msgspec.msgpack.encode({"type": "wait", "id": 2, "run": "a1", "tiemout": 1.0})
    frame = len(body).to_bytes(4, "big") + body
    stranger.send(frame)
    assert _error(stranger.hear()) == (2, ErrorCode.BAD_REQUEST)
    stranger.say("info")
    assert stranger.hear() == EXAMPLES["error"]
    with open(os.devnull, "rb") as null:
        stranger.send(frame, (null.fileno(),))
    assert _error(stranger.hear()) == (2, ErrorCode.BAD_REQUEST)
    with pytest.raises(AssertionError, match="closed the connection"):
        stranger.hear()

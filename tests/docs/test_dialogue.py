"""Have the conversation of `examples` with a real daemon."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from sfad.features.advice.messages import Recommended
from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REPLY, FrameDecoder
from sfad.protocol.limits import format_amount
from sfad.protocol.types import ErrorCode, LimitKind, LimitState, Status
from tests.docs.examples import CONVERSATION, REFUSAL
from tests.harness import Daemon


class RawClient:
    """A client that sends bytes."""

    def __init__(self, daemon: Daemon) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(daemon.socket))
        self._decoder = FrameDecoder(MAX_REPLY)
        self._replies: list[m.Reply] = []
        self.descriptors: list[int] = []

    def say(self, name: str, descriptors: tuple[int, ...] = ()) -> None:
        self.send(m.pack_message(CONVERSATION[name]), descriptors)

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
def raw(daemon: Daemon) -> Iterator[RawClient]:
    client = RawClient(daemon)
    yield client
    client.close()


def test_the_conversation(raw: RawClient) -> None:
    raw.say("hello")
    welcome = raw.hear()
    assert isinstance(welcome, m.Welcome)
    assert (welcome.id, welcome.version, welcome.run) == (1, 1, None)
    _start_and_watch(raw)
    _descriptors(raw)
    _refused(raw)
    _stopped(raw)
    raw.say("info")
    assert raw.hear() == CONVERSATION["error"]


def _start_and_watch(raw: RawClient) -> None:
    raw.say("spawn")
    reply = raw.hear()
    assert isinstance(reply, m.RunReply)
    shown = CONVERSATION["run"]
    assert isinstance(shown, m.RunReply)
    of_the_moment = (
        "pid",
        "user",
        "deadline",
        "created_at",
        "started_at",
        "usage",
        "limits",
        "last_heard_at",
    )
    own = {name: getattr(reply.run, name) for name in of_the_moment}
    assert reply.run == msgspec.structs.replace(shown.run, **own)
    assert [comparable(limit) for limit in reply.run.limits] == [
        comparable(limit) for limit in shown.run.limits
    ]
    raw.say("watch")
    assert raw.hear() == CONVERSATION["done"]


def comparable(limit: LimitState) -> LimitState:
    """Return the limit without what depends on the moment and the machine."""
    enforced_by = (
        "kernel"
        if limit.enforced_by == "watching" and limit.kind is LimitKind.PIDS
        else limit.enforced_by
    )
    return msgspec.structs.replace(limit, used=None, enforced_by=enforced_by)


def test_limits_and_money(raw: RawClient) -> None:
    for name in ("hello", "spawn"):
        raw.say(name)
        raw.hear()
    raw.say("report")
    reported = raw.hear()
    assert isinstance(reported, m.RunReply)
    assert (reported.id, reported.run.usage.turns, reported.run.usage.cost_usd) == (10, 1, 0.02)
    raw.say("reserve")
    held = raw.hear()
    shown = CONVERSATION["reserved"]
    assert isinstance(held, m.Reserved)
    assert isinstance(shown, m.Reserved)
    # the price library decides the amount, and the daemon the name
    assert held == msgspec.structs.replace(
        shown, cost_usd=held.cost_usd, reservation=held.reservation
    )
    assert held.cost_usd
    assert held.reservation
    raw.send(
        m.pack_message(
            msgspec.structs.replace(CONVERSATION["settle"], reservation=held.reservation)
        )
    )
    settled = raw.hear()
    assert isinstance(settled, m.RunReply)
    assert (settled.id, settled.run.usage.cost_usd, settled.run.usage.output_tokens) == (
        12,
        0.07,
        900,
    )
    raw.say("recommend")
    advised = raw.hear()
    assert isinstance(advised, Recommended)
    assert [one.source for one in advised.in_force[:2]] == ["type developer"] * 2
    _too_much(raw)


def _too_much(raw: RawClient) -> None:
    raw.say("reserve too much")
    refused = raw.hear()
    shown = CONVERSATION["not reserved"]
    assert isinstance(refused, m.Reserved)
    assert isinstance(shown, m.Reserved)
    assert refused.refused is not None
    assert shown.refused is not None
    its_own = {name: getattr(refused.refused, name) for name in ("used", "asked", "message")}
    assert refused == msgspec.structs.replace(
        shown, refused=msgspec.structs.replace(shown.refused, **its_own)
    )
    assert its_own["message"] == shown.refused.message.replace(
        "1.05 USD", format_amount(LimitKind.COST, refused.refused.asked)
    )
    raw.say("wait")
    over = raw.hear()
    assert isinstance(over, m.RunReply)
    assert (over.run.status, over.run.reason and over.run.reason.limit_kind) == (
        Status.FAILED,
        "cost",
    )


def _descriptors(raw: RawClient) -> None:
    raw.say("logs")
    assert raw.hear() == CONVERSATION["log_files"]
    assert len(raw.descriptors) == 2
    null = os.open(os.devnull, os.O_RDONLY)
    raw.say("spawn with a descriptor", (null,))
    os.close(null)
    reply = raw.hear()
    assert isinstance(reply, m.RunReply)
    assert (reply.id, reply.run.id, reply.run.name) == (5, "a2", "cat")


def _refused(raw: RawClient) -> None:
    raw.say("spawn with a claim")
    reply = raw.hear()
    assert reply == CONVERSATION["refused"]
    assert isinstance(reply, m.Refused)
    assert reply.refused == REFUSAL


def _stopped(raw: RawClient) -> None:
    raw.say("wait")
    raw.say("stop")
    event, stopped, over = (raw.hear() for _ in range(3))
    assert isinstance(event, m.EventPush)
    assert (event.id, event.event.type, event.event.run_id) == (3, "run_cancelled", "a1")
    assert isinstance(stopped, m.Stopped)
    assert (stopped.id, stopped.stopped, stopped.survivors) == (8, ["a1"], [])
    assert isinstance(over, m.RunReply)
    assert (over.id, over.run.status, over.run.signal) == (7, Status.CANCELLED, 15)


def test_a_lost_connection(raw: RawClient, daemon: Daemon) -> None:
    for name in ("hello", "spawn with a key"):
        raw.say(name)
    assert isinstance(raw.hear(), m.Welcome)
    first = raw.hear()
    again = RawClient(daemon)
    for name in ("hello", "spawn with a key", "wait and tie"):
        again.say(name)
    assert isinstance(again.hear(), m.Welcome)
    second = again.hear()
    assert isinstance(first, m.RunReply)
    assert isinstance(second, m.RunReply)
    assert (first.run.id, second.run.id) == ("a1", "a1")
    again.close()
    raw.say("wait")
    over = raw.hear()
    assert isinstance(over, m.RunReply)
    assert (over.run.status, over.run.reason and over.run.reason.kind) == (
        Status.CANCELLED,
        "client",
    )


def _error(reply: m.Reply) -> tuple[int, ErrorCode]:
    assert isinstance(reply, m.Error)
    return reply.id, reply.code


def test_the_descriptors_of_an_id_in_use_are_closed(raw: RawClient) -> None:
    for name in ("hello", "spawn"):
        raw.say(name)
        raw.hear()
    raw.say("wait")
    never, other = os.pipe()
    with open(never, "rb"), open(other, "wb"), open(os.devnull, "rb") as null:
        spawn = CONVERSATION["spawn with a descriptor"]
        raw.send(m.pack_message(msgspec.structs.replace(spawn, id=7)), (never,))
        assert _error(raw.hear()) == (7, ErrorCode.BAD_REQUEST)
        raw.say("spawn with a descriptor", (null.fileno(),))
        reply = raw.hear()
        assert isinstance(reply, m.RunReply)
        # if the first descriptor had stayed, `cat` would read that pipe, which never ends
        raw.send(m.pack_message(m.Wait(id=8, run=reply.run.id)))
        over = raw.hear()
    assert isinstance(over, m.RunReply)
    assert (over.id, over.run.status) == (8, Status.COMPLETED)


def test_a_body_that_cannot_be_read(raw: RawClient) -> None:
    raw.say("hello")
    raw.hear()
    body = msgspec.msgpack.encode({"type": "wait", "id": 2, "run": "a1", "tiemout": 1.0})
    frame = len(body).to_bytes(4, "big") + body
    raw.send(frame)
    assert _error(raw.hear()) == (2, ErrorCode.BAD_REQUEST)
    raw.say("info")
    assert raw.hear() == CONVERSATION["error"]
    with open(os.devnull, "rb") as null:
        raw.send(frame, (null.fileno(),))
    assert _error(raw.hear()) == (2, ErrorCode.BAD_REQUEST)
    with pytest.raises(AssertionError, match="closed the connection"):
        raw.hear()

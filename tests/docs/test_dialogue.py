"""The conversation of protocol.md with a real daemon, by somebody who knows frames and bytes and nothing else."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from sfad.protocol import messages as m
from sfad.protocol.framing import MAX_REPLY, FrameDecoder
from sfad.protocol.types import Status
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
        self._replies: list[m.AnyReply] = []
        self.descriptors: list[int] = []

    def say(self, name: str, descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self._socket, [example(name)[1]], descriptors)

    def hear(self) -> m.AnyReply:
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
    own = {name: getattr(reply.run, name) for name in ("pid", "user", "deadline", "created_at", "started_at", "usage")}
    assert reply.run == msgspec.structs.replace(shown.run, **own)
    stranger.say("watch")
    assert stranger.hear() == EXAMPLES["done"]


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
    event, over, stopped = (stranger.hear() for _ in range(3))
    assert isinstance(event, m.EventPush)
    assert (event.id, event.event.type, event.event.run_id) == (3, "run_cancelled", "a1")
    assert isinstance(over, m.RunReply)
    assert (over.id, over.run.status, over.run.signal) == (7, Status.CANCELLED, 15)
    assert isinstance(stopped, m.Stopped)
    assert (stopped.id, stopped.stopped, stopped.survivors) == (8, ["a1"], [])

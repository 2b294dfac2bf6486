"""Bodies that take long to read: each is a request of one run, while another run's calls are
answered."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
import trio
import trio.testing

from sfad.features.gateway.program.bodies import reader as bodies
from sfad.features.gateway.program.bodies import reading
from sfad.features.gateway.program.bodies.reader import BodyReader
from sfad.features.gateway.program.bodies.reading import MAX_BODY, BodyQuestion, answer_to
from tests.tiers import variant

from .scripted import Provider, ScriptedDaemon, house, post, reply, saying
from .test_proxy import CALL, JSON, MESSAGES, WHOLE

MIB = 1 << 20
QUESTION = BodyQuestion("anthropic", "/v1/messages", "")


def call_with(text: bytes) -> bytes:
    return b'{"model": "claude-x", "max_tokens": 1000, "x": "image/", "y": "' + text + b'"}'


def nearly_images() -> bytes:
    """Texts, of which each place could begin an image if it was longer."""
    return call_with((b"/9j/" * 500 + b" ") * (50 * MIB // 2001))


def many_fields(size: int) -> Iterator[bytes]:
    yield b'{"model": "claude-x", "max_tokens": 1000'
    total = 0
    for number in count():
        piece = b',"%x":0' % number
        yield piece
        total += len(piece)
        if total > size:
            break
    yield b"}"


@pytest.fixture
async def reader() -> AsyncIterator[BodyReader]:
    made = BodyReader()
    yield made
    await made.close()


async def test_a_body_that_unzips_to_much_delays_no_other_run() -> None:
    """Its patterns took 20 s of the gateway."""
    bomb = gzip.compress(nearly_images())
    assert len(bomb) < MIB // 2
    answered: list[str] = []
    daemon = ScriptedDaemon()
    async with (
        house(Provider(saying(reply(WHOLE, JSON))), daemon=daemon) as the,
        trio.open_nursery() as nursery,
    ):

        async def ask(name: str, request: bytes) -> None:
            assert (await the.ask(request)).status == 200
            answered.append(name)

        nursery.start_soon(ask, "bomb", post(MESSAGES, bomb, "Content-Encoding: gzip"))
        await trio.testing.wait_all_tasks_blocked(0.05)
        daemon.run = "other"
        for _ in range(3):
            await ask("other", post(MESSAGES, CALL))
    assert answered == ["other"] * 3 + ["bomb"]


@pytest.mark.rest("at scale")
async def test_a_body_with_millions_of_fields_takes_no_memory_of_the_gateway(
    reader: BodyReader,
) -> None:
    body = b"".join(many_fields(12 * MIB))
    with pytest.raises(ValueError, match=r"too many parts|has ended|the most is 1000"):
        await reader.ask("run", 0, QUESTION, body)
    answer, _ = await reader.ask("run", 0, QUESTION, call_with(b"x" * MIB))
    assert answer.call.max_output == 1000


async def test_a_body_that_takes_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch, reader: BodyReader
) -> None:
    monkeypatch.setattr(bodies, "ANSWER_SECONDS", 0.0)
    with pytest.raises(ValueError, match="takes more than 0 s"):
        await reader.ask("run", 0, QUESTION, call_with(b"x" * MIB))
    monkeypatch.undo()
    assert (await reader.ask("run", 0, QUESTION, call_with(b"x" * MIB)))[0].call.model == "claude-x"


def test_a_body_that_takes_too_much_processor_time_ends_what_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "CPU_SECONDS", 0.001)
    ours, theirs = socket.socketpair()
    orders, others = socket.socketpair()
    with ours, theirs, orders, others:
        pid = reading.forked(theirs.fileno(), orders)
        theirs.close()
        for part in (reading.ENCODER.encode(QUESTION), call_with(b"x" * 32 * MIB)):
            ours.sendall(reading.size_of(part) + part)
        assert ours.recv(1) == b""
    ended = os.waitid(os.P_PID, pid, os.WEXITED)
    assert ended is not None
    assert ended.si_status == signal.SIGPROF


async def test_a_long_body_is_read_and_changed_as_a_short_one(reader: BodyReader) -> None:
    body = json.dumps(
        {"model": "m", "max_tokens": 9000, "messages": [{"content": "é" * MIB}]}
    ).encode()
    for question in (QUESTION, BodyQuestion("anthropic", "/v1/messages", "gzip", True, 5000)):
        raw = gzip.compress(body) if question.encodings else body
        assert await reader.ask("run", 0, question, raw) == answer_to(question, raw)
    _, changed = await reader.ask("run", 0, question, raw)
    assert json.loads(changed)["max_tokens"] == 5000


@pytest.mark.parametrize(
    "body",
    [b"[" * MIB, b"\xff" * MIB, b'{"model": "m", "a": 1, "a": 2, "b": "' + b"x" * MIB + b'"}'],
)
async def test_a_long_body_that_cannot_be_read_is_refused(reader: BodyReader, body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each in other words
        await reader.ask("run", 0, QUESTION, body)


@pytest.mark.rest("at scale")
async def test_a_bomb_is_refused(reader: BodyReader) -> None:
    with pytest.raises(ValueError, match="longer than"):
        await reader.ask(
            "run",
            0,
            BodyQuestion("anthropic", "/v1/messages", "gzip"),
            gzip.compress(bytes(MAX_BODY + 1)),
        )


@variant
async def test_many_bodies_of_one_run_delay_another_run_by_one(reader: BodyReader) -> None:
    read: list[str] = []

    async def ask(run: str) -> None:
        await reader.ask(run, 0, QUESTION, call_with(b"x" * 8 * MIB))
        read.append(run)

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(ask, "many")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, "other")
    assert read.index("other") <= 2

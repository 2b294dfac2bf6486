"""The chunks of usage that a client has not asked for do not reach it, and all else does."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from sfad.features.gateway.program.bodies.usage_chunks import MOST_HELD, UsageChunks
from sfad.protocol.types import Tokens

from .apis.samples import chat, sse
from .scripted import Provider, ScriptedDaemon, house, post, reply, saying
from .test_proxy import SSE, chunk
from .test_sse import split

USED = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
USAGE: dict[str, Any] = {"id": "c", "choices": [], "usage": USED}
FILTERED = {"choices": [], "prompt_filter_results": [{"prompt_index": 0}], "usage": None}
"""Azure's first chunk."""
WORDS = chat(content='{"usage": {"x": 1}, "choices": []}')
LAST = chat(finish="stop")
WITH_CHOICES = chat(content="", usage=USED)
"""OpenRouter's last chunk."""


def through(*pieces: bytes) -> bytes:
    chunks = UsageChunks()
    return b"".join(map(chunks.feed, pieces)) + chunks.end()


def stream(*events: Any) -> bytes:
    return b": hello\n\n" + sse(*events, "[DONE]", named=False)


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ((WORDS, LAST, USAGE), (WORDS, LAST)),
        ((USAGE, WORDS, USAGE, USAGE, LAST), (WORDS, LAST)),
        ((WORDS, LAST, {"choices": None, "usage": USED}), (WORDS, LAST)),
        ((WORDS, LAST, {"usage": USED}), (WORDS, LAST)),
        ((FILTERED, WORDS, LAST, WITH_CHOICES), (FILTERED, WORDS, LAST, WITH_CHOICES)),
        ((WORDS, {"error": {"message": '"usage"'}}), (WORDS, {"error": {"message": '"usage"'}})),
        (("{", '"usage"', 5, [USAGE]), ("{", '"usage"', 5, [USAGE])),
    ],
)
def test_chunks_that_say_only_the_usage_are_taken_out(events: Any, left: Any) -> None:
    assert through(stream(*events)) == stream(*left)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@given(at=st.lists(st.integers(0, 2000), max_size=8))
def test_lines_may_end_in_each_way_and_pieces_anywhere(end: bytes, at: list[int]) -> None:
    whole = stream(WORDS, USAGE, LAST, USAGE).replace(b"\n", end)
    left = through(*split(whole, at))
    assert left.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n\n\n", b"\n\n") == stream(
        WORDS, LAST
    )


def test_an_event_that_is_whole_is_not_held() -> None:
    chunks = UsageChunks()
    for event in (WORDS, LAST):
        assert chunks.feed(sse(event)) == sse(event)
    assert chunks.feed(sse(USAGE)) == b""


def test_a_long_event_passes_before_it_is_whole() -> None:
    chunks = UsageChunks()
    long = b"data: " + b"x" * MOST_HELD + b'"usage"'
    assert chunks.feed(long) == long
    assert chunks.feed(b"y") == b"y"
    assert chunks.feed(b"\n\n" + sse(USAGE) + sse(LAST)) == b"\n\n" + sse(LAST)


def test_what_is_no_stream_passes() -> None:
    body = json.dumps({"choices": [{"index": 0}], "usage": USED}, indent=2).encode()
    assert through(body) == body


PATH = "/up/v1/chat/completions"


def asked(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [], "stream": True} | more).encode()


ASKED_FOR = {"stream_options": {"include_usage": True}}
UNKNOWN = b'{"error": {"message": "Unknown parameter: stream_options"}}'
REPLY = [sse(each, named=False) for each in (WORDS, LAST, USAGE, "[DONE]")]


@pytest.mark.parametrize(
    "more", [{}, {"stream_options": {"include_usage": False}}, ASKED_FOR], ids=str
)
async def test_who_asked_for_usage_gets_it(more: dict[str, Any]) -> None:
    provider = Provider(saying(SSE, *map(chunk, REPLY), b"0\r\n\r\n"))
    async with house(provider, api="openai-chat") as the:
        answer = await the.ask(post(PATH, asked(**more), "Accept-Encoding: gzip, br"))
        left = REPLY if more is ASKED_FOR else [REPLY[0], REPLY[1], REPLY[3]]
        assert (answer.body, answer.broken) == (b"".join(left), None)
        told = await the.told()
        assert (told.tokens, told.partial) == (Tokens(input=10, output=5), False)
        encodings = b"gzip, br" if more is ASKED_FOR else b"identity"
        assert b"accept-encoding: " + encodings in provider.requests[0].lower()


async def test_a_stream_that_is_compressed_all_the_same() -> None:
    body = gzip.compress(b"".join(REPLY))
    raw = reply(body, b"Content-Type: text/event-stream", b"Content-Encoding: gzip")
    async with house(Provider(saying(raw)), api="openai-chat") as the:
        answer = await the.ask(post(PATH, asked()))
        assert answer.body == REPLY[0] + REPLY[1] + REPLY[3]
        assert (answer.header("content-encoding"), answer.broken) == (None, None)
        assert (await the.told()).tokens == Tokens(input=10, output=5)


@pytest.mark.parametrize("status", [b"400 Bad Request", b"422 Unprocessable Entity"])
async def test_a_server_that_does_not_know_the_option(status: bytes) -> None:
    """As an older version of Azure's API. Its stream tells no usage."""
    refuses = saying(reply(UNKNOWN, b"Connection: close", status=status))
    streams = saying(SSE, *map(chunk, [REPLY[0], REPLY[1], REPLY[3]]), b"0\r\n\r\n")

    async def answers(stream: trio.SocketStream, request: bytes) -> None:
        await (refuses if b"stream_options" in request else streams)(stream, request)

    provider = Provider(answers)
    async with house(provider, api="openai-chat", daemon=ScriptedDaemon(max_output=5000)) as the:
        answer = await the.ask(post(PATH, asked()))
        assert (answer.status, answer.body) == (200, REPLY[0] + REPLY[1] + REPLY[3])
        assert [b"stream_options" in each for each in provider.requests] == [True, False]
        assert [b'"max_completion_tokens":5000' in each for each in provider.requests] == [True] * 2
        told = await the.told()
        assert (told.status, told.partial) == (200, True)


async def test_who_sent_the_option_gets_the_refusal() -> None:
    provider = Provider(saying(reply(UNKNOWN, status=b"400 Bad Request")))
    async with house(provider, api="openai-chat") as the:
        answer = await the.ask(post(PATH, asked(**ASKED_FOR)))
        assert (answer.status, answer.body, len(provider.requests)) == (400, UNKNOWN, 1)


async def test_a_stream_with_another_status_of_success() -> None:
    begins = SSE.replace(b"200 OK", b"201 Created")
    provider = Provider(saying(begins, *map(chunk, REPLY), b"0\r\n\r\n"))
    async with house(provider, api="openai-chat") as the:
        answer = await the.ask(post(PATH, asked()))
        assert (answer.status, answer.body) == (201, REPLY[0] + REPLY[1] + REPLY[3])


async def test_a_document_instead_of_a_stream() -> None:
    body = json.dumps({"choices": [], "usage": USED}).encode()
    raw = reply(body, b"Content-Type: application/json")
    async with house(Provider(saying(raw)), api="openai-chat") as the:
        assert (await the.ask(post(PATH, asked()))).body == body


async def test_a_call_that_is_lowered_too() -> None:
    provider = Provider(saying(SSE, *map(chunk, REPLY), b"0\r\n\r\n"))
    async with house(provider, api="openai-chat", daemon=ScriptedDaemon(max_output=5000)) as the:
        assert b'"usage": {"prompt' not in (await the.ask(post(PATH, asked()))).body


async def test_a_stream_that_breaks_off_in_an_event() -> None:
    provider = Provider(saying(SSE, chunk(REPLY[0]), chunk(b'data: {"cho')))
    async with house(provider, api="openai-chat") as the:
        answer = await the.ask(post(PATH, asked()))
        assert answer.body == REPLY[0] + b'data: {"cho'
        assert answer.broken

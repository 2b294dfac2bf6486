"""The proxy between real sockets: what a client sees through it is what it sees without it."""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import socket
import zlib
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import trio

from sfad.features.gateway.program import call_tally, exchange
from sfad.features.gateway.program.apis.tokens import tokens_of
from sfad.features.gateway.program.bodies import reading
from sfad.features.gateway.program.upstreams import Upstream
from sfad.host import http_connection
from sfad.host.linux.callers import Caller, ConnectionTable
from sfad.protocol.types import Tokens
from tests.features.gateway.program.scripted import (
    Answer,
    House,
    Provider,
    ScriptedDaemon,
    house,
    post,
    read_answer,
    reply,
    reset,
    saying,
)
from tests.harness import until
from tests.tiers import first, sampled

MESSAGES = "/up/v1/messages"
JSON = b"Content-Type: application/json"
SSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: "
    b"text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
CHUNKS = SSE.replace(b"event-stream", b"plain")
ASKED: dict[str, Any] = {"model": "claude-x", "max_tokens": 1000, "messages": []}
CALL = json.dumps(ASKED).encode()
STREAMED = json.dumps(ASKED | {"stream": True}).encode()
WHOLE = json.dumps(
    {
        "content": [
            {"type": "text", "text": "hello"},
            {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}},
        ],
        "usage": {
            "input_tokens": 10,
            "output_tokens": 5,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 2,
        },
    }
).encode()
USED = Tokens(input=15, output=5, cached=3, cache_write=2)


def event(**data: Any) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


START = event(
    type="message_start", message={"usage": {"input_tokens": 10, "output_tokens": 1}, "content": []}
)
TEXT = event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "12345678"})
LAST = event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 50})
STOP = event(type="message_stop")
EVENTS = [START, TEXT, TEXT, LAST, STOP]

SHAPES: dict[str, tuple[bytes, bytes]] = {
    "length": (post("%s/v1/messages", CALL),
               reply(WHOLE, JSON, b"X-Odd:  a, b ", b"Set-Cookie: a=1", b"Set-Cookie: b=2")),
    "reason": (post("%s/v1/messages", CALL), reply(b"{}", JSON, status=b"200 Fine Indeed")),
    "chunked": (post("%s/v1/messages", CALL),
                CHUNKS + chunk(b"a" * 100_000) + chunk(b"b") + b"0\r\n\r\n"),
    "until closed": (post("%s/v1/messages", CALL),
                     b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + WHOLE),
    "http 1.0": (post("%s/v1/messages", CALL),
                 b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + WHOLE),
    "204": (post("%s/v1/files", b"{}"), b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"),
    "304": (b"GET %s/v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
            b"HTTP/1.1 304 Not Modified\r\nETag: \"e\"\r\n\r\n"),
    "head": (b"HEAD %s/v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
             b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
    "empty": (b"GET %s/v1/models?limit=5&after=%%2Fx+y HTTP/1.1\r\nHost: x\r\n\r\n", reply(b"")),
    "gzip": (post("%s/v1/messages", CALL),
             reply(gzip.compress(WHOLE), JSON, b"Content-Encoding: gzip")),
    "odd encoding": (post("%s/v1/messages", CALL),
                     reply(b"\0\1\2", JSON, b"Content-Encoding: odd")),
    "error": (post("%s/v1/messages", CALL),
              reply(b'{"type":"error"}', JSON, b"Retry-After: 7", status=b"529 Overloaded")),
    "redirect": (post("%s/v1/files", b"{}"),
                 reply(b"", b"Location: /elsewhere", status=b"307 Temporary Redirect")),
    "not utf-8": (post("%s/v1/messages", CALL), reply(b"\xff\xfe", b"Content-Type: \xe4")),
    "informational": (post("%s/v1/messages", CALL),
                      b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + reply(WHOLE, JSON)),
    "trailers": (post("%s/v1/messages", CALL), SSE + chunk(START) + b"0\r\nX-Sum: 1\r\n\r\n"),
    "connection headers": (post("%s/v1/messages", CALL),
                           reply(WHOLE, b"Connection: close, X-Secret", b"X-Secret: 1")),
    "large": (post("%s/v1/files", b"x" * 3_000_000), reply(b"y" * 10_000_000)),
    "events": (post("%s/v1/messages", STREAMED), SSE + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"),
}  # fmt: skip
HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"x-secret"}


def seen(answer: Answer) -> tuple[object, ...]:
    headers = sorted(
        (name, value) for name, value in answer.headers if name.lower() not in HOP_BY_HOP
    )
    return answer.status, answer.reason, headers, answer.body, answer.broken


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_client_sees_what_it_sees_without_the_gateway(shape: str) -> None:
    request, raw = SHAPES[shape]
    async with house(Provider(saying(raw))) as the:
        direct = await the.ask(request.replace(b"%s", b"").replace(b"%%", b"%"), port=the.direct)
        through = await the.ask(request.replace(b"%s", b"/up").replace(b"%%", b"%"))
        assert seen(through) == seen(direct)
        assert direct.status
        assert not the.trouble


async def test_the_provider_sees_what_the_client_sent() -> None:
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the:
        odd: tuple[str, ...]
        odd = (
            "anthropic-beta: a,b",
            "X-API-Key: sk-1",
            "Authorization: Bearer t",
            "user-agent: Odd/1",
            "Accept-Encoding: br",
        )
        odd += ("X-Twice: 1", "X-Twice: 2")
        await the.ask(
            post(
                f"{MESSAGES}?beta=true",
                CALL,
                *odd,
                "Connection: keep-alive, X-Hop",
                "X-Hop: 1",
                "TE: trailers",
            )
        )
        (request,) = provider.requests
        head, _, body = request.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        assert lines[0] == "POST /v1/messages?beta=true HTTP/1.1"
        assert sorted(lines[1:]) == sorted(
            [*odd, f"Host: 127.0.0.1:{the.direct}", f"Content-Length: {len(CALL)}"]
        )
        assert body == CALL


async def test_a_program_that_leaves_out_v1() -> None:
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the:
        assert (await the.ask(post("/up/messages", CALL))).body == WHOLE
        assert provider.requests[0].startswith(b"POST /v1/messages HTTP/1.1\r\n")
        assert len(the.daemon.asked) == 1
    async with house(provider, prefix="/base/v1") as the:
        assert (await the.ask(post("/up/messages", CALL))).body == WHOLE
        assert provider.requests[1].startswith(b"POST /base/v1/messages HTTP/1.1\r\n")


async def test_a_body_in_chunks() -> None:
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the:
        head = f"POST {MESSAGES} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        answer = await the.ask(
            head + b"".join(chunk(bytes([byte])) for byte in CALL) + b"0\r\n\r\n"
        )
        assert answer.body == WHOLE
        assert provider.requests[0].endswith(CALL)


async def test_what_a_whole_reply_used() -> None:
    async with house(Provider(saying(reply(WHOLE, JSON)))) as the:
        await the.ask(post(MESSAGES, CALL))
        told = await the.told()
        assert (told.status, told.tokens, told.partial, told.error) == (200, USED, False, None)
        assert [name for name, _ in told.tools] == ["Bash"]
        assert told.first_byte_s is not None
        assert told.first_byte_s <= told.seconds
        (asked,) = the.daemon.asked
        assert (asked.run, asked.upstream, asked.model, asked.max_output, asked.caches) == (
            "run",
            "up",
            "claude-x",
            1000,
            False,
        )


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_what_an_encoded_stream_used(encoding: str) -> None:
    made = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    pieces = (
        EVENTS
        if encoding == "identity"
        else [made.compress(each) + made.flush(zlib.Z_SYNC_FLUSH) for each in EVENTS]
    )
    head = SSE.replace(b"\r\n\r\n", b"\r\nContent-Encoding: " + encoding.encode() + b"\r\n\r\n")
    async with house(Provider(saying(head, *map(chunk, pieces), b"0\r\n\r\n"))) as the:
        answer = await the.ask(post(MESSAGES, STREAMED))
        assert answer.body == b"".join(pieces)
        told = await the.told()
        assert (told.tokens, told.partial) == (Tokens(input=10, output=50), False)


async def test_what_is_asked_for_tells_what_is_not_text() -> None:
    data = base64.b64encode(bytes(120_000)).decode()
    part = {"inlineData": {"mimeType": "audio/mp3", "data": data}}
    body = {"contents": [{"parts": [part]}], "generationConfig": {"responseModalities": ["TEXT"]}}
    async with house(Provider(saying(reply(b"{}", JSON))), api="gemini") as the:
        path = "/up/v1beta/models/gemini-2.5-flash:generateContent"
        await the.ask(post(path, json.dumps(body).encode()))
        (asked,) = the.daemon.asked
        assert (asked.media, asked.most_media, asked.text_only) == (
            {"audio": 961},
            {"audio": 5121},
            True,
        )
        assert 961 < asked.input_tokens < 1100
        assert 5121 - 961 < asked.more_input < 5121 + 1000


async def test_events_arrive_without_delay() -> None:
    """Each event is sent only after the client has the one before it."""
    next_one = trio.Semaphore(0)

    async def script(stream: trio.SocketStream, _: bytes) -> None:
        await stream.send_all(SSE)
        for each in EVENTS:
            await next_one.acquire()
            await stream.send_all(chunk(each))
        await stream.send_all(b"0\r\n\r\n")

    async with house(Provider(script)) as the, await the.connect() as stream:
        await stream.send_all(post(MESSAGES, STREAMED))
        data = b""
        with trio.fail_after(5):
            while b"\r\n\r\n" not in data:
                data += await stream.receive_some(4096)
            for each in EVENTS:
                next_one.release()
                while each not in data:
                    data += await stream.receive_some(4096)
                data = b""


# ---- what goes wrong behind the gateway


async def test_a_provider_that_resets_in_the_middle_of_a_stream() -> None:
    async def script(stream: trio.SocketStream, _: bytes) -> None:
        await stream.send_all(SSE + chunk(START) + chunk(TEXT) + chunk(TEXT))
        await trio.sleep(0.05)
        reset(stream)

    async with house(Provider(script)) as the:
        answer = await the.ask(post(MESSAGES, STREAMED))
        assert answer.status == 200
        assert answer.body == START + TEXT + TEXT
        assert answer.broken
        told = await the.told()
        assert (told.tokens, told.partial) == (Tokens(input=10, output=4), True)
        assert told.error is not None
        assert "broke off" in told.error
        assert not the.trouble


@pytest.mark.parametrize(
    ("body", "tokens"), [(STREAMED, Tokens(input=1 + tokens_of(STREAMED))), (CALL, None)]
)
async def test_a_provider_that_resets_before_it_answers(body: bytes, tokens: Tokens | None) -> None:
    """What is streamed only costs what has come. All of a whole reply may have been generated."""

    async def script(stream: trio.SocketStream, _: bytes) -> None:
        reset(stream)

    async with house(Provider(script)) as the:
        answer = await the.ask(post(MESSAGES, body))
        assert answer.status == 502
        assert "'up'" in json.loads(answer.body)["error"]["message"]
        told = await the.told()
        assert (told.status, told.tokens, told.partial) == (None, tokens, tokens is not None)
        assert told.sure == (None if tokens is None else Tokens())


async def test_a_whole_reply_that_breaks_off_counts_as_reserved() -> None:
    async with house(Provider(saying(reply(WHOLE, JSON)[:-20]))) as the:
        assert (await the.ask(post(MESSAGES, CALL))).broken
        told = await the.told()
        assert (told.tokens, told.partial) == (None, False)


async def test_a_provider_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    upstreams = {"up": Upstream("up", f"http://127.0.0.1:{port}", "anthropic")}
    async with house(Provider(saying()), upstreams=upstreams) as the:
        answer = await the.ask(post(MESSAGES, CALL))
        assert answer.status == 502
        told = await the.told()
        assert (told.tokens, told.partial) == (Tokens(), False)
        assert (await the.ask(b"GET /up/v1/models HTTP/1.1\r\nHost: x\r\n\r\n")).status == 502


UNREACHABLE = {
    "anthropic": ("/up/v1/messages", ("type", "api_error")),
    "openai-responses": ("/up/responses", ("type", "server_error")),
    "openai-chat": ("/up/chat/completions", ("code", "server_error")),
    "gemini": ("/up/v1beta/models/g:generateContent", ("status", "UNAVAILABLE")),
}


@pytest.mark.parametrize("api", UNREACHABLE)
async def test_an_upstream_that_is_not_there_is_told_in_the_providers_form(api: str) -> None:
    path, (field, kind) = UNREACHABLE[api]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    upstreams = {"up": Upstream("up", f"http://127.0.0.1:{port}", api)}
    async with house(Provider(saying()), upstreams=upstreams) as the:
        answer = await the.ask(post(path, CALL))
        assert (answer.status, answer.header("content-type")) == (502, "application/json")
        error = json.loads(answer.body)["error"]
        assert error[field] == kind
        assert "does not answer" in error["message"]


class Resolver(trio.abc.HostnameResolver):
    """Knows `wakes.example` from the third question on."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked = 0

    async def getaddrinfo(self, host: Any, *_: Any, **__: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if host in {b"wakes.example", "wakes.example"}:
            self.asked += 1
            if self.asked < 3:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        address = ("127.0.0.1", self.port)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)]

    async def getnameinfo(self, *_: Any) -> Any:
        raise NotImplementedError


async def test_a_name_that_does_not_resolve_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RESOLVE_AGAIN", (0.01, 0.01, 0.01))
    provider = Provider(saying(reply(WHOLE, JSON)))
    upstreams = {"up": Upstream("up", "http://wakes.example", "anthropic")}
    async with house(provider, upstreams=upstreams) as the:
        resolver = Resolver(the.direct)
        trio.socket.set_custom_hostname_resolver(resolver)
        assert (await the.ask(post(MESSAGES, CALL))).body == WHOLE
        assert (await the.told()).tokens == USED
        assert (resolver.asked, len(provider.requests)) == (3, 1)


async def test_the_provider_is_asked_for_no_encoding_that_cannot_be_read() -> None:
    provider = Provider(saying(reply(WHOLE, JSON)), keeps=True)
    async with house(provider) as the:
        for accepted in ("gzip;q=1.0, dcz, br, *", "dcb", "gzip , identity;q=0"):
            await the.ask(post(MESSAGES, CALL, f"Accept-Encoding: {accepted}"))
        found = [
            line.partition(b":")[2].strip()
            for request in provider.requests
            for line in request.lower().split(b"\r\n")
            if line.startswith(b"accept-encoding")
        ]
        assert found == [b"gzip;q=1.0, br", b"identity", b"gzip , identity;q=0"]


@pytest.mark.parametrize(
    "raw",
    [
        b"\0\1\2\3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 200_000,
    ],
)
async def test_a_provider_that_does_not_speak_http(raw: bytes) -> None:
    async with house(Provider(saying(raw))) as the:
        assert (await the.ask(post(MESSAGES, STREAMED))).status == 502
        assert (await the.told()).partial
        assert not the.trouble


@pytest.mark.parametrize(
    "status", [b"400 Bad Request", b"429 Too Many Requests", b"500 Oops", b"307 Elsewhere"]
)
async def test_an_error_of_the_provider_costs_nothing(status: bytes) -> None:
    async with house(Provider(saying(reply(WHOLE, JSON, status=status)))) as the:
        await the.ask(post(MESSAGES, CALL))
        told = await the.told()
        assert (told.tokens, told.partial) == (Tokens(), False)


async def test_a_stream_that_was_asked_for_may_be_answered_in_one_piece() -> None:
    async with house(Provider(saying(reply(WHOLE, JSON)))) as the:
        await the.ask(post(MESSAGES, STREAMED))
        assert (await the.told()).tokens == USED


@pytest.mark.parametrize(
    "headers", [[JSON, b"Content-Encoding: odd"], [JSON, b"Content-Encoding: gzip"]]
)
async def test_a_reply_that_cannot_be_decoded_counts_as_reserved(headers: list[bytes]) -> None:
    async with house(Provider(saying(reply(WHOLE, *headers)))) as the:
        assert (await the.ask(post(MESSAGES, CALL))).body == WHOLE
        told = await the.told()
        assert (told.tokens, told.partial) == (None, False)
        assert told.error is not None
        assert told.error.startswith("the reply cannot be read: ")


# ---- clients


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_hangs_up_while_the_provider_thinks(streamed: bool) -> None:
    provider = Provider(saying())

    async def script(stream: trio.SocketStream, _: bytes) -> None:
        await provider.wait_for_hang_up(stream)

    provider.script = script
    async with house(provider) as the:
        stream = await the.connect()
        await stream.send_all(post(MESSAGES, STREAMED if streamed else CALL))
        with trio.fail_after(5):
            await until(lambda: bool(provider.requests))
            await stream.aclose()
            await provider.hung_up.wait()
        told = await the.told()
        assert told.partial is streamed
        assert told.tokens == (Tokens(input=the.daemon.asked[0].input_tokens) if streamed else None)
        assert told.error == "it hung up"


async def test_a_client_may_hang_up_while_a_connection_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sfad.features.gateway.program.exchange.SILENT_AFTER", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as opened:
        while True:  # one that has no room for another connection does not answer it
            waiting = opened.enter_context(socket.socket())
            waiting.settimeout(0.5)
            try:
                waiting.connect(full.getsockname())
            except TimeoutError:
                break
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with house(
            Provider(saying()), upstreams={"up": Upstream("up", url, "anthropic")}
        ) as the:
            stream = await the.connect()
            await stream.send_all(post(MESSAGES, CALL))
            await until(lambda: bool(the.daemon.silent_calls))
            await stream.aclose()
            told = await the.told()
            assert (told.error, told.failed) == ("it hung up", False)


async def test_a_silent_provider_is_told_and_a_call_given_up_then_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sfad.features.gateway.program.exchange.SILENT_AFTER", 0.05)
    monkeypatch.setattr("sfad.features.gateway.program.call_tally.GIVEN_UP_AFTER", 0.05)
    provider = Provider(saying())

    async def script(stream: trio.SocketStream, _: bytes) -> None:
        await provider.wait_for_hang_up(stream)

    provider.script = script
    async with house(provider) as the:
        stream = await the.connect()
        await stream.send_all(post(MESSAGES, CALL))
        await until(lambda: bool(the.daemon.silent_calls))
        silent = the.daemon.silent_calls[0]
        assert (silent.host, silent.reservation) == ("127.0.0.1", "reservation 1")
        assert silent.silent_s is not None
        await stream.aclose()
        told = await the.told()
        assert told.failed
        assert told.error is not None
        assert "without a byte from 127.0.0.1" in told.error
        assert len(the.daemon.silent_calls) == 1


async def test_the_first_byte_after_a_silence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfad.features.gateway.program.exchange.SILENT_AFTER", 0.05)
    goes_on = trio.Event()

    async def script(stream: trio.SocketStream, _: bytes) -> None:
        await goes_on.wait()
        await stream.send_all(reply(WHOLE, JSON))

    async with house(Provider(script)) as the, trio.open_nursery() as nursery:
        nursery.start_soon(the.ask, post(MESSAGES, CALL))
        await until(lambda: bool(the.daemon.silent_calls))
        goes_on.set()
        told = await the.told()
        assert not told.failed
        assert [call.silent_s is None for call in the.daemon.silent_calls] == [False, True]


@pytest.mark.parametrize("how", ["closes", "resets", "has begun another request"])
async def test_a_client_that_hangs_up_in_a_stream(how: str) -> None:
    provider = Provider(saying())

    async def script(stream: trio.SocketStream, _: bytes) -> None:
        await stream.send_all(SSE + chunk(START) + chunk(TEXT))
        await provider.wait_for_hang_up(stream)

    provider.script = script
    async with house(provider) as the:
        stream = await the.connect()
        await stream.send_all(post(MESSAGES, STREAMED))
        with trio.fail_after(5):
            data = b""
            while TEXT not in data:
                data += await stream.receive_some(4096)
            if how == "resets":
                reset(stream)
            else:
                if how == "has begun another request":
                    await stream.send_all(b"POST ")
                await stream.aclose()
            await provider.hung_up.wait()
        told = await the.told()
        assert (told.status, told.tokens, told.partial) == (200, Tokens(input=10, output=2), True)
        assert not the.trouble


async def test_a_client_that_hangs_up_while_its_call_is_held() -> None:
    provider = Provider(saying())
    async with house(provider, daemon=ScriptedDaemon(hold=trio.Event())) as the:
        stream = await the.connect()
        await stream.send_all(post(MESSAGES, CALL))
        with trio.fail_after(5):
            await until(lambda: bool(the.daemon.asked))
            await stream.aclose()
            await until(lambda: bool(the.daemon.withdrawn))
        assert not the.daemon.told
        assert not provider.requests


async def test_a_held_call_goes_on() -> None:
    daemon = ScriptedDaemon(hold=trio.Event())
    async with (
        house(Provider(saying(reply(WHOLE, JSON))), daemon=daemon) as the,
        trio.open_nursery() as nursery,
    ):

        @nursery.start_soon
        async def _() -> None:
            await trio.sleep(0.2)
            assert daemon.hold is not None
            daemon.hold.set()

        answer = await the.ask(post(MESSAGES, CALL))
        assert answer.body == WHOLE


LONG = [START, TEXT, *(200 * [b": " + b"x" * 100_000 + b"\n\n"]), LAST, STOP]
"""20 MB, of which the kernel keeps 7 at most for a client that reads nothing."""


@pytest.mark.parametrize("breaks_off", sampled([False, True]))
async def test_the_reply_to_a_paused_client_is_read_and_charged_and_kept(
    *, breaks_off: bool
) -> None:
    """It takes nothing of it, and all later, up to where the provider broke off."""
    raw = (
        SSE
        + b"".join(map(chunk, LONG[:-2] if breaks_off else LONG))
        + (b"" if breaks_off else b"0\r\n\r\n")
    )
    async with house(Provider(saying(raw))) as the, await the.connect() as stream:
        request = post(MESSAGES, STREAMED)
        await stream.send_all(request)
        with trio.fail_after(60):
            await until(lambda: bool(the.daemon.told))
            (told,) = the.daemon.told
            assert (told.tokens is not None and told.tokens.output == 50, told.partial) == (
                not breaks_off,
                breaks_off,
            )
            assert len(raw) + (1 << 20) > the.shared.memory.held > 10_000_000
            answer = await read_answer(stream, request)
        assert answer.body == b"".join(LONG[:-2] if breaks_off else LONG)
        assert bool(answer.broken) == breaks_off
        await until(lambda: not the.shared.memory.held)
        assert not the.trouble


@pytest.mark.parametrize("bound", ["one", "all"])
async def test_a_client_that_takes_nothing_of_too_long_a_reply_holds_the_provider_back(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """There is a bound for what is kept in memory, and the client is given up after a while."""
    monkeypatch.setattr(http_connection, "SEND_TIMEOUT", 0.3)
    if bound == "one":
        monkeypatch.setattr(exchange, "MAX_UNSENT", 1_000_000)
    else:
        monkeypatch.setattr(call_tally, "MAX_BODIES", 2_000_000)
    sent = 0
    provider = Provider(saying())

    async def script(stream: trio.SocketStream, _: bytes) -> None:
        nonlocal sent
        await stream.send_all(SSE)
        while True:
            await stream.send_all(chunk(b": " + b"x" * 100_000 + b"\n"))
            sent += 100_000

    provider.script = script
    async with house(provider) as the, await the.connect() as stream:
        await stream.send_all(post(MESSAGES, STREAMED))
        with trio.fail_after(10):
            await provider.hung_up.wait()
        assert sent < 30_000_000
        assert (await the.told()).partial
        await until(lambda: not the.shared.memory.held)


async def drip(stream: trio.SocketStream) -> int:
    """Send a byte now and then, and return how many were taken."""
    for sent in range(1000):
        try:
            await stream.send_all(b"x")
        except trio.BrokenResourceError:
            return sent
        await trio.sleep(0.02)
    return 1000


async def test_slow_heads_and_bodies_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_TIMEOUT", 0.2)
    monkeypatch.setattr(http_connection, "BODY_TIMEOUT", 0.2)
    async with house(Provider(saying())) as the:
        for request in (b"POST / HTTP/1.1\r\n", post(MESSAGES, CALL)[:-5]):
            stream = await the.connect()
            await stream.send_all(request)
            with trio.fail_after(5):
                assert await stream.receive_some(100) == b""
            await stream.aclose()
        monkeypatch.setattr(http_connection, "WHOLE_BODY_TIMEOUT", 0.2)
        for begun in (b"", post(MESSAGES, CALL + b" " * 10_000)[:-10_000]):
            stream = await the.connect()
            await stream.send_all(begun)
            # each byte comes in time, but the head or the body as a whole does not
            with trio.fail_after(5):
                assert await drip(stream) > 5
            await stream.aclose()
        assert the.shared.memory.held == 0
        assert the.proxy.under_way == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 100_000,
    ],
)
async def test_what_is_not_http_is_answered_so(raw: bytes) -> None:
    async with house(Provider(saying())) as the:
        stream = await the.connect()
        await stream.send_all(raw)
        answer = await read_answer(stream, b"GET / HTTP/1.1")
        assert answer.status == (431 if len(raw) > 1000 else 400)
        assert b"not HTTP" in answer.body
        await stream.aclose()
        assert not the.trouble


async def test_a_body_that_is_too_long() -> None:
    provider = Provider(saying())
    async with house(provider) as the:
        answer = await the.ask(post(MESSAGES, b"x" * (reading.MAX_BODY + 1)))
        assert answer.status == 413
        assert json.loads(answer.body)["error"]["message"] == "the request has more than 64 MiB"
        assert not provider.requests
        assert the.shared.memory.held == 0
        bomb = gzip.compress(b"x" * (reading.MAX_BODY + 1))
        assert (await the.ask(post(MESSAGES, bomb, "Content-Encoding: gzip"))).status == 400


async def test_bodies_of_all_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_tally, "MAX_BODIES", 200_000)
    daemon = ScriptedDaemon(hold=trio.Event())
    async with house(Provider(saying(reply(WHOLE, JSON))), daemon=daemon) as the:
        big = json.dumps(ASKED | {"padding": "x" * 90_000}).encode()
        async with await the.connect() as stream:
            await stream.send_all(post(MESSAGES, big))
            await until(lambda: bool(daemon.asked))
            assert (await the.ask(post(MESSAGES, big))).status == 503
            daemon.run, daemon.hold = "other", None
            assert (await the.ask(post(MESSAGES, big))).status == 503
            assert (await the.ask(post(MESSAGES, big[:40_000] + b'"}'))).status == 200
        await until(lambda: not the.shared.memory.held)


@first(1)
@pytest.mark.parametrize("encoding", ["br", "identity"])
async def test_what_is_kept_of_replies_counts_as_memory_of_the_run(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """16 MiB of each JSON reply, and the window of its encoding, counted as nobody's."""
    document = WHOLE.replace(b"hello", random.randbytes(300_000).hex().encode())
    body = brotli.compress(document, lgwin=20) if encoding == "br" else document
    more = trio.Event()

    async def script(stream: trio.SocketStream, _: bytes) -> None:
        whole = reply(body, JSON, b"Content-Encoding: " + encoding.encode())
        await stream.send_all(whole[:-1])
        await more.wait()
        await stream.send_all(whole[-1:])

    async with house(Provider(script)) as the, trio.open_nursery() as nursery:
        nursery.start_soon(the.ask, post(MESSAGES, CALL))
        await until(lambda: the.shared.memory.held > len(document))
        more.set()
        assert (await the.told()).error is None
        monkeypatch.setattr(call_tally, "MAX_BODIES", len(document))
        assert (await the.ask(post(MESSAGES, CALL))).body == body
        await until(lambda: len(the.daemon.told) == 2)
        assert the.daemon.told[1].tokens is None
        assert "no memory" in (the.daemon.told[1].error or "")
    assert the.shared.memory.held == 0


async def test_expect_100_continue() -> None:
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the, await the.connect() as stream:
        head, body = post(MESSAGES, CALL, "Expect: 100-continue").split(b"\r\n\r\n")
        await stream.send_all(head + b"\r\n\r\n")
        assert await stream.receive_some(1000) == b"HTTP/1.1 100 \r\n\r\n"
        await stream.send_all(body)
        assert (await read_answer(stream, head)).body == WHOLE
        assert b"Expect" not in provider.requests[0]


async def test_expect_100_continue_of_a_call_that_is_refused() -> None:
    async with house(Provider(saying())) as the, await the.connect() as stream:
        await stream.send_all(
            post("/nowhere/x", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 10")
        )
        assert (await read_answer(stream, b"POST / HTTP/1.1")).status == 404
        assert await stream.receive_some(1) == b""


async def test_a_connection_is_used_again() -> None:
    provider = Provider(saying(reply(WHOLE, JSON)), keeps=True)
    async with house(provider) as the, await the.connect() as stream:
        for _ in range(5):
            await stream.send_all(post(MESSAGES, CALL))
            assert (await read_answer(stream, b"POST / HTTP/1.1")).body == WHOLE
        await stream.send_all(post(MESSAGES, CALL) * 2)  # and two at the same time
        data = b""
        while data.count(WHOLE) < 2:
            data += await stream.receive_some(1 << 16)
        await stream.send_all(post("/nowhere", b"x" * 100_000))
        assert (await read_answer(stream, b"POST / HTTP/1.1")).status == 404
        await stream.send_all(post(MESSAGES, CALL))
        assert (await read_answer(stream, b"POST / HTTP/1.1")).body == WHOLE
        assert provider.connections == 1
        await until(lambda: len(the.daemon.told) == 8)


async def test_a_connection_that_the_provider_has_closed_is_not_used_again() -> None:
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the:
        for _ in range(5):
            assert (await the.ask(post(MESSAGES, CALL))).body == WHOLE
            await trio.sleep(0.01)
        assert provider.connections == 5


@pytest.mark.parametrize("raw", [reply(WHOLE, JSON), CHUNKS + chunk(WHOLE) + b"0\r\n\r\n"])
async def test_a_client_of_http_1_0(raw: bytes) -> None:
    async with house(Provider(saying(raw))) as the, await the.connect() as stream:
        request = post(MESSAGES, CALL).replace(b"HTTP/1.1", b"HTTP/1.0")
        await stream.send_all(request)
        data = b""
        while more := await stream.receive_some(1 << 16):
            data += more
        assert data.endswith(b"\r\n\r\n" + WHOLE)


async def test_a_fault_in_one_exchange_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        house(Provider(saying(reply(WHOLE, JSON)), keeps=True)) as the,
        await the.connect() as other,
    ):
        await other.send_all(post(MESSAGES, CALL)[:-1])
        with monkeypatch.context() as broken:
            broken.setattr(the.daemon, "admit", None)
            assert (await the.ask(post(MESSAGES, CALL))).broken
        assert len(the.trouble) == 1
        assert the.trouble[0].startswith("internal error in a connection: TypeError: ")
        await other.send_all(CALL[-1:])
        assert (await read_answer(other, b"POST / HTTP/1.1")).body == WHOLE
        await until(lambda: the.shared.memory.held == 0)


# ---- what the gateway answers itself


@pytest.mark.parametrize(
    "target",
    [
        "/nowhere/v1/messages",
        "/",
        "/up",
        "*",
        "/run/token",
        "/up/v1/models/../messages",
        "/up/v1/models/%2e%2e/messages",
        "/up/v1/messages#/v1/models",
    ],
)
async def test_an_address_that_leads_nowhere(target: str) -> None:
    provider = Provider(saying())
    async with house(provider) as the:
        answer = await the.ask(post(target, CALL))
        assert (answer.status, answer.reason) == (404, b"Not Found")
        assert b"up" in answer.body
        assert not provider.requests


async def test_a_head_request_is_answered_without_a_body() -> None:
    async with house(Provider(saying())) as the, await the.connect() as stream:
        for _ in range(2):
            await stream.send_all(b"HEAD /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await read_answer(stream, b"HEAD / HTTP/1.1")).status == 404


async def test_a_websocket_is_answered_so_that_programs_post_at_once() -> None:
    async with house(Provider(saying())) as the:
        upgrade = (
            b"GET /up/v1/responses HTTP/1.1\r\nHost: x\r\nConnection: "
            b"Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
        )
        assert (await the.ask(upgrade)).status == 426
        assert not the.daemon.callers


async def test_a_caller_that_is_in_no_run() -> None:
    provider = Provider(saying())
    async with house(provider, daemon=ScriptedDaemon(no_run="you are in no run")) as the:
        answer = await the.ask(post(MESSAGES, CALL))
        assert answer.status == 403
        assert json.loads(answer.body)["error"]["message"] == "you are in no run"
        assert not provider.requests
        ((caller, token),) = the.daemon.callers
        assert caller is not None
        assert caller.uid == os.getuid()
        assert token is None


async def test_a_token_in_the_path() -> None:
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the:
        await the.ask(post(f"/run/abc{MESSAGES}", CALL))
        assert the.daemon.callers[0][1] == "abc"
        assert provider.requests[0].startswith(b"POST /v1/messages HTTP/1.1\r\n")


OPENAI = {
    "error": {
        "message": "no room",
        "type": "invalid_request_error",
        "param": None,
        "code": "refused_by_gateway",
    }
}
REFUSALS: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": (
        MESSAGES,
        {"type": "error", "error": {"type": "invalid_request_error", "message": "no room"}},
    ),
    "openai-responses": ("/up/responses", OPENAI),
    "openai-chat": ("/up/chat/completions", OPENAI),
    "gemini": (
        "/up/v1beta/models/g:generateContent",
        {"error": {"code": 400, "message": "no room", "status": "INVALID_ARGUMENT"}},
    ),
}


@pytest.mark.parametrize("api", REFUSALS)
async def test_a_refused_call_is_told_in_the_providers_words(api: str) -> None:
    provider = Provider(saying())
    path, body = REFUSALS[api]
    async with house(provider, api=api, daemon=ScriptedDaemon(refuses="no room")) as the:
        answer = await the.ask(post(path, CALL))
        assert (answer.status, answer.header("content-type")) == (400, "application/json")
        assert json.loads(answer.body) == body
        assert not provider.requests
        assert not the.daemon.told


@pytest.mark.parametrize("api", REFUSALS)
async def test_a_call_that_may_be_made_later_is_told_as_a_rate(api: str) -> None:
    async with house(
        Provider(saying()), api=api, daemon=ScriptedDaemon(refuses="not now", retry_after=41.2)
    ) as the:
        answer = await the.ask(post(REFUSALS[api][0], CALL))
        assert (answer.status, answer.header("retry-after")) == (429, "42")
        assert json.loads(answer.body)["error"]["message"] == "not now"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"model": 5}', b'{"max_tokens": 1}', b"\xff", b"[" * 100_000],
)
async def test_a_body_that_cannot_be_read(body: bytes) -> None:
    async with house(Provider(saying())) as the:
        answer = await the.ask(post(MESSAGES, body))
        assert answer.status == 400
        assert json.loads(answer.body)["error"]["message"].startswith(
            "the gateway cannot read the request: "
        )


@pytest.mark.parametrize("ungated", [False, True])
async def test_what_costs_money_uncounted(ungated: bool) -> None:
    provider = Provider(saying(reply(b"{}")))
    async with house(provider, ungated=ungated) as the:
        answer = await the.ask(post("/up/v1/messages/batches", b"{}"))
        assert answer.status == (200 if ungated else 400)
        assert len(provider.requests) == ungated
        assert not the.daemon.asked
        await until(lambda: bool(the.daemon.unasked_for))
        (told,) = the.daemon.unasked_for
        assert (told.upstream, told.path, told.status) == (
            "up",
            "/v1/messages/batches",
            200 if ungated else None,
        )
        assert (told.refused is None, told.first_byte_s is None) == (ungated, not ungated)


async def test_a_call_that_is_lowered() -> None:
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider, daemon=ScriptedDaemon(max_output=500)) as the:
        body = gzip.compress(CALL)
        await the.ask(post(MESSAGES, body, "Content-Encoding: gzip", "X-A: 1"))
        head, _, sent = provider.requests[0].partition(b"\r\n\r\n")
        assert json.loads(sent) == ASKED | {"max_tokens": 500}
        assert b"Content-Length: %d" % len(sent) in head
        assert b"X-A: 1" in head
        assert b"Encoding" not in head


async def test_a_call_that_is_not_changed_keeps_its_encoding() -> None:
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the:
        body = gzip.compress(CALL)
        await the.ask(post(MESSAGES, body, "Content-Encoding: gzip"))
        assert provider.requests[0].endswith(b"\r\n\r\n" + body)
        assert the.daemon.asked[0].model == "claude-x"


async def test_the_upstream_of_a_run() -> None:
    async with (
        house(Provider(saying(reply(b"own")))) as other,
        house(Provider(saying(reply(b"built in")))) as the,
    ):
        the.daemon.upstreams["up"] = Upstream(
            "up", f"http://127.0.0.1:{other.direct}/base", "anthropic"
        )
        assert (await the.ask(post("/up/v1/files", b"{}"))).body == b"own"


@pytest.mark.parametrize(
    ("api", "header"),
    [
        ("anthropic", b"x-api-key: real"),
        ("openai-chat", b"authorization: Bearer real"),
        ("gemini", b"x-goog-api-key: real"),
    ],
)
async def test_the_operators_key(monkeypatch: pytest.MonkeyPatch, api: str, header: bytes) -> None:
    monkeypatch.setenv("KEY_OF_TEST", "real")
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the:
        url = f"http://127.0.0.1:{the.direct}"
        upstreams = {"up": Upstream("up", url, api, key_env="KEY_OF_TEST")}
        async with house(provider, upstreams=upstreams) as keyed:
            theirs = (
                "X-Api-Key: theirs",
                "authorization: Bearer theirs",
                "X-Goog-Api-Key: theirs",
                "api-key: theirs",
            )
            await keyed.ask(
                post("/up/v1/files?a=%2F&key=theirs&alt=sse&k%65y=theirs", b"{}", *theirs)
            )
            assert header in provider.requests[0]
            assert b"theirs" not in provider.requests[0]
            assert provider.requests[0].startswith(b"POST /v1/files?a=%2F&alt=sse HTTP/1.1\r\n")
            keyed.daemon.upstreams["up"] = Upstream("up", url, api)
            await keyed.ask(post("/up/v1/files", b"{}", *theirs))
            assert b"real" not in provider.requests[1]
            monkeypatch.delenv("KEY_OF_TEST")
            keyed.daemon.upstreams.clear()
            answer = await keyed.ask(post("/up/v1/files", b"{}"))
            assert answer.status == 502
            assert b"KEY_OF_TEST" in answer.body


async def test_a_call_that_another_gateway_has_the_key_for_passes_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the:
        there = f"http://127.0.0.1:{the.direct}"
        the.daemon.upstreams["up"] = Upstream(
            "up", "https://provider.example/v1", "anthropic", through=there
        )
        answer = await the.ask(post(f"{MESSAGES}?beta=true", b"no call", "X-Api-Key: placeholder"))
        assert (answer.status, answer.body, the.daemon.asked, the.daemon.passing) == (
            200,
            WHOLE,
            [],
            [],
        )
        assert provider.requests[0].startswith(b"POST /run/TOKEN/up/v1/messages?beta=true HTTP/1.1")
        the.daemon.upstreams["up"] = Upstream(
            "up", "https://provider.example", "anthropic", through="http://127.0.0.1:1"
        )
        answer = await the.ask(post(MESSAGES, CALL))
        assert answer.status == 502
        assert b"the gateway that has the key of upstream 'up' does not answer" in answer.body
        assert b"TOKEN" not in answer.body


async def test_a_gateway_leads_another_users_run_to_upstreams_with_a_key_only(
    tmp_path: Path,
) -> None:
    (tmp_path / "key").write_text("real")
    daemon = ScriptedDaemon(keyed_only=True)
    async with house(Provider(saying(reply(WHOLE, JSON)), keeps=True), daemon=daemon) as the:
        answer = await the.ask(post(MESSAGES, CALL))
        assert (answer.status, daemon.asked) == (404, [])
        assert b"at that of your own gateway" in answer.body
        daemon.upstreams["up"] = Upstream(
            "up", f"http://127.0.0.1:{the.direct}", "anthropic", key_file=str(tmp_path / "key")
        )
        assert (await the.ask(post(MESSAGES, CALL))).status == 200
        assert (
            await the.ask(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n")
        ).status == 403


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "0"],  # noqa: S104
)
async def test_the_gateway_is_not_its_own_upstream(host: str) -> None:
    async with house(Provider(saying(b""))) as the:
        the.daemon.upstreams["up"] = Upstream("up", f"http://{host}:{the.port}/up", "anthropic")
        with trio.fail_after(10):
            answer = await the.ask(post(MESSAGES, CALL))
        assert answer.status == 400
        assert b"is this gateway itself" in answer.body
        assert (len(the.daemon.asked), (await the.told()).tokens) == (1, Tokens())


# ---- many at a time


async def test_a_run_at_its_share_of_connections_closes_its_own_without_a_request() -> None:
    daemon = ScriptedDaemon(hold=trio.Event())
    provider = Provider(saying(reply(WHOLE, JSON)), keeps=True)
    async with house(provider, daemon=daemon, most=16) as the, AsyncExitStack() as stack:

        async def begin(data: bytes) -> trio.SocketStream:
            stream = await stack.enter_async_context(await the.connect())
            await stream.send_all(data)
            return stream

        with trio.fail_after(10):
            served = [await begin(post(MESSAGES, CALL))]
            await until(lambda: len(daemon.asked) == 1)
            useless = [await begin(begun) for begun in (b"", b"POST", post(MESSAGES, CALL)[:-1])]
            served += [await begin(post(MESSAGES, CALL)) for _ in range(3)]
            await until(lambda: len(daemon.asked) == 4)
            for stream in useless:
                with suppress(trio.BrokenResourceError):
                    assert await stream.receive_some(1) == b""
            refused = await begin(b"")
            # all others have a request
            assert (await read_answer(refused, b"POST / HTTP/1.1")).status == 503
            assert daemon.hold is not None
            daemon.hold.set()
            for stream in served:
                assert (await read_answer(stream, b"POST / HTTP/1.1")).body == WHOLE
    assert the.shared.memory.held == 0


async def test_a_run_that_reopens_connections_closes_none_of_another_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel tells whose a connection is before it has sent a byte; here the test tells it."""
    daemon = ScriptedDaemon(hold=trio.Event())
    provider = Provider(saying(reply(WHOLE, JSON)), keeps=True)
    run = Caller(os.geteuid(), 1)
    monkeypatch.setattr(ConnectionTable, "caller", lambda *_: run)
    async with house(provider, daemon=daemon, most=64) as the, AsyncExitStack() as stack:
        slow = await stack.enter_async_context(await the.connect())
        await slow.send_all(post(MESSAGES, CALL)[:-1])
        await until(lambda: the.proxy.under_way == 1)
        for attacker in (Caller(os.geteuid(), 2), Caller(os.geteuid() + 1, 3)):
            run = attacker
            for _ in range(50):
                stream = await stack.enter_async_context(await the.connect())
                await stream.send_all(b"POST / HTTP/1.1\r\n")
            await until(lambda: the.proxy.under_way == 1)
        run = Caller(os.geteuid(), 1)
        await slow.send_all(CALL[-1:])
        other = await stack.enter_async_context(await the.connect())
        await other.send_all(post(MESSAGES, CALL))
        assert daemon.hold is not None
        daemon.hold.set()
        with trio.fail_after(10):
            assert (await read_answer(slow, b"POST / HTTP/1.1")).body == WHOLE
            assert (await read_answer(other, b"POST / HTTP/1.1")).body == WHOLE


async def test_a_connection_that_outlives_its_run_is_refused() -> None:
    async with (
        house(Provider(saying(reply(WHOLE, JSON)), keeps=True)) as the,
        await the.connect() as stream,
    ):
        await stream.send_all(post(MESSAGES, CALL))
        assert (await read_answer(stream, b"POST / HTTP/1.1")).status == 200
        the.daemon.no_run = "the run has ended"
        await stream.send_all(post("/up/v1/files", b"{}"))
        assert (await read_answer(stream, b"POST / HTTP/1.1")).status == 403


@pytest.mark.rest("at scale")
async def test_200_streams_at_a_time() -> None:
    everyone = trio.Event()
    provider = Provider(saying())

    async def script(stream: trio.SocketStream, _: bytes) -> None:
        await stream.send_all(SSE + chunk(START))
        if len(provider.requests) == 200:
            everyone.set()
        await everyone.wait()
        for each in EVENTS[1:]:
            await stream.send_all(chunk(each))
            await trio.sleep(0.01)
        await stream.send_all(b"0\r\n\r\n")

    provider.script = script
    before = len(os.listdir("/proc/self/fd"))
    async with house(provider) as the:

        async def one(the: House) -> None:
            answer = await the.ask(post(MESSAGES, STREAMED))
            assert answer.body == b"".join(EVENTS)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(200):
                    nursery.start_soon(one, the)
        await until(lambda: len(the.daemon.told) == 200)
        assert [told.tokens for told in the.daemon.told] == [Tokens(input=10, output=50)] * 200
        # 100 are kept for the next calls
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 120)
        await until(lambda: not the.proxy.under_way)
        assert the.shared.memory.held == 0
        assert not the.trouble

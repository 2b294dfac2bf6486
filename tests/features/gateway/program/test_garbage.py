"""What no honest client and no honest provider sends."""

from __future__ import annotations

import gzip
import json
import random
from typing import Any

import pytest
import trio

from sfad.features.gateway.program.apis.base import MAX_REPLY
from sfad.protocol.types import Tokens
from tests.harness import until

from .scripted import Answer, Provider, house, post, read_answer, reply, saying
from .test_proxy import CALL, JSON, MESSAGES, WHOLE, chunk

LENGTH = b"Content-Length: %d" % len(CALL)
CHUNKED = b"Transfer-Encoding: chunked"
IN_CHUNKS = chunk(CALL) + b"0\r\n\r\n"


def request(
    *headers: bytes, target: bytes = b"/up/v1/messages", method: bytes = b"POST", body: bytes = CALL
) -> bytes:
    return (
        b"\r\n".join([b"%s %s HTTP/1.1" % (method, target), b"Host: x", *headers])
        + b"\r\n\r\n"
        + body
    )


REFUSED: dict[str, tuple[bytes, int]] = {
    "two lengths": (request(LENGTH, b"Content-Length: 5"), 400),
    "a negative length": (request(b"Content-Length: -5"), 400),
    "a signed length": (request(b"Content-Length: +5"), 400),
    "an enormous length": (request(b"Content-Length: 99999999999999999999"), 413),
    "an unknown transfer coding": (request(b"Transfer-Encoding: gzip, chunked", body=IN_CHUNKS),
                                   501),
    "two transfer codings": (request(CHUNKED, CHUNKED, body=IN_CHUNKS), 501),
    "a space before a colon": (request(b"Transfer-Encoding : chunked", body=IN_CHUNKS), 400),
    "a chunk that is none": (request(CHUNKED, body=b"zz\r\n"), 400),
    "a header in a header": (request(LENGTH, b"X-A: 1\rX-B: 2"), 400),
    "a NUL": (request(LENGTH, b"X-A: a\0b"), 400), "two hosts": (request(LENGTH, b"Host: y"), 400),
    "a tunnel": (request(method=b"CONNECT", target=b"api.example:443", body=b""), 403),
    "another host": (request(LENGTH, target=b"http://evil.example/up/v1/messages"), 403),
    "a user before a host": (request(LENGTH, target=b"/up@evil.example/v1/messages"), 404),
    "an empty segment": (request(LENGTH, target=b"//up/v1/messages"), 404),
    "another empty segment": (request(LENGTH, target=b"/up/v1//messages"), 400),
    "a slash at the end": (request(LENGTH, target=b"/up/v1/messages/"), 400),
    "a path parameter": (request(LENGTH, target=b"/up/v1/messages;a=b"), 400),
    "capitals": (request(LENGTH, target=b"/up/V1/Messages"), 400),
    "a line end in the path": (request(LENGTH, target=b"/up/v1/messages%0d%0aX:1"), 400),
    "a path that is encoded twice": (request(LENGTH, target=b"/up/v1/%256dessages"), 400),
    "backslashes": (request(LENGTH, target=b"/up/v1/files/..%5cmessages"), 400),
    "another method": (request(LENGTH, method=b"PUT"), 400),
    "a method in small letters": (request(LENGTH, method=b"post"), 405),
    "a method whose reply holds the key": (request(method=b"TRACE", body=b""), 405),
    "a method that nobody knows": (request(LENGTH, method=b"QUERY"), 405),
    "a mark before the JSON": (post(MESSAGES, b"\xef\xbb\xbf" + CALL), 400),
    "another encoding of text": (post(MESSAGES, CALL.decode().encode("utf-16")), 400),
    "two documents": (post(MESSAGES, CALL + CALL), 400),
    "not a number": (post(MESSAGES, b'{"model": "m", "max_tokens": NaN}'), 400),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
async def test_a_request_that_two_servers_could_read_differently_is_refused(what: str) -> None:
    raw, status = REFUSED[what]
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the, await the.connect() as stream:
        await stream.send_all(raw)
        with trio.fail_after(10):
            answer = await read_answer(stream, b"POST / HTTP/1.1")
        assert (answer.status, answer.broken) == (status, None)
        assert answer.body
        assert provider.requests == []
        assert not the.trouble


COUNTED = {
    "one length twice": request(LENGTH, LENGTH),
    "a length and chunks": request(LENGTH, CHUNKED, body=IN_CHUNKS),
    "an encoded letter": request(LENGTH, target=b"/%75p/v1/%6dessages"),
    "an encoded slash": request(LENGTH, target=b"/up/v1%2fmessages"),
    "an empty segment": request(LENGTH, target=b"/up//v1/messages"),
    "another host in the path": request(LENGTH, target=b"/up/@evil.example/v1/messages"),
    "a folded header": request(LENGTH, b"X-A: 1\r\n folded"),
    "another protocol": request(
        LENGTH, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAA"
    ),
    "a length of the connection": request(LENGTH, b"Connection: content-length"),
}


@pytest.mark.parametrize("what", COUNTED)
async def test_an_odd_request_is_a_call_all_the_same(what: str) -> None:
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the, await the.connect() as stream:
        await stream.send_all(COUNTED[what])
        assert (await read_answer(stream, b"POST / HTTP/1.1")).body == WHOLE
        (sent,) = provider.requests
        assert sent.endswith(b"\r\n\r\n" + CALL)
        assert sent.lower().count(b"content-length") == 1
        assert b"transfer-encoding" not in sent.lower()
        assert b"upgrade" not in sent.lower()
        assert (await the.told()).tokens == Tokens(input=15, output=5, cached=3, cache_write=2)


@pytest.mark.parametrize(
    "header", [b"X-HTTP-Method-Override: POST", b"x-http-method: POST", b"X-Method-Override: POST"]
)
async def test_a_get_request_cannot_become_a_call_behind_the_gateway(header: bytes) -> None:
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with house(provider) as the, await the.connect() as stream:
        await stream.send_all(request(LENGTH, header, method=b"GET"))
        assert (await read_answer(stream, b"GET / HTTP/1.1")).status == 200
        (sent,) = provider.requests
        assert b"override" not in sent.lower()
        assert b"x-http-method" not in sent.lower()


# ---- providers


def raw(*headers: bytes, body: bytes = WHOLE, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, JSON, *headers]) + b"\r\n\r\n" + body


HAS = b"Content-Length: %d" % len(WHOLE)
BOMB = gzip.compress(bytes(MAX_REPLY + 1))
ODD: dict[str, tuple[bytes, int, str]] = {
    "a negative length": (raw(b"Content-Length: -1"), 502, "bad Content-Length"),
    "two lengths": (raw(HAS, b"Content-Length: 6"), 502, "conflicting Content-Length"),
    "an unknown transfer coding": (raw(b"Transfer-Encoding: gzip"), 502, "Transfer-Encoding"),
    "a header in a header": (raw(HAS, b"X: a\rSet-Cookie: b"), 502, "illegal header line"),
    "an upgrade": (raw(b"Upgrade: x", b"Connection: upgrade", status=b"101 Switching", body=b""),
                   502, "SWITCH"),
    "a status of two digits": (raw(HAS, status=b"99 Odd"), 502, "illegal status line"),
    "nothing": (b"", 502, "without sending a response"),
    "a long length": (raw(b"Content-Length: 99999"), 200, "broke off"),
    "a chunk that is none": (raw(CHUNKED, body=chunk(WHOLE) + b"zz\r\n"), 200, "broke off"),
    "no last chunk": (raw(CHUNKED, body=chunk(WHOLE)), 200, "broke off"),
    "a trailer that is none": (raw(CHUNKED, body=chunk(WHOLE) + b"0\r\nX Y\r\n\r\n"), 200,
                               "broke off"),
    "a bomb": (raw(b"Content-Encoding: gzip", b"Content-Length: %d" % len(BOMB), body=BOMB), 200,
               "is longer than"),
    "half a reply": (raw(b"Content-Length: %d" % (len(WHOLE) // 2), body=WHOLE[: len(WHOLE) // 2]),
                     200, ""),
    "half a compressed reply": (raw(b"Content-Encoding: gzip", b"Content-Length: 40",
                                    body=gzip.compress(WHOLE)[:40]), 200, ""),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
async def test_a_reply_that_cannot_be_read_counts_as_reserved(what: str) -> None:
    said, status, error = ODD[what]
    async with house(Provider(saying(said))) as the:
        answer = await the.ask(post(MESSAGES, CALL))
        told = await the.told()
        assert answer.status == status
        assert (told.tokens, told.partial) == (None, False)
        assert error in (told.error or "")
        assert bool(answer.broken) == ("broke off" in error)
        assert not the.trouble


async def test_many_informational_replies() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 2000
    async with house(Provider(saying(early + raw(HAS)))) as the:
        assert (await the.ask(post(MESSAGES, CALL))).body == WHOLE
        assert (await the.told()).tokens == Tokens(input=15, output=5, cached=3, cache_write=2)


LIES: tuple[dict[str, Any], ...] = (
    {"input_tokens": -10, "output_tokens": -5},
    {"input_tokens": 0, "output_tokens": 0},
    {"input_tokens": 10**30, "output_tokens": 10**30},
    {"input_tokens": "5", "output_tokens": "9"},
    {},
)


@pytest.mark.parametrize("usage", LIES, ids=str)
async def test_a_usage_that_cannot_be_true_is_estimated(usage: dict[str, Any]) -> None:
    body = json.dumps({"content": [{"type": "text", "text": "x" * 4000}], "usage": usage}).encode()
    async with house(Provider(saying(reply(body, JSON)))) as the:
        answer: Answer = await the.ask(post(MESSAGES, CALL))
        assert answer.body == body
        told = await the.told()
        assert told.tokens == Tokens(input=the.daemon.asked[0].input_tokens, output=1000)
        assert told.partial


async def test_a_usage_that_is_far_too_low_is_estimated() -> None:
    body = json.dumps(
        {
            "content": [{"type": "text", "text": "x" * 4000}],
            "usage": {"input_tokens": 9, "output_tokens": 1},
        }
    )
    async with house(Provider(saying(reply(body.encode(), JSON)))) as the:
        await the.ask(post(MESSAGES, CALL))
        told = await the.told()
        assert (told.tokens, told.partial) == (Tokens(input=9, output=1000), True)


async def test_a_reply_that_unzips_to_millions_of_lines_delays_no_other_call() -> None:
    lines = random.randbytes(1_500_000).translate(
        bytes(10 if byte % 2 else 97 for byte in range(256))
    )
    bomb = gzip.compress(lines, 1)
    stream = raw(b"Content-Encoding: gzip", b"Content-Length: %d" % len(bomb), body=bomb).replace(
        b"json", b"event-stream"
    )
    answered: list[str] = []
    provider = Provider(saying(stream))
    async with house(provider) as the, trio.open_nursery() as nursery:

        async def ask(name: str) -> None:
            assert (await the.ask(post(MESSAGES, CALL))).status == 200
            answered.append(name)

        nursery.start_soon(ask, "bomb")
        await until(lambda: len(the.daemon.passing) > 2)
        provider.script = saying(reply(WHOLE, JSON))
        await ask("other")
    assert answered == ["other", "bomb"]

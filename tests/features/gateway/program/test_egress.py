"""The way out between real sockets: what passes, what is refused, and what bounds it.
`tests.e2e.test_egress` has real programs."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
import trustme

from sfad.features.gateway.program import egress
from sfad.features.gateway.program.upstreams import Upstream
from tests.harness import until

from .scripted import (
    Answer,
    House,
    Provider,
    ScriptedDaemon,
    house,
    post,
    read_request,
    reply,
    saying,
)

Serve = Callable[[Any], Awaitable[None]]
"""Serves a stream."""
Reached = tuple[House, int]


@asynccontextmanager
async def reaching(
    *listed: str, serve: Serve | None = None, context: ssl.SSLContext | None = None
) -> AsyncIterator[Reached]:
    """Yield a gateway for a run with this `--egress`, and the port of a server on loopback; `{}` in
    the list stands for it."""
    serving: Serve = serve or _echo
    async with trio.open_nursery() as nursery:
        if context is None:
            listeners = await nursery.start(partial(trio.serve_tcp, serving, 0, host="127.0.0.1"))
            port = listeners[0].socket.getsockname()[1]
        else:
            tls = await nursery.start(
                partial(trio.serve_ssl_over_tcp, serving, 0, context, host="127.0.0.1")
            )
            port = tls[0].transport_listener.socket.getsockname()[1]
        daemon = ScriptedDaemon(egress=tuple(text.format(port) for text in listed))
        async with house(Provider(saying()), daemon=daemon) as the:
            yield the, port
        nursery.cancel_scope.cancel()


async def _echo(stream: trio.abc.HalfCloseableStream) -> None:
    """Send back what comes, and a word after its end."""
    try:
        while data := await stream.receive_some(1 << 16):
            await stream.send_all(data)
        await stream.send_all(b"bye")
    except trio.BrokenResourceError:
        pass


async def connected(the: House, target: str, *headers: str) -> tuple[trio.SocketStream, bytes]:
    """Return a connection after CONNECT, and the head of the answer."""
    stream = await the.connect()
    await stream.send_all(
        "\r\n".join([f"CONNECT {target} HTTP/1.1", f"Host: {target}", *headers, "", ""]).encode()
    )
    head = b""
    while b"\r\n\r\n" not in head:
        head += (more := await stream.receive_some(1)) or b"\r\n\r\n"
        assert more or head
    return stream, head


async def rest(stream: trio.SocketStream) -> bytes:
    found = b""
    try:
        while data := await stream.receive_some(1 << 16):
            found += data
    except trio.BrokenResourceError:
        return found + b"(reset)"
    return found


async def test_a_tunnel_passes_bytes_both_ways_and_ends_by_halves() -> None:
    async with reaching("127.0.0.1:{}") as (the, port):
        stream, head = await connected(the, f"127.0.0.1:{port}")
        async with stream:
            assert head == b"HTTP/1.1 200 Connection established\r\n\r\n"
            sent = b"SSH-2.0-x\r\n" + bytes(range(256)) * 20_000
            found: list[bytes] = []

            async def read() -> None:
                found.append(await rest(stream))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await stream.send_all(sent)
                await stream.send_eof()
            assert found == [sent + b"bye"]
        await until(lambda: the.proxy.under_way == 0)
        assert not the.trouble


async def test_bytes_that_come_with_the_connect() -> None:
    async with reaching("127.0.0.1:{}") as (the, port):
        stream = await the.connect()
        async with stream:
            await stream.send_all(
                f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\nhello".encode()
            )
            await stream.send_eof()
            assert await rest(stream) == b"HTTP/1.1 200 Connection established\r\n\r\nhellobye"


async def test_a_server_that_speaks_first() -> None:
    async def greet(stream: trio.SocketStream) -> None:
        await stream.send_all(b"220 hello")

    async with reaching("127.0.0.1:{}", serve=greet) as (the, port):
        stream, _ = await connected(the, f"127.0.0.1:{port}")
        async with stream:
            assert await rest(stream) == b"220 hello"


async def test_a_reader_that_stands_still_holds_the_writer() -> None:
    """The gateway keeps no more than a piece: the kernel's buffers are full, and sending waits."""
    reading = trio.Event()

    async def still(stream: trio.SocketStream) -> None:
        await reading.wait()
        await _echo(stream)

    async with reaching("127.0.0.1:{}", serve=still) as (the, port):
        stream, _ = await connected(the, f"127.0.0.1:{port}")
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        async with stream:
            with trio.move_on_after(1) as waiting:
                await stream.send_all(bytes(64 << 20))
            assert waiting.cancelled_caught
            reading.set()


async def asked(the: House, target: str, method: str = "GET") -> Answer:
    return await the.ask(
        f"{method} {target} HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n".encode()
    )


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("api.openai.com:443", b"API of a model"),
        ("API.OpenAI.com.:443", b"API of a model"),
        ("elsewhere.example:443", b"not in the run's --egress"),
        ("127.0.0.1:1", b"port 1"),
        ("[::1]:443", b"not in the run's --egress"),
        ("[::ffff:127.0.0.1]:443", b"not port 443"),
    ],
)
async def test_what_is_refused(target: str, why: bytes) -> None:
    """The reason is in the first line, which programs print, and the daemon is told."""
    async with reaching("127.0.0.1:{}") as (the, _):
        stream, head = await connected(the, target)
        async with stream:
            assert head.startswith(b"HTTP/1.1 403 sfad refuses ")
            assert why in head
        answer = await asked(the, f"http://{target}/")
        assert (answer.status, why in answer.body) == (403, True)
        assert [each[0] for each in the.daemon.refused_hosts] == ["run", "run"]
        assert not the.trouble


async def test_a_name_by_a_pattern_does_not_lead_into_this_machine() -> None:
    """The refusal is told as one: it is no failure to connect."""
    async with reaching("*") as (the, _):
        stream, head = await connected(the, "localhost:443")
        async with stream:
            assert head.startswith(b"HTTP/1.1 403 sfad refuses ")
            assert b"not one of the internet" in head
        assert [each[:3] for each in the.daemon.refused_hosts] == [("run", "localhost", 443)]


async def test_a_model_of_the_gateway_is_refused_where_it_is_listed() -> None:
    """In each spelling; its own address leads to it."""
    async with reaching("127.0.0.1", "localhost", "*") as (the, port):
        the.daemon.upstreams["own"] = Upstream("own", f"http://LOCALHOST:{port}", "anthropic")
        the.daemon.egress = (f"localhost:{port}", f"127.0.0.1:{the.direct}")
        for target in (
            f"localhost:{port}",
            f"LocalHost.:{port}",
            f"127.0.0.1:{the.direct}",
            f"[::ffff:127.0.0.1]:{the.direct}",
        ):
            assert (await asked(the, f"http://{target}/")).status == 403, target


async def test_without_egress_or_outside_of_any_run() -> None:
    async with reaching() as (the, port):
        assert b"no --egress" in (await asked(the, f"http://127.0.0.1:{port}/")).body
        the.daemon.no_run = "the calling process is in no run of this daemon"
        stream, head = await connected(the, f"127.0.0.1:{port}")
        async with stream:
            assert b"407 the calling process is in no run" in head
            assert b"proxy-authenticate: Basic" in head
        stream, head = await connected(the, f"127.0.0.1:{port}", "Proxy-Authorization: Basic eDp5")
        async with stream:
            assert b"403 the calling process is in no run" in head
        assert len(the.daemon.refused_hosts) == 1


@pytest.mark.parametrize("target",
                         ["http://", "http:///x", "http://a:b/", "http://u@127.0.0.1/",
                          "https://a/", "ftp://a/", "http://%61/", "http://127.1/",
                          "http://0x7f000001/", "http://a:0/", "http://a:99999/",
                          "http://a/#b"])  # fmt: skip
async def test_an_address_that_means_nothing(target: str) -> None:
    async with reaching("*") as (the, _):
        assert (await asked(the, target)).status == 400
        assert not the.daemon.refused_hosts


async def test_plain_http() -> None:
    """The server sees the request as if it had come from the program, without the proxy's
    credentials; its host is the one of the URL, whatever the header says."""
    seen: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        seen.append(await read_request(stream))
        await stream.send_all(reply(b"found", b"X-A: 1", b"X-A: 2"))

    async with reaching("127.0.0.1:{}", serve=serve) as (the, port):
        headers = (
            "Proxy-Authorization: Basic eDp5",
            "Connection: keep-alive, X-Hop",
            "X-Hop: 1",
            "X-Kept: 1",
        )
        answer = await the.ask(post(f"http://127.0.0.1:{port}?q=http://b/", b"body", *headers))
        assert (answer.status, answer.body, answer.headers.count((b"X-A", b"1"))) == (
            200,
            b"found",
            1,
        )
        lines = seen[0].partition(b"\r\n\r\n")[0].decode().split("\r\n")
        assert lines[0] == "POST /?q=http://b/ HTTP/1.1"
        assert sorted(lines[1:]) == sorted(
            [f"Host: 127.0.0.1:{port}", "X-Kept: 1", "Content-Length: 4", "Connection: close"]
        )
        assert seen[0].endswith(b"\r\n\r\nbody")
        assert the.daemon.callers[0][1] == "x"


async def test_a_length_beside_chunks_is_left_out() -> None:
    """Two readers could take different ends of the message."""
    seen: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        while not seen or not seen[0].endswith(b"0\r\n\r\n"):
            seen[:] = [b"".join(seen) + await stream.receive_some(1000)]
        chunks = b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n5\r\nfound\r\n0\r\n\r\n"
        await stream.send_all(b"HTTP/1.1 200 OK\r\n" + chunks)

    async with reaching("127.0.0.1:{}", serve=serve) as (the, port):
        head = (
            f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: "
            "x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"
        )
        answer = await the.ask(head.encode() + b"4\r\nbody\r\n0\r\n\r\n")
        assert (answer.status, answer.body, answer.header("content-length")) == (
            200,
            b"found",
            None,
        )
        assert b"content-length" not in seen[0].lower()
        assert seen[0].endswith(b"\r\n\r\n4\r\nbody\r\n0\r\n\r\n")
        assert not the.trouble


async def test_an_answer_before_the_body() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(1000)
        await stream.send_all(reply(b"too large", status=b"413 Content Too Large"))

    async with reaching("127.0.0.1:{}", serve=serve) as (the, port):
        answer = await the.ask(post(f"http://127.0.0.1:{port}/", b"x" * 3_000_000))
        assert answer.status in (413, 502)  # 502: the server's reset has discarded its answer
        assert not the.trouble


NO_HTTP = (
    b"", b"junk\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
    b"HTTP/1.1 101 x\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000,
)  # fmt: skip


@pytest.mark.parametrize("answer", NO_HTTP)
async def test_a_server_that_speaks_no_http(answer: bytes) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(1000)
        # the gateway reads no more of a head that is too long
        with suppress(trio.BrokenResourceError):
            await stream.send_all(answer)

    async with reaching("127.0.0.1:{}", serve=serve) as (the, port):
        found = await asked(the, f"http://127.0.0.1:{port}/")
        assert found.status == 502 or found.broken
        await until(lambda: the.proxy.under_way == 0)
        assert not the.trouble


async def test_a_server_that_does_not_answer() -> None:
    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.aclose()

    async with reaching("127.0.0.1:{}", "127.0.0.1:1", "nosuch.invalid:80", serve=hang_up) as (
        the,
        port,
    ):
        for target in (f"127.0.0.1:{port}", "127.0.0.1:1", "nosuch.invalid:80"):
            answer = await asked(the, f"http://{target}/")
            assert (answer.status, target.encode().partition(b":")[0] in answer.body) == (502, True)
        assert not the.daemon.refused_hosts


async def handshake(the: House, port: int, context: ssl.SSLContext, name: str) -> bytes:
    stream, _ = await connected(the, f"localhost:{port}")
    tls = trio.SSLStream(stream, context, server_hostname=name, https_compatible=True)
    try:
        await tls.send_all(b"hello")
        return bytes(await tls.receive_some(100))
    finally:
        await trio.aclose_forcefully(tls)


async def test_the_name_in_tls_is_the_one_that_was_asked_for() -> None:
    """Another name could lead to another site of the same server. The server sees nothing of such a
    connection."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost", "api.anthropic.com").configure_cert(server)
    authority.configure_trust(client)
    async with reaching("localhost:{}", context=server) as (the, port):
        assert await handshake(the, port, client, "localhost") == b"hello"
        with pytest.raises(trio.BrokenResourceError) as caught:
            await handshake(the, port, client, "api.anthropic.com")
        assert "UNRECOGNIZED_NAME" in str(caught.value.__cause__)
        assert the.daemon.refused_hosts == [
            ("run", "localhost", port, "its TLS is meant for 'api.anthropic.com'")
        ]
        assert not the.trouble


async def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run's connections, and of the time in which nothing passes."""
    monkeypatch.setattr(egress, "MOST_OF_RUN", 2)
    async with reaching("127.0.0.1:{}") as (the, port):
        target = f"127.0.0.1:{port}"
        first, _ = await connected(the, target)
        second, _ = await connected(the, target)
        third, head = await connected(the, target)
        assert b"503 there are 2 connections of the run" in head
        await first.aclose()
        await until(lambda: the.proxy.under_way < 2)
        monkeypatch.setattr(egress, "IDLE_TIMEOUT", 0.2)
        fourth, head = await connected(the, target)
        assert b" 200 " in head
        with trio.fail_after(5):
            assert await rest(fourth) == b""
        for stream in (second, third, fourth):
            await stream.aclose()

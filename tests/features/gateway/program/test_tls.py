"""Upstreams behind TLS, and behind a proxy that the daemon's environment names."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme

from sfad.features.gateway.program import upstream_connections
from sfad.features.gateway.program.upstreams import Upstream
from sfad.protocol.types import Tokens

from .scripted import Provider, house, post, reply, saying
from .test_proxy import CALL, JSON, MESSAGES, WHOLE

USED = Tokens(input=15, output=5, cached=3, cache_write=2)
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@asynccontextmanager
async def behind_tls(
    provider: Provider, certificate: trustme.LeafCert
) -> AsyncIterator[dict[str, Upstream]]:
    """Yield upstreams that lead to a provider behind TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    context.set_alpn_protocols(["h2", "http/1.1"])

    async def serve(stream: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            await stream.do_handshake()
        except trio.BrokenResourceError:  # the gateway refuses the certificate
            await trio.aclose_forcefully(stream)
            return
        await provider.serve(stream)  # type: ignore[arg-type]

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            partial(trio.serve_ssl_over_tcp, serve, 0, context, host="127.0.0.1")
        )
        port = listeners[0].transport_listener.socket.getsockname()[1]
        yield {"up": Upstream("up", f"https://localhost:{port}", "anthropic")}
        nursery.cancel_scope.cancel()


async def test_a_certificate_of_an_authority_that_ssl_cert_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with (
        behind_tls(provider, authority.issue_cert("localhost")) as upstreams,
        house(provider, upstreams=upstreams) as the,
    ):
        assert (await the.ask(post(MESSAGES, CALL))).body == WHOLE
        assert (await the.told()).tokens == USED


async def test_a_certificate_of_an_authority_that_the_environment_of_a_tree_names(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    provider = Provider(saying(reply(WHOLE, JSON), reply(WHOLE, JSON)))
    async with (
        behind_tls(provider, authority.issue_cert("localhost")) as upstreams,
        house(provider, upstreams=upstreams) as the,
    ):
        assert (await the.ask(post(MESSAGES, CALL))).status == 502
        the.daemon.certificates = [str(tmp_path / "ca.pem"), str(tmp_path)]
        assert (await the.ask(post(MESSAGES, CALL))).body == WHOLE
        assert (await the.ask(post(MESSAGES, CALL))).body == WHOLE
        assert the.trouble == [
            f"the certificates in {tmp_path} cannot be loaded: it is not a regular file"
        ]


@pytest.mark.parametrize("what", ["an unknown authority", "another host"])
async def test_a_certificate_that_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    if what != "an unknown authority":
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    provider = Provider(saying(reply(WHOLE, JSON)))
    host = "other.example" if what == "another host" else "localhost"
    async with (
        behind_tls(provider, authority.issue_cert(host)) as upstreams,
        house(provider, upstreams=upstreams) as the,
    ):
        answer = await the.ask(post(MESSAGES, CALL))
        assert answer.status == 502
        said = json.loads(answer.body)["error"]["message"]
        assert upstreams["up"].url in said
        assert "certificate verify failed" in said
        assert (await the.told()).tokens == Tokens()
        assert not the.trouble


async def test_an_upstream_that_does_not_answer_in_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_connections, "CONNECT_TIMEOUT", 0.3)
    upstreams = {"up": Upstream("up", "", "anthropic")}
    async with house(Provider(saying()), upstreams=upstreams) as the:
        upstreams["up"] = Upstream("up", f"https://127.0.0.1:{the.direct}", "anthropic")
        with trio.fail_after(10):
            assert (await the.ask(post(MESSAGES, CALL))).status == 502
        assert (await the.told()).tokens == Tokens()


class Tunnels:
    """A proxy for HTTP and, by CONNECT, for everything else."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    async def serve(self, client: trio.SocketStream) -> None:
        async with client:
            head = await client.receive_some(4096)
            self.asked.append(head.split(b"\r\n")[0])
            _, target, _ = self.asked[-1].split(b" ")
            host, _, port = target.removeprefix(b"http://").split(b"/")[0].partition(b":")
            async with await trio.open_tcp_stream(host.decode(), int(port)) as upstream:
                if target.startswith(b"http://"):
                    await upstream.send_all(head)
                else:
                    await client.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._copy, client, upstream, nursery.cancel_scope)
                    nursery.start_soon(self._copy, upstream, client, nursery.cancel_scope)

    async def _copy(
        self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        try:
            async for data in source:
                await target.send_all(data)
        except trio.BrokenResourceError:
            pass
        scope.cancel()


@pytest.mark.parametrize("exempt", [False, True])
async def test_a_proxy_that_the_environment_names(
    exempt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    tunnels = Tunnels()
    provider = Provider(saying(reply(WHOLE, JSON)))
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, tunnels.serve, 0, host="127.0.0.1"))
        monkeypatch.setenv(
            "HTTPS_PROXY", f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        )
        if exempt:
            monkeypatch.setenv("NO_PROXY", "localhost")
        async with behind_tls(provider, authority.issue_cert("localhost")) as upstreams:
            async with house(provider, upstreams=upstreams) as the:
                assert (await the.ask(post(MESSAGES, CALL))).body == WHOLE
                assert (await the.told()).tokens == USED
            there = upstreams["up"].url.removeprefix("https://").encode()
        assert tunnels.asked == ([] if exempt else [b"CONNECT " + there + b" HTTP/1.1"])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_is_dead_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the password in it."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv(
            f"{scheme}_proxy", f"http://me:secret@127.0.0.1:{unused.getsockname()[1]}"
        )
        async with house(
            Provider(saying()),
            upstreams={"up": Upstream("up", f"{scheme}://model.example", "anthropic")},
        ) as the:
            with trio.fail_after(10):
                answer = await the.ask(post(MESSAGES, CALL))
    assert answer.status == 502
    said = json.loads(answer.body)["error"]["message"]
    assert (
        f"through the proxy that {scheme.upper()}_PROXY of the daemon's environment names" in said
    )
    assert "secret" not in said
    assert answer.header("x-should-retry") == "false"

"""A provider that answers from a script, a daemon that says yes, and the proxy between them and a
client."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import h11
import trio

from sfad.features.gateway.messages import SilentCall, UnaskedRequest
from sfad.features.gateway.program.bodies.estimate import Estimates
from sfad.features.gateway.program.bodies.reader import BodyReader
from sfad.features.gateway.program.call_tally import BodyMemory
from sfad.features.gateway.program.daemon_link import CallerRun, RefusedError
from sfad.features.gateway.program.egress import Egress
from sfad.features.gateway.program.exchange import Shared, SilenceWatch
from sfad.features.gateway.program.local_models import LocalModels
from sfad.features.gateway.program.proxy import MAX_CONNECTIONS, Proxy
from sfad.features.gateway.program.upstream_connections import UpstreamConnections, new_client
from sfad.features.gateway.program.upstreams import Trust, Upstream
from sfad.host.linux.callers import Caller
from sfad.protocol.requests.gateway import (
    AdmitCall,
    CallDecision,
    EndCall,
    SeeWindows,
)
from sfad.protocol.texts.destinations import destination
from tests.harness import until

Script = Callable[[trio.SocketStream, bytes], Awaitable[None]]
"""Answers a request: gets the connection and the request, head and body."""


class Provider:
    """Takes requests, and answers them as `script` says. Closes a connection after its script
    unless it is kept."""

    def __init__(self, script: Script, *, keeps: bool = False) -> None:
        self.script = script
        self.keeps = keeps
        self.requests: list[bytes] = []
        self.connections = 0
        self.hung_up = trio.Event()
        """A client closed a connection while a script was at work."""

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        async with stream:
            try:
                while request := await read_request(stream):
                    self.requests.append(request)
                    await self.script(stream, request)
                    if not self.keeps:
                        return
            except trio.BrokenResourceError:
                self.hung_up.set()

    async def wait_for_hang_up(self, stream: trio.SocketStream) -> None:
        try:
            while await stream.receive_some(4096):
                pass
        except trio.BrokenResourceError:
            pass
        self.hung_up.set()


async def read_request(stream: trio.SocketStream) -> bytes:
    """Return one request, chunks as they came; `b""` at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some(1 << 16)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next(
        (int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0
    )
    pieces = [head, b"\r\n\r\n", body]
    rest = length - len(body)
    while rest > 0:
        more = await stream.receive_some(1 << 20)
        if not more:
            return b""
        pieces.append(more)
        rest -= len(more)
    return b"".join(pieces)


def saying(*pieces: bytes, pause: float = 0) -> Script:
    """Return a script that sends the pieces."""

    async def script(stream: trio.SocketStream, _: bytes) -> None:
        for piece in pieces:
            await stream.send_all(piece)
            await trio.sleep(pause)

    return script


def reply(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, *headers, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@dataclass
class ScriptedDaemon:
    """Admits each call, unless told otherwise."""

    max_output: int | None = None
    refuses: str | None = None
    retry_after: float | None = None
    no_run: str | None = None
    run: str = "run"
    hold: trio.Event | None = None
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    certificates: list[str] = field(default_factory=list)
    callers: list[tuple[Caller | None, str | None]] = field(default_factory=list)
    asked: list[AdmitCall] = field(default_factory=list)
    passing: list[EndCall] = field(default_factory=list)
    told: list[EndCall] = field(default_factory=list)
    silent_calls: list[SilentCall] = field(default_factory=list)
    unasked_for: list[UnaskedRequest] = field(default_factory=list)
    egress: tuple[str, ...] = ()
    keyed_only: bool = False
    plans: list[SeeWindows] = field(default_factory=list)
    holds_rejected: bool = False
    refused_hosts: list[tuple[str, str, int, str]] = field(default_factory=list)
    withdrawn: int = 0

    async def find_run(self, caller: Caller | None, token: str | None) -> CallerRun:
        await trio.lowlevel.checkpoint()
        self.callers.append((caller, token))
        if self.no_run is not None:
            raise RefusedError(self.no_run)
        egress = tuple(map(destination, self.egress))
        return CallerRun(
            self.run, self.upstreams, self.certificates, egress, self.keyed_only, "TOKEN"
        )

    async def admit(self, asked: AdmitCall) -> CallDecision:
        self.asked.append(asked)
        try:
            await trio.lowlevel.checkpoint()
            if self.hold is not None:
                await self.hold.wait()
        except trio.Cancelled:
            self.withdrawn += 1
            raise
        if self.refuses is not None:
            raise RefusedError(self.refuses, self.retry_after)
        reservation = f"reservation {len(self.asked)}"
        return CallDecision(
            id=0, reservation=reservation, max_output=self.max_output,
            holds_rejected=self.holds_rejected
        )  # fmt: skip

    def silent(self, call: SilentCall) -> None:
        self.silent_calls.append(call)

    def note(self, call: EndCall) -> None:
        self.passing.append(call)

    def ended(self, call: EndCall) -> None:
        self.told.append(call)

    def subscription_seen(self, seen: SeeWindows) -> None:
        self.plans.append(seen)

    def unasked(self, request: UnaskedRequest) -> None:
        self.unasked_for.append(request)

    def egress_refused(self, run: str, host: str, port: int, why: str) -> None:
        self.refused_hosts.append((run, host, port, why))


@dataclass
class House:
    """A gateway with its clients' door."""

    daemon: ScriptedDaemon
    port: int
    direct: int
    proxy: Proxy
    shared: Shared
    trouble: list[str]

    async def connect(self, port: int | None = None) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", port or self.port)

    async def ask(self, request: bytes, *, port: int | None = None) -> Answer:
        """Send one request on a connection of its own."""
        stream = await self.connect(port)
        async with stream:
            await stream.send_all(request)
            return await read_answer(stream, request)

    async def told(self) -> EndCall:
        """Return the first call that has ended, as soon as it has."""
        await until(lambda: bool(self.daemon.told))
        return self.daemon.told[0]


@asynccontextmanager
async def house(
    provider: Provider,
    *,
    daemon: ScriptedDaemon | None = None,
    api: str = "anthropic",
    ungated: bool = False,
    upstreams: Mapping[str, Upstream] | None = None,
    name: str = "up",
    prefix: str = "",
    most: int = MAX_CONNECTIONS,
    free: bool | Literal["auto"] = False,
) -> AsyncIterator[House]:
    """`free`: as of `Upstream`; "auto" has the provider asked whether it is a local model."""
    daemon = daemon or ScriptedDaemon()
    trouble: list[str] = []
    trust = Trust(trouble.append)
    async with (
        aclosing(UpstreamConnections(trust.context)) as connections,
        aclosing(UpstreamConnections(trust.context, proxies=False)) as passing,
        trio.open_nursery() as nursery,
        new_client(trust.context) as client,
        new_client(trust.context, proxies=False) as asking,
    ):
        behind = await trio.open_tcp_listeners(0, host="127.0.0.1")
        direct = behind[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, provider.serve, behind)
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        known = (
            upstreams
            if upstreams is not None
            else {name: Upstream(name, f"http://127.0.0.1:{direct}{prefix}", api, free=free)}
        )
        shared = Shared(
            daemon,
            client,
            connections,
            passing,
            lambda: known,
            lambda: ungated,
            Estimates(),
            LocalModels(asking),
            BodyMemory(),
            trust,
            Egress(most=most),
            BodyReader(),
            SilenceWatch(),
        )
        nursery.start_soon(shared.silence.serve)
        proxy = Proxy(shared, most=most, trouble=trouble.append)
        nursery.start_soon(proxy.serve, listener, nursery)
        try:
            port = listener.socket.getsockname()[1]
            yield House(daemon, port, direct, proxy, shared, trouble)
        finally:
            nursery.cancel_scope.cancel()
            listener.socket.close()
            behind[0].socket.close()
            proxy.close()
            with trio.CancelScope(shield=True):
                await shared.reader.close()


@dataclass
class Answer:
    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    broken: str | None = None
    """The reply was not whole."""

    def header(self, name: str) -> str | None:
        return next(
            (value.decode() for key, value in self.headers if key.lower() == name.encode()), None
        )


async def read_answer(stream: trio.SocketStream, request: bytes) -> Answer:
    http = h11.Connection(h11.CLIENT)
    method, target, _ = request.split(b" ", 2)
    http.send(
        h11.Request(method=method, target=target, headers=[("Host", "x"), ("Connection", "close")])
    )
    http.send(h11.EndOfMessage())
    answer = Answer(0, b"", [], b"")
    while True:
        try:
            event = http.next_event()
        except h11.RemoteProtocolError as error:
            answer.broken = str(error)
            return answer
        if event is h11.NEED_DATA:
            try:
                http.receive_data(await stream.receive_some(1 << 16))
            except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
                answer.broken = str(error)
                return answer
        elif isinstance(event, h11.Response):
            answer.status, answer.reason, answer.headers = (
                event.status_code,
                event.reason,
                event.headers.raw_items(),
            )
        elif isinstance(event, h11.Data):
            answer.body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return answer
        elif isinstance(event, h11.ConnectionClosed):
            answer.broken = "closed"
            return answer


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: api.example", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def reset(stream: trio.SocketStream) -> None:
    """Close a connection as a crashed program does."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    stream.socket.close()

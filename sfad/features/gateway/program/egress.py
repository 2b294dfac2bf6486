"""Ways out of a network of a run's own to hosts that are no model: a proxy by CONNECT, and for
plain HTTP by whole URLs.

The gateway looks a name up once, and connects to an address that it has checked: another lookup
could have another answer. In a tunnel, TLS must name the host that was asked for, else the name
would say nothing of where a shared address leads. No content is kept or logged.
"""

import ipaddress
import re
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

import h11
import trio

from ....host.http_connection import MAX_HEAD, HttpConnection
from ....protocol.texts.destinations import MAX_PORT, host_of
from .daemon_link import CallerRun
from .egress_rules import (
    OWN_ADDRESSES,
    Address,
    EgressRefusedError,
    Way,
    check_address,
    is_model_api,
    plain,
    way,
)
from .upstreams import downward, upward

# ---- Reads the name of the server from the first message of a TLS connection (RFC 8446, section
# 4.1.2; RFC 6066, section 3)


MAX_HELLO = 16 << 10
"""Bytes of a ClientHello. With keys that withstand quantum computers they have 2 KiB."""
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_VERSIONS = {b"", b"\x03"}
"""The first byte of a record's version, once it is there."""


class NotTlsError(Exception):
    """The first bytes are not those of a TLS connection."""


class MalformedHelloError(Exception):
    """They are, and what follows is no ClientHello that tells one name at most."""


class ClientHello:
    """Takes the bytes of a connection until its first message is whole. It may be cut into records
    at will."""

    def __init__(self) -> None:
        self._records = bytearray()
        self._message = bytearray()

    def feed(self, data: bytes) -> bool:
        """Return whether the message is whole. Raises `NotTlsError`, `MalformedHelloError`."""
        self._records += data
        while self._records:
            if self._records[0] != _HANDSHAKE or bytes(self._records[1:2]) not in _VERSIONS:
                raise (
                    MalformedHelloError("a record of another type is in it")
                    if self._message
                    else NotTlsError
                )
            size = int.from_bytes(self._records[3:_RECORD_HEAD])
            end = _RECORD_HEAD + size
            if len(self._records) < _RECORD_HEAD or (size and len(self._records) < end):
                break
            if not size:
                raise MalformedHelloError("a record of it is empty")
            self._message += self._records[_RECORD_HEAD:end]
            del self._records[:end]
            if self._is_whole():
                return True
        if len(self._records) + len(self._message) > MAX_HELLO:
            raise MalformedHelloError(f"it has more than {MAX_HELLO >> 10} KiB")
        return False

    def _is_whole(self) -> bool:
        size = int.from_bytes(self._message[1:_MESSAGE_HEAD])
        return len(self._message) >= _MESSAGE_HEAD and len(self._message) >= _MESSAGE_HEAD + size

    def server_name(self) -> str | None:
        """Return the name in the whole message, in lower case; `None` if there is none. Raises
        `MalformedHelloError`."""
        try:
            names = _names(_Reader(bytes(self._message)))
        except (IndexError, UnicodeDecodeError) as error:
            raise MalformedHelloError("it is malformed") from error
        if len(names) > 1:
            raise MalformedHelloError("it has several names of servers")
        return names[0].lower() if names else None


class _Reader:
    """Raises `IndexError` where bytes are missing."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bool__(self) -> bool:
        return bool(self._data)

    def take(self, size: int) -> bytes:
        if size > len(self._data):
            raise IndexError
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def rest(self) -> bytes:
        return self._data

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> "_Reader":
        """Return what follows its length, which has `size` bytes."""
        return _Reader(self.take(self.number(size)))


def _names(message: _Reader) -> list[str]:
    if message.number(1) != _CLIENT_HELLO:
        raise IndexError
    hello = message.vector(3)
    hello.take(2 + 32)  # version and random
    hello.vector(1)  # session
    hello.vector(2)  # ciphers
    hello.vector(1)  # compression
    names, extensions = [], hello.vector(2) if hello else hello
    while extensions:
        kind, content = extensions.number(2), extensions.vector(2)
        entries = content.vector(2) if kind == _SERVER_NAME else None
        while entries:
            if entries.number(1) != _HOST_NAME:
                raise IndexError
            names.append(entries.vector(2).rest().decode("ascii"))
    return names


# ---- The proxy


MOST_OF_RUN = 64
"""Connections of a run at a time, of the 256 that its sandbox can have: its calls need some. npm
takes 15 for each host."""
MOST_LOOKUPS = 16
"""Threads that look up names, so that slow ones leave other threads to calls."""
LOOKUP_TIMEOUT = 20.0
CONNECT_TIMEOUT = 15.0
"""Seconds for each address of a host."""
MOST_ADDRESSES = 4
IDLE_TIMEOUT = 600.0
"""Seconds in which no byte passes."""
REMEMBERED = 300.0
"""Seconds for which the addresses of a model's API are not looked up again."""
HTTPS = 443
_PIECE = 64 << 10
_UNRECOGNISED_NAME = bytes.fromhex("15030100020270")
"""The alert of TLS that programs print best: unrecognized_name, fatal."""
_AUTHORITY = re.compile(r"(?P<host>.+):(?P<port>[0-9]{1,5})")
_URL = re.compile(
    r"(?i:http)://(?P<host>[^/?#@]+?)(?::(?P<port>[0-9]{1,5}))?(?P<path>/[^?#]*)?(?P<query>\?[^#]*)?"
)

Endpoint = tuple[str, int]
"""A host, in the spelling of `host_of`, and a port."""


class NoWayError(Exception):
    """The gateway cannot lead there, for a reason that is not a refusal."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Target(NamedTuple):
    """Where a request is to go. `path`: of plain HTTP; `None` for a tunnel."""

    host: str
    port: int
    path: str | None

    @property
    def shown(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_outward(request: h11.Request) -> bool:
    """Return whether a request is one to a proxy."""
    return (
        request.method == b"CONNECT"
        or re.match(rb"[A-Za-z][A-Za-z0-9+.-]*://", request.target) is not None
    )


def target_of(request: h11.Request) -> Target:
    """Raises `NoWayError`."""
    text, tunnel = request.target.decode("ascii", "replace"), request.method == b"CONNECT"
    found = (_AUTHORITY if tunnel else _URL).fullmatch(text)
    if found is not None and 0 < int(found["port"] or 80) <= MAX_PORT:
        path = None if tunnel else (found["path"] or "/") + (found["query"] or "")
        with suppress(ValueError):
            return Target(host_of(found["host"]), int(found["port"] or 80), path)
    raise NoWayError(
        400, f"the gateway leads by CONNECT HOST:PORT, and by http://HOST/, not by {text[:80]!r}"
    )


class Egress:
    """The ways out of all runs."""

    def __init__(self, *, most: int) -> None:
        """`most`: connections at a time."""
        self._most = most
        self._open: Counter[str] = Counter()
        self._lookups = trio.CapacityLimiter(MOST_LOOKUPS)
        self._known: dict[str, tuple[float, list[Address]]] = {}

    async def serve(
        self,
        http: HttpConnection,
        request: h11.Request,
        target: Target,
        found_run: CallerRun,
        upstreams: Collection[Endpoint],
    ) -> None:
        """Answer a request of a run. Raises `EgressRefusedError`, `NoWayError`,
        `ClientGoneError`."""
        found = way(target.host, target.port, found_run.egress, upstreams)
        with self._room(found_run.run):
            server = await self._connected(found, upstreams)
            async with server:
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
                if target.path is None:
                    await _Tunnel(http.stream, server, found).serve(await http.switch())
                else:
                    await _exchange(http, request, target, server)

    @contextmanager
    def _room(self, run: str) -> Iterator[None]:
        if self._open[run] >= MOST_OF_RUN or self._open.total() >= self._most:
            raise NoWayError(
                503,
                (
                    f"there are {MOST_OF_RUN} connections of the run, "
                    f"or {self._most} in all: close some"
                ),
            )
        self._open[run] += 1
        try:
            yield
        finally:
            self._open[run] -= 1
            self._open += Counter()  # forgets those without any

    async def _connected(self, found: Way, upstreams: Collection[Endpoint]) -> trio.SocketStream:
        why: object = "it has no address"
        for address in await self._addresses(found, upstreams):
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            stream = trio.SocketStream(trio.socket.socket(family, socket.SOCK_STREAM))
            try:
                with trio.fail_after(CONNECT_TIMEOUT):
                    await stream.socket.connect((str(address), found.port))
                if (
                    not found.named
                    and stream.socket.getsockname()[0] == stream.socket.getpeername()[0]
                ):
                    raise EgressRefusedError(
                        f"its address {address} is one of this machine; "
                        "--egress would have to name it"
                    )
            except (OSError, trio.TooSlowError) as error:
                await trio.aclose_forcefully(stream)
                why = error or f"{address} has not answered for {CONNECT_TIMEOUT:g} s"
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            else:
                return stream
        raise NoWayError(502, f"the gateway cannot connect to {found.host}: {why}")

    async def _addresses(self, found: Way, upstreams: Collection[Endpoint]) -> list[Address]:
        """Return where a host is, as far as a run may go there. Raises `EgressRefusedError`,
        `NoWayError`."""
        try:
            addresses = await self._looked_up(found.host)
        except OSError as error:
            raise NoWayError(502, f"the gateway cannot look up {found.host}: {error}") from error
        models = set() if found.named else await self._models(upstreams)
        allowed, refusal = [], None
        for address in addresses:
            try:
                check_address(found, address, models)
                allowed.append(address)
            except EgressRefusedError as error:
                refusal = error
        if refusal is not None and not allowed:
            raise refusal
        return allowed[:MOST_ADDRESSES]

    async def _models(self, upstreams: Collection[Endpoint]) -> set[tuple[Address, int]]:
        """Return where APIs of models are at whose addresses nothing else is."""
        known = {(host, HTTPS) for host in OWN_ADDRESSES} | {
            each for each in upstreams if not is_model_api(each[0])
        }
        places = set()
        for host, port in sorted(known):
            until, addresses = self._known.get(host, (0.0, []))
            if until < trio.current_time():
                with suppress(OSError):  # nor does a call find it then
                    addresses = await self._looked_up(host)
                self._known[host] = trio.current_time() + REMEMBERED, addresses
            places |= {(plain(address), port) for address in addresses}
        return places

    async def _looked_up(self, host: str) -> list[Address]:
        ask = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        with trio.move_on_after(LOOKUP_TIMEOUT):
            found = await trio.to_thread.run_sync(
                ask, limiter=self._lookups, abandon_on_cancel=True
            )
            return [ipaddress.ip_address(each[4][0]) for each in found]
        raise OSError(f"no answer for {LOOKUP_TIMEOUT:g} s")


class _Tunnel:
    """Passes bytes both ways. Each way waits until what it has read is taken; one may end before
    the other."""

    def __init__(self, client: trio.SocketStream, server: trio.SocketStream, found: Way) -> None:
        self._client, self._server = client, server
        self._way = found
        self._scope = trio.CancelScope()
        self._refusal: EgressRefusedError | None = None

    async def serve(self, first: bytes) -> None:
        """Serve until both ways have ended, or nothing has passed for long. Raises
        `EgressRefusedError`."""
        with self._scope:
            self._moved()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._out, first)
                nursery.start_soon(self._copy, self._server, self._client)
        if self._refusal is not None:
            with trio.move_on_after(1), suppress(trio.BrokenResourceError):
                await self._client.send_all(_UNRECOGNISED_NAME)
            raise self._refusal

    def _moved(self) -> None:
        self._scope.deadline = trio.current_time() + IDLE_TIMEOUT

    async def _out(self, first: bytes) -> None:
        try:
            await self._server.send_all(await self._checked(first))
        except EgressRefusedError as error:
            self._refusal = error
            self._scope.cancel()
        except trio.BrokenResourceError:
            self._scope.cancel()
        else:
            await self._copy(self._client, self._server)

    async def _copy(self, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(_PIECE):
                self._moved()
                await sink.send_all(data)
            await sink.send_eof()
        except trio.BrokenResourceError:
            self._scope.cancel()

    async def _checked(self, data: bytes) -> bytes:
        """Return the client's first bytes, once TLS in them names the host that was asked for.
        Raises `EgressRefusedError`."""
        hello, held = ClientHello(), data
        try:
            while not hello.feed(data):
                if not (data := await self._client.receive_some(_PIECE)):
                    return held
                self._moved()
                held += data
            self._check_name(hello.server_name())
        except MalformedHelloError as error:
            raise EgressRefusedError(f"the name in its TLS cannot be read: {error}") from error
        except NotTlsError:
            if self._way.port == HTTPS and not self._way.named:
                raise EgressRefusedError(
                    f"what is sent to its port {HTTPS} is not TLS; --egress would have to name it"
                ) from None
        return held

    def _check_name(self, name: str | None) -> None:
        if name is None and not self._way.named:
            raise EgressRefusedError("its TLS tells no name; --egress would have to name it")
        if name is not None and name.removesuffix(".") != self._way.host:
            raise EgressRefusedError(f"its TLS is meant for {name[:255]!r}")


async def _exchange(
    http: HttpConnection, request: h11.Request, target: Target, server: trio.SocketStream
) -> None:
    """Pass a request of plain HTTP, and its reply. Raises `ClientGoneError`, `NoWayError`."""
    assert target.path is not None
    host = target.shown.removesuffix(":80").encode()
    headers = [
        (b"Host", host),
        *upward(request.headers.raw_items(), None, ""),
        *_length(request.headers),
        (b"Connection", b"close"),
    ]
    peer = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
    try:
        # it may have answered a request that it does not take
        with suppress(trio.BrokenResourceError):
            await _send(
                server,
                peer,
                h11.Request(method=request.method, target=target.path, headers=headers),
            )
            while piece := await http.body():
                await _send(server, peer, h11.Data(data=piece))
            await _send(server, peer, h11.EndOfMessage())
        while not isinstance(event := await _next(server, peer), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                found = [
                    each
                    for each in downward(event.headers.raw_items())
                    if each[0].lower() != b"content-length"
                ]
                await http.head(
                    event.status_code,
                    [*found, *_length(event.headers, chunked=False)],
                    bytes(event.reason),
                )
            elif isinstance(event, h11.Data):
                await http.piece(bytes(event.data))
        await http.end()
        await http.discard()
    except (h11.ProtocolError, trio.BrokenResourceError, trio.TooSlowError) as error:
        raise NoWayError(
            502, f"{target.shown} does not answer as it should: {error or 'it is silent'}"
        ) from error


def _length(
    headers: Iterable[tuple[bytes, bytes]], *, chunked: bool = True
) -> list[tuple[bytes, bytes]]:
    """Return the header that says how long a body is. Beside chunks a length means nothing, and a
    server could believe it. `chunked`: chunks are said; else h11 does that where no length is
    said."""
    if any(name == b"transfer-encoding" for name, _ in headers):
        return [(b"Transfer-Encoding", b"chunked")] if chunked else []
    return [(b"Content-Length", value) for name, value in headers if name == b"content-length"][:1]


async def _send(server: trio.SocketStream, peer: h11.Connection, event: h11.Event) -> None:
    with trio.fail_after(IDLE_TIMEOUT):
        await server.send_all(peer.send(event) or b"")


async def _next(server: trio.SocketStream, peer: h11.Connection) -> h11.Event:
    """Return what comes next of a reply. Raises `h11.RemoteProtocolError`,
    `trio.BrokenResourceError`, `trio.TooSlowError`."""
    while True:
        event = peer.next_event()
        if isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("it has closed the connection")
        if not isinstance(event, type):
            return event
        with trio.fail_after(IDLE_TIMEOUT):
            peer.receive_data(await server.receive_some(_PIECE))

"""Connections to upstreams, through the proxies of the environment, kept for later calls. They are
httpcore2's; its pool, and httpx2 above it, would double what it costs to make a call: they follow
redirects, keep cookies and look at each connection twice."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import nullcontext
from functools import lru_cache, partial
from math import inf
from typing import Any, NamedTuple

import httpcore2
import httpx2
import trio

from ....host import streams
from .upstreams import proxy_of

CONNECT_TIMEOUT = 60.0
"""Seconds until an upstream has taken a connection, TLS included."""
CLOSE_TIMEOUT = 5.0
"""Seconds to say goodbye to an upstream."""
KEPT, KEPT_FOR = 100, 50.0
"""Connections that are kept for later calls, and for how many seconds: load balancers often have
60."""

FAILURES = (
    httpcore2.TimeoutException,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.UnsupportedProtocol,
)
NOT_SENT = httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.ProxyError
"""Failures before the upstream could have the request."""


def new_client(context: ssl.SSLContext, *, proxies: bool = True) -> httpx2.AsyncClient:
    """Return what makes the gateway's own requests, through the proxies of the environment if that
    is wanted."""
    timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT)
    return httpx2.AsyncClient(
        verify=context, trust_env=proxies, timeout=timeout, follow_redirects=False
    )


class Address(NamedTuple):
    """Where a request goes."""

    url: httpcore2.URL
    host: str
    port: int
    """Also if the URL names none."""
    authority: bytes
    """As `Host` says it."""


@lru_cache(256)
def address_of(url: str) -> Address:
    """Return a URL in parts; to read it costs more than to write a request. Raises
    `httpx2.InvalidURL`."""
    found = httpx2.URL(url)
    scheme = found.raw_scheme
    return Address(
        httpcore2.URL(scheme=scheme, host=found.raw_host, port=found.port, target=found.raw_path),
        found.host,
        found.port or (443 if scheme == b"https" else 80),
        found.netloc,
    )


class Reply:
    """The head of a reply, and its body as it comes."""

    def __init__(
        self, status: int, headers: list[tuple[bytes, bytes]], reason: bytes = b""
    ) -> None:
        self.status = status
        self.raw_headers = headers
        self.headers = httpx2.Headers(headers)
        self.reason = reason

    @property
    def redirects(self) -> bool:
        return self.status in {301, 302, 303, 307, 308} and "location" in self.headers


class UpstreamConnections:
    def __init__(self, context: ssl.SSLContext, *, proxies: bool = True) -> None:
        """`context`: says which certificates are trusted. `proxies`: whether those of the
        environment are used.

        HTTP/1.1 only: over HTTP/2, httpcore2 does not reset the stream of a call whose caller hangs
        up (https://github.com/encode/httpcore/issues/943). The provider would go on, bill it, and
        use up the window of the connection that other calls share."""
        self._context = context
        self._proxies = proxies
        self._pools: dict[str | None, httpcore2.AsyncConnectionPool] = {}
        """They make connections. By proxy."""
        self._idle: dict[httpcore2.AsyncConnectionInterface, tuple[_Way, float]] = {}
        """With when each is closed at the latest; the oldest first."""

    async def send(
        self,
        method: str,
        address: Address,
        headers: list[tuple[bytes, bytes]],
        body: bytes | AsyncIterable[bytes] | None,
    ) -> "OpenReply":
        """Send a request, and return its reply, which has to be closed. Raises one of
        `FAILURES`."""
        url = address.url
        if url.scheme not in {b"http", b"https"}:
            raise httpcore2.UnsupportedProtocol(f"{url.scheme.decode()}:// is not http or https")
        # how long a model may think is the provider's and the agent's business
        more = {"timeout": {"connect": CONNECT_TIMEOUT}}
        request = httpcore2.Request(method, url, headers=headers, content=body, extensions=more)
        way = url.scheme, url.host, address.port
        connection = await self._take(way) or self._new(url)
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await self.release(connection, way)
            raise
        return OpenReply(response, partial(self.release, connection, way))

    def _new(self, url: httpcore2.URL) -> httpcore2.AsyncConnectionInterface:
        proxy = proxy_of(_text_of(url)) if self._proxies else None
        pool = self._pools.get(proxy)
        if pool is None:
            pool = self._pools[proxy] = _pool(proxy, self._context)
        return pool.create_connection(url.origin)

    async def _take(self, way: "_Way") -> httpcore2.AsyncConnectionInterface | None:
        for connection in [each for each, (its, _) in self._idle.items() if its == way][::-1]:
            # while another is closed, a third task may have taken it
            if self._idle.pop(connection, None) is not None:
                if not connection.has_expired():
                    return connection
                await _close(connection)
        return None

    async def release(self, connection: httpcore2.AsyncConnectionInterface, way: "_Way") -> None:
        """Keep a connection for later calls if its reply has come as a whole, else close it."""
        if not connection.is_idle():
            await _close(connection)
            return
        now = trio.current_time()
        self._idle[connection] = way, now + KEPT_FOR
        while len(self._idle) > KEPT or next(iter(self._idle.values()))[1] < now:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            await _close(oldest)

    async def aclose(self) -> None:
        """Close those that are kept."""
        while self._idle:
            await _close(self._idle.popitem()[0])


class OpenReply(Reply):
    """A reply whose body comes."""

    def __init__(
        self, response: httpcore2.Response, release: Callable[[], Awaitable[None]]
    ) -> None:
        reason = response.extensions.get("reason_phrase", b"")
        super().__init__(response.status, response.headers, reason)
        self._response = response
        self._release: Callable[[], Awaitable[None]] | None = release
        stream: Any = response.stream  # httpcore2 types it as what can also be none to await
        self.pieces: AsyncGenerator[bytes] = aiter(stream)

    async def aclose(self) -> None:
        """Release the connection. What is not kept is closed, also if this is cancelled."""
        release, self._release = self._release, None
        if release is None:
            return
        # a scope costs as much as all else here
        is_cancelled = trio.current_effective_deadline() == -inf
        closing = trio.move_on_after(CLOSE_TIMEOUT, shield=True) if is_cancelled else nullcontext()
        try:
            with closing:
                await self.pieces.aclose()
                await self._response.aclose()
        finally:
            await release()


_Way = tuple[bytes, bytes, int]
"""Scheme, host and port."""


async def _close(connection: httpcore2.AsyncConnectionInterface) -> None:
    if not connection.is_closed():
        with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await connection.aclose()


def _text_of(url: httpcore2.URL) -> str:
    return bytes(url).decode("ascii")


def _pool(proxy: str | None, context: ssl.SSLContext) -> httpcore2.AsyncConnectionPool:
    """Return what makes connections through a proxy; `None`: through none."""
    common: dict[str, Any] = {
        "ssl_context": context,
        "network_backend": _Backend(),
        "keepalive_expiry": KEPT_FOR,
    }
    if proxy is None:
        return httpcore2.AsyncConnectionPool(**common)
    found = httpx2.Proxy(proxy)
    url = httpcore2.URL(
        scheme=found.url.raw_scheme,
        host=found.url.raw_host,
        port=found.url.port,
        target=found.url.raw_path,
    )
    if found.url.scheme.startswith("socks"):
        return httpcore2.AsyncSOCKSProxy(proxy_url=url, proxy_auth=found.raw_auth, **common)
    return httpcore2.AsyncHTTPProxy(proxy_url=url, proxy_auth=found.raw_auth, **common)


class _Backend(httpcore2.TrioBackend):
    async def connect_tcp(self, *args: Any, **more: Any) -> httpcore2.AsyncNetworkStream:
        return _Stream(await super().connect_tcp(*args, **more))


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection as long as it has no TLS."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._socket: trio.socket.SocketType = stream.get_extra_info("socket")

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del timeout
        try:
            return await streams.read(self._socket, max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        sent = streams.write(self._socket, buffer)
        if sent < len(buffer):
            await self._stream.write(buffer[sent:], timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(self, *args: Any, **more: Any) -> httpcore2.AsyncNetworkStream:
        return await self._stream.start_tls(*args, **more)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

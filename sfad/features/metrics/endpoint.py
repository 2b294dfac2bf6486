"""Serves the metrics to Prometheus by HTTP, on loopback or a Unix socket, where `metrics.listen` is
set.

A connection gets one reply and is closed. Clients are not trusted: on loopback each user of the
machine, and each run, may connect.
"""

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import trio

from ...host.log import Log
from ...host.socket_file import PathError, bind_socket, unbind_socket
from .feature import MetricsConfig, listen_address

MAX_CONNECTIONS = 8
"""Of more, the one that the daemon has waited for longest is closed: a client that asks nothing
must not keep the others out."""
BACKLOG = 128
TIMEOUT = 10.0
"""Seconds for a whole connection: Prometheus waits as long for a scrape, unless it is told
otherwise."""
RETRY = 0.25
"""Seconds until connections are accepted again after the daemon had no descriptor for one."""

PAUSE = 0.02
"""Seconds between two connections: a client that connects again and again must not keep the daemon
busy."""


class _Client:
    """One connection: whether the daemon waits for it, or has its request and makes the text."""

    def __init__(self, stream: trio.SocketStream, text: Callable[[], Awaitable[str]]) -> None:
        self.stream = stream
        self.scope = trio.CancelScope()
        self.awaited = True
        self._text = text

    async def text(self) -> str:
        self.awaited = False
        try:
            return await self._text()
        finally:
            self.awaited = True


class MetricsEndpoint:
    def __init__(self, config: MetricsConfig, text: Callable[[], Awaitable[str]], log: Log) -> None:
        """`text` returns the metrics. It may raise `OSError`."""
        self._text = text
        self._log = log
        self._config = config
        self._changed = trio.Event()
        self._places = trio.CapacityLimiter(MAX_CONNECTIONS)
        self._clients: dict[_Client, None] = {}
        """Those that have a place, oldest first."""
        self.trouble: str | None = None
        """Why it does not serve although it should."""

    @property
    def listen(self) -> str | None:
        """The address in the config."""
        return self._config.listen

    def reconfigure(self, config: MetricsConfig) -> None:
        if config != self._config or self.trouble is not None:
            self._config = config
            self._changed.set()

    async def serve(self) -> None:
        """Serve where the config says, until cancelled."""
        while True:
            self._changed = trio.Event()
            async with trio.open_nursery() as nursery:
                if self._config.listen is not None:
                    nursery.start_soon(self._listen, self._config.listen)
                await self._changed.wait()
                nursery.cancel_scope.cancel()

    async def _listen(self, text: str) -> None:
        address = listen_address(text)
        try:
            listener = _bound(address)
        except (OSError, PathError) as error:
            self.trouble = str(error)
            self._log.error(
                f"metrics are not served at {text}: {error}; "
                "correct metrics.listen, then run 'sfactl reload'"
            )
            return
        self.trouble = None
        self._log.info("metrics", listen=text)
        try:
            with trio.socket.from_stdlib_socket(listener) as accepting:
                await self._accept(accepting, local=isinstance(address, tuple))
        finally:
            if isinstance(address, Path):
                # another user's directory now: the next daemon replaces a stale socket
                with suppress(PathError):
                    unbind_socket(address)

    async def _accept(self, listener: trio.socket.SocketType, *, local: bool) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    accepted, _ = await listener.accept()
                except OSError:  # the client has gone already, or there is no descriptor
                    await trio.sleep(RETRY)
                    continue
                client = _Client(trio.SocketStream(accepted), self._text)
                try:
                    self._make_room()
                    await self._places.acquire_on_behalf_of(client)
                except trio.Cancelled:
                    accepted.close()
                    raise
                self._clients[client] = None
                nursery.start_soon(self._serve_one, client, local)
                await trio.sleep(PAUSE)

    def _make_room(self) -> None:
        if not self._places.available_tokens:
            for client in self._clients:
                if client.awaited:
                    client.scope.cancel()
                    return

    async def _serve_one(self, client: _Client, local: bool) -> None:
        # imports h11, which a daemon without an endpoint does not need
        from .scrapes import answer_scrape

        try:
            with client.scope, trio.move_on_after(TIMEOUT):
                await answer_scrape(client.stream, client.text, local=local)
        except Exception:  # noqa: BLE001 - a bug in one reply must not end the others
            self._log.internal_error(self)
        finally:
            client.stream.socket.close()
            self._clients.pop(client)
            self._places.release_on_behalf_of(client)


def _bound(address: Path | tuple[str, int]) -> socket.socket:
    """Return a listener. Raises `OSError`, `PathError`."""
    if isinstance(address, Path):
        return bind_socket(address)
    listener = socket.socket(
        socket.AF_INET6 if ":" in address[0] else socket.AF_INET,
        socket.SOCK_STREAM | socket.SOCK_CLOEXEC,
    )
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener

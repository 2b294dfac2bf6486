"""Serves the connections of the agents."""

import errno
import socket
from collections.abc import Callable

import trio

from .callers import Kernel
from .exchange import Exchange, Shared
from .http_server import ClientGoneError, HttpServer

MAX_CONNECTIONS = 2048
"""Connections at a time. At this bound each new one closes the oldest that has no request; if all have one, it waits in the
listener's queue."""
SPARE_DESCRIPTORS = 150
"""Connections to upstreams that are kept for later calls, and the gateway's own files."""
LOOK_AGAIN = 0.1
"""Seconds until a full gateway looks again for a connection without a request."""
_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Proxy:
    def __init__(self, shared: Shared, *, most: int = MAX_CONNECTIONS, trouble: Callable[[str], None]) -> None:
        """`most`: connections at a time."""
        self._shared = shared
        self._most = most
        self._trouble = trouble
        self._kernel = Kernel()
        self._connections: dict[HttpServer, trio.CancelScope] = {}
        """The oldest first."""
        self._closed = trio.lowlevel.ParkingLot()
        self.under_way = 0
        """Requests that are being answered."""
        self._idle = trio.lowlevel.ParkingLot()

    async def serve(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        """Accept connections, each served in `nursery`."""
        while True:
            try:
                await trio.lowlevel.wait_readable(listener.socket)
                await self._make_room()
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
                self._trouble(f"no connection can be accepted: {error}")
                await trio.sleep(0.1)
                continue
            http = HttpServer(stream)
            self._connections[http] = trio.CancelScope()
            nursery.start_soon(self._serve, http)

    async def _make_room(self) -> None:
        while len(self._connections) >= self._most:
            unused = next((scope for http, scope in self._connections.items() if http.wants_request), None)
            if unused is not None:
                unused.cancel()
            with trio.move_on_after(LOOK_AGAIN):
                await self._closed.park()

    def close(self) -> None:
        self._kernel.close()

    async def idle(self) -> None:
        """Return when no request is being answered."""
        if self.under_way:
            await self._idle.park()

    async def _serve(self, http: HttpServer) -> None:
        try:
            with self._connections[http]:
                http.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
                await self._exchanges(http)
        except (ClientGoneError, trio.BrokenResourceError):
            pass  # whose call it was has been told
        except Exception as error:  # noqa: BLE001 - a fault in one connection must not end the others
            self._trouble(f"internal error in a connection: {type(error).__name__}: {error}")
        finally:
            del self._connections[http]
            await trio.aclose_forcefully(http.stream)
            self._closed.unpark()

    async def _exchanges(self, http: HttpServer) -> None:
        while (request := await http.request()) is not None:
            # its other end may have been handed to another process between two requests, but the socket stays of one cgroup
            caller = self._kernel.caller(http.stream.socket)
            self.under_way += 1
            try:
                await Exchange(self._shared, http, request, caller).run()
            finally:
                self.under_way -= 1
                if not self.under_way:
                    self._idle.unpark_all()
            if not http.next():
                return

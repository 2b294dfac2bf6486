"""Serves the connections of the agents."""

import errno
import socket
from collections.abc import Callable

import trio

from .callers import Kernel
from .exchange import Exchange, Places, Shared
from .http_server import ClientGoneError, HttpServer

MAX_CONNECTIONS = 2048
"""Connections at a time. A run that opens more waits in the listener's queue with all others."""
_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Proxy:
    def __init__(self, shared: Shared, *, trouble: Callable[[str], None]) -> None:
        self._shared = shared
        self._trouble = trouble
        self._kernel = Kernel()
        self._room = trio.Semaphore(MAX_CONNECTIONS)
        self.under_way = 0
        """Requests that are being answered."""
        self._idle = trio.lowlevel.ParkingLot()

    async def serve(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        """Accept connections, each served in `nursery`."""
        while True:
            await self._room.acquire()
            try:
                stream = await listener.accept()
            except OSError as error:
                self._room.release()
                if error.errno not in _SHORT:
                    raise
                self._trouble(f"no connection can be accepted: {error}")
                await trio.sleep(0.1)
                continue
            nursery.start_soon(self._serve, stream)

    def close(self) -> None:
        self._kernel.close()

    async def idle(self) -> None:
        """Return when no request is being answered."""
        if self.under_way:
            await self._idle.park()

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            await self._exchanges(stream)
        except (ClientGoneError, trio.BrokenResourceError):
            pass  # whose call it was has been told
        except Exception as error:  # noqa: BLE001 - a fault in one connection must not end the others
            self._trouble(f"internal error in a connection: {type(error).__name__}: {error}")
        finally:
            self._room.release()
            await trio.aclose_forcefully(stream)

    async def _exchanges(self, stream: trio.SocketStream) -> None:
        http = HttpServer(stream)
        placed: Places = {}
        while (request := await http.request()) is not None:
            # its other end may have been handed to another process between two requests, but the socket stays of one cgroup
            caller = self._kernel.caller(stream.socket)
            self.under_way += 1
            try:
                await Exchange(self._shared, http, request, caller, placed).run()
            finally:
                self.under_way -= 1
                if not self.under_way:
                    self._idle.unpark_all()
            if not http.next():
                return

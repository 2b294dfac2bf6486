"""Serves the connections of the agents."""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress

import trio
from msgspec import Struct, field

from ....host.http_connection import ClientGoneError, HttpConnection
from ....host.linux.callers import Caller, ConnectionTable
from .exchange import Exchange, Shared
from .hangup_watch import HangupWatch

MAX_CONNECTIONS = 2048
"""Connections at a time. A user has at most half of what other users leave, and a run half of what
its user's other runs leave. Above that, a new connection closes the oldest of the same run that has
no request; if all have one, it is refused."""
SPARE_DESCRIPTORS = 150
"""Connections to upstreams that are kept for later calls, and the gateway's own files."""
_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_TOO_MANY = (
    b"the gateway serves as many connections of this run as others leave room for; try again\n"
)
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
    % (len(_TOO_MANY), _TOO_MANY)
)


class _Connection(Struct, eq=False):
    http: HttpConnection
    caller: Caller
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Proxy:
    def __init__(
        self, shared: Shared, *, most: int = MAX_CONNECTIONS, trouble: Callable[[str], None]
    ) -> None:
        """`most`: connections at a time."""
        self._shared = shared
        self._most = most
        self._trouble = trouble
        self._callers = ConnectionTable()
        self._hangups = HangupWatch()
        self._connections: dict[_Connection, None] = {}
        """The oldest first."""
        self.under_way = 0
        """Requests that are being answered."""
        self._idle = trio.lowlevel.ParkingLot()

    async def serve(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        """Accept connections, each served in `nursery`."""
        nursery.start_soon(self._hangups.serve)
        while True:
            try:
                stream = await listener.accept()
                caller = self._callers.caller(stream.socket)
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
                self._trouble(f"no connection can be accepted: {error}")
                await trio.sleep(0.1)
                continue
            if caller is None or not self._has_room(caller):
                with suppress(OSError):
                    os.write(stream.socket.fileno(), _REFUSAL)
                await trio.aclose_forcefully(stream)
                continue
            connection = _Connection(HttpConnection(stream), caller)
            self._connections[connection] = None
            nursery.start_soon(self._serve, connection, nursery)

    def _has_room(self, caller: Caller) -> bool:
        """Return whether a connection of a caller may be served. Close one of the same run for it
        if need be."""
        of_user = [each for each in self._connections if each.caller.uid == caller.uid]
        of_run = [each for each in of_user if each.caller.cgroup == caller.cgroup]
        users = (self._most - (len(self._connections) - len(of_user))) // 2
        if len(of_run) < max(1, (users - (len(of_user) - len(of_run))) // 2):
            return True
        unused = next((each for each in of_run if each.http.wants_request), None)
        if unused is None:
            return False
        del self._connections[unused]
        unused.scope.cancel()
        return True

    def close(self) -> None:
        self._callers.close()

    async def idle(self) -> None:
        """Return when no request is being answered."""
        if self.under_way:
            await self._idle.park()

    async def _serve(self, connection: _Connection, nursery: trio.Nursery) -> None:
        http = connection.http
        try:
            with connection.scope:
                http.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
                self._hangups.add(http)
                await self._exchanges(connection, nursery)
        except (ClientGoneError, trio.BrokenResourceError):
            pass  # whose call it was has been told
        except Exception as error:  # noqa: BLE001 - a fault in one connection must not end the others
            self._trouble(f"internal error in a connection: {type(error).__name__}: {error}")
        finally:
            self._connections.pop(connection, None)
            self._hangups.remove(http)
            await trio.aclose_forcefully(http.stream)

    async def _exchanges(self, connection: _Connection, nursery: trio.Nursery) -> None:
        http = connection.http
        while (request := await http.request()) is not None:
            # its other end may have been handed to another process between two requests, but the
            # socket stays of one cgroup
            caller = self._callers.caller(http.stream.socket)
            self.under_way += 1
            try:
                await Exchange(self._shared, http, request, caller, connection.scope, nursery).run()
            finally:
                self.under_way -= 1
                if not self.under_way:
                    self._idle.unpark_all()
            if not http.next():
                return

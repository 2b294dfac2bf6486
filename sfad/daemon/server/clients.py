"""The connected clients: which are let in, what each makes the daemon keep, and which are dropped.

Everything that a client can make the daemon keep has a bound: see `shares`. The bound of time is
here.
"""

import select
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress

import trio

from ...core import events as e
from ...core.state.access import Peer
from ...durable.handover import Connected
from ...host.linux import descriptors
from ...host.linux.descriptors import close_soon
from ...protocol.messages import Error, pack_message
from ...protocol.types import ErrorCode, RunId
from ..loop.pending_requests import PendingRequests
from ..loop.resources import Resources
from .asker import withdraw_calls
from .connection import MAX_UNSENT, Connection
from .shares import ClientBounds, PeerGroups, ShareGroup

FRAME_TIME = 10.0
"""Seconds for the handshake, and for the rest of a frame that has begun."""


class ClientTable:
    """The open connections. The epoll watches each, the bounds count it, and it is dropped here."""

    def __init__(
        self,
        epoll: select.epoll,
        resources: Resources,
        requests: PendingRequests,
        feed: e.Feed,
        root: Callable[[RunId], RunId],
        bounds: ClientBounds,
        identify: Callable[[socket.socket], Peer],
        last_number: int,
    ) -> None:
        """`root` returns the root of a run."""
        self.by_fd: dict[int, Connection] = {}
        """Read by others, changed here only."""
        self.last_number = last_number
        """The highest that a connection has had."""
        self._epoll = epoll
        self._resources = resources
        self._requests = requests
        self._feed = feed
        self._root = root
        self._bounds = bounds
        self._identify = identify

    def admit(self, sock: socket.socket) -> None:
        """Take a connection, or say why not. A client that never says hello counts as well, so it
        is identified first."""
        peer = self._identified(sock)
        groups = self._groups(peer)
        refusal = descriptors.refusal(str(groups.lane)) or self._bounds.refusal(groups, uncounted=1)
        if refusal is not None:
            with suppress(OSError):
                sock.send(pack_message(Error(id=0, code=ErrorCode.UNAVAILABLE, message=refusal)))
            close_soon([sock.detach()], str(groups.lane))
            return
        self.last_number += 1
        connection = self._add(sock, self.last_number, peer)
        connection.count_load(self._bounds)
        self.give_time(connection)

    def take_over(self, handed: Connected) -> Connection:
        """Take a connection over from the program that this process was before."""
        sock = socket.socket(fileno=handed.fd)
        sock.setblocking(False)
        connection = self._add(sock, handed.number, handed.peer)
        connection.take_over(handed)
        self._update_epoll(connection)
        connection.count_load(self._bounds)
        return connection

    def _add(self, sock: socket.socket, number: int, peer: Peer) -> Connection:
        connection = Connection(sock, number, peer, self._groups(peer), self.watch_output)
        self.by_fd[connection.fd] = connection
        self._epoll.register(sock, select.EPOLLIN)
        return connection

    def _identified(self, sock: socket.socket) -> Peer:
        try:
            return self._identify(sock)
        except Exception as error:  # noqa: BLE001 - a peer with odd data in /proc must not crash the daemon
            self._resources.log.error(
                "a peer could not be identified", traceback=traceback.format_exc()
            )
            return Peer(
                -1, "unknown", owner=False, unidentified=f"it could not be identified: {error}"
            )

    def _groups(self, peer: Peer) -> PeerGroups:
        return PeerGroups.of(peer, self._root(peer.run) if peer.run is not None else None)

    def give_time(self, connection: Connection) -> None:
        """Drop the client unless its handshake, or the rest of its frame, comes in time."""
        what = "the rest of a frame" if connection.greeted else "a handshake"

        def over() -> None:
            self.drop_with_error(
                connection, ErrorCode.BAD_REQUEST, f"{what} did not come within {FRAME_TIME:g} s"
            )

        self._resources.timers.arm(
            ("connection", connection.number), trio.current_time() + FRAME_TIME, over
        )

    def relieve_input(self, connection: Connection) -> None:
        """Drop the clients with the largest unfinished requests until each group is within its
        share."""
        shares = self._bounds.input
        for group in shares.over(connection.groups):
            while (size := shares.total(group)) > (share := shares.share(group)):
                largest = max(self._members(group), key=lambda each: each.counted.input)
                message = (
                    f"{group} left {size} bytes of requests unfinished; at most {share} are held"
                )
                self.drop_with_error(largest, ErrorCode.UNAVAILABLE, message)

    def watch_output(self, connection: Connection) -> None:
        """Count what the client has not read, drop what is too much, and have the epoll tell when
        it reads again."""
        connection.count_load(self._bounds)
        if connection.unsent_size > MAX_UNSENT and connection.messages > 1:
            self._drop_slow(
                connection,
                f"it left {connection.unsent_size} bytes unread, at most {MAX_UNSENT} are held",
            )
        self._relieve_output(connection)
        if not connection.closed:
            self._update_epoll(connection)

    def _update_epoll(self, connection: Connection) -> None:
        self._epoll.modify(
            connection.fd, select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0)
        )

    def _relieve_output(self, connection: Connection) -> None:
        """Drop the clients with the most unread bytes until each group is within its share, which a
        single reply may exceed."""
        shares = self._bounds.output
        for group in shares.over(connection.groups):
            while (size := shares.total(group)) > (share := shares.share(group)):
                largest = max(self._members(group), key=lambda each: each.counted.output)
                if largest.messages == 1 and size - largest.counted.output <= share:
                    break
                why = (
                    f"{group} left {size} bytes unread, at most {share} are held, "
                    "and this client has the most"
                )
                self._drop_slow(largest, why)

    def _members(self, group: ShareGroup) -> list[Connection]:
        return [connection for connection in self.by_fd.values() if group in connection.groups.all]

    def _drop_slow(self, connection: Connection, why: str) -> None:
        peer = connection.peer
        self._resources.counts.slow_clients += 1
        self._resources.log.warning(
            f"dropped a slow client: {why}",
            connection=connection.number,
            user=peer.user,
            run=peer.run,
        )
        self.drop(connection)

    def drop_with_error(self, connection: Connection, code: ErrorCode, message: str) -> None:
        """Drop a client that has done wrong, or has too much, and tell it why."""
        connection.send(Error(id=0, code=code, message=message))
        self.drop(connection)

    def drop_for_bug(self, connection: Connection) -> None:
        """Log the exception that is being handled, and drop the connection that caused it."""
        self._resources.log.error(
            "internal error while serving a client", traceback=traceback.format_exc()
        )
        self.drop(connection)

    def drop(self, connection: Connection) -> None:
        if connection.closed:
            return
        self._resources.timers.disarm(("connection", connection.number))
        with suppress(OSError):  # the kernel has dropped a socket that was reset
            self._epoll.unregister(connection.fd)
        del self.by_fd[connection.fd]
        if connection.peer.gateway:
            withdraw_calls(
                self._requests, connection, None, "the gateway ended while the call waited"
            )
        connection.close()
        connection.count_load(self._bounds)
        self._feed(e.ClientGone(trio.current_time(), connection.number))

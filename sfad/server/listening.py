"""The listening socket: it accepts connections, is bound again when another process removes or replaces it, and is removed at the
end, unless systemd bound it."""

import os
import select
import socket
from collections.abc import Callable
from pathlib import Path

import trio

from ..host import systemd
from ..host.audience import directory_mode, socket_mode
from ..host.displacement import Displacement
from ..host.private_files import identity
from ..host.socket_file import PathError, bind_socket, unbind_socket
from ..loop.runtime import Runtime
from ..protocol.event_types import EventType

ACCEPT_PAUSE = 1.0
"""Seconds before the next try when a connection could not be accepted for want of descriptors or memory."""

MAX_ACCEPTS = 64
"""Connections accepted in one go. A client may connect and hang up in a loop; the others have their turns in between."""


class Listener:
    def __init__(
        self,
        sock: socket.socket,
        epoll: select.epoll,
        runtime: Runtime,
        admit: Callable[[socket.socket], None],
        inode: tuple[int, int] | None = None,
    ) -> None:
        """`admit` takes each connection. `inode`: the socket's in the file system, if not the one at its path now."""
        self._path = Path(runtime.socket)
        self._epoll = epoll
        self._runtime = runtime
        self._admit = admit
        self._log = runtime.log
        self._bound_here = not systemd.listens(sock)
        """Whether this daemon has bound what is at the path: else systemd did, which also removes it."""
        self._unbound: str | None = None
        """Why no socket could be made in place of the one that is gone."""
        self._listen_on(sock, inode or identity(self._path))
        if self._bound_here and self.inode == identity(self._path):
            # that of the program which this process was before may have served others
            os.chmod(self._path, socket_mode(everyone=runtime.everyone))

    def _listen_on(self, sock: socket.socket, inode: tuple[int, int] | None) -> None:
        sock.setblocking(False)
        # accept(2) passes it on to connections, so no message comes without its sender
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._epoll.register(sock, select.EPOLLIN)
        # no other file gets this number while the listener is open: the kernel keeps the inode of a bound socket
        self._sock, self.inode = sock, inode

    def fileno(self) -> int:
        """Return the socket's descriptor, -1 once it is closed."""
        return self._sock.fileno()

    def accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                sock, _address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._pause(error)
                return
            sock.setblocking(False)
            self._admit(sock)

    def _pause(self, error: OSError) -> None:
        # EMFILE, ENFILE, ENOBUFS, ENOMEM: the socket stays readable, and trying again at once would be a busy loop
        self._log.warning(f"cannot accept a connection: {error}; trying again in {ACCEPT_PAUSE:g} s")
        self._epoll.modify(self._sock, 0)

        def again() -> None:
            if self._sock.fileno() >= 0:
                self._epoll.modify(self._sock, select.EPOLLIN)

        self._runtime.timers.arm("listener", trio.current_time() + ACCEPT_PAUSE, again)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._epoll.unregister(self._sock)
            self._sock.close()

    def remove(self) -> None:
        """Remove the socket that this daemon has bound, once it is closed. Another listener's stays."""
        # to look whether a socket of systemd is stale would make it start the service again
        if not self._bound_here or identity(self._path) != self.inode:
            return
        try:
            unbind_socket(self._path, held=Path(self._runtime.state_dir))
        except PathError as error:
            self._log.warning(str(error))  # the next daemon finds it stale and replaces it

    async def look_after(self) -> None:
        """Bind the socket again when another process has removed or replaced it, until cancelled."""
        settled = False
        while True:
            with Displacement([self._path]) as displacement:
                await self._stay()
                settled = await displacement.wait(settled=settled)

    async def _stay(self) -> None:
        if identity(self._path) == self.inode:
            self._unbound = None
            return
        try:
            # in a thread: any process can keep the directory's lock for half a second
            bound = await trio.to_thread.run_sync(self._bound_again, abandon_on_cancel=True)
        except (PathError, OSError) as error:
            self._tell_unbound(str(error))
            return
        if bound is None:
            return
        self._bound_here = True
        if self._sock.fileno() < 0:  # the daemon is ending, and has stopped accepting meanwhile
            bound[0].close()
            self.inode = bound[1]
            return
        self.accept()  # what has connected to the old one
        self.close()
        self._listen_on(*bound)
        what = f"another process removed or replaced the socket {self._path}; the daemon has made it again"
        self._log.warning(what)
        self._runtime.announcer.tell(EventType.DAEMON_SOCKET_RENEWED, what, "medium")

    def _bound_again(self) -> tuple[socket.socket, tuple[int, int] | None] | None:
        if self._sock.fileno() < 0 or identity(self._path) == self.inode:
            return None
        mode = socket_mode(everyone=self._runtime.everyone)
        users = self._runtime.config.access.users
        bound = bind_socket(
            self._path, held=Path(self._runtime.state_dir), mode=mode, directory_mode=directory_mode(users, self._path)
        )
        return bound, identity(self._path)

    def _tell_unbound(self, why: str) -> None:
        if why != self._unbound:
            self._log.error(f"another process removed or replaced the socket {self._path}, and it cannot be made again: {why}")
        self._unbound = why

"""The gateway of root's daemon opens a user's connections as that user.

What listens on the machine, and rules of a firewall, tell by the user of a socket who asks. So where a user says where calls go,
they must not come from root. The kernel takes a socket's user from its maker's fsuid (socket(2), credentials(7)), which each thread
has for itself.
"""

import ctypes
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar

import httpx2
import trio

_user: ContextVar[int | None] = ContextVar("user", default=None)
_libc = ctypes.CDLL(None)
_NO_USER = 0xFFFFFFFF
"""setfsuid(2) tells the present one of a user that there is not."""


@contextmanager
def as_user(uid: int | None) -> Iterator[None]:
    """Have sockets that trio makes in this task belong to a user. `None`: to this process's."""
    before = _user.set(uid if os.geteuid() == 0 else None)
    try:
        yield
    finally:
        _user.reset(before)


class UsersSockets(trio.abc.SocketFactory):
    """For `trio.socket.set_custom_socket_factory`. Raises `PermissionError`."""

    def socket(
        self,
        family: int | None = None,
        type: int | None = None,  # noqa: A002 - the name that trio has
        proto: int | None = None,
    ) -> trio.socket.SocketType:
        words = (-1 if family is None else family, -1 if type is None else type, -1 if proto is None else proto)
        uid = _user.get()
        if uid is None:
            return trio.socket.from_stdlib_socket(socket.socket(*words))
        own = os.geteuid()
        _libc.setfsuid(ctypes.c_uint(uid))
        try:
            if _libc.setfsuid(ctypes.c_uint(_NO_USER)) != uid:
                raise PermissionError(f"the gateway may not open a connection as uid {uid}: it needs CAP_SETUID")
            return trio.socket.from_stdlib_socket(socket.socket(*words))
        finally:
            _libc.setfsuid(ctypes.c_uint(own))


class UserClients:
    """What makes the requests of all calls: one for each user whose connections it keeps."""

    def __init__(self, stack: AsyncExitStack, make: Callable[[], httpx2.AsyncClient]) -> None:
        self._stack = stack
        self._make = make
        self._made: dict[int | None, httpx2.AsyncClient] = {}

    async def of(self, uid: int | None) -> httpx2.AsyncClient:
        """Return that of a user, to be used within `as_user`; `None`: that of this process's user."""
        if uid not in self._made:
            self._made[uid] = client = self._make()
            await self._stack.enter_async_context(client)
        return self._made[uid]


@asynccontextmanager
async def open_clients(make: Callable[[], httpx2.AsyncClient]) -> AsyncIterator[UserClients]:
    trio.socket.set_custom_socket_factory(UsersSockets())
    async with AsyncExitStack() as stack:
        yield UserClients(stack, make)

"""A connection that a trio task has to itself: opened in a thread, as each other one, and driven by
the second driver of the conversation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import trio

from sfad.protocol.conversation import CHUNK
from sfad.protocol.framing import ProtocolError
from sfad.protocol.requests.base import Reply, Request

from ..connecting.connection import (
    RECONNECT,
    Client,
    ConnectionLost,
    Unreachable,
    advice,
    again,
    expect,
    time_for,
    unanswered,
)

R = TypeVar("R", bound=Reply)


class Stream:
    """Not for several tasks at a time. After a cancellation it is only fit to be closed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._follow_socket()

    @classmethod
    async def opened(cls, opener: Callable[[], Client]) -> Stream:
        """Raise `Quit`."""
        return cls(await trio.to_thread.run_sync(opener))

    def _follow_socket(self) -> None:
        self._socket = trio.socket.from_stdlib_socket(self._client.sock)

    def close(self) -> None:
        trio.lowlevel.notify_closing(self._socket)
        self._client.close()

    @property
    def client(self) -> Client:
        return self._client

    async def ask(self, request: Request, expected: type[R]) -> R:
        """Do what `Client.call` does."""
        repeated = 0
        while True:
            asked, sent = time.monotonic(), False
            try:
                number = await self.send(request)
                sent = True
                return await self._answer(number, expected)
            except ConnectionLost:
                if repeated >= (request.repeats if sent else max(request.repeats, 1)):
                    raise ConnectionLost(self._client.path, unanswered(request)) from None
            repeated += 1
            left = time_for(request, time.monotonic() - asked)
            await self.reconnect(advice(request), min(left, RECONNECT))
            request = again(request, time.monotonic() - asked)

    async def send(self, request: Request) -> int:
        """Send a request, and return its id. Raise `ConnectionLost`, `UsageError`."""
        number, frame = self._client.packed(request)
        await self.send_frame(frame)
        return number

    async def send_frame(self, frame: bytes) -> None:
        rest = memoryview(frame)
        try:
            while rest:
                rest = rest[await self._socket.send(rest) :]
        except OSError:
            raise ConnectionLost(self._client.path) from None

    async def _answer(self, wanted: int, expected: type[R]) -> R:
        while True:
            for reply in await self.arrived():
                if reply.id == wanted:
                    return expect(reply, expected)

    async def arrived(self) -> Iterator[Reply]:
        """Return what has arrived, once something has. Raise `Unreachable`."""
        conversation = self._client.conversation
        try:
            return await conversation.arrived(partial(self._socket.recv, CHUNK))
        except ProtocolError as error:
            what = f"the process there does not speak this protocol: {error}"
            raise Unreachable(self._client.path, "gone", what) from error
        except OSError:
            raise ConnectionLost(self._client.path) from None

    async def reconnect(self, words: str, patience: float | None = None) -> None:
        """Connect again to a daemon that restarts. Raise `Unreachable`."""
        trio.lowlevel.notify_closing(self._socket)
        await trio.to_thread.run_sync(
            partial(self._client.reconnect, words, patience=patience), abandon_on_cancel=False
        )
        self._follow_socket()

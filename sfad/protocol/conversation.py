"""A client's end of a connection: `hello`, and the replies in what arrives. `receive` does no I/O.
Of the ways to drive it, `read` waits for a socket, and `arrived` awaits what it is given."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, SCM_RIGHTS, SOL_SOCKET, socket

from msgspec import Struct

from .framing import MAX_REPLY, SUPPORTED, FrameDecoder, ProtocolError
from .requests.base import MAX_DESCRIPTORS, Hello, Reply, pack_message, unpack_reply

CHUNK = 256 * 1024
"""Bytes of one read at most."""
LONG = 16 * 1024
"""Bytes of a reply that may have hundreds of rows."""
_END = "the other end has closed the connection"


class Answer(Struct, frozen=True):
    reply: Reply
    descriptors: list[int]
    """The reader closes them."""


class Conversation:
    """One for each connection."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(MAX_REPLY)
        self._chunk: memoryview | None = None
        """What is read, each time: to allocate as much takes longer than to read a short reply."""
        self._unclaimed: list[int] = []

    def receive(self, data: bytes | memoryview) -> Iterator[Reply]:
        """Yield the replies that are complete once `data` has arrived. Raises `ProtocolError`."""
        return map(_unpack, self._decoder.feed(data))

    async def arrived(self, receive: Callable[[], Awaitable[bytes]]) -> Iterator[Reply]:
        """Await more, and return the replies that are complete then. Raises `ProtocolError`, what
        `receive` raises, and `ConnectionResetError` at the end, where that returns nothing."""
        if not (data := await receive()):
            raise ConnectionResetError(_END)
        return self.receive(data)

    def read(self, sock: socket) -> Iterator[Answer]:
        """Wait for more, and yield the replies that are complete then, with their descriptors.
        Raises `ProtocolError`, and `OSError`: `ConnectionResetError` at the end."""
        if self._chunk is None:
            self._chunk = memoryview(bytearray(CHUNK))
        size, ancillary, _, _ = sock.recvmsg_into(
            [self._chunk], CMSG_SPACE(MAX_DESCRIPTORS * array("i").itemsize), MSG_CMSG_CLOEXEC
        )
        self._unclaimed += descriptors_in(ancillary)
        if not size:
            raise ConnectionResetError(_END)
        yield from map(self._answer, self.receive(self._chunk[:size]))

    def _answer(self, reply: Reply) -> Answer:
        wanted: int = getattr(reply, "descriptors", 0)
        if wanted > len(self._unclaimed):
            raise ProtocolError(f"{wanted} descriptors were announced, and fewer sent")
        taken, self._unclaimed = self._unclaimed[:wanted], self._unclaimed[wanted:]
        return Answer(reply, taken)

    def take_unclaimed(self) -> list[int]:
        """Return the descriptors that belong to no reply yet, which are not kept any more."""
        taken, self._unclaimed = self._unclaimed, []
        return taken


def _unpack(body: bytes) -> Reply:
    if len(body) < LONG or not gc.isenabled():
        return unpack_reply(body)
    # a page of rows is thousands of objects, none of which is garbage yet: to look for that after
    # each 700 of them would take as long as to make them
    gc.disable()
    try:
        return unpack_reply(body)
    finally:
        gc.enable()


def hello(client: str, number: int = 0) -> bytes:
    """Return what is sent first on a connection. `client`: the program's name, for the daemon's
    log."""
    return pack_message(Hello(id=number, versions=list(SUPPORTED), client=client))


def rights(descriptors: Sequence[int]) -> tuple[int, int, array[int]]:
    """Return descriptors as ancillary data (unix(7))."""
    return SOL_SOCKET, SCM_RIGHTS, array("i", descriptors)


def descriptors_in(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came as ancillary data."""
    found = array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
    return found.tolist()

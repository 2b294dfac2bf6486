"""Has the bodies of calls read: small ones at once, others by a process of `reading`."""

import os
import re
import socket
from contextlib import suppress
from weakref import WeakValueDictionary

import msgspec
import trio

from ...processes.own_processes import OwnProcess
from . import reading
from .coding import UnreadableBodyError
from .reading import (
    CPU_SECONDS,
    ENCODER,
    SIZE_BYTES,
    BodyAnswer,
    BodyQuestion,
    Told,
    answer_to,
    size_of,
)

SMALL = 128 << 10
"""Bytes of a body that is read at once. Whatever it holds, that takes some milliseconds."""
ANSWER_SECONDS = 90.0
"""Seconds that one body may take on a machine that is busy; see `CPU_SECONDS`."""
_ENV = re.compile("PYTHON|LD_LIBRARY_PATH")
"""Others of the gateway's variables may hold keys of the operator's."""


class BodyReader:
    """Reads the bodies of calls, for the gateway; one after the other if they are not small.

    Of each run and each user, one at most waits for its turn: so many bodies of one delay those of
    others by one body."""

    def __init__(self, user: int | None = None) -> None:
        """`user`: whom its processes become; `None`: they stay what this process is."""
        self._user = user
        self._forker = OwnProcess()
        self._orders: socket.socket | None = None
        """To the process that forks."""
        self._reader: trio.SocketStream | None = None
        """It waits for a question."""
        self._turn = trio.Lock()
        self._turns: WeakValueDictionary[str | int | None, trio.Lock] = WeakValueDictionary()

    async def ask(
        self, run: str, user: int | None, question: BodyQuestion, raw: bytes
    ) -> tuple[BodyAnswer, bytes]:
        """As `answer_to`."""
        if len(raw) <= SMALL:
            try:
                return answer_to(question, raw, SMALL)
            except ValueError as error:
                if not isinstance(error.__cause__, UnreadableBodyError):
                    raise
        of_run, of_user = (self._turns.setdefault(whose, trio.Lock()) for whose in (run, user))
        async with of_run, of_user, self._turn:
            try:
                with trio.fail_after(ANSWER_SECONDS):
                    return await self._ask(question, raw)
            except trio.TooSlowError:
                raise ValueError(f"it takes more than {ANSWER_SECONDS:g} s") from None
            except (trio.BrokenResourceError, EOFError, OSError):
                raise ValueError(
                    "the process that reads it has ended, as by lack of memory, "
                    f"or after {CPU_SECONDS:g} s of processor time"
                ) from None

    async def _ask(self, question: BodyQuestion, raw: bytes) -> tuple[BodyAnswer, bytes]:
        reader, self._reader = self._reader or self._begin(), None
        try:
            told, changed = await _asked(reader, question, raw)
        except BaseException:
            await self._end(reader)
            raise
        if told.leaves:
            await self._end(reader)
        else:
            self._reader = reader
        if told.answer is None:
            raise ValueError(told.refused)
        return told.answer, changed

    def start(self) -> None:
        """Start the process that forks the others. Without this, the first body does. Raises
        `OSError`."""
        if self._orders is not None:
            self._orders.close()
        self._orders, theirs = socket.socketpair()
        user = ["--user", str(self._user)] if self._user is not None else []
        with theirs:
            self._forker.start(
                ["-m", reading.__name__, *user],
                [
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                ],
                env=_ENV,
            )

    async def ended(self) -> None:
        """Return when the process that forks the others has ended."""
        await self._forker.ended()

    def _begin(self) -> trio.SocketStream:
        """Start a process for questions. Raises `OSError`."""
        if self._forker.pid is None:
            self.start()
        assert self._orders is not None
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._orders, [b"f"], [theirs.fileno()])
        return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    async def _end(self, reader: trio.SocketStream) -> None:
        """Have the process killed, before another one begins."""
        await trio.aclose_forcefully(reader)
        assert self._orders is not None
        with suppress(OSError):
            self._orders.send(b"k")

    async def close(self) -> None:
        if self._reader is not None:
            await trio.aclose_forcefully(self._reader)
        if self._orders is not None:
            self._orders.close()
        with trio.CancelScope(shield=True):
            await self.ended()


async def _asked(
    reader: trio.SocketStream, question: BodyQuestion, raw: bytes
) -> tuple[Told, bytes]:
    """Put a question to the process. Raises `trio.BrokenResourceError` and `EOFError` if it
    ends."""
    for part in (ENCODER.encode(question), raw):
        await reader.send_all(size_of(part))
        await reader.send_all(part)
    return _TOLD.decode(await _part(reader)), await _part(reader)


async def _part(stream: trio.abc.ReceiveStream) -> bytes:
    """Return the next part of an answer. Raises `EOFError`."""
    size = int.from_bytes(await _exactly(stream, SIZE_BYTES), "big")
    return await _exactly(stream, size)


async def _exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = await stream.receive_some(min(size - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


_TOLD = msgspec.msgpack.Decoder(Told)

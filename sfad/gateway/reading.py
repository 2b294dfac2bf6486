"""What the body of a call says, and the body with what the gateway changes in it.

Reading a body takes some milliseconds for each megabyte, and one made for it takes seconds and gigabytes. So what is not small is
read by a process of its own, which has bounds of memory and time. `python -m sfad.gateway.reading` forks these processes: a gateway
that has become another user may not be able to execute the interpreter any more, and to fork the gateway would copy what it knows.
"""

import argparse
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from weakref import WeakValueDictionary

import msgspec
import trio

from ..host.secrecy import become_user, hide_memory
from .apis import APIS, ModelCall
from .coding import Coding, UnreadableBodyError, import_decoders
from .estimate import text_size

MAX_BODY = 64 << 20
"""Bytes of a call's body. The providers take 32 MiB at most, or 100 MiB of which nearly all is an uploaded file."""
SMALL = 128 << 10
"""Bytes of a body that is read at once. Whatever it holds, that takes some milliseconds."""
ANSWER_SECONDS = 10.0
"""Seconds that one body may take. One of 64 MiB takes about one."""
MAX_MEMORY = 1 << 30
"""Bytes of address space of the process. JSON can take thirty times its size."""
LEAVES_AT = 256 << 10
"""KiB of memory after which the process ends: the allocator gives little of it back."""
_SIZE_BYTES = 4


class BodyQuestion(msgspec.Struct, frozen=True):
    api: str
    path: str
    encodings: str
    change: bool = False
    """Return the body with what the reply needs to tell its usage, and with the maximum output below."""
    max_output: int | None = None


class BodyAnswer(msgspec.Struct, frozen=True):
    call: ModelCall
    size: int
    """Of the body, as estimates take it."""
    incomplete: bool
    """The reply would not tell its usage."""


class _Told(msgspec.Struct):
    answer: BodyAnswer | None = None
    refused: str = ""
    leaves: bool = False
    """The process ends."""


def answer_to(question: BodyQuestion, raw: bytes, most: int = MAX_BODY) -> tuple[BodyAnswer, bytes]:
    """Return what a body of at most `most` bytes says, and the changed body if that is wanted. Raises `ValueError`, also for a body
    that takes too much memory."""
    api = APIS[question.api]
    try:
        plain = Coding(question.encodings).feed(raw, most) if question.encodings else raw
        call = api.call(question.path, plain)
        if call is None:
            raise ValueError(f"{question.path} is not the path of a call")
        completed = api.completed(plain)
        changed = b""
        if question.change:
            changed = completed if question.max_output is None else api.lowered(completed, question.max_output)
    except (UnreadableBodyError, RecursionError) as error:
        raise ValueError(str(error)) from error
    except MemoryError:
        raise ValueError("it has too many parts") from None
    return BodyAnswer(call, text_size(plain), completed is not plain), changed


class BodyReader:
    """Reads the bodies of calls, for the gateway; one after the other if they are not small.

    Of each run and each user, one at most waits for its turn: so many bodies of one delay those of others by one body."""

    def __init__(self, user: int | None = None) -> None:
        """`user`: whom its processes become; `None`: they stay what this process is."""
        self._user = user
        self._forker: trio.Process | None = None
        self._orders: socket.socket | None = None
        """To the process that forks."""
        self._reader: trio.SocketStream | None = None
        """It waits for a question."""
        self._turn = trio.Lock()
        self._turns: WeakValueDictionary[str | int | None, trio.Lock] = WeakValueDictionary()

    async def ask(self, run: str, user: int | None, question: BodyQuestion, raw: bytes) -> tuple[BodyAnswer, bytes]:
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
                raise ValueError("the process that reads it has ended, as by lack of memory") from None

    async def _ask(self, question: BodyQuestion, raw: bytes) -> tuple[BodyAnswer, bytes]:
        reader, self._reader = self._reader or await self._begin(), None
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

    async def start(self) -> None:
        """Start the process that forks the others. Without this, the first body does. Raises `OSError`."""
        if self._orders is not None:
            self._orders.close()
        self._orders, theirs = socket.socketpair()
        with theirs, trio.CancelScope(shield=True):
            # the environment may hold keys of the operator's
            env = {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "LD_LIBRARY_PATH"))}
            words = [sys.executable, "-P", "-m", __name__, *(["--user", str(self._user)] if self._user is not None else [])]
            self._forker = await trio.lowlevel.open_process(
                words, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=env, start_new_session=True
            )

    async def ended(self) -> None:
        """Return when the process that forks the others has ended."""
        if self._forker is not None:
            await self._forker.wait()

    async def _begin(self) -> trio.SocketStream:
        """Start a process for questions. Raises `OSError`."""
        if self._forker is None or self._forker.poll() is not None:
            await self.start()
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


async def _asked(reader: trio.SocketStream, question: BodyQuestion, raw: bytes) -> tuple["_Told", bytes]:
    """Put a question to the process. Raises `trio.BrokenResourceError` and `EOFError` if it ends."""
    for part in (_ENCODER.encode(question), raw):
        await reader.send_all(_size_of(part))
        await reader.send_all(part)
    return _TOLD.decode(await _part(reader)), await _part(reader)


async def _part(stream: trio.abc.ReceiveStream) -> bytes:
    """Return the next part of an answer. Raises `EOFError`."""
    size = int.from_bytes(await _exactly(stream, _SIZE_BYTES), "big")
    return await _exactly(stream, size)


async def _exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = await stream.receive_some(min(size - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _size_of(part: bytes) -> bytes:
    return len(part).to_bytes(_SIZE_BYTES, "big")


_ENCODER = msgspec.msgpack.Encoder()
_QUESTION = msgspec.msgpack.Decoder(BodyQuestion)
_TOLD = msgspec.msgpack.Decoder(_Told)


def main() -> None:
    """Fork a process for each descriptor that comes through the socket which is stdin. Each order ends the one before."""
    hide_memory()
    words = argparse.ArgumentParser(prog="sfad gateway reading")
    words.add_argument("--user", type=int)
    given = words.parse_args()
    if given.user is not None:
        import_decoders()
        become_user(given.user)
    orders, reader = socket.socket(fileno=os.dup(0)), 0
    while True:
        order, descriptors, *_ = socket.recv_fds(orders, 1, 1)
        if reader:
            os.kill(reader, signal.SIGKILL)
            os.waitid(os.P_PID, reader, os.WEXITED)
            reader = 0
        if not order:  # the gateway has ended
            break
        for descriptor in descriptors:
            with suppress(OSError):  # there is no process to be had: the gateway sees that its socket is closed
                reader = _forked(descriptor, orders)
            os.close(descriptor)


def _forked(descriptor: int, orders: socket.socket) -> int:
    """Start a process that answers what is asked through a socket. Return its pid. Raises `OSError`."""
    if pid := os.fork():
        return pid
    try:
        orders.close()
        os.close(0)
        _answer(descriptor)
    except BaseException:  # noqa: BLE001 - it must not go on as the process that forks
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _answer(descriptor: int) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the gateway has ended
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    source, sink = os.fdopen(descriptor, "rb"), os.fdopen(os.dup(descriptor), "wb")
    while head := source.read(_SIZE_BYTES):
        question = _QUESTION.decode(source.read(int.from_bytes(head, "big")))
        raw = source.read(int.from_bytes(source.read(_SIZE_BYTES), "big"))
        told, changed = _Told(), b""
        try:
            told.answer, changed = answer_to(question, raw)
        except ValueError as error:
            told.refused = str(error)
        told.leaves = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > LEAVES_AT
        for part in (_ENCODER.encode(told), changed):
            sink.write(_size_of(part) + part)
        sink.flush()


if __name__ == "__main__":
    main()

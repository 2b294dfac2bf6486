"""What the body of a call says, and the body with what the gateway changes in it.

Reading a body takes some milliseconds for each megabyte, and one made for it takes seconds and gigabytes. So what is not small is
read by a process of its own, `python -m sfad.gateway.reading`, which has bounds of memory and time.
"""

import os
import resource
import signal
import subprocess
import sys
from weakref import WeakValueDictionary

import msgspec
import trio

from ..host.secrecy import hide_memory
from .apis import APIS, ModelCall
from .coding import Coding, UnreadableBodyError
from .estimate import text_size

MAX_BODY = 64 << 20
"""Bytes of a call's body. The providers take 32 MiB at most, or 100 MiB of which nearly all is an uploaded file."""
SMALL = 128 << 10
"""Bytes of a body that is read at once. Whatever it holds, that takes some milliseconds."""
PATIENCE = 10.0
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

    def __init__(self) -> None:
        self._process: trio.Process | None = None
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
                with trio.fail_after(PATIENCE):
                    return await self._ask(question, raw)
            except trio.TooSlowError:
                raise ValueError(f"it takes more than {PATIENCE:g} s") from None
            except (trio.BrokenResourceError, EOFError):
                raise ValueError("the process that reads it has ended, as by lack of memory") from None

    async def _ask(self, question: BodyQuestion, raw: bytes) -> tuple[BodyAnswer, bytes]:
        process, self._process = self._process or await _start(), None
        try:
            told, changed = await _asked(process, question, raw)
        except BaseException:
            await _end(process)
            raise
        if told.leaves:
            await _end(process)
        else:
            self._process = process
        if told.answer is None:
            raise ValueError(told.refused)
        return told.answer, changed

    async def close(self) -> None:
        if self._process is not None:
            await _end(self._process)


async def _asked(process: trio.Process, question: BodyQuestion, raw: bytes) -> tuple["_Told", bytes]:
    """Put a question to the process. Raises `trio.BrokenResourceError` and `EOFError` if it ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    for part in (_ENCODER.encode(question), raw):
        await process.stdin.send_all(_size_of(part))
        await process.stdin.send_all(part)
    return _TOLD.decode(await _part(process.stdout)), await _part(process.stdout)


async def _end(process: trio.Process) -> None:
    process.kill()
    with trio.CancelScope(shield=True):
        await process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()


async def _start() -> trio.Process:
    # the environment may hold keys of the operator's
    env = {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "LD_LIBRARY_PATH"))}
    words = [sys.executable, "-P", "-m", __name__]
    return await trio.lowlevel.open_process(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True)


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
    hide_memory()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the gateway has ended
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
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

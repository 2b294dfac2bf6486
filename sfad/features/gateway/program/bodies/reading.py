"""What the body of a call says, and the body with what the gateway changes in it.

Reading a body takes some milliseconds for each megabyte, and one made for it takes seconds and
gigabytes. So what is not small is read by a process of its own, which has bounds of memory and
time. `python -m sfad.features.gateway.program.bodies.reading` forks these processes: a gateway that
has become another user may not be able to execute the interpreter any more, and to fork the gateway
would copy what it knows. It imports no trio, which is most of a start.
"""

import argparse
import os
import resource
import signal
import socket
import sys
from contextlib import suppress

import msgspec

from .....host.secrecy import become_user, hide_memory
from .....protocol.inherited import survive_stray_signals
from ..apis import APIS, ModelCall
from .coding import Coding, UnreadableBodyError, import_decoders

MAX_BODY = 64 << 20
"""Bytes of a call's body. The providers take 32 MiB at most, or 100 MiB of which nearly all is an
uploaded file."""
MAX_MEMORY = 1 << 30
"""Bytes of address space of the process. JSON can take thirty times its size."""
LEAVES_AT = 256 << 10
"""KiB of memory after which the process ends: the allocator gives little of it back."""
SIZE_BYTES = 4


class BodyQuestion(msgspec.Struct, frozen=True):
    api: str
    path: str
    encodings: str
    change: bool = False
    """Return the body with the changes that the fields below say."""
    max_output: int | None = None
    last: str | None = None
    """A sentence that is put at its end."""
    completes: bool = True
    """Change it so that the reply tells its usage."""
    host: str = ""
    """Where the call goes: servers differ in what they take."""


class BodyAnswer(msgspec.Struct, frozen=True):
    call: ModelCall
    incomplete: bool
    """The reply would not tell its usage."""


class Told(msgspec.Struct):
    answer: BodyAnswer | None = None
    refused: str = ""
    leaves: bool = False
    """The process ends."""


def answer_to(question: BodyQuestion, raw: bytes, most: int = MAX_BODY) -> tuple[BodyAnswer, bytes]:
    """Return what a body of at most `most` bytes says, and the changed body if that is wanted.
    Raises `ValueError`, also for a body that takes too much memory."""
    api = APIS[question.api].at(question.host)
    try:
        plain = Coding(question.encodings).feed(raw, most) if question.encodings else raw
        call = api.call(question.path, plain)
        if call is None:
            raise ValueError(f"{question.path} is not the path of a call")
        completed = api.completed(plain) if question.completes else plain
        changed = b""
        if question.change:
            changed = (
                completed
                if question.max_output is None
                else api.lowered(completed, question.max_output)
            )
            if question.last is not None:
                changed = api.concluded(changed, question.last)
    except (UnreadableBodyError, RecursionError) as error:
        raise ValueError(str(error)) from error
    except MemoryError:
        raise ValueError("it has too many parts") from None
    return BodyAnswer(call, completed is not plain), changed


def size_of(part: bytes) -> bytes:
    return len(part).to_bytes(SIZE_BYTES, "big")


CPU_SECONDS = 10.0
"""Seconds of processor time that one body may take. One of 64 MiB takes about one."""
ENCODER = msgspec.msgpack.Encoder()
_QUESTION = msgspec.msgpack.Decoder(BodyQuestion)


def main() -> None:
    """Fork a process for each descriptor that comes through the socket which is stdin. Each order
    ends the one before."""
    survive_stray_signals(signal.SIGINT, signal.SIGUSR2)
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
            # there is no process to be had: the gateway sees that its socket is closed
            with suppress(OSError):
                reader = forked(descriptor, orders)
            os.close(descriptor)


def forked(descriptor: int, orders: socket.socket) -> int:
    """Start a process that answers what is asked through a socket. Return its pid. Raises
    `OSError`."""
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
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # a body takes too long
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    source, sink = os.fdopen(descriptor, "rb"), os.fdopen(os.dup(descriptor), "wb")
    while head := source.read(SIZE_BYTES):
        question = _QUESTION.decode(source.read(int.from_bytes(head, "big")))
        raw = source.read(int.from_bytes(source.read(SIZE_BYTES), "big"))
        told, changed = Told(), b""
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            told.answer, changed = answer_to(question, raw)
        except ValueError as error:
            told.refused = str(error)
        told.leaves = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > LEAVES_AT
        for part in (ENCODER.encode(told), changed):
            sink.write(size_of(part) + part)
        sink.flush()


if __name__ == "__main__":
    main()

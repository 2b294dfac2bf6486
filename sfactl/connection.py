"""The connection to the daemon: synchronous, one request at a time or several in flight, matched by id."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeVar

from sfad.protocol import messages as m
from sfad.protocol.errors import ErrorCode, ProtocolError
from sfad.protocol.framing import MAX_REPLY, MAX_REQUEST, FrameDecoder
from sfad.protocol.paths import client_sockets, connect_path
from sfad.protocol.version import SUPPORTED

from . import exits

HANDSHAKE_TIMEOUT = 10.0
"""Seconds for connect and `Welcome`. A daemon that adopts a thousand runs again is to serve within 2 s."""

CHUNK = 256 * 1024
"""Bytes of one read from the socket."""

ABSENT = frozenset({"missing", "refused"})
"""Kinds of `Unreachable` that mean there is no daemon. The others mean that this process may not, or cannot, speak to it."""

R = TypeVar("R", bound=m.Reply)


class Unreachable(exits.Quit):
    """No daemon answers at this socket. `kind`: `missing`, `refused`, `denied` (file permissions), `sandbox` (the system
    call itself was refused to this process), `silent` (nothing said in time) or `gone` (it closed the connection)."""

    def __init__(self, path: Path, kind: str, detail: str) -> None:
        super().__init__(exits.Exit.UNREACHABLE, f"the daemon cannot be reached at {path}: {detail}")
        self.path = path
        self.kind = kind


class DaemonError(exits.Quit):
    """The daemon answered `Error`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(exits.of_error(code), message)
        self.error = code


class Answer(NamedTuple):
    """A reply and the descriptors it owns. They are the caller's to close."""

    reply: m.AnyReply
    descriptors: list[int]


def connect(flag: str | None) -> Client:
    """A connection to the daemon: at `--socket`, SFA_SOCKET, SFAD_SOCKET, or the first of the user's and the system's places
    where there is one. A daemon that hangs or denies is not passed over for another. Raises `Unreachable`: for the first place,
    or for one where at least a socket is."""
    try:
        places = client_sockets(os.environ, os.getuid(), flag)
    except ValueError as error:
        raise exits.Quit(exits.Exit.UNREACHABLE, str(error)) from None
    failures: list[Unreachable] = []
    for place in places:
        try:
            return Client(place)
        except Unreachable as error:
            if error.kind not in ABSENT:
                raise
            failures.append(error)
    raise next((f for f in failures if f.kind != "missing"), failures[0])


class Client:
    """A connection that has shaken hands. Raises `Unreachable`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._decoder = FrameDecoder(MAX_REPLY)
        self._received: deque[int] = deque()
        self._answers: deque[Answer] = deque()
        self._last_id = 0
        self._socket = _connected(path)
        try:
            self.welcome = self._shake_hands()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and every descriptor that nobody has taken."""
        self._socket.close()
        unclaimed = [*self._received, *(d for answer in self._answers for d in answer.descriptors)]
        self._received.clear()
        self._answers.clear()
        for descriptor in unclaimed:
            os.close(descriptor)

    def fileno(self) -> int:
        """For poll: readable when `arrived` has something to take."""
        return self._socket.fileno()

    def be_patient(self, seconds: float | None) -> None:
        """From now on waits so long for each piece of an answer; `None` is for ever, as it is from the start. After `Unreachable`
        of the kind `silent` the answer may still come: close the connection."""
        self._socket.settimeout(seconds)

    def closed_by_daemon(self) -> bool:
        """Whether nobody is at the other end any more, as far as the kernel tells; what is sent now would be lost."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        try:
            return bool(poll.poll(0)) and self._socket.recv(1, socket.MSG_PEEK) == b""
        except ConnectionResetError:
            return True

    def next_id(self) -> int:
        """An id that no earlier request of this connection has."""
        self._last_id += 1
        return self._last_id

    def send(self, request: m.Request, descriptors: Sequence[int] = ()) -> int:
        """Sends without waiting; the answer is had from `arrived` or `call`. Returns the request's id."""
        frame = m.pack_message(request)
        if len(frame) > MAX_REQUEST:
            raise exits.UsageError(f"the request is {len(frame)} bytes long; the daemon takes {MAX_REQUEST}")
        try:
            self._send_all(frame, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            raise self._gone() from None
        return request.id

    def _send_all(self, frame: bytes, descriptors: Sequence[int]) -> None:
        sent = socket.send_fds(self._socket, [frame], descriptors) if descriptors else 0
        self._socket.sendall(memoryview(frame)[sent:])

    def call(self, request: m.Request, expected: type[R], descriptors: Sequence[int] = ()) -> R:
        """Sends and waits for the reply, of type `expected`. Raises `DaemonError`, `Unreachable`."""
        return self.ask(request, expected, descriptors)[0]

    def ask(self, request: m.Request, expected: type[R], descriptors: Sequence[int] = ()) -> tuple[R, list[int]]:
        """`call`, with the descriptors that came along."""
        return self.answer(self.send(request, descriptors), expected)

    def answer(self, wanted: int, expected: type[R]) -> tuple[R, list[int]]:
        """Waits for the reply to the request with the id `wanted`; `send` has sent it. Raises `DaemonError`, `Unreachable`."""
        others: list[Answer] = []
        mine: list[Answer] = []
        while not mine:
            for answer in self.arrived():
                (mine if answer.reply.id == wanted and not mine else others).append(answer)
        self._answers.extend(others)
        return self._expect(mine[0].reply, expected), mine[0].descriptors

    def _expect(self, reply: m.AnyReply, expected: type[R]) -> R:
        check(reply)
        if not isinstance(reply, expected):
            raise exits.Quit(exits.Exit.LOST, f"the daemon answered {type(reply).__name__}, not {expected.__name__}")
        return reply

    def arrived(self) -> list[Answer]:
        """Everything that is there, after waiting for at least one read from the socket. Raises `Unreachable` at its end."""
        if not self._answers:
            self._read()
        answers = list(self._answers)
        self._answers.clear()
        return answers

    def _read(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, CHUNK, m.MAX_DESCRIPTORS)
        except TimeoutError:
            raise Unreachable(self.path, "silent", f"no answer within {self._socket.gettimeout():g} s") from None
        except ConnectionResetError:
            raise self._gone() from None
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._received += descriptors
        if not data:
            raise self._gone()
        try:
            for body in self._decoder.feed(data):
                self._answers.append(self._complete(m.unpack_reply(body)))
        except ProtocolError as error:
            raise Unreachable(self.path, "gone", f"what answers there does not speak this protocol: {error}") from error

    def _complete(self, reply: m.AnyReply) -> Answer:
        wanted = reply.descriptors if isinstance(reply, m.LogFiles) else 0
        if wanted > len(self._received):
            raise exits.Quit(exits.Exit.LOST, f"the daemon announced {wanted} descriptors and sent fewer")
        return Answer(reply, [self._received.popleft() for _ in range(wanted)])

    def _gone(self) -> Unreachable:
        return Unreachable(self.path, "gone", "it closed the connection")

    def _shake_hands(self) -> m.Welcome:
        hello = m.Hello(id=self.next_id(), versions=list(SUPPORTED), client=f"sfactl {os.getpid()}")
        welcome = self.call(hello, m.Welcome)
        self._socket.settimeout(None)
        return welcome


def check(reply: m.AnyReply) -> None:
    """Raises `DaemonError` for an `Error`."""
    if isinstance(reply, m.Error):
        raise DaemonError(reply.code, reply.message)


def _connected(path: Path) -> socket.socket:
    sock = None
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # not settimeout(): a non-blocking connect() fails at once where the backlog is full, and does not wait for a place
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(HANDSHAKE_TIMEOUT), 0))
        connect_path(sock, path)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
        sock.settimeout(HANDSHAKE_TIMEOUT)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise explain(path, error) from error
    except ValueError as error:
        raise exits.UsageError(str(error)) from None
    return sock


def explain(path: Path, error: OSError) -> Unreachable:
    """What a failed `socket` or `connect` means for the person in front of it."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Unreachable(path, "missing", "the socket does not exist; no daemon was started there")
    if error.errno == errno.ECONNREFUSED:
        return Unreachable(path, "refused", "the socket is there but nobody listens on it; the daemon has died or is starting")
    if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
        return Unreachable(path, "silent", f"not accepted within {HANDSHAKE_TIMEOUT:g} s; the daemon hangs or is overrun")
    if error.errno in (errno.EACCES, errno.EPERM):
        return _denied(path, error)
    return Unreachable(path, "missing", error.strerror or str(error))


def _denied(path: Path, error: OSError) -> Unreachable:
    # A socket whose mode forbids it answers EACCES. Seccomp and Landlock answer EPERM, or EACCES although the mode allows.
    name = errno.errorcode.get(error.errno or 0, "?")
    try:
        allowed = os.access(path, os.W_OK) and error.errno == errno.EACCES
        hidden = False
    except OSError:
        allowed, hidden = False, True
    if error.errno == errno.EPERM or allowed:
        return Unreachable(
            path,
            "sandbox",
            f"connecting was denied to this process itself ({name}), probably by the sandbox it runs in; "
            "the daemon may well be up. Allow Unix sockets in that sandbox, or start children from outside it",
        )
    owner = "" if hidden else _owner(path)
    return Unreachable(path, "denied", f"permission denied ({name}){owner}; use the daemon of your own user")


def _owner(path: Path) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ": its directory belongs to another user"
    return f": it belongs to uid {status.st_uid} with mode {status.st_mode & 0o777:04o}"

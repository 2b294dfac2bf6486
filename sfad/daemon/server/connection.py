"""One client's connection: frames in, frames out, descriptors both ways; never blocks."""

import os
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, MutableSequence, Sequence
from contextlib import suppress
from operator import sub
from typing import Any, Protocol, TypeVar

from msgspec import Raw, Struct, structs
from msgspec.msgpack import Encoder

from ...core.state.access import Peer
from ...durable.handover import Connected
from ...host.linux.descriptors import close_soon, of_another_user, without_linger
from ...host.probe import UCRED
from ...protocol.conversation import descriptors_in, rights
from ...protocol.framing import HEADER, MAX_REQUEST, FrameDecoder
from ...protocol.messages import (
    MAX_DESCRIPTORS,
    Events,
    Info,
    List,
    Wait,
    Watch,
    WatchRuns,
    Welcome,
)
from ...protocol.requests.base import Reply
from ...protocol.types import RunId
from .shares import ClientBounds, ClientLoad, PeerGroups

# ---- Replies with runs that are encoded already, and requests that share one

T = TypeVar("T")
_encoder = Encoder()

LOOKS = (Info, List)
"""Requests that change nothing, and whose answers are shared."""


class RunRow(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="run"):
    """What a client reads as `RunReply`."""

    id: int
    run: Raw


class RunRows(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="runs"):
    """What a client reads as `RunList`."""

    id: int
    runs: list[Raw]
    next: RunId | None = None
    queued: int = 0


class Looks:
    """Looks at runs that requests share which have arrived together: the first one looks, and the
    others get what it has seen. All had been received by then, so none is answered with something
    older than itself."""

    def __init__(self) -> None:
        self._seen: dict[object, Any] = {}
        self.forget = self._seen.clear
        """The next request may come after a change."""

    def of(self, key: object, look: Callable[[], T]) -> T:
        """Return what `look` returns, or has returned for a request with the same key. The key has
        whatever makes a difference."""
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = look()
        found: T = seen
        return found


def framed(reply: Reply | RunRow | RunRows) -> bytearray:
    """Return the frame of a reply. It is written once: to copy a list of 1 000 runs takes longer
    than to encode it."""
    frame = bytearray(HEADER)
    _encoder.encode_into(reply, frame, HEADER)
    frame[:HEADER] = (len(frame) - HEADER).to_bytes(HEADER, "big")
    return frame


# ---- One client's connection: frames in, frames out, descriptors both ways; never blocks

MAX_READ = 64 * 1024
"""Bytes read at once. They may be thousands of requests, and the other clients wait while the
daemon splits them."""

MAX_UNSENT = 8 * 1024 * 1024
"""Bytes of replies and events that may wait for a client that does not read, before the daemon
drops it. A larger reply is still sent to a client that had nothing else waiting."""

UNCOUNTED = 1024
"""Bytes of requests of one client that the daemon keeps without counting them: 2 MiB where each
client has so many. Nearly all requests are shorter, and most are answered in the turn in which they
come."""

LONG = 192 * 1024
"""Bytes of a reply that may not fit in what the kernel keeps for a socket by default, 208 KiB. It
takes a longer one in one go if it may keep that much meanwhile, as for a list of 1 000 runs."""

BODY_OVERHEAD = 64
"""Bytes that a waiting request takes beside its own: a `bytes` object and its place in a queue."""

_read = memoryview(bytearray(MAX_READ))
"""What each connection reads into: to allocate as much for each read takes longer than the read."""

_TRUNCATED = int(socket.MSG_CTRUNC)
"""A plain number: to look for the flag in those of a message would take three calls."""

# 253 is SCM_MAX_FD. The kernel would close the descriptors that do not fit in this thread, and a
# FUSE file can block close(2)
_ANCILLARY = socket.CMSG_SPACE(4 * 253) + socket.CMSG_SPACE(UCRED.size)


class DescriptorsLost(Exception):
    """The client sent more descriptors than any request carries, or the kernel found no room for
    them."""


class Pending(Struct, frozen=True):
    """A request that waits for something to happen."""

    request: Wait | Watch | WatchRuns | Events
    forget: Callable[[], None]
    until: float | None = None
    """When the request gives up waiting, on the core's clock."""


class Instead(Protocol):
    """Answers the requests of a connection in place of the verbs: those of a feature."""

    def answer(
        self, asker: Any, request: Any, here: Callable[[Any], Coroutine[object, None, None] | None]
    ) -> Coroutine[object, None, None] | None:
        """Answer a request. `here` answers one as the verb does."""

    def changed(self, reply: Reply | RunRow | RunRows) -> Reply:
        """Return what its client is told in place of what a verb answers."""


class Connection:
    """State of one client. `number` is never used twice; descriptors in `received` are owned until
    taken."""

    def __init__(
        self,
        sock: socket.socket,
        number: int,
        peer: Peer,
        groups: PeerGroups,
        on_unsent: Callable[["Connection"], None],
    ) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.number = number
        self.decoder = FrameDecoder(MAX_REQUEST)
        self.bodies: deque[bytes] = deque()
        self.received: deque[int] = deque()
        self.may_hang = False
        """Some are files of a FUSE server of a user, whom the daemon's next child would ask when it
        closes them."""
        self.bodies_size = 0
        self.unsent: deque[tuple[bytearray, list[int]]] = deque()
        """Bytes, and the descriptors that travel with their first byte. A message without
        descriptors is added to the last entry: an object of its own would take several times its
        bytes."""
        self.unsent_size = 0
        self.messages = 0
        """Messages that were added to `unsent` since it was last empty."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.maker = int(
            UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))[0]
        )
        """The process that connected."""
        self.sender = self.maker
        """The process that sent what was read last. It is another process if the connection was
        inherited or passed on."""
        self.sender_uid = peer.uid
        """The uid of that process then."""
        self.peer = peer
        self.groups = groups
        self.sender_group = str(groups.lane)
        """Who sends its descriptors, for `Descriptors`."""
        self.greeted = False
        self.counted = ClientLoad()
        """What it made the daemon keep when that was last counted."""
        self.on_unsent = on_unsent
        self.closed = False
        self.ended = False
        """The client will send nothing more. Its earlier requests are still handled, and answered
        if that takes no time."""
        self.deferred: set[int] = set()
        """Ids of requests whose reply comes later, from another thread's work."""
        self.waits: dict[int, Pending] = {}
        self.on_close: Callable[[], None] | None = None
        """Set by a feature that uses the connection: it is not handed over to a daemon that
        executes itself again."""
        self.instead: Instead | None = None

    def hand_over(self, now: float) -> Connected:
        """Return what `take_over` needs after this process has executed itself again."""
        return Connected(
            fd=self.fd,
            number=self.number,
            peer=self.peer,
            partial=self.decoder.rest,
            bodies=list(self.bodies),
            received=list(self.received),
            unsent=[(bytes(data), descriptors) for data, descriptors in self.unsent],
            pending=[_as_of(pending, now) for pending in self.waits.values()],
            ended=self.ended,
            greeted=self.greeted,
        )

    def take_over(self, handed: Connected) -> None:
        """Take over what the earlier process held for this client, except for the requests that
        wait."""
        self.greeted = handed.greeted
        self._take_in([*handed.bodies, *self.decoder.feed(handed.partial)])
        self.received.extend(handed.received)
        self.unsent.extend((bytearray(data), descriptors) for data, descriptors in handed.unsent)
        self.unsent_size = sum(len(data) for data, _ in handed.unsent)
        self.messages = len(handed.unsent)
        self.ended = handed.ended

    def count_load(self, bounds: ClientBounds) -> None:
        """Count there what it makes the daemon keep now."""
        load = 0, 0, 0
        if not self.closed:
            descriptors = 1 + len(self.received)
            if self.unsent:
                descriptors += sum(len(descriptors) for _, descriptors in self.unsent)
            size = self.decoder.pending + self.bodies_size
            load = descriptors, size if size > UNCOUNTED else 0, self.unsent_size
        if load != self.counted:
            bounds.count(self.groups, ClientLoad(*map(sub, load, self.counted)))
            self.counted = ClientLoad(*load)

    def read(self) -> None:
        """Take in what has arrived; `ended` is set at the end. Raise `ProtocolError`,
        `DescriptorsLost`."""
        try:
            size, ancillary, flags, _ = self.sock.recvmsg_into(
                [_read], _ANCILLARY, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            self.ended = True
            return
        for level, kind, payload in ancillary:
            if level != socket.SOL_SOCKET:
                continue
            if kind == socket.SCM_CREDENTIALS:
                # pid 0: the sender is in an outer pid namespace; it is in no run
                sender, self.sender_uid, _gid = UCRED.unpack(payload)
                self.sender = sender or self.maker
            elif kind == socket.SCM_RIGHTS:
                self._receive(descriptors_in([(level, kind, payload)]))
        if flags & _TRUNCATED or len(self.received) > 4 * MAX_DESCRIPTORS:
            raise DescriptorsLost(
                f"{len(self.received)} descriptors that no request took, "
                "or the kernel had no room for more"
            )
        self._take_in(self.decoder.feed(_read[:size]))
        self.ended = not size

    def _receive(self, descriptors: list[int]) -> None:
        self.received.extend(descriptors)
        self.may_hang |= self.peer.uid not in (0, os.geteuid()) and any(
            map(of_another_user, descriptors)
        )
        for descriptor in descriptors:
            # a child that starts now closes its copy at execve(2), perhaps as the last
            without_linger(descriptor)

    def _take_in(self, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            self.bodies.append(body)
            self.bodies_size += len(body) + BODY_OVERHEAD

    def next_body(self) -> bytes:
        body = self.bodies.popleft()
        self.bodies_size -= len(body) + BODY_OVERHEAD
        return body

    def take(self, count: int) -> list[int] | None:
        """Return the next `count` received descriptors, or `None` if they did not come with the
        message."""
        if len(self.received) < count:
            return None
        return [self.received.popleft() for _ in range(count)]

    def welcome(self, reply: Welcome) -> None:
        self.greeted = True
        self.send(reply)

    def send(
        self,
        reply: Reply | RunRow | RunRows,
        descriptors: Sequence[int] = (),
        *,
        changed: bool = False,
    ) -> None:
        """Send what the socket takes now, and keep the rest. `descriptors` are closed once the
        kernel has duplicated them. `changed`: the reply is as `Instead.changed` returns it, where
        there is such a thing."""
        if self.instead is not None and not changed:
            reply = self.instead.changed(reply)
        kept = list(descriptors)
        data = framed(reply)
        if self.closed:
            sent = len(data)
        elif self.unsent:
            sent = 0
        elif len(data) > LONG and self.groups.owner:  # others could leave many connections full
            sent = self._send_long(data, kept)
        else:
            sent = self._send_some(data, kept)
        if sent and kept:
            _close(kept)  # they went with the first byte
        if sent < len(data):
            del data[:sent]
            self._keep(data, kept)
            self.on_unsent(self)

    def _keep(self, data: bytearray, descriptors: list[int]) -> None:
        if descriptors or not self.unsent:
            self.unsent.append((data, descriptors))
        else:
            self.unsent[-1][0].extend(data)
        self.unsent_size += len(data)
        self.messages += 1

    def flush(self) -> None:
        while self.unsent:
            data, descriptors = self.unsent[0]
            sent = self._send_some(data, descriptors)
            if not sent:
                return
            _close(descriptors)
            self.unsent_size -= sent
            if sent < len(data):
                del data[:sent]
                return
            self.unsent.popleft()
        self.messages = 0

    def _send_long(self, data: bytearray, descriptors: Sequence[int]) -> int:
        kept = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        # the kernel doubles it, and has a bound of its own
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(data))
        sent = self._send_some(data, descriptors)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kept // 2)
        return sent

    def _send_some(self, data: bytearray, descriptors: Sequence[int]) -> int:
        try:
            if not descriptors:
                return self.sock.send(data)
            return self.sock.sendmsg([data], [rights(descriptors)])
        except BlockingIOError:
            return 0
        except OSError:
            # the client is gone, or too many descriptors are in flight (ETOOMANYREFS); the server
            # notices when it reads
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            return len(data)

    def close(self) -> None:
        """Release everything. The caller has unregistered the socket."""
        self.closed = True
        for _, kept in self.unsent:
            _close(kept)
        self.unsent.clear()
        close_soon([*self.received, self.sock.detach()], self.sender_group, unwelcome=self.may_hang)
        self.received.clear()
        for pending in list(self.waits.values()):
            pending.forget()
        self.waits.clear()
        if self.on_close is not None:
            self.on_close()


def _as_of(pending: Pending, now: float) -> Wait | Watch | WatchRuns | Events:
    request = pending.request
    if not isinstance(request, Wait):
        return request
    # the run is tied already, and perhaps to another client by now
    timeout = max(0.001, pending.until - now) if pending.until is not None else None
    return structs.replace(request, tie=False, timeout=timeout)


def _close(descriptors: MutableSequence[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())

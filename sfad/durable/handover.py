"""What a daemon hands to the program that it becomes on re-execution: descriptors, and the requests
that are open.

The next program finds everything else in the spool, like one that follows a crash. The handover is
in a memfd whose number is in the environment. Descriptors keep their numbers.
"""

import os
import stat
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from ..core.state.access import Peer
from ..core.state.tree import StopTicket
from ..host.counts import Counts
from ..host.files import UNDECODABLE
from ..processes.launcher import LaunchRecord
from ..protocol.messages import Events, Wait, Watch, WatchRuns
from ..protocol.texts.units import parse_whole
from ..protocol.types import RunId
from ..runs.live import Stdin

VARIABLE = "SFAD_HANDOVER"
"""The variable with the number of the memfd."""

FORMAT = 1


class HandedRun(Struct, frozen=True):
    record: LaunchRecord | None
    descriptors: list[int]
    stdin: Stdin | None


class Connected(Struct, frozen=True):
    fd: int
    number: int
    peer: Peer
    partial: bytes
    bodies: list[bytes]
    received: list[int]
    unsent: list[tuple[bytes, list[int]]]
    pending: list[Wait | Watch | WatchRuns | Events]
    ended: bool
    greeted: bool


class Clients(Struct, frozen=True):
    connections: list[Connected]
    last_number: int
    answers: dict[int, list[tuple[int, int]]]
    """Connections and their requests that the core has not answered, by token."""


class Handover(Struct, frozen=True):
    listener: int
    inode: tuple[int, int] | None
    """Device and number of the listener's socket in the file system; `None` if it has none
    there."""
    lock: int
    directory: int
    claim: int
    """`lock`, `directory` and `claim` are the three of the `StateLock`."""
    runs: dict[RunId, HandedRun]
    tickets: list[StopTicket]
    last_token: int
    clients: Clients
    admitted: int
    refused: int
    began: float
    """When the daemon was started, on the monotonic clock."""
    counts: Counts
    format: int = FORMAT

    def descriptors(self) -> Iterable[int]:
        """Return all that must stay open."""
        yield from (self.listener, self.lock, self.directory, self.claim)
        for run in self.runs.values():
            yield from run.descriptors
            if run.stdin is not None:
                yield from (fd for fd in (run.stdin.read_end, run.stdin.write_end) if fd >= 0)
        for one in self.clients.connections:
            yield one.fd
            yield from one.received
            for _, descriptors in one.unsent:
                yield from descriptors


def to_memfd(handover: Handover) -> int:
    """Return a memfd with it. Raises `OSError`."""
    descriptor = os.memfd_create("sfad-handover", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(msgspec.msgpack.encode(handover))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def taken() -> Handover | None:
    """Return what was handed to this process; `None` if it was started in the usual way. No child
    inherits its descriptors.

    Raises `ValueError` if another version handed over what this one cannot read. Then nothing of it
    can be rescued."""
    number = os.environ.pop(VARIABLE, None)
    if number is None:
        return None
    content = _contents(number)
    try:
        if msgspec.msgpack.decode(content, type=_Format).format != FORMAT:
            raise ValueError("it has another format")
        handover = msgspec.msgpack.decode(content, type=Handover)
    except UNDECODABLE as error:
        raise ValueError(str(error)) from error
    try:
        for descriptor in handover.descriptors():
            os.set_inheritable(descriptor, False)
    except OSError as error:
        raise ValueError(f"a descriptor in it is not open: {error}") from error
    return handover


def _contents(number: str) -> bytes:
    try:
        with open(parse_whole(number, 3), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a device may have no end
                raise ValueError(f"descriptor {number} is not a memfd")
            file.seek(0)
            return file.read()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{VARIABLE}: {error}; only sfad itself sets this variable: unset it"
        ) from error


class _Format(Struct):
    format: int

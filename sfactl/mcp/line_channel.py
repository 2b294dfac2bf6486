"""The lines that a client writes to this process and reads from it.

One thread reads and writes; the others only hand it lines. It never blocks on a client that does not read: it then reads no further
requests, and sees when the client goes away.
"""

from __future__ import annotations

import os
import select
import time
from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK = 64 * 1024
"""Maximum bytes of one read. All requests in it are taken before the server looks whether the client reads."""
PIECE = select.PIPE_BUF
"""Bytes of one write. poll(2) reports a pipe as writable when it has room for so many."""
MOST_UNREAD = 1024 * 1024
"""Bytes that the client may leave unread before the server reads no further requests."""
LONGEST = 16 * 1024 * 1024
"""Maximum bytes of a line. The daemon takes requests of 4 MiB."""


class TooLong:
    """Stands for a line that was dropped because it had more than `LONGEST` bytes."""


class LineChannel:
    """Lines from and to one client. `lines` and `linger` are for one thread, the other methods for all."""

    def __init__(self, source: int, sink: int) -> None:
        """`source`, `sink`: descriptors to read from and to write to."""
        self._source = source
        self._sink = sink
        self._alarm = os.eventfd(0)
        self._poll = select.poll()
        self._poll.register(self._alarm, select.POLLIN)
        self._lock = allocate_lock()
        self._unsent = bytearray()
        self._room = allocate_lock()
        """Held while the client leaves more than `MOST_UNREAD` bytes unread."""
        self._full = False
        self._deaf = False
        """The client has closed its end of `sink`."""
        self._line = bytearray()
        """What has arrived of the next line."""
        self._dropping = False

    def send(self, line: bytes) -> None:
        """Write a line soon, unless the client reads no more. Its newline is added."""
        if self._deaf:
            return
        with self._lock:
            self._unsent += line
            self._unsent += b"\n"
        self.wake()

    def wake(self) -> None:
        """Let the thread of `lines` or `linger` look again."""
        os.eventfd_write(self._alarm, 1)

    def wait_for_room(self) -> None:
        """Wait while the client leaves too much unread. Not for the thread of `lines`, which writes."""
        with self._room:
            pass

    def lines(self) -> Iterator[bytes | TooLong]:
        """Yield each line of the client, without its newline, until it closes its end or exits. Write meanwhile."""
        while data := self._read():
            yield from self._split(data)
        if self._line:
            yield bytes(self._line)

    def linger(self, farewell: float, done: Callable[[], bool], patience: float) -> None:
        """Write what is left, for at most `farewell` seconds, and wait until `done`, for at most `patience` seconds."""
        self._poll.unregister(self._source)
        begun = time.monotonic()
        while True:
            speaking = farewell if self._unsent and not self._deaf else 0.0
            left = begun + (speaking if done() else patience) - time.monotonic()
            if left <= 0:
                return
            self._write(self._wait(left))

    def _read(self) -> bytes:
        while True:
            self._update_room()
            # A client that closes its end is seen even if its requests are not read.
            self._poll.register(self._source, select.POLLRDHUP if self._full else select.POLLIN)
            # A client that reads no more may still have written a last word, such as a cancellation.
            ready = self._wait(0.0 if self._deaf else None)
            self._write(ready)
            if self._source in ready and not self._full:
                try:
                    return os.read(self._source, CHUNK)
                except OSError:
                    return b""
            if self._source in ready or self._deaf:
                return b""

    def _update_room(self) -> None:
        full = len(self._unsent) > MOST_UNREAD and not self._deaf
        if full and not self._full:
            self._room.acquire()
        elif self._full and not full:
            self._room.release()
        self._full = full

    def _wait(self, seconds: float | None = None) -> dict[int, int]:
        """Return the descriptors that are ready, and for what."""
        if not self._deaf:
            self._poll.register(self._sink, select.POLLOUT if self._unsent else 0)
        ready = dict(self._poll.poll(None if seconds is None else seconds * 1000))
        if self._alarm in ready:
            os.eventfd_read(self._alarm)
        return ready

    def _write(self, ready: dict[int, int]) -> None:
        """Write one piece if the client has room for it."""
        events = ready.get(self._sink, 0)
        try:
            if events & ~select.POLLOUT:
                raise BrokenPipeError
            written = os.write(self._sink, self._unsent[:PIECE]) if events else 0
        except BlockingIOError:
            return
        except OSError:
            self._deaf = True
            self._poll.unregister(self._sink)
            return
        with self._lock:
            del self._unsent[:written]

    def _split(self, data: bytes) -> Iterator[bytes | TooLong]:
        *whole, rest = data.split(b"\n")
        for part in whole:
            yield from self._keep(part)
            if not self._dropping:
                yield bytes(self._line)
            self._line.clear()
            self._dropping = False
        yield from self._keep(rest)

    def _keep(self, part: bytes) -> Iterator[TooLong]:
        """Add a part to the line, or drop the line if it gets too long."""
        if not self._dropping:
            self._line += part
        if len(self._line) > LONGEST:
            self._line.clear()
            self._dropping = True
            yield TooLong()

"""Reading output files as they grow. The kernel tells of growth by inotify; nothing here polls on a clock unless the
person has no inotify instance left."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
from collections.abc import Callable, Sequence

IN_MODIFY = 0x2
IN_NONBLOCK = os.O_NONBLOCK
IN_CLOEXEC = os.O_CLOEXEC

PIPE_CHUNK = 4096
"""PIPE_BUF (pipe(7)): what poll's POLLOUT promises can be written to a pipe without blocking. A write that blocks would
keep the client from passing on the first Ctrl-C while somebody reads slowly."""

FILE_CHUNK = 1024 * 1024
"""Bytes read at a time where writing cannot block for long: a regular file."""

RETRY = 0.2
"""Seconds between looks at the files when there is no inotify instance (fs.inotify.max_user_instances is 128 a user)."""


class FileWatch:
    """Readable when a watched file has changed. Without inotify, `timeout` says how long to wait before looking anyway."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
        self.timeout: float | None = None if self.descriptor >= 0 else RETRY

    def watch(self, descriptor: int) -> None:
        """Watches the file behind an open descriptor, whatever its name is by now."""
        path = f"/proc/self/fd/{descriptor}".encode()
        if self.descriptor >= 0 and self._libc.inotify_add_watch(self.descriptor, path, IN_MODIFY) < 0:
            self.timeout = RETRY

    def drain(self) -> None:
        """Forgets what has been told. Call it before reading the files, never after."""
        if self.descriptor < 0:
            return
        try:
            while os.read(self.descriptor, 4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """Gives the instance back."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Follower:
    """Copies one growing file to one of our own descriptors, from any point.

    `note` is told when the file shrank (the run truncated its own output; reading begins again at 0) and when bytes had
    been freed before they were read (the output limit keeps the newest). Of the hole that is where they were, nothing is copied.
    """

    def __init__(self, source: int, target: int, note: Callable[[str], None], offset: int = 0) -> None:
        self.source = source
        self.target = target
        self.offset = offset
        self._note = note
        self._pending = memoryview(b"")
        self._chunk = FILE_CHUNK if stat.S_ISREG(os.fstat(target).st_mode) else PIPE_CHUNK

    @property
    def wants_to_write(self) -> bool:
        """Whether something is read and not yet written."""
        return bool(self._pending)

    def fill(self) -> bool:
        """Reads what is next, unless something still waits to be written. Says whether there is something to write."""
        if not self._pending:
            self._pending = memoryview(self._read())
        return bool(self._pending)

    def flush(self) -> None:
        """Writes at most one chunk. The caller has polled the target: this does not block."""
        written = os.write(self.target, self._pending[: self._chunk])
        self._pending = self._pending[written:]

    def take(self) -> bytes:
        """What has been read, for who writes it in another form."""
        data, self._pending = bytes(self._pending), memoryview(b"")
        return data

    def _read(self) -> bytes:
        size = os.fstat(self.source).st_size
        if size < self.offset:
            self._go_on(0, "the run truncated its output; starting again at its beginning")
        while size > self.offset and (data := os.pread(self.source, FILE_CHUNK, self.offset)):
            # Pending after reading: bytes are freed meanwhile, and never come back. What is data now was data then.
            start = data_from(self.source, self.offset)
            if start is None:
                break
            freed = start - self.offset
            if freed:
                self._go_on(start, f"{freed} bytes were freed before they were read (the output limit keeps the newest)")
            if freed < len(data):
                self.offset = start + len(data) - freed
                return data[freed:]
        return b""

    def _go_on(self, offset: int, why: str) -> None:
        """What is read next is not what follows."""
        self._note(why)
        self.offset = offset


def data_from(file: int, offset: int) -> int | None:
    """The first offset from `offset` on that is not in a hole; `None` if there is only a hole, or nothing, up to the end."""
    try:
        return os.lseek(file, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        if error.errno == errno.EINVAL:  # a file system that knows no holes
            return offset
        raise


class Copying:
    """Several followers and the kernel's word that their files have grown, as one `Activity` of a poll loop."""

    def __init__(self, followers: Sequence[Follower]) -> None:
        self._followers = followers
        self._growth = FileWatch()
        for follower in followers:
            self._growth.watch(follower.source)

    @property
    def timeout(self) -> float | None:
        """Seconds after which to look anyway."""
        return self._growth.timeout

    def interests(self) -> dict[int, int]:
        """What to poll for. Reads ahead, so that only what is there to be written asks for its target."""
        self._growth.drain()
        wanted = {f.target: select.POLLOUT for f in self._followers if f.fill()}
        if self._growth.descriptor >= 0:
            wanted[self._growth.descriptor] = select.POLLIN
        return wanted

    def advance(self, ready: dict[int, int]) -> None:
        """Writes what can be written without blocking. Raises `BrokenPipeError` when the reader has gone."""
        for follower in self._followers:
            if follower.target in ready and follower.wants_to_write:
                follower.flush()

    def drained(self) -> bool:
        """Whether everything that the files hold now has been written."""
        return not any(follower.fill() for follower in self._followers)

    def close(self) -> None:
        """Closes the files."""
        self._growth.close()
        for follower in self._followers:
            os.close(follower.source)

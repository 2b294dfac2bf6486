"""Looks at an output file before a process opens it again: fanotify(7), which takes CAP_SYS_ADMIN.

The kernel asks a thread before it opens, and perhaps truncates, a file that is watched. The thread
keeps the newest bytes and allows it, within some 20 us. So a root's daemon also knows what a run
has written between two looks of the daemon. A write needs no open(2), so it does not wait. While
the daemon is stopped (SIGSTOP), such an open waits for it; if it dies, the kernel allows it, and
what was kept since its last look at the run is lost.
"""

import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from . import holes
from .truncated import MOST, NEWEST, NewestBytes, Truncation

_CLASS_CONTENT, _CLOEXEC, _NONBLOCK = 4, 1, 2
_MARK_ADD, _MARK_REMOVE = 1, 2
_OPEN_PERM = 0x10000
_EVENT = struct.Struct("=IBBHQii")
_ANSWER = struct.Struct("=iI")
_ALLOW = 1
"""linux/fanotify.h."""
_BATCH = 4096
_libc = ctypes.CDLL(None, use_errno=True)
_mark = _libc.fanotify_mark
_mark.argtypes = (
    ctypes.c_int,
    ctypes.c_uint,
    ctypes.c_uint64,
    ctypes.c_int,
    ctypes.c_char_p,
)
"""Without a path it marks the file of a descriptor."""


class Earlier(NamedTuple):
    """A file as it was before a process opened it."""

    status: os.stat_result
    newest: bytes

    def same(self, other: "Earlier") -> bool:
        """Return whether nothing was written in between. The clock of a file system may be too
        coarse to tell."""
        return self.newest == other.newest and (self.status.st_mtime_ns, self.status.st_size) == (
            other.status.st_mtime_ns,
            other.status.st_size,
        )


class Reopenings:
    """Watches output files while `served`. Nothing raises `OSError`: where the kernel or a missing
    capability forbids it, no file is watched."""

    def __init__(self) -> None:
        self._queue = -1
        self._seen: dict[int, list[Earlier]] = {}
        """By inode; another thread adds to it."""
        self._inodes: dict[int, int] = {}
        """Those of watched files, by descriptor."""
        self._watched: set[int] = set()
        """The same. An event of a file that is watched no more may come yet, and its inode be
        another file's by then."""
        self._looking = threading.Lock()
        """Held while a file is looked at: no process opens it meanwhile. Who holds it must open
        none: that would wait for the thread, which may wait for this."""

    @contextmanager
    def served(self) -> Iterator[None]:
        queue: int = _libc.fanotify_init(
            _CLASS_CONTENT | _CLOEXEC | _NONBLOCK, os.O_RDONLY | os.O_CLOEXEC
        )
        if queue < 0:
            yield
            return
        ends, end = os.pipe2(os.O_CLOEXEC)
        thread = threading.Thread(target=self._serve, args=(queue, ends), name="reopenings")
        thread.start()
        self._queue = queue
        try:
            yield
        finally:
            self._queue = -1
            os.close(end)
            thread.join()
            os.close(ends)

    def watch(self, descriptor: int, inode: int | None = None) -> None:
        """Watch an open file, whose inode the caller may know."""
        if self._queue >= 0:
            inode = os.fstat(descriptor).st_ino if inode is None else inode
            self._inodes[descriptor] = inode
            self._watched.add(inode)
            _mark(self._queue, _MARK_ADD, _OPEN_PERM, descriptor, None)

    def unwatch(self, descriptor: int) -> None:
        """Watch it no more: the kernel keeps the inode of each watched file in memory."""
        inode = self._inodes.pop(descriptor, None)
        if inode is None:
            return
        if self._queue >= 0:
            _mark(self._queue, _MARK_REMOVE, _OPEN_PERM, descriptor, None)
        with self._looking:
            self._watched.discard(inode)
            self._seen.pop(inode, None)

    def opened(self, inode: int) -> bool:
        """Return whether a process has opened this file since the last look."""
        return inode in self._seen

    def any(self) -> bool:
        """Return whether a process has opened any file since it was last taken."""
        return bool(self._seen)

    def truncations(
        self, newest: NewestBytes, descriptor: int
    ) -> tuple[os.stat_result, list[Truncation]]:
        """Look at an open file. Return its status, and what was there each time that it was
        truncated since the last look. Raises `OSError`."""
        with self._looking:  # its status, its bytes and what was kept of it are of one moment
            status = os.fstat(descriptor)
            reopened = self._seen.pop(status.st_ino, []) if self._seen else []
            every = [newest.look_back(*earlier) for earlier in reopened]
            found = [each for each in every if each is not None]
            try:
                last = newest.look(descriptor, status, reopened=bool(reopened))
            except OSError:
                if not found:
                    raise
                return status, found  # the next look raises it
        return status, found if last is None else [*found, last]

    def _serve(self, queue: int, ends: int) -> None:
        try:
            self._answer(queue, ends)
        finally:
            # whatever happens: else every open of a watched file would wait for an answer
            os.close(queue)

    def _answer(self, queue: int, ends: int) -> None:
        poll = select.poll()
        poll.register(queue, select.POLLIN)
        poll.register(ends, select.POLLIN)
        while all(descriptor != ends for descriptor, _ in poll.poll()):
            try:
                events = os.read(queue, _BATCH)
            except OSError:  # no descriptor is free for the event: the kernel refuses the open
                continue
            while events:
                length, _, _, _, _, descriptor, pid = _EVENT.unpack_from(events)
                events = events[length:]
                try:
                    if pid != os.getpid():
                        with self._looking:
                            self._keep(descriptor)
                finally:
                    os.write(queue, _ANSWER.pack(descriptor, _ALLOW))
                    os.close(descriptor)

    def _keep(self, descriptor: int) -> None:
        with suppress(OSError):
            status = os.fstat(descriptor)
            if status.st_ino not in self._watched:
                return
            seen = self._seen.setdefault(status.st_ino, [])
            if status.st_size and sum(len(each.newest) for each in seen) < MOST:
                offset = max(0, status.st_size - NEWEST)
                start, newest = holes.read(descriptor, offset, status.st_size - offset)
                found = Earlier(status, newest)
                if start + len(newest) == status.st_size and not (seen and found.same(seen[-1])):
                    seen.append(found)

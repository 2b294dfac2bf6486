"""Has the kernel tell when another process may have moved, removed, replaced or hidden files of the
daemon, so that an idle daemon need not look.

inotify(7) tells it of the files themselves, of a renamed directory on the way to them, and of names
in directories. A file that this daemon has open is not deleted (IN_DELETE_SELF) while it is open,
so for a socket IN_ATTRIB tells that its last name is gone. /proc/self/mountinfo tells of mounts by
EPOLLPRI (proc_pid_mountinfo(5)), once for each time that it was opened, to the first poll of any
kind. trio waits for EPOLLIN alone, so it is in an epoll of its own; and as a poll that begins to
wait takes the event and does not tell it, a second descriptor is asked then.
"""

import ctypes
import math
import os
import select
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import trio

from ..socket_file import traversed

# ---- inotify(7), which Python does not have


ATTRIB, MODIFY, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF = (
    0x4,
    0x2,
    0x40,
    0x80,
    0x100,
    0x200,
    0x400,
    0x800,
)
DONT_FOLLOW, MASK_ADD, ONESHOT = 0x02000000, 0x20000000, 0x80000000

libc = ctypes.CDLL(None, use_errno=True)
"""The C library. A test puts one in its place whose calls fail."""


def new_instance() -> int:
    """Return the descriptor of an instance without watches. Raises `OSError`: `EMFILE` if the user
    has none left (fs.inotify.max_user_instances, 128)."""
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    return _checked(descriptor)


def add_watch(instance: int, path: Path, mask: int) -> int:
    """Return the number of the watch. Raises `OSError`."""
    return _checked(libc.inotify_add_watch(instance, os.fsencode(path), mask), path)


def _checked(result: int, path: Path | None = None) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path and str(path))
    return result


# ---- Whether files have been moved, removed, replaced or hidden


LOOK = 5.0
"""Seconds between two looks at files: while the kernel cannot tell, and for as long as something
keeps changing."""

_ITSELF = MOVE_SELF | DELETE_SELF | MASK_ADD
_ITS_NAMES = CREATE | DELETE | MOVED_FROM | MOVED_TO


class Displacement:
    """Watches `files`, and `directories` with the names in them, from when it is made until it is
    closed.

    It is made for one look: begin to watch, look, wait, close. So whatever happens after the look
    is told."""

    def __init__(self, files: Iterable[Path] = (), directories: Iterable[Path] = ()) -> None:
        self._closing = ExitStack()
        self._before = select.poll()
        """Asked whether something was mounted before the wait began."""
        self._epoll: select.epoll | None = None
        """`None` if the kernel cannot tell of everything: no descriptor, inotify instance or watch
        is left, a file is missing, or a directory on the way is not readable."""
        with suppress(OSError), ExitStack() as closing:
            epoll = self._watch(files, directories, closing)
            self._epoll, self._closing = epoll, closing.pop_all()

    def _watch(
        self, files: Iterable[Path], directories: Iterable[Path], closing: ExitStack
    ) -> select.epoll:
        epoll = closing.enter_context(select.epoll())
        epoll.register(_mounts(closing), select.EPOLLPRI)
        self._before.register(_mounts(closing), select.POLLPRI)
        changes = new_instance()
        closing.callback(os.close, changes)
        epoll.register(changes, select.EPOLLIN)
        for path in files:
            add_watch(changes, path, _ITSELF | ATTRIB)
            self._watch_way(changes, path.parent)
        for path in directories:
            add_watch(changes, path, _ITSELF | _ITS_NAMES)
            self._watch_way(changes, path)
        return epoll

    def _watch_way(self, changes: int, path: Path) -> None:
        for entry in traversed(path):
            add_watch(changes, entry, _ITSELF | DONT_FOLLOW)

    async def wait(self, *, settled: bool) -> bool:
        """Sleep until the kernel tells of a change, or cannot tell of all, or the last one is not
        `settled`; then to the next multiple of `LOOK`, so that all who look wake the daemon
        together, and changes without end cost no more than looking would. Return whether there was
        no change."""
        with trio.move_on_at(
            math.inf if settled and self._epoll is not None else _next_look()
        ) as waiting:
            await self._told()
        if not waiting.cancelled_caught:
            await trio.sleep_until(_next_look())
        return waiting.cancelled_caught

    async def _told(self) -> None:
        if self._epoll is None:
            await trio.sleep_forever()
        with trio.CancelScope() as waiting:
            # called when this task waits
            trio.lowlevel.current_trio_token().run_sync_soon(
                lambda: self._before.poll(0) and waiting.cancel()
            )
            await trio.lowlevel.wait_readable(self._epoll.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()


def _mounts(closing: ExitStack) -> int:
    descriptor = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    closing.callback(os.close, descriptor)
    return descriptor


def _next_look() -> float:
    return (trio.current_time() // LOOK + 1) * LOOK

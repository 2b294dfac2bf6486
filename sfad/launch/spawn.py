"""posix_spawn(3) through ctypes: what `os.posix_spawn` lacks is descriptors that are not inheritable.

The daemon is suspended until the child has executed the trampoline (vfork), about 0.1 ms whatever the daemon's size,
and never forks itself. The calls keep the interpreter's lock (`PyDLL`), so that limits which are set around one
are not seen by other Python threads.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .trampoline import FD_DOOR, FD_FREE, Trampoline, python

_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80
_libc = ctypes.PyDLL(None)
_NAME_MAX, _POINTER = 255, 8
_SEARCHED = 1 << 20
"""Bytes of argument list that may go on a search: a half of the least that execve(2) takes, and thousands of directories."""
_STDIN = b"/proc/self/fd/0"
"""A session leader without a terminal acquires the one it opens; by its own stdin, so that no path is trusted."""


class LaunchError(Exception):
    """A command cannot be started: the system's error and a text that names the thing."""

    def __init__(
        self,
        number: int,
        doing: str,
        what: bytes,
        note: str = "",
        *,
        kind: Literal["launch", "output"] = "launch",
        about: Literal["command", "directory"] = "command",
    ) -> None:
        self.errno = number
        self.kind = kind
        self.about = about
        named = what.decode("utf-8", "backslashreplace") or "''"
        self.text = f"{doing} {named}: {os.strerror(number)}{note}"
        super().__init__(self.text)


@dataclass(frozen=True, slots=True)
class Job:
    """One spawn. The descriptors stay the caller's."""

    files: list[bytes]
    """What to execute: the first that is there."""
    argv: list[bytes]
    env: list[bytes]
    umask: int
    cwd: bytes
    stdio: tuple[int, int, int]
    door: int
    report: int
    gate: int
    terminal: bool = False
    nofile: int | None = None
    """The soft RLIMIT_NOFILE of the command, where it is not the daemon's."""
    msgqueue: int | None = None
    """The same of RLIMIT_MSGQUEUE: the tag."""
    cpus: frozenset[int] | None = None
    """The CPUs that it may use, where they are not the daemon's."""


class Spawner:
    """Starts commands through a trampoline."""

    def __init__(self, trampoline: Trampoline) -> None:
        self._trampoline = trampoline
        self._interactive = python()
        """For commands with a terminal: the one that lets Ctrl-Z stop them."""
        self._attributes = _buffer()
        everything = (ctypes.c_ubyte * 128)(*[255] * 128)
        _libc.posix_spawnattr_init(self._attributes)
        _libc.posix_spawnattr_setflags(self._attributes, ctypes.c_short(_SETSIGDEF | _SETSIGMASK | _SETSID))
        _libc.posix_spawnattr_setsigdefault(self._attributes, everything)
        _libc.posix_spawnattr_setsigmask(self._attributes, (ctypes.c_ubyte * 128)())

    def spawn(self, job: Job) -> int:
        """The pid of a new child: a session leader, all signals at their defaults and unblocked. Raises `OSError`.

        What holds a null byte would be cut at it: that is for the caller to refuse.
        """
        trampoline = self._interactive if job.terminal else self._trampoline
        argv = _strings(trampoline.argv(job.umask, job.cwd, job.files, job.argv))
        env = _strings(job.env)
        pid = ctypes.c_int()
        actions = _buffer()
        moved: list[int] = []
        limits: list[tuple[int, tuple[int, int]]] = []
        mine: set[int] | None = None
        _libc.posix_spawn_file_actions_init(actions)
        try:
            self._describe(actions, job, trampoline.image, moved)
            _limit(resource.RLIMIT_NOFILE, job.nofile, limits)
            _limit(resource.RLIMIT_MSGQUEUE, job.msgqueue, limits)
            mine = _bind(job.cpus)
            _check(_libc.posix_spawn(ctypes.byref(pid), trampoline.path, actions, self._attributes, argv, env))
        finally:
            if mine is not None:
                os.sched_setaffinity(0, mine)
            for kind, before in limits:
                resource.setrlimit(kind, before)
            _libc.posix_spawn_file_actions_destroy(actions)
            for fd in moved:
                os.close(fd)
        return pid.value

    def _describe(self, actions: object, job: Job, image: int | None, moved: list[int]) -> None:
        images = () if image is None else (image,)
        for target, source in enumerate((*job.stdio, job.door, job.report, job.gate, *images)):  # to 0-2, FD_DOOR, …
            if target == FD_DOOR and job.terminal:
                _check(_libc.posix_spawn_file_actions_addopen(actions, FD_DOOR, _STDIN, os.O_RDWR, 0))
            if source < FD_FREE:
                # they are moved one after the other: it could be overwritten before its turn
                source = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, FD_FREE)
                moved.append(source)
            _check(_libc.posix_spawn_file_actions_adddup2(actions, source, target))

    def close(self) -> None:
        """Frees what the spawner holds."""
        _libc.posix_spawnattr_destroy(self._attributes)
        self._trampoline.close()


def _buffer() -> ctypes.Array[ctypes.c_uint64]:
    """Room for a posix_spawnattr_t (336 bytes in glibc) or a posix_spawn_file_actions_t (80)."""
    return (ctypes.c_uint64 * 128)()


def _strings(items: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(items) + 1))(*items, None)


def _check(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))


def _limit(kind: int, soft: int | None, changed: list[tuple[int, tuple[int, int]]]) -> None:
    """Sets a soft limit of this process, for a child to inherit, and notes what it was."""
    if soft is not None and soft != (mine := resource.getrlimit(kind))[0]:
        resource.setrlimit(kind, (soft, mine[1]))
        changed.append((kind, mine))


def _bind(cpus: frozenset[int] | None) -> set[int] | None:
    """Binds this thread, for a child to inherit before its first instruction; what it was bound to before."""
    if cpus is None:
        return None
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:  # they were taken away from us, by a cpuset or by unplugging: better started than bound
        return None
    return mine


def candidates(name: bytes, env: Sequence[bytes]) -> list[bytes]:
    """The files that execvp(3) would try to execute, by the *run's* PATH, in its working directory. None is looked at here.

    Raises `LaunchError` for a name that no file can have, and for more than the kernel would take: both are the client's, and
    what is made of them grows with their product."""
    if b"/" in name:
        return [name]
    if not name:
        return []
    path = next((item[5:] for item in env if item.startswith(b"PATH=")), b"/bin:/usr/bin")
    if len(name) > _NAME_MAX:
        raise LaunchError(errno.ENAMETOOLONG, "cannot execute", name)
    if len(path) + path.count(b":") * (len(name) + _POINTER) > _SEARCHED:
        raise LaunchError(errno.E2BIG, "cannot search PATH for", name)
    return [directory + b"/" + name if directory else b"./" + name for directory in path.split(b":")]

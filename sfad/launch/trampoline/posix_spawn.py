"""posix_spawn(3) through ctypes, because `os.posix_spawn` makes every descriptor that it passes on inheritable.

posix_spawn(3) suspends the daemon until the child has executed the trampoline (vfork): about 0.1 ms, whatever the daemon's
size. The daemon never forks itself. The calls keep the interpreter's lock (`PyDLL`), so that other Python threads do not see
the limits that are set around a call.
"""

import ctypes
import errno
import fcntl
import os
import resource
from collections.abc import Sequence

from ..launcher import LaunchError, LaunchSpec
from ..sealed_environment import sealed
from .contract import FD_DOOR, FD_FREE
from .executable import Trampoline, python

_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80
_libc = ctypes.PyDLL(None)
_NAME_MAX, _POINTER = 255, 8
_MAX_SEARCH = 1 << 20
"""Most bytes of argument list for the files of a search: half of what execve(2) takes at least, and thousands of directories."""
_STDIN = b"/proc/self/fd/0"
"""A session leader without a terminal acquires the one that it opens (tty(4)). It opens its own stdin, so that no path has to
be trusted."""


class PosixSpawner:
    def __init__(self, trampoline: Trampoline) -> None:
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._trampoline = trampoline
        self._interactive = python()
        """For commands with a terminal: only this trampoline lets Ctrl-Z stop them."""
        self._attributes = _buffer()
        everything = (ctypes.c_ubyte * 128)(*[255] * 128)
        _libc.posix_spawnattr_init(self._attributes)
        _libc.posix_spawnattr_setflags(self._attributes, ctypes.c_short(_SETSIGDEF | _SETSIGMASK | _SETSID))
        _libc.posix_spawnattr_setsigdefault(self._attributes, everything)
        _libc.posix_spawnattr_setsigmask(self._attributes, (ctypes.c_ubyte * 128)())

    def spawn(
        self,
        spec: LaunchSpec,
        files: list[bytes],
        *,
        door: int | None,
        report: int,
        gate: int,
        nofile: int | None = None,
        msgqueue: int | None = None,
        cpus: frozenset[int] | None = None,
    ) -> int:
        """Return the pid of a new child: a session leader, all signals at their defaults and unblocked. Raises `OSError`.

        It executes the first of `files` that is there. `door`, `report` and `gate` are the trampoline's descriptors, and stay
        the caller's; without a door it has nothing to write to. `nofile` and `msgqueue` are its soft limits and `cpus` are its
        CPUs, where they differ from the daemon's. The caller has refused null bytes, at which the C strings would end."""
        stdio = [self._null if fd is None else fd for fd in (spec.stdin, spec.stdout, spec.stderr)]
        terminal = spec.terminal and os.isatty(stdio[0]) and (spec.user is None or os.fstat(stdio[0]).st_uid == spec.user.uid)
        trampoline = self._interactive if terminal else self._trampoline
        argv = _strings(trampoline.argv(spec.umask, spec.cwd, files, spec.argv))
        env = _strings(spec.env if trampoline.image is not None else sealed(spec.env))
        sources = [*stdio, self._null if door is None else door, report, gate]
        if trampoline.image is not None:
            sources.append(trampoline.image)
        pid = ctypes.c_int()
        actions = _buffer()
        moved: list[int] = []
        limits: list[tuple[int, tuple[int, int]]] = []
        mine: set[int] | None = None
        _libc.posix_spawn_file_actions_init(actions)
        try:
            _describe(actions, sources, moved, terminal=terminal)
            _limit(resource.RLIMIT_NOFILE, nofile, limits)
            _limit(resource.RLIMIT_MSGQUEUE, msgqueue, limits)
            mine = _bind(cpus)
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

    def close(self) -> None:
        _libc.posix_spawnattr_destroy(self._attributes)
        self._trampoline.close()
        os.close(self._null)


def _describe(actions: object, sources: list[int], moved: list[int], *, terminal: bool) -> None:
    """Have the child get `sources` as descriptors 0, 1, 2, FD_DOOR, and so on."""
    for target, source in enumerate(sources):
        if target == FD_DOOR and terminal:
            _check(_libc.posix_spawn_file_actions_addopen(actions, FD_DOOR, _STDIN, os.O_RDWR, 0))
        if source < FD_FREE:
            # they are moved one after the other: an earlier one could overwrite it
            source = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, FD_FREE)
            moved.append(source)
        _check(_libc.posix_spawn_file_actions_adddup2(actions, source, target))


def _buffer() -> ctypes.Array[ctypes.c_uint64]:
    """Return room for a posix_spawnattr_t (336 bytes in glibc) or a posix_spawn_file_actions_t (80)."""
    return (ctypes.c_uint64 * 128)()


def _strings(items: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(items) + 1))(*items, None)


def _check(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))


def _limit(kind: int, soft: int | None, changed: list[tuple[int, tuple[int, int]]]) -> None:
    """Set a soft limit of this process, for a child to inherit, and append what it was to `changed`."""
    if soft is not None and soft != (mine := resource.getrlimit(kind))[0]:
        resource.setrlimit(kind, (soft, mine[1]))
        changed.append((kind, mine))


def _bind(cpus: frozenset[int] | None) -> set[int] | None:
    """Bind this thread, for a child to inherit before its first instruction; return the thread's CPUs before that."""
    if cpus is None:
        return None
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:  # a cpuset or unplugging took these CPUs from the daemon: start the command unbound
        return None
    return mine


def candidates(name: bytes, env: Sequence[bytes], without: bytes | None = None) -> list[bytes]:
    """Return the files that execvp(3) would try to execute, by the *run's* PATH, in its working directory, except those in the
    directory `without`. None is looked at here.

    Raises `LaunchError` for a name longer than a file's can be, and for more bytes than the kernel takes. The client chooses
    both, and the list grows with the product of name and PATH."""
    if b"/" in name:
        return [name]
    if not name:
        return []
    path = next((item[5:] for item in env if item.startswith(b"PATH=")), b"/bin:/usr/bin")
    if len(name) > _NAME_MAX:
        raise LaunchError(errno.ENAMETOOLONG, "cannot execute", name)
    if len(path) + path.count(b":") * (len(name) + _POINTER) > _MAX_SEARCH:
        raise LaunchError(errno.E2BIG, "cannot search PATH for", name)
    searched = [directory for directory in path.split(b":") if directory != without]
    return [directory + b"/" + name if directory else b"./" + name for directory in searched]

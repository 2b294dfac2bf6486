"""Starting the process that executes a trampoline: by clone3(2), or where that is impossible by
posix_spawn(3).

The daemon never forks itself. posix_spawn(3) suspends it until the child has executed the
trampoline (vfork). It is called through ctypes, because `os.posix_spawn` makes every descriptor
that it passes on inheritable. The calls keep the interpreter's lock (`PyDLL`), so that other Python
threads do not see the limits that are set around a call.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import termios
import time
from array import array
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct

from .. import kernel
from ..credentials import sealed
from ..launcher import LaunchError, LaunchSpec
from .executable import FD_DOOR, FD_FREE, FD_REPORT, SHELL, Trampoline, python
from .image import CLONE_AT, IMAGE

# ---- clone3(2) into a run's cgroup, sharing the daemon's memory: what posix_spawn(3) cannot do
# before glibc 2.39
#
# A child that attaches itself waits for the kernel: 6 to 17 ms on 6.18, an RCU grace period in
# which mkdir(2) of another cgroup waits too. A child that begins in its cgroup waits for nothing.
# It makes the system calls of a table, the last of which executes the trampoline, and touches
# nothing else.
#
# There is no CLONE_VFORK, which would suspend the daemon until the child has executed: an agent
# that is root may freeze its cgroup, and so the child run that it asks for. So the daemon goes on,
# and the child's memory must stay until the child has executed or ended. It does not belong to
# Python, which frees its own when it ends.
#
# Linux 6.18 kills a child at once that begins in a cgroup whose `cgroup.kill` was ever written to:
# it compares how often that was done with the count of the cgroup that the parent is in.

_pylibc = ctypes.PyDLL(None, use_errno=True)
_pylibc.malloc.argtypes, _pylibc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
_pylibc.free.argtypes = [ctypes.c_void_p]
_pylibc.mmap.argtypes, _pylibc.mmap.restype = (
    [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long],
    ctypes.c_void_p,
)
_FAILED = ctypes.c_void_p(-1).value

_CLONE_VM, _CLONE_PIDFD, _CLONE_CHILD_CLEARTID, _CLONE_CLEAR_SIGHAND, _CLONE_INTO_CGROUP = (
    1 << 8,
    1 << 12,
    1 << 21,
    1 << 32,
    1 << 33,
)
_FLAGS = _CLONE_VM | _CLONE_PIDFD | _CLONE_CHILD_CLEARTID | _CLONE_CLEAR_SIGHAND
_SIGACTION, _SIGPROCMASK, _IOCTL, _DUP2, _EXECVE, _SYS_SETSID, _SETAFFINITY, _PRLIMIT = (
    13,
    14,
    16,
    33,
    59,
    112,
    203,
    302,
)
_MAY_FAIL = 1 << 32
"""Added to the number of a call: if it fails, the child goes on."""
_CALL = 5
"""Words of a call in the table: its number and four arguments."""

_PIDFD, _WAITING, _ZERO, _LIMITS, _CPUS, _STACK, _CALLS = 11, 12, 13, 17, 21, 37, 69
"""Where the memory has, in words, after the arguments of clone3(2): the pidfd, a word that the
kernel clears when the child executes or ends, 32 bytes of zeros, two limits, a mask of 1 024 CPUs,
a stack of 256 bytes, and the table of calls. Addresses of strings and the strings come last."""
_MAX_CPU = 64 * (_STACK - _CPUS)

Limits = dict[int, tuple[int, int]]
"""Soft and hard limit by kind of RLIMIT."""


class Cloner:
    """Clones children of this process. `executable` is a descriptor of the trampoline's image,
    which has the code for it."""

    def __init__(self, executable: int) -> None:
        """Raises `OSError` where a security module forbids to execute the image in this process."""
        # never unmapped: a child that has not executed yet runs it
        code = _pylibc.mmap(
            None, len(IMAGE), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, executable, 0
        )
        if code == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        prototype = ctypes.PYFUNCTYPE(
            ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
        )
        self._clone = prototype(code + CLONE_AT)
        self._ignored = _ignored_signals()

    def clone(
        self,
        path: bytes,
        argv: Sequence[bytes],
        env: Sequence[bytes],
        sources: Sequence[int],
        report: int,
        cgroup: int | None,
        limits: Limits,
        cpus: frozenset[int] | None,
        *,
        terminal: bool = False,
    ) -> tuple[int, int, int]:
        """Return pid, pidfd and memory of a new child that executes `path`. Once it has executed or
        ended, `free` the memory.

        The child is a session leader with `sources` as descriptors 0, 1, 2 and so on, all signals
        at their defaults and unblocked, in the cgroup whose directory is open as `cgroup`. It
        writes to `report` what fails in it, as a trampoline does. `terminal`: descriptor 0 becomes
        the terminal of its session. Raises `OSError`."""
        count = 3 + len(self._ignored) + len(limits) + (cpus is not None) + len(sources) + terminal
        argv_at = _CALLS + _CALL * count
        env_at = argv_at + len(argv) + 1
        text_at = env_at + len(env) + 1
        words = [*argv, *env, path]
        text = b"\0".join(words) + b"\0"
        memory: int | None = _pylibc.malloc(8 * text_at + len(text))
        if memory is None:
            raise MemoryError
        place = range(memory, memory + 8 * text_at + 1, 8)
        calls = [_SYS_SETSID, 0, 0, 0, 0]
        for number in self._ignored:
            calls += _SIGACTION, number, place[_ZERO], 0, 8
        for index, kind in enumerate(limits):
            calls += _PRLIMIT, 0, kind, place[_LIMITS + 2 * index], 0
        # a cpuset or unplugging may have taken these CPUs from the daemon: start the command
        # unbound
        if cpus is not None:
            calls += _SETAFFINITY + _MAY_FAIL, 0, _MAX_CPU // 8, place[_CPUS], 0
        for target, source in enumerate(sources):
            calls += _DUP2, source, target, 0, 0
        if terminal:
            calls += _IOCTL, 0, termios.TIOCSCTTY, 0, 0
        calls += _SIGPROCMASK, signal.SIG_SETMASK, place[_ZERO], 0, 8
        *strings, path_at, _end = accumulate(
            [len(word) + 1 for word in words], initial=place[text_at]
        )
        calls += _EXECVE, path_at, place[argv_at], place[env_at], 0
        flags = _FLAGS if cgroup is None else _FLAGS | _CLONE_INTO_CGROUP
        arguments = (
            flags,
            place[_PIDFD],
            place[_WAITING],
            0,
            signal.SIGCHLD,
            place[_STACK],
            8 * (_CALLS - _STACK),
            0,
            0,
            0,
            cgroup or 0,
        )
        data = array("Q", bytes(8 * _CALLS))
        data[: len(arguments)] = array("Q", arguments)
        data[_WAITING] = 1
        for index, (soft, hard) in enumerate(limits.values()):
            data[_LIMITS + 2 * index], data[_LIMITS + 2 * index + 1] = soft % 2**64, hard % 2**64
        for cpu in cpus or ():
            if cpu < _MAX_CPU:
                data[_CPUS + cpu // 64] |= 1 << cpu % 64
        data.extend([*calls, *strings[: len(argv)], 0, *strings[len(argv) :], 0])
        filled = data.tobytes() + text
        ctypes.memmove(memory, filled, len(filled))
        pid = self._clone(memory, 8 * len(arguments), place[_CALLS], report)
        if pid < 0:
            _pylibc.free(memory)
            raise OSError(-pid, os.strerror(-pid))
        return pid, ctypes.c_int.from_address(place[_PIDFD]).value, memory


def _ignored_signals() -> list[int]:
    """Return the signals that this process ignores, which CLONE_CLEAR_SIGHAND leaves: Python's two,
    nohup(1)'s one, and whatever it inherited, which may be the two that glibc keeps to itself (32
    and 33; a parent that called posix_spawn(3) leaves them ignored) and does not tell of."""
    mask = int(kernel.status("self").get(b"SigIgn", b"0"), 16)
    return [bit + 1 for bit in range(mask.bit_length()) if mask >> bit & 1]


def is_waiting(memory: int) -> bool:
    """Return whether the child has neither executed nor ended. Until then it has all descriptors of
    this process."""
    return bool(ctypes.c_int.from_address(memory + 8 * _WAITING).value)


def free(memory: int) -> None:
    """Free the memory of a child that has executed or ended."""
    _pylibc.free(memory)


# ---- Starting the process that executes a trampoline: by clone3(2), or where that is impossible by
# posix_spawn(3)

_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80
_libc = ctypes.PyDLL(None)
_NAME_MAX, _POINTER = 255, 8
_MAX_SEARCH = 1 << 20
"""Most bytes of argument list for the files of a search: half of what execve(2) takes at least, and
thousands of directories."""
_STDIN = b"/proc/self/fd/0"
"""A session leader without a terminal acquires the one that it opens (tty(4)). It opens its own
stdin, so that no path has to be trusted."""


_CLONE_REFUSED = frozenset(
    {
        errno.ENOSYS,
        errno.EINVAL,
        errno.E2BIG,
        errno.EPERM,
        errno.EACCES,
        errno.EBUSY,
        errno.EOPNOTSUPP,
        errno.EAGAIN,
    }
)
"""An old kernel, a seccomp filter, or a cgroup that a process may enter but not begin in: one with
rights that were delegated otherwise, or with as many processes as `pids.max` allows. posix_spawn(3)
is tried then."""


class Door(Struct, frozen=True):
    """How a trampoline gets into a run's containment."""

    cgroup: int | None = None
    """The directory of its cgroup. The launcher closes it."""
    attach: bool = False
    """Whether a child must attach itself, and not begin there: see `Cloner.clone`. In a frozen
    cgroup it would stand still before it has executed, with all descriptors of the daemon."""
    msgqueue: int | None = None
    """The soft RLIMIT_MSGQUEUE that tags it."""


class NewChild(NamedTuple):
    """A new child. `clone_block` is to be freed by `free` once it has executed or ended."""

    pid: int
    pidfd: int = -1
    """-1 if it is not open yet."""
    clone_block: int | None = None
    started: int | None = None
    """As `Stat.started`; `None` where one tick became the next meanwhile: /proc tells it."""


class ProcessCreator:
    """Starts trampolines as children of this process."""

    def __init__(self, trampoline: Trampoline) -> None:
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        # asked once, and not for each child: a hard limit can be lowered, and nothing does that
        self._hard_nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self._hard_msgqueue = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]
        self._trampoline = trampoline
        self._interactive = python()
        """For commands with a person's terminal: only this trampoline lets Ctrl-Z stop them."""
        self._cloner: Cloner | None = None
        if trampoline.image is not None:
            with suppress(OSError):
                self._cloner = Cloner(trampoline.image)
        self._attributes = _buffer()
        everything = (ctypes.c_ubyte * 128)(*[255] * 128)
        _libc.posix_spawnattr_init(self._attributes)
        _libc.posix_spawnattr_setflags(
            self._attributes, ctypes.c_short(_SETSIGDEF | _SETSIGMASK | _SETSID)
        )
        _libc.posix_spawnattr_setsigdefault(self._attributes, everything)
        _libc.posix_spawnattr_setsigmask(self._attributes, (ctypes.c_ubyte * 128)())

    def create(
        self,
        spec: LaunchSpec,
        files: list[bytes],
        env: Sequence[bytes],
        *,
        door: Door,
        report: int,
        gate: int,
        nofile: int | None = None,
        cpus: frozenset[int] | None = None,
    ) -> NewChild:
        """Return a new child: a session leader, all signals at their defaults and unblocked. Raises
        `OSError`.

        It executes the first of `files` that is there, with `env` instead of the environment in
        `spec`. `door`, `report` and `gate` are the trampoline's descriptors, and stay the caller's.
        `nofile` and the door's `msgqueue` are its soft limits, and `cpus` are its CPUs, where they
        differ from the daemon's. The caller has refused null bytes, at which the C strings would
        end."""
        stdio = [self._null if fd is None else fd for fd in (spec.stdin, spec.stdout, spec.stderr)]
        terminal = (
            spec.terminal
            and os.isatty(stdio[0])
            and (spec.user is None or os.fstat(stdio[0]).st_uid == spec.user.uid)
        )
        trampoline = self._interactive if terminal and not spec.alone else self._trampoline
        # an empty word ends the files, none of which is empty
        words = (SHELL, b"%03o" % spec.umask, spec.cwd, *files, b"", *spec.argv)
        argv = [*trampoline.prefix, *words]
        env = env if trampoline.image is not None else sealed(env)
        limits: Limits = {}
        if nofile is not None:
            limits[resource.RLIMIT_NOFILE] = nofile, self._hard_nofile
        if door.msgqueue is not None:
            limits[resource.RLIMIT_MSGQUEUE] = door.msgqueue, self._hard_msgqueue
        opened: list[int] = []
        try:
            given = (*stdio, self._null, report, gate, trampoline.image)
            sources = [
                fd if fd >= FD_FREE else _above(fd, opened) for fd in given if fd is not None
            ]
            child: tuple[int, int, int | None] | None = None
            began = _ticks_since_boot()
            if self._cloner is not None and trampoline.image is not None and not door.attach:
                try:
                    child = self._cloner.clone(
                        trampoline.path,
                        argv,
                        env,
                        sources,
                        sources[FD_REPORT],
                        door.cgroup,
                        limits,
                        cpus,
                        terminal=terminal,
                    )
                except OSError as error:
                    if error.errno not in _CLONE_REFUSED:
                        raise
            if child is None:
                if door.cgroup is not None:
                    sources[FD_DOOR] = os.open(
                        "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=door.cgroup
                    )
                    opened.append(sources[FD_DOOR])
                pid = self._posix_spawn(
                    trampoline.path, argv, env, sources, limits, cpus, terminal=terminal
                )
                child = pid, -1, None
            return NewChild(*child, began if began == _ticks_since_boot() else None)
        finally:
            for fd in opened:
                os.close(fd)

    def _posix_spawn(
        self,
        path: bytes,
        argv: Sequence[bytes],
        env: Sequence[bytes],
        sources: Sequence[int],
        limits: Limits,
        cpus: frozenset[int] | None,
        *,
        terminal: bool,
    ) -> int:
        pid = ctypes.c_int()
        actions = _buffer()
        changed: Limits = {}
        mine: set[int] | None = None
        _libc.posix_spawn_file_actions_init(actions)
        try:
            _describe(actions, sources, terminal=terminal)
            for kind, limit in limits.items():
                changed[kind] = resource.getrlimit(kind)
                resource.setrlimit(kind, limit)
            mine = _bind(cpus)
            _check(
                _libc.posix_spawn(
                    ctypes.byref(pid),
                    path,
                    actions,
                    self._attributes,
                    _strings(argv),
                    _strings(env),
                )
            )
        finally:
            if mine is not None:
                os.sched_setaffinity(0, mine)
            for kind, limit in changed.items():
                resource.setrlimit(kind, limit)
            _libc.posix_spawn_file_actions_destroy(actions)
        return pid.value

    def close(self) -> None:
        _libc.posix_spawnattr_destroy(self._attributes)
        self._trampoline.close()
        os.close(self._null)


def _above(fd: int, opened: list[int]) -> int:
    """Return another descriptor of a file, none of those that the trampoline gets: they are set one
    after the other."""
    opened.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FD_FREE))
    return opened[-1]


def _describe(actions: object, sources: Sequence[int], *, terminal: bool) -> None:
    """Have the child get `sources` as descriptors 0, 1, 2, FD_DOOR, and so on."""
    for target, source in enumerate(sources):
        if target == FD_DOOR and terminal:
            _check(_libc.posix_spawn_file_actions_addopen(actions, FD_DOOR, _STDIN, os.O_RDWR, 0))
        _check(_libc.posix_spawn_file_actions_adddup2(actions, source, target))


def _buffer() -> ctypes.Array[ctypes.c_uint64]:
    """Return room for a posix_spawnattr_t (336 bytes in glibc) or a posix_spawn_file_actions_t
    (80)."""
    return (ctypes.c_uint64 * 128)()


def _strings(items: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(items) + 1))(*items, None)


def _check(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))


def _ticks_since_boot() -> int:
    """Return the start time, as `Stat.started` counts it, of a process that begins now: the kernel
    takes it from this clock, and shows it rounded down (`start_boottime`, fs/proc/array.c)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * kernel.TICKS // 1_000_000_000 - kernel.AHEAD


def _bind(cpus: frozenset[int] | None) -> set[int] | None:
    """Bind this thread, for a child to inherit before its first instruction; return the thread's
    CPUs before that."""
    if cpus is None:
        return None
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        # a cpuset or unplugging took these CPUs from the daemon: start the command unbound
        return None
    return mine


def files_to_try(name: bytes, env: Sequence[bytes], without: Collection[bytes] = ()) -> list[bytes]:
    """Return the files that execvp(3) would try to execute, by the *run's* PATH, in its working
    directory, except those in the directories `without`. None is looked at here.

    Raises `LaunchError` for a name longer than a file's can be, and for more bytes than the kernel
    takes. The client chooses both, and the list grows with the product of name and PATH."""
    if b"/" in name:
        return [name]
    if not name:
        return []
    path = next((item[5:] for item in env if item.startswith(b"PATH=")), b"/bin:/usr/bin")
    if len(name) > _NAME_MAX:
        raise LaunchError(errno.ENAMETOOLONG, "cannot execute", name)
    if len(path) + path.count(b":") * (len(name) + _POINTER) > _MAX_SEARCH:
        raise LaunchError(errno.E2BIG, "cannot search PATH for", name)
    searched = [directory for directory in path.split(b":") if directory not in without]
    return [directory + b"/" + name if directory else b"./" + name for directory in searched]

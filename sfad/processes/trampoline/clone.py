"""clone3(2) into a run's cgroup, sharing the daemon's memory: what posix_spawn(3) cannot do before glibc 2.39.

A child that attaches itself waits for the kernel: 6 to 17 ms on 6.18, an RCU grace period in which mkdir(2) of another cgroup waits
too. A child that begins in its cgroup waits for nothing. It makes the system calls of a table, the last of which executes the
trampoline, and touches nothing else.

There is no CLONE_VFORK, which would suspend the daemon until the child has executed: an agent that is root may freeze its cgroup,
and so the child run that it asks for. So the daemon goes on, and the child's memory must stay until the child has executed or
ended. It does not belong to Python, which frees its own when it ends.

Linux 6.18 kills a child at once that begins in a cgroup whose `cgroup.kill` was ever written to: it compares how often that was
done with the count of the cgroup that the parent is in.
"""

import ctypes
import mmap
import os
import signal
from array import array
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from .image import CLONE_AT, IMAGE

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.malloc.argtypes, _libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
_libc.free.argtypes = [ctypes.c_void_p]
_libc.mmap.argtypes, _libc.mmap.restype = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long], ctypes.c_void_p
_FAILED = ctypes.c_void_p(-1).value

_CLONE_VM, _CLONE_PIDFD, _CLONE_CHILD_CLEARTID, _CLONE_CLEAR_SIGHAND, _CLONE_INTO_CGROUP = (
    1 << 8,
    1 << 12,
    1 << 21,
    1 << 32,
    1 << 33,
)
_FLAGS = _CLONE_VM | _CLONE_PIDFD | _CLONE_CHILD_CLEARTID | _CLONE_CLEAR_SIGHAND
_SIGACTION, _SIGPROCMASK, _DUP2, _EXECVE, _SETSID, _SETAFFINITY, _PRLIMIT = 13, 14, 33, 59, 112, 203, 302
_MAY_FAIL = 1 << 32
"""Added to the number of a call: if it fails, the child goes on."""
_CALL = 5
"""Words of a call in the table: its number and four arguments."""

_PIDFD, _WAITING, _ZERO, _LIMITS, _CPUS, _STACK, _CALLS = 11, 12, 13, 17, 21, 37, 69
"""Where the memory has, in words, after the arguments of clone3(2): the pidfd, a word that the kernel clears when the child
executes or ends, 32 bytes of zeros, two limits, a mask of 1 024 CPUs, a stack of 256 bytes, and the table of calls. Addresses of
strings and the strings come last."""
_MAX_CPU = 64 * (_STACK - _CPUS)

Limits = dict[int, tuple[int, int]]
"""Soft and hard limit by kind of RLIMIT."""


class Cloner:
    """Clones children of this process. `executable` is a descriptor of the trampoline's image, which has the code for it."""

    def __init__(self, executable: int) -> None:
        """Raises `OSError` where a security module forbids to execute the image in this process."""
        # never unmapped: a child that has not executed yet runs it
        code = _libc.mmap(None, len(IMAGE), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, executable, 0)
        if code == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        prototype = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int)
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
    ) -> tuple[int, int, int]:
        """Return pid, pidfd and memory of a new child that executes `path`. Once it has executed or ended, `free` the memory.

        The child is a session leader with `sources` as descriptors 0, 1, 2 and so on, all signals at their defaults and unblocked,
        in the cgroup whose directory is open as `cgroup`. It writes to `report` what fails in it, as a trampoline does. Raises
        `OSError`."""
        count = 3 + len(self._ignored) + len(limits) + (cpus is not None) + len(sources)
        argv_at = _CALLS + _CALL * count
        env_at = argv_at + len(argv) + 1
        text_at = env_at + len(env) + 1
        words = [*argv, *env, path]
        text = b"\0".join(words) + b"\0"
        memory: int | None = _libc.malloc(8 * text_at + len(text))
        if memory is None:
            raise MemoryError
        place = range(memory, memory + 8 * text_at + 1, 8)
        calls = [_SETSID, 0, 0, 0, 0]
        for number in self._ignored:
            calls += _SIGACTION, number, place[_ZERO], 0, 8
        for index, kind in enumerate(limits):
            calls += _PRLIMIT, 0, kind, place[_LIMITS + 2 * index], 0
        if cpus is not None:  # a cpuset or unplugging may have taken these CPUs from the daemon: start the command unbound
            calls += _SETAFFINITY + _MAY_FAIL, 0, _MAX_CPU // 8, place[_CPUS], 0
        for target, source in enumerate(sources):
            calls += _DUP2, source, target, 0, 0
        calls += _SIGPROCMASK, signal.SIG_SETMASK, place[_ZERO], 0, 8
        *strings, path_at, _end = accumulate([len(word) + 1 for word in words], initial=place[text_at])
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
            _libc.free(memory)
            raise OSError(-pid, os.strerror(-pid))
        return pid, ctypes.c_int.from_address(place[_PIDFD]).value, memory


def _ignored_signals() -> list[int]:
    """Return the signals that this process ignores, which CLONE_CLEAR_SIGHAND leaves: Python's two, nohup(1)'s one, and whatever it
    inherited, which may be the two that glibc keeps to itself (32 and 33; a parent that called posix_spawn(3) leaves them ignored)
    and does not tell of."""
    for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
        if line.startswith("SigIgn:"):
            mask = int(line.split()[1], 16)
            return [bit + 1 for bit in range(mask.bit_length()) if mask >> bit & 1]
    return []


def is_waiting(memory: int) -> bool:
    """Return whether the child has neither executed nor ended. Until then it has all descriptors of this process."""
    return bool(ctypes.c_int.from_address(memory + 8 * _WAITING).value)


def free(memory: int) -> None:
    """Free the memory of a child that has executed or ended."""
    _libc.free(memory)

"""What the kernel tells about processes in /proc. `None` means gone (or not ours to see).

Anything else that keeps from reading (no descriptor is free, no memory) is an `OSError`: it must not be taken for "gone".

psutil answers most of this too; here are the reads that are on a hot path or that it does not have. A scan of 500
processes takes it three times as long, and against a tree that keeps forking the time of a scan is what decides.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from typing import NamedTuple

_PAGE = resource.getpagesize()
_CHUNK = 4096
_MOST = 8 * 1024 * 1024
"""Bytes of one file that are read. execve(2) takes environments of up to 6 MiB; PR_SET_MM can make a process show any amount."""
GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENOTDIR})
HIDDEN = frozenset({errno.EACCES, errno.EPERM})


_STOP = 1 << (signal.SIGSTOP - 1)


class Stat(NamedTuple):
    """From /proc/PID/stat."""

    pid: int
    state: str
    """The letter of ps(1): R, S, D, T, Z, …"""
    parent: int
    started: int
    """Clock ticks since boot. With the pid it identifies a process."""
    threads: int = 1

    @property
    def alive(self) -> bool:
        """Whether there is anything left to stop: a zombie waits for its parent, nothing else. A process whose main thread has
        ended shows as a zombie too, but its other threads run on."""
        return self.state not in "ZX" or self.threads > 1

    @property
    def stopped(self) -> bool:
        """Whether SIGSTOP (or a tracer) holds it."""
        return self.state in "Tt"


def threads_stopped(pid: int) -> bool:
    """Whether no thread of a process runs: each is stopped, or has ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError as error:
        if error.errno in GONE | HIDDEN:
            return True
        raise
    found = (_stat(pid, f"/proc/{pid}/task/{thread}/stat") for thread in threads)
    return all(thread is None or thread.state in "TtZX" for thread in found)


def will_stop(pid: int) -> bool:
    """Whether a SIGSTOP waits for the process: the kernel delivers it before the process executes another instruction."""
    masks = (line.split() for line in (read_whole(f"/proc/{pid}/status") or b"").splitlines())
    return any(words[0] in (b"SigPnd:", b"ShdPnd:") and int(words[1], 16) & _STOP for words in masks if len(words) > 1)


def read(path: str) -> bytes | None:
    """The first page of a file, or `None`. Raises `OSError`."""
    return _read(path, whole=False)


def read_whole(path: str) -> bytes | None:
    """All of it: what is longer than a page comes in several reads."""
    return _read(path, whole=True)


def _read(path: str, *, whole: bool) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(fd, _CHUNK)
            if whole and content:
                content = b"".join((content, *_rest(fd)))
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in GONE | HIDDEN:
            return None
        raise
    return content


def _rest(fd: int) -> Iterator[bytes]:
    """What follows, in growing parts: a long file takes time that is linear in its length."""
    size, left = 4 * _CHUNK, _MOST
    while left > 0 and (part := os.read(fd, min(size, left))):
        yield part
        size, left = min(2 * size, 1 << 20), left - len(part)


def is_alive(pid: int, started: int | None) -> bool:
    """Whether the process that started then, in clock ticks since boot, has not ended."""
    process = stat(pid)
    return process is not None and process.alive and started in (None, process.started)


def lives(pid: int) -> bool:
    """Return whether a process has not ended."""
    return is_alive(pid, None)


def stat(pid: int) -> Stat | None:
    """One process."""
    return _stat(pid, f"/proc/{pid}/stat")


def _stat(pid: int, path: str) -> Stat | None:
    content = read(path)
    if not content:
        return None
    fields = content[content.rindex(b")") + 2 :].split(None, 20)  # the name before may hold anything
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[19]), int(fields[17]))


def pids() -> list[int]:
    """Every process of this pid namespace that this user may see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def scan() -> dict[int, Stat]:
    """Every process there is. Not a snapshot: what forks meanwhile may be missed, so look twice before saying "none"."""
    found = map(stat, pids())
    return {process.pid: process for process in found if process is not None}


def exit_status(pid: int) -> int | None:
    """How a zombie has ended, as wait(2) would tell its parent; `None` if it is gone, or is not this user's: then the kernel
    shows a 0. Field 52 of /proc/PID/stat."""
    try:
        visible = os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
    except FileNotFoundError:
        return None
    content = read(f"/proc/{pid}/stat") if visible else None
    return int(content[content.rindex(b")") + 2 :].split()[49]) if content else None


def tracer(pid: int) -> int:
    """The process that traces it with ptrace(2); 0 if none does, or it is gone."""
    lines = (line.split() for line in (read(f"/proc/{pid}/status") or b"").splitlines())
    return next((int(words[1]) for words in lines if words[:1] == [b"TracerPid:"]), 0)


def children() -> list[int]:
    """Direct children of this process's main thread, zombies included: those it started and those it adopted."""
    own = os.getpid()
    content = read_whole(f"/proc/self/task/{own}/children")
    if content is None:  # a kernel without CONFIG_PROC_CHILDREN
        return [process.pid for process in scan().values() if process.parent == own]
    return [int(pid) for pid in content.split()]


def ancestry(pid: int) -> Iterator[int]:
    """The process and its ancestors, as far as /proc tells."""
    while pid > 0:
        yield pid
        process = stat(pid)
        pid = process.parent if process else 0


def environ(pid: int) -> bytes | None:
    """The environment a process was executed with. `b""` in about one of a hundred processes in the middle of an exec:
    that is "ask again"."""
    return read_whole(f"/proc/{pid}/environ")


def variable(pid: int, name: bytes) -> bytes | None:
    """One variable of it; `None` if it is not there or cannot be read."""
    content = b"\0" + (environ(pid) or environ(pid) or b"")
    _, found, rest = content.partition(b"\0" + name + b"=")
    return rest.partition(b"\0")[0] if found else None


def cgroup(pid: int) -> str | None:
    """The path in the v2 hierarchy, as seen from this process's cgroup namespace."""
    content = read(f"/proc/{pid}/cgroup") or b""
    return next((os.fsdecode(line[3:]) for line in content.split(b"\n") if line.startswith(b"0::")), None)


def resident(pid: int) -> int:
    """Bytes of resident memory; 0 if gone."""
    content = read(f"/proc/{pid}/statm")
    return int(content.split(None, 2)[1]) * _PAGE if content else 0


_SHARES = (b"Pss_Anon:", b"Pss_Shmem:")


def proportional(pid: int) -> int:
    """Bytes of anonymous and shared memory, a page that n processes share as an n-th of it each; 0 if gone. The kernel walks
    the page tables for it: milliseconds for a large process. What may not be read (setuid programs) counts as resident."""
    content = read(f"/proc/{pid}/smaps_rollup")
    if not content:
        return resident(pid)
    lines = (line.split() for line in content.splitlines() if line.startswith(_SHARES))
    return sum(int(words[1]) for words in lines) * 1024


def soft_limit(pid: int, kind: int) -> int | None:
    """A soft resource limit of any process."""
    try:
        return resource.prlimit(pid, kind)[0]
    except (ProcessLookupError, PermissionError):
        return None


_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible sleep",
    "T": "stopped",
    "t": "traced",
    "I": "idle",
    "Z": "main thread ended",
}


def plight(pid: int) -> str | None:
    """Why a process may still be there, for people: "uninterruptible sleep (D) in nfs_wait". `None` if it is not."""
    process = stat(pid)
    if process is None or not process.alive:
        return None
    place = (read(f"/proc/{pid}/wchan") or b"0").decode()
    where = f" in {place}" if place != "0" else ""
    by = f", traced by process {tracing}" if (tracing := tracer(pid)) else ""
    return f"{_STATES.get(process.state, 'in state')} ({process.state}){where}{by}"

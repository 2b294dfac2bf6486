"""Whether a process waits for what a person types: it reads the terminal of a run, or waits for
several things of which a terminal in raw mode may be one. As far as /proc tells; pure of trio."""

import os
import platform
import termios
from collections.abc import Iterator
from contextlib import suppress

from ...processes import kernel

_READ = {"x86_64": {0, 19}, "aarch64": {63, 65}}
"""read and readv, by `os.uname().machine` (asm/unistd.h)."""
_WAIT = {"x86_64": {7, 23, 232, 270, 271, 281, 441}, "aarch64": {22, 72, 73, 441}}
"""poll, select, epoll_wait, pselect6, ppoll, epoll_pwait, epoll_pwait2."""
_READING = frozenset({"n_tty_read", "wait_woken"})
_WAITING = ("do_poll", "do_select", "do_sys_poll", "ep_poll", "do_epoll_wait", "poll_schedule_")
"""Functions of the kernel in which the same calls sleep: what /proc tells where it hides the call
itself, as Yama does (`kernel.yama.ptrace_scope`)."""
MOST_THREADS = 64
"""Of one process that are looked at."""


def is_read(main: int) -> bool:
    """Return whether a process of the foreground of the terminal that a run's main process has
    waits for its keys, and none is at work. Raises `OSError`."""
    fields = kernel.stat_fields(main)
    if len(fields) < 6 or fields[4] == b"0":
        return False
    found = [_waits(pid) for pid in _foreground(fields[4], fields[5])]
    return True in found and None not in found


def _foreground(terminal: bytes, group: bytes) -> Iterator[int]:
    """Yield the processes that may read: others are stopped when they try (SIGTTIN)."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        found = kernel.stat_fields(int(name))
        if len(found) > 5 and found[4] == terminal and found[2] == group:
            yield int(name)


def _waits(pid: int) -> bool | None:
    """Return whether a process waits for keys; `None` if it is at work."""
    open_at = _terminals(pid)
    found = [_sleeps(pid, thread) for thread in _threads(pid)]
    if ("works", None) in found:
        return None
    if any(how == "reads" and at in (None, *open_at) for how, at in found):
        return bool(open_at)
    return bool(open_at) and ("waits", None) in found and _is_raw(pid, min(open_at))


def _terminals(pid: int) -> list[int]:
    """Return the descriptors of a process that lead to a terminal."""
    found = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith(("/dev/pts/", "/dev/tty")):
                    found.append(int(name))
    return found


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")[:MOST_THREADS]
    except OSError:
        return []


def _sleeps(pid: int, thread: str) -> tuple[str, int | None]:
    """Return whether a thread `works`, `reads` or `waits`, and which descriptor it reads, if that
    is known."""
    machine = platform.machine()
    words = _words(f"/proc/{pid}/task/{thread}/syscall")
    if len(words) > 1 and words[0].isdigit() and machine in _READ:
        number = int(words[0])
        if number in _READ[machine]:
            return "reads", int(words[1], 16)
        return ("waits" if number in _WAIT[machine] else ""), None
    if words == ["running"]:
        return "works", None
    (place,) = _words(f"/proc/{pid}/task/{thread}/wchan")[:1] or ("",)
    if place in _READING:
        return "reads", None
    return ("waits" if place.startswith(_WAITING) else ""), None


def _words(path: str) -> list[str]:
    try:
        return (kernel.read(path) or b"").decode().split()
    except OSError:  # it is another user's
        return []


def _is_raw(pid: int, descriptor: int) -> bool:
    """Return whether a terminal tells programs of each key. A program that waits for several things
    while it reads whole lines, such as one that waits for a network, need not read at all."""
    try:
        fd = os.open(
            f"/proc/{pid}/fd/{descriptor}",
            os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC,
        )
    except OSError:
        return False
    try:
        return not termios.tcgetattr(fd)[3] & termios.ICANON
    except termios.error:
        return False
    finally:
        os.close(fd)

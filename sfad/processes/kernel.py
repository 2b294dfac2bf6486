"""What the kernel tells of processes and psutil does not, or not fast enough; and signals to
exactly one process. Helpers execute this too, in an interpreter without psutil.

`observed` asks psutil, and names its traps. `None` means gone, or not ours to see. Any other
failure (no descriptor is free, no memory) is an `OSError`: it must not be taken for "gone".
"""

import errno
import fcntl
import os
import platform
import re
import select
import signal
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from ..host.linux.time_namespace import offset_ns

TICKS = os.sysconf("SC_CLK_TCK")
"""Clock ticks in a second, as `Stat.started` counts."""
AHEAD = offset_ns("boottime") * TICKS // 1_000_000_000
"""Clock ticks by which /proc shows starts later in this process's time namespace."""
_FIRST_READ = 4096
_MAX_READ = 8 * 1024 * 1024
"""Bytes that are read of one file. execve(2) takes environments of up to 6 MiB; with PR_SET_MM a
process can show any amount."""
GONE = frozenset({errno.ENOENT, errno.ESRCH, errno.ENODEV, errno.ENOTDIR})
_HIDDEN = frozenset({errno.EACCES, errno.EPERM})
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What passes: the same call may work a moment later."""
RELEASE = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
"""Of Linux: the first two numbers."""


class Stat(NamedTuple):
    """From /proc/PID/stat. A process that outlives the daemon is known by its start in ticks, and
    the boot: psutil's `create_time` is a time of day, which moves with the clock, and the boot's is
    told in whole seconds.

    To scan 170 processes takes 1.7 ms of CPU, and by psutil 14. A stop without cgroups (W4: 22 ms)
    takes three scans, and races with a tree that keeps forking. The first reply about a run needs
    one read, and with psutil ten system calls more, of 220."""

    pid: int
    state: str
    """The letter of ps(1): R, S, D, T, Z, …"""
    parent: int
    started: int
    """Clock ticks since boot, outside any time namespace. With the pid it identifies a process."""
    threads: int = 1

    @property
    def alive(self) -> bool:
        """Whether there is anything left to stop. A zombie only waits for its parent; but a process
        whose main thread has ended shows as a zombie too, while its other threads run."""
        return self.state not in "ZX" or self.threads > 1


def status(pid: int | str) -> dict[bytes, bytes]:
    """Return the fields of /proc/PID/status; none of them if the process is gone, or not ours to
    see."""
    lines = (read(f"/proc/{pid}/status", whole=True) or b"").splitlines()
    return dict(line.split(b":\t", 1) for line in lines if b":\t" in line)


def will_stop(pid: int) -> bool:
    """Return whether a SIGSTOP is pending: the kernel delivers it before the process executes
    another instruction."""
    found = status(pid)
    pending = int(found.get(b"SigPnd", b"0"), 16) | int(found.get(b"ShdPnd", b"0"), 16)
    return bool(pending & 1 << (signal.SIGSTOP - 1))


def read(path: str, *, whole: bool = False) -> bytes | None:
    """Return the first page of a file, or the `whole` of it: what is longer than a page comes in
    several reads. `None` if it is gone or hidden. Raises `OSError`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(fd, _FIRST_READ)
            if whole and content:
                content = b"".join((content, *_rest(fd)))
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in GONE | _HIDDEN:
            return None
        raise
    return content


def _rest(fd: int) -> Iterator[bytes]:
    """Yield the rest, in growing parts: a long file takes time that is linear in its length."""
    size, left = 4 * _FIRST_READ, _MAX_READ
    while left > 0 and (part := os.read(fd, min(size, left))):
        yield part
        size, left = min(2 * size, 1 << 20), left - len(part)


def is_alive(pid: int, started: int | None = None) -> bool:
    """Return whether a process has not ended. `started`, in clock ticks since boot, tells it from a
    later one with its pid."""
    process = stat(pid)
    return process is not None and process.alive and started in (None, process.started)


def stat(pid: int) -> Stat | None:
    """Return one process, or `None`. Raises `OSError`."""
    fields = stat_fields(pid)
    return (
        Stat(pid, fields[0].decode(), int(fields[1]), int(fields[19]) - AHEAD, int(fields[17]))
        if fields
        else None
    )


def ancestors(pid: int, top: int = 0) -> Iterator[Stat]:
    """Yield a process and its ancestors, up to `top`, or as far as /proc tells. The pid of one that
    ends may be used again. Raises `OSError`."""
    while pid > 0 and (process := stat(pid)):
        yield process
        pid = process.parent if pid != top else 0


def age(started: int) -> float:
    """Return for how many seconds a process has lived, at least, that started then
    (`Stat.started`)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - (started + AHEAD) / TICKS


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third on, the state; the name before it may
    contain anything."""
    content = read(f"/proc/{pid}/stat")
    return content[content.rindex(b")") + 2 :].split() if content else []


def scan() -> dict[int, Stat]:
    """Return every process. It is no snapshot: what is forked meanwhile may be missed, so look
    twice before saying "none"."""
    found = (stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def holders(sockets: Collection[int]) -> dict[int, int]:
    """Return a process that has each of these sockets open, by inode, as far as this process may
    see that. psutil lists all connections of the machine for each process."""
    wanted = {f"socket:[{inode}]": inode for inode in sockets}
    return {
        wanted[target]: int(pid)
        for pid in filter(str.isdigit, os.listdir("/proc"))
        for target in _open_files(pid)
        if target in wanted
    }


def _open_files(pid: str) -> Iterator[str]:
    """Yield what the descriptors of a process lead to."""
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # it was closed
                yield os.readlink(f"/proc/{pid}/fd/{name}")
    except OSError as error:
        if error.errno not in GONE | _HIDDEN:
            raise


def status_of_zombie(pid: int) -> int | None:
    """Return how a zombie has ended, as wait(2) would tell its parent: field 52 of /proc/PID/stat.
    `None` if it is gone, or is another user's: then the kernel shows a 0."""
    try:
        visible = os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
    except FileNotFoundError:
        return None
    fields = stat_fields(pid) if visible else []
    return int(fields[49]) if fields else None


def waits_for(pid: int) -> str:
    """Return in which function of the kernel a process sleeps, and what traces it, as ` in NAME,
    traced by process PID`."""
    place = (read(f"/proc/{pid}/wchan") or b"0").decode()
    tracer = status(pid).get(b"TracerPid", b"0").decode()
    return (f" in {place}" if place != "0" else "") + (
        f", traced by process {tracer}" if tracer != "0" else ""
    )


def children(pid: int | None = None) -> set[int]:
    """Return the direct children of the main thread of a process, of this one by default, zombies
    included: started by it, or reparented to it. One file, 13 us, once or twice for each run (W1:
    1.5 ms); psutil's `children` scans everything, 3.3 ms."""
    pid = pid or os.getpid()
    content = read(f"/proc/{pid}/task/{pid}/children", whole=True)
    if content is None:  # it is gone, or a kernel without CONFIG_PROC_CHILDREN
        return {process.pid for process in scan().values() if process.parent == pid}
    return set(map(int, content.split()))


def innermost_pid(pid: int) -> int | None:
    """Return the pid of a process in its own pid namespace; `None` if it is gone."""
    found = status(pid).get(b"NSpid")
    return int(found.split()[-1]) if found else None


def command(pid: int) -> list[str]:
    """Return the beginning of a process's command line, as it is now: a process can overwrite it,
    and make it as long as it likes. psutil reads all of it: 500 MB took 68 s and 4.5 GiB. Empty if
    there is none."""
    return words(read(f"/proc/{pid}/cmdline") or b"")


def words(cmdline: bytes) -> list[str]:
    """Return the words of /proc/PID/cmdline. Empty ones at the end are left out: a short title
    leaves them."""
    return (
        [word.decode(errors="backslashreplace") for word in cmdline.rstrip(b"\0").split(b"\0")]
        if cmdline
        else []
    )


def arguments_at(pid: int) -> int:
    """Return where in its memory the arguments of a process are, field 48 of /proc/PID/stat: it
    stays when the process overwrites them, and is another one after an execve(2), as the kernel
    places each stack at random. 0 if it is not told."""
    fields = stat_fields(pid)
    return int(fields[45]) if fields else 0


def executed(pid: int) -> bool:
    """Return whether a process has executed a program since it was forked: without PF_FORKNOEXEC,
    in field 9 of /proc/PID/stat."""
    fields = stat_fields(pid)
    return bool(fields) and not int(fields[6]) & 0x40


def environ(pid: int) -> bytes | None:
    """Return the environment that a process was executed with. It is `b""` for about one in a
    hundred processes in the middle of an execve(2): then ask again."""
    return read(f"/proc/{pid}/environ", whole=True)


def variable(pid: int, name: bytes) -> bytes | None:
    """Return one variable of that environment; `None` if it is not there or cannot be read."""
    content = b"\0" + (environ(pid) or environ(pid) or b"")
    _, found, rest = content.partition(b"\0" + name + b"=")
    return rest.partition(b"\0")[0] if found else None


def cgroup(pid: int) -> str | None:
    """Return a process's path in the v2 hierarchy, as this process's cgroup namespace shows it."""
    content = read(f"/proc/{pid}/cgroup") or b""
    return next(
        (os.fsdecode(line[3:]) for line in content.split(b"\n") if line.startswith(b"0::")), None
    )


def proportional(pid: int) -> int | None:
    """Return the bytes of anonymous and shared memory, where each of n processes that share a page
    has an n-th of it. `None` if the process is gone, or this may not be read (setuid programs).
    psutil's `pss` counts pages of files too, and the kernel takes those back before it enforces a
    limit.

    The kernel walks the page tables for it: milliseconds for a large process."""
    content = read(f"/proc/{pid}/smaps_rollup")
    if not content:
        return None
    lines = (
        line.split()
        for line in content.splitlines()
        if line.startswith((b"Pss_Anon:", b"Pss_Shmem:"))
    )
    return sum(int(words[1]) for words in lines) * 1024


# ---- Pidfds: signals to exactly one process, and what they tell of it when it has ended and its
# pid is used again

_GET_INFO = 0xC040FF0B
_CGROUPID, _EXIT = 1 << 2, 1 << 3
_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info of Linux 6.13, 64 bytes: mask, cgroup id, eleven ids of process and user, exit
code."""


def cgroup_id(pidfd: int) -> int:
    """Return the inode of the cgroup, also of a process that has ended (Linux 6.13). 0 if the
    kernel cannot tell."""
    mask, inode, *_ = _ask(pidfd, _CGROUPID)
    return inode if mask & _CGROUPID else 0


def exit_status(pidfd: int) -> int | None:
    """Return how a process has ended, as wait(2) told its parent; `None` if it was not reaped, or
    the kernel cannot tell.

    Linux 6.15 and later tell it, through a pidfd that was opened before the process was reaped."""
    mask, *_, status = _ask(pidfd, _EXIT)
    return status if mask & _EXIT else None


def _ask(pidfd: int, mask: int) -> tuple[int, ...]:
    try:
        return _INFO.unpack(fcntl.ioctl(pidfd, _GET_INFO, _INFO.pack(mask, *[0] * 13)))
    except OSError:  # ESRCH: it has ended and nothing is known; ENOTTY, EINVAL: an older kernel
        return _INFO.unpack(bytes(_INFO.size))


def ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def reaped(pidfd: int) -> bool:
    """Return whether its parent has reaped it: from then on `exit_status` knows what can be
    known."""
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def tells_exits() -> bool:
    """Return whether it is of use to wait for `exit_status` (Linux 6.15)."""
    return RELEASE >= (6, 15)


def send(process: Stat, *numbers: int) -> None:
    """Send signals to a process that was seen, unless it has ended."""
    with suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(process.pid)
        try:
            now = stat(process.pid)  # after the pidfd was opened: its pid may have been used again
            if now is not None and now.started == process.started:
                for number in numbers:
                    signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)

"""What this kernel and this session offer to a daemon that contains runs. Facts only, standard library only; `sfactl
doctor` judges them. Nothing here changes anything but what it undoes at once."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pwd
import resource
import shutil
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SO_PEERPIDFD = 77
PIDFD_GET_INFO = 0xC050FF0B
"""`_IOWR(0xFF, 11, struct pidfd_info)` with the 80 bytes of Linux 6.18; the kernel also takes the 64 of 6.13."""
PIDFD_GET_INFO_64 = 0xC040FF0B
PR_GET_CHILD_SUBREAPER = 37


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where runs could be contained."""

    mount: str | None
    """A cgroup2 mount, or `None`."""
    own: str | None
    """The directory of this process's cgroup below it."""
    writable: bool
    """Whether this process may make cgroups there: a delegated unit, or root."""
    kill: bool
    freeze: bool


def cgroups() -> Cgroups:
    """Looks at the cgroup2 mount that shows this process's own cgroup."""
    mount = _cgroup_mount()
    path = _own_cgroup()
    if mount is None or path is None:
        return Cgroups(mount, None, False, False, False)
    own = os.path.normpath(f"{mount}/{path}")
    # The root of the hierarchy has neither file, whatever the kernel can do: look at any cgroup below it.
    has_files = own if os.path.exists(f"{own}/cgroup.events") else _any_below(own)
    kill, freeze = (has_files is not None and os.path.exists(f"{has_files}/{f}") for f in ("cgroup.kill", "cgroup.freeze"))
    writable = os.access(own, os.W_OK) and os.access(f"{own}/cgroup.procs", os.W_OK)
    return Cgroups(mount, own, writable, kill or _release() >= (5, 14), freeze or _release() >= (5, 2))


def _any_below(directory: str) -> str | None:
    try:
        return next((entry.path for entry in os.scandir(directory) if entry.is_dir()), None)
    except OSError:
        return None


def _cgroup_mount() -> str | None:
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    return next((line.split(" ")[4] for line in lines if " - cgroup2 " in line), None)


def _own_cgroup() -> str | None:
    try:
        lines = Path("/proc/self/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    return next((line[3:] for line in lines if line.startswith("0::")), None)


def _release() -> tuple[int, int]:
    major, _, rest = os.uname().release.partition(".")
    digits = "".join(c if c.isdigit() else " " for c in rest).split()
    return int(major), int(digits[0]) if digits else 0


def peer_pidfd() -> bool:
    """Whether a socket tells the pidfd of its peer (Linux 6.5): a recycled pid cannot be mistaken for the peer."""
    left, right = socket.socketpair()
    with left, right:
        try:
            found = left.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        except OSError:
            return False
        os.close(found)
        return True


def pidfd_info() -> bool:
    """Whether a pidfd tells the cgroup and, after it was reaped, the exit status of its process (Linux 6.13, 6.15)."""
    try:
        pidfd = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        return any(_asks(pidfd, request, size) for request, size in ((PIDFD_GET_INFO, 80), (PIDFD_GET_INFO_64, 64)))
    finally:
        os.close(pidfd)


def _asks(pidfd: int, request: int, size: int) -> bool:
    try:
        fcntl.ioctl(pidfd, request, bytearray(size))
    except OSError as error:
        # EINVAL is the ioctl refusing our size; an older kernel does not know it and says ENOTTY.
        return error.errno not in (errno.ENOTTY, errno.EINVAL)
    return True


def subreaper() -> bool:
    """Whether a process can adopt the orphans below it (Linux 3.4; some sandboxes forbid prctl)."""
    answer = ctypes.c_int()
    result: int = ctypes.CDLL(None, use_errno=True).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return result == 0


def systemd_runs() -> bool:
    """Return whether systemd is this machine's pid 1 (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


def user_name(uid: int) -> str:
    """Return the name of a user; the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def lingering(uid: int) -> bool | None:
    """Return whether systemd keeps the user's services after logout; `None` where systemd does not run."""
    return os.path.exists(f"/var/lib/systemd/linger/{user_name(uid)}") if systemd_runs() else None


def linger_command(uid: int) -> str:
    """Return the command that enables lingering for a user."""
    # polkit lets users do this for themselves, without a password; where it is not installed, logind asks for root
    polkit = os.path.exists("/usr/share/dbus-1/system-services/org.freedesktop.PolicyKit1.service")
    own = uid == os.getuid() and (polkit or uid == 0)
    return "loginctl enable-linger" if own else f"sudo loginctl enable-linger {user_name(uid)}"


def current_boot() -> str | None:
    """Return the kernel's id of this boot; `None` if /proc does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def holder(state: Path) -> int | None:
    """Return the pid of the daemon that holds a state directory; `None` if none does, or that cannot be told."""
    with suppress(OSError), open(state / "lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = lock.read(20).strip()
            return int(pid) if pid.isdecimal() else None
    return None


def soft_limit(kind: int) -> int | None:
    """A resource limit in force; `None` if there is none."""
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def free_bytes(path: Path) -> int:
    """Free space where `path` is, or where it would be made. Raises `OSError`."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def clock_synchronised() -> bool | None:
    """Whether the kernel says that something keeps the clock right; `None` where it does not say."""
    # struct timex begins with modes; STA_UNSYNC as the return value is TIME_ERROR (adjtimex(2)).
    buffer = ctypes.create_string_buffer(256)
    state: int = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    return None if state < 0 else state != 5


def plausible_time() -> bool:
    """Whether the clock is past the day this was written. A board without a battery starts in 1970."""
    return time.time() > 1_760_000_000

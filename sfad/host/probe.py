"""What this kernel and this session offer to a daemon that contains runs.

Facts only, from the standard library only: `sfactl doctor`, which imports this, judges them.
Nothing here changes the machine.
"""

import ctypes
import errno
import fcntl
import os
import pwd
import resource
import shutil
import socket
import struct
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from .linux.process_events import ExecEvents

SO_PEERPIDFD = 77
UCRED = struct.Struct("=iII")
"""`struct ucred` of unix(7): pid, uid and gid of the process at the other end."""
PIDFD_GET_INFO = 0xC050FF0B
"""`_IOWR(0xFF, 11, struct pidfd_info)` with the 80 bytes of Linux 6.18; the kernel also accepts the
64 bytes of 6.13."""
PIDFD_GET_INFO_64 = 0xC040FF0B
PR_GET_CHILD_SUBREAPER = 37


class Cgroups(NamedTuple):
    """Where runs can be contained, and what the kernel can do there."""

    mount: str | None
    own: str | None
    """The directory of this process's cgroup below the mount."""
    writable: bool
    """Whether this process may make cgroups there: in a delegated unit, or as root."""
    kill: bool
    freeze: bool


def cgroups() -> Cgroups:
    """Read the cgroup2 mount that shows this process's own cgroup."""
    mount = next(
        (line.split(" ")[4] for line in _lines("/proc/self/mountinfo") if " - cgroup2 " in line),
        None,
    )
    path = next((line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), None)
    if mount is None or path is None:
        return Cgroups(mount, None, False, False, False)
    own = os.path.normpath(f"{mount}/{path}")
    # the root of the hierarchy has neither file, whatever the kernel can do: look at any cgroup
    # below it
    has_files = own if os.path.exists(f"{own}/cgroup.events") else _any_below(own)
    kill, freeze = (
        has_files is not None and os.path.exists(f"{has_files}/{f}")
        for f in ("cgroup.kill", "cgroup.freeze")
    )
    writable = os.access(own, os.W_OK) and os.access(f"{own}/cgroup.procs", os.W_OK)
    return Cgroups(
        mount, own, writable, kill or _release() >= (5, 14), freeze or _release() >= (5, 2)
    )


def _any_below(directory: str) -> str | None:
    try:
        with os.scandir(directory) as entries:
            return next((entry.path for entry in entries if entry.is_dir()), None)
    except OSError:
        return None


def _lines(path: str) -> list[str]:
    with suppress(OSError):
        return Path(path).read_text(errors="surrogateescape").splitlines()
    return []


def _release() -> tuple[int, int]:
    major, _, rest = os.uname().release.partition(".")
    digits = "".join(c if c.isdigit() else " " for c in rest).split()
    return int(major), int(digits[0]) if digits else 0


def peer_pidfd() -> bool:
    """Return whether a socket gives the pidfd of its peer (Linux 6.5), which a recycled pid cannot
    imitate."""
    left, right = socket.socketpair()
    with left, right:
        try:
            found = left.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        except OSError:
            return False
        os.close(found)
        return True


def pidfd_info() -> bool:
    """Return whether a pidfd gives its process's cgroup and, after it was reaped, its exit status
    (Linux 6.13, 6.15)."""
    try:
        pidfd = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        return any(
            _asks(pidfd, request, size)
            for request, size in ((PIDFD_GET_INFO, 80), (PIDFD_GET_INFO_64, 64))
        )
    finally:
        os.close(pidfd)


def _asks(pidfd: int, request: int, size: int) -> bool:
    try:
        fcntl.ioctl(pidfd, request, bytearray(size))
    except OSError as error:
        # EINVAL: the kernel refuses our size. ENOTTY: an older kernel, which does not know the
        # request
        return error.errno not in (errno.ENOTTY, errno.EINVAL)
    return True


def exec_events() -> bool:
    """Return whether the kernel tells this user which processes execute a program."""
    try:
        ExecEvents().close()
    except OSError:
        return False
    return True


def subreaper() -> bool:
    """Return whether a process can adopt the orphans below it (Linux 3.4; some sandboxes forbid
    prctl(2))."""
    answer = ctypes.c_int()
    result: int = ctypes.CDLL(None, use_errno=True).prctl(
        PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0
    )
    return result == 0


def systemd_runs() -> bool:
    return os.path.isdir("/run/systemd/system")


def user_name(uid: int) -> str:
    try:
        return _known_name(uid)
    except (KeyError, OSError):
        return str(uid)


@lru_cache(maxsize=1024)
def _known_name(uid: int) -> str:
    # raises if the name cannot be found now, which the cache does not keep
    return pwd.getpwuid(uid).pw_name


def lingering(uid: int) -> bool | None:
    """Return whether systemd keeps the user's services after logout; `None` if systemd does not
    run."""
    return os.path.exists(f"/var/lib/systemd/linger/{user_name(uid)}") if systemd_runs() else None


def linger_command(uid: int) -> str:
    # polkit lets users do this for themselves, without a password; without polkit, logind requires
    # root
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
    """Return the pid of the daemon that holds a state directory; `None` if none does, or if it
    cannot be found out."""
    # not as a FIFO in its place, whose other end open(2) would wait for
    with (
        suppress(OSError),
        open(
            state / "lock", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
        ) as lock,
    ):
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = lock.read(20).strip()
            return int(pid) if pid.isdecimal() else None
    return None


def soft_limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def is_noexec(path: Path) -> bool:
    """Return whether the filesystem of a directory, or of the nearest one above that is there,
    executes no files."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)


def free_bytes(path: Path) -> int:
    """Return the free bytes of the disk on which `path` is, or would be made. Raises `OSError`."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def free_inodes(path: Path) -> int | None:
    """Return how many more files the file system of `path`, or of where it would be made, takes for
    this user; `None` if that has no bound of its own. Raises `OSError`."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return found.f_favail if found.f_files else None


def no_inodes(path: Path) -> str:
    """Return words for a message about what could not be made at `path`, if no inode is left there:
    the kernel's own, "No space left on device", leads astray. Else an empty text."""
    with suppress(OSError):
        if free_inodes(path) == 0:
            return f"; the file system of {path} has no inodes left (df -i): delete files there"
    return ""


def clock_synchronised() -> bool | None:
    """Return whether the kernel's clock is synchronised; `None` if the kernel does not say."""
    # struct timex with modes 0 only reads; an unsynchronised clock returns TIME_ERROR, see
    # adjtimex(2)
    buffer = ctypes.create_string_buffer(256)
    state: int = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    return None if state < 0 else state != 5


def plausible_time() -> bool:
    """Return whether the clock is past October 2025. A board without a battery starts in 1970."""
    return time.time() > 1_760_000_000


# ---- Whether bubblewrap is there, and may make namespaces


BUBBLEWRAPS = (
    "/usr/bin/bwrap",
    "/usr/local/bin/bwrap",
    "/bin/bwrap",
    "/run/current-system/sw/bin/bwrap",
)
"""Where bubblewrap may be. No PATH is searched: a run's own could have another program of that
name."""
FIX = "install the package bubblewrap (apt install bubblewrap, dnf install bubblewrap)"
_SYSCTLS = {
    # Debian's and Arch's kernels; Ubuntu from 23.10 on; all
    "kernel/unprivileged_userns_clone": ("0", "sysctl kernel.unprivileged_userns_clone=1"),
    "kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "load the profile bwrap-userns-restrict, "
        "or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=10000"),
}  # fmt: skip


def bubblewrap() -> str | None:
    """Return the path of bubblewrap; `None` if it is not installed."""
    return next((path for path in BUBBLEWRAPS if os.access(path, os.X_OK)), None)


def namespaces_forbidden(uid: int) -> str | None:
    """Return why a user may not make user namespaces, and what to do; `None` if no setting of the
    kernel forbids it."""
    for name, (forbidding, fix) in _SYSCTLS.items():
        if uid == 0 and not name.startswith("user/"):
            continue
        try:
            value = Path("/proc/sys", name).read_text().strip()
        except OSError:
            continue
        if value == forbidding and not (name.startswith("kernel/apparmor") and _has_profile()):
            return f"the kernel forbids user namespaces ({name.replace('/', '.')} = {value}): {fix}"
    return None


def _has_profile() -> bool:
    return any(
        Path("/etc/apparmor.d", name).exists() for name in ("bwrap", "bwrap-userns-restrict")
    )

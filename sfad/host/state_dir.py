"""The state directory: open to its owner only, and held by one daemon at a time.

A daemon holds three locks, because a user can take each of them away from it:

`directory`  flock(2) on the directory itself, which removing files in it does not free
`file`       flock(2) on STATE/lock, which holds the daemon's pid
`claim`      names the instance in /proc/locks. After `rm -rf STATE`, `mv STATE` or a mount over it,
             the next daemon finds another
             directory, whose two locks above are free. The runs are known by the path, so it would
             take them over.

Rejected for the claim: an abstract Unix socket (any local user can bind its name first, and a
network namespace hides it), a lock on the instance's cgroup (containment by tags has none), and a
lock file at another place (removing it frees it as well).
"""

import fcntl
import os
import re
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct

from ..protocol.paths import make_private
from .files import is_regular, set_aside
from .socket_file import AlreadyRunning, PathError

LOCK = "lock"
_POSIX_LOCK = re.compile(rb"^\d+: POSIX +ADVISORY +WRITE (\d+) \S+ (\d+) (\d+)$", re.MULTILINE)
"""A line of /proc/locks: pid, first and last byte. The kernel lists only processes of this pid
namespace, which are those that a daemon could adopt or kill."""


class StateLock(Struct, frozen=True):
    """Keeps other daemons, and `sfad sweep`, from a state directory. The kernel frees it when the
    process ends."""

    path: Path
    directory: int
    file: int
    claim: int
    identity: tuple[int, int]
    """Device and inode number of the locked directory, which stays open."""

    def lost(self) -> str | None:
        """Return why the path no longer leads to the locked directory, and what to do; `None` while
        it does."""
        try:
            found = os.stat(self.path)
            if (found.st_dev, found.st_ino) == self.identity:
                return None
            removed, what = (
                os.fstat(self.directory).st_nlink == 0,
                "was replaced by another directory",
            )
        except OSError as error:
            removed = os.fstat(self.directory).st_nlink == 0
            what = "was removed" if removed else "was moved away or is hidden"
            what = (
                what
                if isinstance(error, FileNotFoundError)
                else f"cannot be reached ({error.strerror})"
            )
        back = "" if removed else "put it back, or "
        restart = (
            f"{back}stop the daemon with 'kill {os.getpid()}', which stops its runs, "
            "and start another"
        )
        return f"the state directory {self.path} {what} while a daemon served it; {restart}"

    def close(self) -> None:
        for descriptor in (self.claim, self.file, self.directory):
            os.close(descriptor)


def take_state_dir(path: Path, instance: str) -> StateLock:
    """Make the state directory if it is missing, and lock it. Raises as `lock_state_dir` does."""
    # before making anything at the path of an older daemon whose directory was removed
    _refuse_claimed(path, instance)
    prepare_state_dir(path)
    return lock_state_dir(path, instance)


def resume_lock(path: Path, instance: str, *, directory: int, file: int, claim: int) -> StateLock:
    """Return the locks that this process held before it re-executed itself."""
    # Linux before 5.11 drops a POSIX lock at the execve(2) of a process with threads
    return StateLock(path, directory, file, _claim(instance, claim), _identity(directory))


def prepare_state_dir(path: Path) -> None:
    """Make the state directory, readable by its owner only. Raises `PathError`.

    An existing one with a wider mode is narrowed only if it is empty or was ours before: it could
    be `/tmp`."""
    try:
        make_private(path)
        found = path.stat()
        if found.st_uid != os.geteuid():
            raise PathError(
                f"the state directory {path} belongs to uid {found.st_uid}; "
                "choose another with --state-dir"
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            if not (path / LOCK).exists() and any(path.iterdir()):
                raise PathError(
                    f"{path} holds files of others and is open to them; "
                    "give --state-dir a directory of its own"
                )
            path.chmod(0o700)
    except OSError as error:
        choose = "to choose another: --state-dir or SFAD_STATE_DIR"
        raise PathError(
            f"the state directory {path} cannot be used: {error.strerror}; {choose}"
        ) from error


def lock_state_dir(path: Path, instance: str) -> StateLock:
    """Lock a state directory that exists. Raises `AlreadyRunning`, naming the pid of its daemon,
    and `PathError`."""
    # it names the pid even if STATE/lock, which holds the pid, was removed
    _refuse_claimed(path, instance)
    with ExitStack() as undo:
        directory = _locked_directory(path, undo)
        file = _locked_file(path, undo)
        claim, identity = claim_instance(path, instance), _identity(directory)
        undo.pop_all()
    return StateLock(path, directory, file, claim, identity)


def claim_instance(path: Path, instance: str) -> int:
    """Claim the instance of a state directory, whether or not the directory exists, until the
    returned descriptor is closed.

    Raises `AlreadyRunning` if a process of this user has claimed it, and `PathError`."""
    with ExitStack() as undo:
        claim = _claim(instance, _unclaimed(undo))
        # claim first, then look: of two processes that do this at once, at least one sees the other
        _refuse_claimed(path, instance)
        undo.pop_all()
    return claim


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _locked_directory(path: Path, undo: ExitStack) -> int:
    return _locked(path, path, os.O_RDONLY | os.O_DIRECTORY, undo)


def _locked_file(path: Path, undo: ExitStack) -> int:
    with suppress(OSError):  # then open(2) says what is wrong
        if os.path.lexists(path / LOCK) and not is_regular(path / LOCK):
            set_aside(path / LOCK)
    descriptor = _locked(path, path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, undo)
    # best effort: on a full disk the daemon has the lock all the same, only its pid is missing
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _locked(path: Path, what: Path, flags: int, undo: ExitStack) -> int:
    try:
        descriptor = os.open(what, flags | os.O_CLOEXEC, 0o600)
        undo.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _already_running(path, _told_pid(path)) from error
    except OSError as error:
        raise PathError(f"{what} cannot be locked: {error.strerror}") from error
    return descriptor


def _told_pid(path: Path) -> str:
    with suppress(OSError):
        if is_regular(path / LOCK):
            return (path / LOCK).read_text(errors="replace")[:20].strip()
    return ""


def _already_running(path: Path, pid: str) -> AlreadyRunning:
    who = f"pid {pid}" if pid else "another process"
    return AlreadyRunning(
        f"the state directory {path} is held by {who}: one daemon per state directory"
    )


def _unclaimed(undo: ExitStack) -> int:
    descriptor = os.memfd_create("sfad-claim", os.MFD_CLOEXEC)
    undo.callback(os.close, descriptor)
    return descriptor


def _claim(instance: str, descriptor: int) -> int:
    # a POSIX lock and not flock: it belongs to the process, not to the descriptor, so no child
    # keeps it after the process's death
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(instance))
    return descriptor


def _byte(instance: str) -> int:
    """Return the byte of the memfd whose lock names the instance: /proc/locks shows bytes, and no
    names of files."""
    return int(instance, 16)


def _refuse_claimed(path: Path, instance: str) -> None:
    try:
        locks = Path("/proc/locks").read_bytes()
    except OSError as error:
        raise PathError(
            f"cannot tell whether a daemon of {path} is alive: "
            f"/proc/locks cannot be read: {error.strerror}"
        ) from error
    wanted = _byte(instance)
    pids = {
        int(pid)
        for pid, first, last in _POSIX_LOCK.findall(locks)
        if int(first) == int(last) == wanted
    }
    for pid in pids - {os.getpid()}:
        # what other users claim does not keep a user from their own directory
        if _status(pid, rb"Uid:\s+\d+") == os.geteuid() and not _in_run(pid, instance):
            raise _already_running(path, str(pid))


def _in_run(pid: int, instance: str) -> bool:
    """Return whether a process is in a run of the instance, by its cgroup, or by its cookie or that
    of an ancestor. It could claim the instance, in a sandbox too, so that no daemon comes to
    supervise it."""
    ancestor: int | None = pid
    while ancestor:
        with suppress(OSError):
            if f"/sfad-{instance}/".encode() in Path(f"/proc/{ancestor}/cgroup").read_bytes():
                return True
            if f"SFA_COOKIE={instance}:".encode() in Path(f"/proc/{ancestor}/environ").read_bytes():
                return True
        ancestor = _status(ancestor, rb"PPid:")
    return False


def _status(pid: int, name: bytes) -> int | None:
    """Return the number after a name in /proc/PID/status. Not the owner of /proc/PID: that is root
    if the process is not dumpable."""
    with suppress(OSError):
        words = re.search(
            rb"^" + name + rb"\s+(\d+)", Path(f"/proc/{pid}/status").read_bytes(), re.MULTILINE
        )
        return int(words[1]) if words is not None else None
    return None

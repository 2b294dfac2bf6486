"""The listening socket: never open wider than meant, in a directory where no other user can replace
it.

`protocol.paths` says where it is, which clients must know as well. `state_dir` has the state
directory.
"""

import errno
import fcntl
import grp
import os
import pwd
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from ..protocol.paths import SYSTEM_SOCKET
from ..protocol.places import bind_path, connect_path

BACKLOG = 1024
"""Connections that wait for accept(2). Beyond this number, connect(2) of a client waits. The kernel
caps it at net.core.somaxconn."""
LOCK_TRIES, _LOCK_PAUSE = 25, 0.02
_MAX_STEPS = 40 * 256
"""The most components of a path: the kernel follows 40 links, and a path has at most 4096 bytes."""
_OVERFLOW_UID = 65534
"""The uid that the kernel shows for a user who is not in the user namespace (default of
/proc/sys/kernel/overflowuid)."""


class PathError(Exception):
    """A path cannot be used. The message names it, the cause and what to do."""


class AlreadyRunning(PathError):
    """Another daemon holds the state directory or the socket."""


def prepare_socket(path: Path, *, held: Path | None = None, directory_mode: int = 0o700) -> None:
    """Make what `bind_socket` needs, and raise what it would raise: before a daemon adopts runs
    that it could not serve."""
    with _place_for(path, held, directory_mode):
        pass  # not bound yet: clients would wait for a daemon that may take long to recover


def bind_socket(
    path: Path, *, held: Path | None = None, mode: int = 0o600, directory_mode: int = 0o700
) -> socket.socket:
    """Return a listening, non-blocking Unix stream socket at `path`. `held`: the state directory
    that the caller has locked.

    Make the directory if it is missing, and replace a stale socket. Raises `AlreadyRunning` if a
    daemon listens there, and `PathError` for anything else at `path`, or if another user could
    replace the socket."""
    with _place_for(path, held, directory_mode):
        return _listen(path, mode)


@contextmanager
def _place_for(path: Path, held: Path | None, directory_mode: int) -> Iterator[None]:
    try:
        missing = [each for each in (path.parent, *path.parent.parents) if not each.exists()]
        for each in reversed(missing):
            # parents, too: mkdir(parents=True) makes them as open as the umask allows
            each.mkdir(mode=0o700, exist_ok=True)
            if directory_mode != 0o700:
                each.chmod(directory_mode)
        _refuse_shared(path)
        if path == SYSTEM_SOCKET and path.parent not in missing:
            # an earlier daemon may have served others than this one
            path.parent.chmod(directory_mode)
        with _directory_lock(path.parent, held):
            _clear_stale(path)
            yield
    except (OSError, ValueError) as error:
        raise PathError(
            f"the socket {path} cannot be made: {error}; to choose another: --socket or SFAD_SOCKET"
        ) from error


def unbind_socket(path: Path, *, held: Path | None = None) -> None:
    """Remove the socket of a listener that has been closed, unless another daemon serves it by now.

    Raises `PathError` if the directory cannot be written."""
    try:
        with _directory_lock(path.parent, held), suppress(PathError):
            _clear_stale(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise PathError(f"the socket {path} cannot be removed: {error}") from error


def _refuse_shared(path: Path) -> None:
    """Raise `PathError` if another user could replace the socket, or a directory or link on the way
    to it.

    Clients would send their environment to that user."""
    for entry in traversed(path.parent):
        found = entry.lstat()
        what = (
            f"the socket {path} is not "
            f"safe: {'link' if stat.S_ISLNK(found.st_mode) else 'directory'} {entry}"
        )
        mode = f"mode {stat.S_IMODE(found.st_mode):04o}, uid {found.st_uid}, gid {found.st_gid}"
        if found.st_uid not in (0, os.geteuid()) and not _outside(found.st_uid):
            raise PathError(
                f"{what} belongs to another user ({mode}); "
                "choose a directory of your own with --socket"
            )
        if _others_write(found):
            raise PathError(
                f"{what} is writable by other users ({mode}); "
                f"run 'chmod go-w {entry}', or choose another with --socket"
            )


def traversed(directory: Path) -> Iterator[Path]:
    """Yield each directory and symbolic link that the kernel passes on the way. Raises
    `OSError`."""
    here, rest = Path("/"), list(directory.absolute().parts[1:])
    yield here
    for _ in range(_MAX_STEPS):
        if not rest:
            return
        part = rest.pop(0)
        entry = here.parent if part == ".." else here / part
        yield entry
        if entry.is_symlink():
            target = entry.readlink()
            here = Path("/") if target.is_absolute() else here
            rest[:0] = target.relative_to("/").parts if target.is_absolute() else target.parts
        else:
            here = entry
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(directory))


def _others_write(found: os.stat_result) -> bool:
    """Return whether other users may rename an entry of a directory.

    In a sticky one, such as /tmp, only the owners of the entry and of the directory may. Other
    users can take the name of a socket that does not exist yet, so clients check the listener's
    uid."""
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:
        return False
    return bool(
        found.st_mode & stat.S_IWOTH
        or (found.st_mode & stat.S_IWGRP and not _own_group(found.st_gid))
    )


def _own_group(gid: int) -> bool:
    """Return whether a group is root's, or has this user only.

    Distributions that give each user a group use a umask of 002, so that group may write to every
    directory of the user."""
    if gid == 0:
        return True
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


def _outside(uid: int) -> bool:
    """Return whether a uid stands for users outside of this user namespace. In a sandbox the owner
    of / is often one of them."""
    if uid != _OVERFLOW_UID:
        return False
    ranges = (
        list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()
    )
    return not any(first <= uid < first + count for first, _, count in ranges)


@contextmanager
def _directory_lock(directory: Path, held: Path | None) -> Iterator[None]:
    if held is not None and held.exists() and directory.samefile(held):
        # without XDG_RUNTIME_DIR the socket is in the state directory, and flock(2) excludes a
        # second descriptor of one process
        yield
        return
    # between finding a socket stale and replacing it, another daemon may do the same. A lock file
    # would stay behind
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock_soon(descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock_soon(descriptor: int) -> None:
    """Lock a directory, or go on without the lock after half a second: another daemon holds it for
    less than a millisecond. Each process that may read the directory can hold it without end, one
    in a sandbox too, and must not keep daemons from starting."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE)
        else:
            return


def _clear_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise PathError(
            f"{path} exists and is not a socket; move it away or choose another with --socket"
        )
    if found.st_uid not in (0, os.geteuid()):
        raise PathError(
            f"the socket {path} exists and belongs to uid {found.st_uid}; "
            "remove it or choose another with --socket"
        )
    if _alive(path):
        raise AlreadyRunning(f"a daemon is already listening on {path}")
    path.unlink()


def _alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            connect_path(probe, path)
        except ConnectionRefusedError:
            return False
        except OSError as error:
            # a full backlog (EAGAIN) and a socket of another type (EPROTOTYPE) belong to a live
            # process
            if error.errno not in (errno.EAGAIN, errno.EPROTOTYPE):
                raise
    return True


def _listen(path: Path, mode: int) -> socket.socket:
    with ExitStack() as undo:
        listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.setblocking(False)
        # bind(2) makes the file with the mode of the socket's own inode, so the mode is never
        # wider. umask(2) would change the files of all other threads as well
        os.fchmod(listener.fileno(), mode)
        bind_path(listener, path)
        if mode & 0o077:
            path.chmod(mode)  # the daemon's umask has narrowed it
        listener.listen(BACKLOG)
        undo.pop_all()
    return listener


# ---- Whom a daemon serves: its owner and root, or every user of the machine. Decided once, after
# the containment is chosen.


Users = Literal["auto", "all", "own"]
"""`access.users` of the config."""

_OWN = 'set it to "own"'


def serves_all(users: Users, socket: Path, containment: Literal["cgroup", "tags"]) -> bool:
    """Return whether the daemon serves every user. Raise `PathError` if it is told to and cannot.

    Only root can start processes of other users. By tags, the orphans of two users' runs cannot be
    told apart."""
    check_owner(users)
    able = os.geteuid() == 0 and containment == "cgroup"
    if users == "all" and not able:
        raise PathError(
            'access.users = "all" needs runs contained by cgroup; here they are contained by '
            f"{containment}: {_OWN}"
        )
    return able and (users == "all" or (users == "auto" and socket == SYSTEM_SOCKET))


def check_owner(users: Users) -> None:
    """Raise `PathError` if the daemon is told to serve every user and is not root's."""
    if users == "all" and os.geteuid() != 0:
        raise PathError(
            f'access.users = "all" needs a daemon of root; this one has uid {os.geteuid()}: {_OWN}'
        )


def directory_mode(users: Users, socket: Path) -> int:
    """Return the mode for the directory of a socket. It is needed before the containment is chosen;
    the socket's own mode keeps other users out then."""
    meant = os.geteuid() == 0 and (users == "all" or (users == "auto" and socket == SYSTEM_SOCKET))
    return 0o755 if meant else 0o700


def socket_mode(*, everyone: bool) -> int:
    return 0o666 if everyone else 0o600

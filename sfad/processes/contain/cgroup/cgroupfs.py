"""The files of cgroup v2: control files, and trees of cgroups."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic

from ... import procfs
from .location import below

MAX_DEPTH, MAX_DESCENDANTS = 32, 1024
"""Levels, and cgroups, that the processes of one run may make below their own. Container runtimes and systemd need less than ten
levels. An agent with the daemon's uid can raise both, so nothing here relies on them."""
_MAX_PATH = 4096 - 64
"""Bytes of a path that a walk follows: PATH_MAX, less the name of a control file."""
_REMOVED_WITHIN = 10.0
"""Seconds after which a removal gives up: another process may make cgroups as fast as they are removed."""
_CHILDLESS = 2
"""Links of a directory without directories in it. A cgroup has dozens of files: listing takes twenty times as long as stat(2)."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def remove_tree(directory: str) -> None:
    """Remove a cgroup and those in it, deepest first. Raises `OSError` (EBUSY if something lives there, or new ones appear).

    It goes by descriptors and `..`, one level at a time: an agent can nest cgroups deeper than a path or a recursion reaches."""
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return
    except OSError:
        _clear(directory, monotonic() + _REMOVED_WITHIN)
        os.rmdir(directory)


def _clear(directory: str, until: float) -> None:
    """Remove everything below a cgroup."""
    at, down = os.open(directory, _DIRECTORY), []
    try:
        while monotonic() < until:
            child = _first_child(at)
            if child is not None:
                try:
                    os.rmdir(child, dir_fd=at)
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        raise
                    at = _moved(at, child)
                    down.append(child)
            elif down:
                at = _moved(at, "..")
                os.rmdir(down.pop(), dir_fd=at)
            else:
                return
        raise OSError(errno.EBUSY, "new cgroups keep appearing")
    finally:
        os.close(at)


def _moved(at: int, name: str) -> int:
    there = os.open(name, _DIRECTORY, dir_fd=at)
    os.close(at)
    return there


def _first_child(at: int) -> str | None:
    if os.fstat(at).st_nlink == _CHILDLESS:
        return None
    with os.scandir(at) as entries:
        return next((entry.name for entry in entries if entry.is_dir(follow_symlinks=False)), None)


def limit_descendants(directory: str, depth: int | None = MAX_DEPTH, descendants: int | None = MAX_DESCENDANTS) -> None:
    """Have the kernel limit the cgroups that processes in `directory` make below it; `None` is no limit. Raises `OSError`."""
    write(f"{directory}/cgroup.max.depth", b"max" if depth is None else b"%d" % depth)
    write(f"{directory}/cgroup.max.descendants", b"max" if descendants is None else b"%d" % descendants)


def write(path: str, content: bytes) -> None:
    """Write a control file. Raises `OSError` (ENOENT, ENODEV: the cgroup is gone)."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def read(path: str, *, whole: bool = False) -> bytes:
    """Return the content of a control file; `b""` if the cgroup is gone. Raises `OSError` if it is there and cannot be read."""
    content = procfs.read(path, whole=whole)
    if content is None:
        # it may be unreadable for another reason than that its cgroup is gone: access is denied, or something is mounted over it
        for name, error in ((path, errno.EACCES), (os.path.dirname(path), errno.ESTALE)):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.stat(name)
                raise OSError(error, os.strerror(error), path)
    return content or b""


def pids(directory: str) -> Iterator[int]:
    """Return the processes of one cgroup, without those of other pid namespaces: they show as 0, which means our own process group
    to kill(2). Raises `OSError`."""
    try:
        content = read(f"{directory}/cgroup.procs", whole=True)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # a threaded cgroup has none: its processes show above it
            raise
        content = b""
    return (pid for pid in map(int, content.split()) if pid > 0)


def regain(path: str, base: str) -> None:
    """Give the owner access again to a control file, and to each cgroup from `base` to it. An agent with the same uid can take it
    away."""
    inside = below(path, base)
    names = inside.split("/") if inside else []
    for count in range(len(names) + 1):
        name = "/".join((base, *names[:count]))
        with suppress(OSError):
            found = os.stat(name)
            wanted = found.st_mode | (0o700 if stat.S_ISDIR(found.st_mode) else 0o600)
            if found.st_uid == os.geteuid() and wanted != found.st_mode:
                os.chmod(name, stat.S_IMODE(wanted))


def regain_after(error: Exception, base: str) -> None:
    """Do so for the file that an error names, if access to it was denied."""
    if isinstance(error, PermissionError) and error.filename:
        regain(os.fsdecode(error.filename), base)


def nested(directory: str, usual: str = "") -> Iterator[str]:
    """Yield a cgroup and all cgroups in it, each before those in it, without those whose path is too long to be used. `usual`: the
    name of the one that is nearly always the only one in `directory`. Raises `OSError`, but not for cgroups that are gone."""
    pending = [directory]
    while pending:
        path = pending.pop()
        if len(os.fsencode(path)) <= _MAX_PATH:
            yield path
            pending += inner(path, usual if path is directory else "")


def inner(directory: str, usual: str = "") -> list[str]:
    """Return the cgroups directly in a cgroup. `usual`: as for `nested`, which it raises like."""
    try:
        links = os.stat(directory).st_nlink
        if links == _CHILDLESS:
            return []
        if usual and links == _CHILDLESS + 1 and os.path.isdir(path := f"{directory}/{usual}"):
            return [path]
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in procfs.GONE:
            return []
        raise

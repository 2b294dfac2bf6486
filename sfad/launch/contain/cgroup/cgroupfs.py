"""The cgroup v2 file system: where this instance's cgroups are, whether they can contain, and their control files."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from ... import procfs
from ...launcher import CgroupImpossible, LaunchSpec
from ...trampoline.contract import ATTACH, REPORT
from ...trampoline.executable import best
from ...trampoline.posix_spawn import Spawner

SUPERVISOR = "supervisor"
"""The leaf for a daemon that enables controllers; see `controllers`."""


_PATIENCE, _PAUSE = 5.0, 0.1
"""Seconds for which a probe is tried again, and between two tries."""

MAX_DEPTH, MAX_DESCENDANTS = 32, 1024
"""Levels, and cgroups, that the processes of one run may make below their own. Container runtimes and systemd need less than ten
levels. An agent with the daemon's uid can raise both, so nothing here relies on them."""

_LONGEST = 4096 - 64
"""Bytes of a path that a walk follows: PATH_MAX, less the name of a control file."""

_REMOVAL = 10.0
"""Seconds after which a removal gives up: another process may make cgroups as fast as they are removed."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A cgroup2 mount of this mount namespace."""

    root: str
    point: str

    def directory(self, path: str) -> str | None:
        """Return the directory of a cgroup by its path in the hierarchy; `None` if that is outside of what is mounted."""
        inside = below(path, self.root)
        return None if inside is None else _joined(self.point, inside)

    def path(self, directory: str) -> str | None:
        inside = below(directory, self.point)
        return None if inside is None else _joined(self.root, inside)


def below(path: str, top: str) -> str | None:
    """Return the part of a path after `top`, without a slash at its start; `None` if it is not at or below `top`."""
    if top == "/" or path == top or path.startswith(top + "/"):
        return path[len(top) :].lstrip("/") if top != "/" else path.lstrip("/")
    return None


def _joined(top: str, inside: str) -> str:
    # normpath keeps two slashes at the beginning, as POSIX has it; no path of the kernel begins with two
    return os.path.normpath(f"{top.rstrip('/')}/{inside}")


def mounts() -> list[Mount]:
    """Return every cgroup2 mount: usually one, also on a hybrid host, where its directory is called `unified`."""
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    fields = [line.split(" ") for line in lines if " - cgroup2 " in line]
    return [Mount(_unescaped(words[3]), _unescaped(words[4])) for words in fields]


def _unescaped(text: str) -> str:
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, character)
    return text


@dataclass(frozen=True, slots=True)
class Base:
    """The directory of an instance, and how /proc/PID/cgroup names it."""

    directory: str
    path: str


def locate(instance: str, parent: str | None = None) -> Base:
    """Return where the cgroups of this instance go: in `parent`, else in this process's own cgroup. Makes nothing.

    Raises `CgroupImpossible`.
    """
    found = mounts()
    if not found:
        raise CgroupImpossible("no cgroup2 file system is mounted")
    own = procfs.cgroup(os.getpid()) or "/"
    directories = [os.path.normpath(parent)] if parent else [_home(d) for m in found if (d := m.directory(own))]
    for directory in directories:
        for mount in found:
            path = mount.path(directory)
            if path is not None:
                name = f"sfad-{instance}"
                return Base(f"{directory}/{name}", _joined(path, name))
    raise CgroupImpossible(f"{parent or own} is not below a cgroup2 mount")


def bases(instance: str, parent: str | None = None) -> list[str]:
    """Return the instance's directories: where this process would make it, and each one that a process of the machine is in,
    because an earlier daemon may have been started elsewhere.

    It does not walk the cgroups of other programs: any user may have made them thousands of levels deep. Raises `OSError`.
    """
    name = f"sfad-{instance}"
    here = [_located(instance, parent), _located(instance)]
    found = [directory for directory in here if directory is not None and os.path.isdir(directory)]
    mounted = mounts()
    for path in {_up_to(name, path) for pid in procfs.pids() if (path := procfs.cgroup(pid)) is not None}:
        found += [directory for mount in mounted if path and (directory := mount.directory(path)) and os.path.isdir(directory)]
    return list(dict.fromkeys(found))


def _located(instance: str, parent: str | None = None) -> str | None:
    try:
        return locate(instance, parent).directory
    except CgroupImpossible:
        return None


def _up_to(name: str, path: str) -> str | None:
    """Return the outermost cgroup of that name in a path: an agent can make one inside its own."""
    before, found, _ = f"{path}/".partition(f"/{name}/")
    return f"{before}/{name}" if found else None


def inhabited(instance: str, parent: str | None = None) -> Base | None:
    """Return where an earlier daemon of this instance has left something alive, if runs can be contained there now.

    Runs stay there, wherever this process or the configuration would put them.
    """
    found = mounts()
    with suppress(OSError):
        for directory in bases(instance, parent):
            paths = [path for mount in found if (path := mount.path(directory))]
            if paths and b"populated 1" in read(f"{directory}/cgroup.events"):
                base = Base(directory, paths[0])
                with suppress(CgroupImpossible):
                    probe(base)
                    return base
    return None


def base_of(instance: str, parent: str | None = None) -> Base:
    """Return where the cgroups of this instance go: where an earlier daemon's are in use, else in `parent`, else in this process's
    own cgroup. Raises `CgroupImpossible`."""
    return inhabited(instance, parent) or locate(instance, parent)


def _home(own: str) -> str:
    """Return where the daemon's runs belong: beside the leaf that the daemon was moved to, if it is in one."""
    above, name = os.path.split(own)
    ours = name == SUPERVISOR and os.access(above, os.W_OK) and os.access(f"{above}/cgroup.procs", os.W_OK)
    return above if ours else own


def probe(base: Base) -> None:
    """Make the base directory and contain a child in it. Raises `CgroupImpossible`; then nothing is left."""
    made = not os.path.isdir(base.directory)
    try:
        os.makedirs(base.directory, exist_ok=True)
        _probe_soon(base.directory)
    except OSError as error:
        raise CgroupImpossible(f"{error.filename or base.directory}: {error.strerror}") from error
    except CgroupImpossible:
        if made:
            remove_tree(base.directory)
        raise


def _probe_soon(directory: str) -> None:
    """Probe again while the machine is short of processes or descriptors: it may allow cgroups all the same."""
    until = monotonic() + _PATIENCE
    while True:
        try:
            return _probe_inside(directory)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE) or monotonic() > until:
                raise
        sleep(_PAUSE)


def _probe_inside(directory: str) -> None:
    for name in ("cgroup.kill", "cgroup.freeze", "cgroup.events"):
        if not os.path.exists(f"{directory}/{name}"):
            raise CgroupImpossible(f"{directory} has no {name}: cgroups can be killed since Linux 5.14")
    cell = f"{directory}/probe"
    os.makedirs(cell, exist_ok=True)
    try:
        _attach_a_child(cell)
    finally:
        remove_tree(cell)


def _attach_a_child(cell: str) -> None:
    """Spawn a child that attaches itself, and then has nothing to execute: it must get that far."""
    with ExitStack() as stack:
        door = os.open(f"{cell}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        stack.callback(os.close, door)
        near, far = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, near)
        shut, gate = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, shut)
        os.write(gate, b"\n")
        os.close(gate)
        spawner = Spawner(best())
        with ExitStack() as spawning:
            spawning.callback(os.close, far)
            spawning.callback(spawner.close)
            pid = spawner.spawn(LaunchSpec([b"probe"], b"/", []), [], door=door, report=far, gate=shut)
        report = os.read(near, REPORT.size)
        os.waitid(os.P_PID, pid, os.WEXITED)
    stage, number = REPORT.unpack(report) if len(report) == REPORT.size else (ATTACH, 0)
    if stage == ATTACH:
        raise CgroupImpossible(f"a process cannot be moved to {cell}: {os.strerror(-number)}")


def remove_tree(directory: str) -> None:
    """Remove a cgroup and those in it, deepest first. Raises `OSError` (EBUSY if something lives there, or new ones appear).

    It goes by descriptors and `..`, one level at a time: an agent can nest cgroups deeper than a path or a recursion reaches.
    """
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return
    except OSError:
        _clear(directory, monotonic() + _REMOVAL)
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


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def bound(directory: str, depth: int | None = MAX_DEPTH, descendants: int | None = MAX_DESCENDANTS) -> None:
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
        _refuse_hidden(path)
    return content or b""


def _refuse_hidden(path: str) -> None:
    """Raise `OSError` if a control file cannot be read for another reason than that its cgroup is gone: access may be denied, or
    something may be mounted over the cgroup."""
    for name, error in ((path, errno.EACCES), (os.path.dirname(path), errno.ESTALE)):
        with suppress(FileNotFoundError, NotADirectoryError):
            os.stat(name)
            raise OSError(error, os.strerror(error), path)


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


def seen(path: str | None) -> str | None:
    found = (mount.directory(path) for mount in mounts()) if path is not None else ()
    return next((directory for directory in found if directory is not None), None)


_CHILDLESS = 2
"""Links of a directory without directories in it. A cgroup has dozens of files: listing takes twenty times as long as stat(2)."""


def nested(directory: str) -> Iterator[str]:
    """Yield a cgroup and all cgroups in it, each before those in it, without those whose path is too long to be used. Raises
    `OSError`, but not for cgroups that are gone."""
    pending = [directory]
    while pending:
        path = pending.pop()
        if len(os.fsencode(path)) <= _LONGEST:
            yield path
            pending += inner(path)


def inner(directory: str) -> list[str]:
    """Return the cgroups directly in a cgroup. Raises like `nested`."""
    try:
        if os.stat(directory).st_nlink == _CHILDLESS:
            return []
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in procfs.GONE:
            return []
        raise

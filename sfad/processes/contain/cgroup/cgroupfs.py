"""The files of cgroup v2: control files, and trees of cgroups."""

import errno
import os
import stat
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import psutil
import trio
from msgspec import Struct, field

from ....protocol.types import RunId
from ... import kernel
from ...launched_runs import LaunchedRun
from ...launcher import UNBOUND, Bounds, CgroupImpossible
from ...watch import Reactor

# ---- Where the cgroups of this instance are, and how /proc/PID/cgroup names them. Makes nothing

SUPERVISOR = "supervisor"
"""The leaf for a daemon that enables controllers; see `controllers`."""


class Mount(Struct, frozen=True):
    """A cgroup2 mount of this mount namespace."""

    root: str
    point: str

    def directory(self, path: str) -> str | None:
        """Return the directory of a cgroup by its path in the hierarchy; `None` if that is outside
        of what is mounted."""
        inside = below(path, self.root)
        return None if inside is None else _joined(self.point, inside)

    def path(self, directory: str) -> str | None:
        inside = below(directory, self.point)
        return None if inside is None else _joined(self.root, inside)


def below(path: str, top: str) -> str | None:
    """Return the part of a path after `top`, without a slash at its start; `None` if it is not at
    or below `top`."""
    if top == "/" or path == top or path.startswith(top + "/"):
        return path[len(top) :].lstrip("/") if top != "/" else path.lstrip("/")
    return None


def _joined(top: str, inside: str) -> str:
    # normpath keeps two slashes at the beginning, as POSIX has it; no path of the kernel begins
    # with two
    return os.path.normpath(f"{top.rstrip('/')}/{inside}")


def mounts() -> list[Mount]:
    """Return every cgroup2 mount: usually one, also on a hybrid host, where its directory is called
    `unified`."""
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    fields = [line.split(" ") for line in lines if " - cgroup2 " in line]
    return [Mount(_unescaped(words[3]), _unescaped(words[4])) for words in fields]


def _unescaped(text: str) -> str:
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, character)
    return text


class BaseCgroup(Struct, frozen=True):
    """The directory of an instance, and how /proc/PID/cgroup names it."""

    directory: str
    path: str


def locate(instance: str, parent: str | None = None) -> BaseCgroup:
    """Return where the cgroups of this instance go: in `parent`, else in this process's own cgroup.
    Makes nothing.

    Raises `CgroupImpossible`."""
    found = mounts()
    if not found:
        raise CgroupImpossible("no cgroup2 file system is mounted")
    own = kernel.cgroup(os.getpid()) or "/"
    directories = (
        [os.path.normpath(parent)]
        if parent
        else [_home(d) for m in found if (d := m.directory(own))]
    )
    for directory in directories:
        for mount in found:
            path = mount.path(directory)
            if path is not None:
                name = f"sfad-{instance}"
                return BaseCgroup(f"{directory}/{name}", _joined(path, name))
    raise CgroupImpossible(f"{parent or own} is not below a cgroup2 mount")


def bases(instance: str, parent: str | None = None) -> Iterator[str]:
    """Yield the instance's directories: where this process would make it, then each one that a
    process of the machine is in, because an earlier daemon may have been started elsewhere. The
    caller may need the first only: then no process is looked at.

    It does not walk the cgroups of other programs: any user may have made them thousands of levels
    deep. Raises `OSError`."""
    seen: set[str] = set()
    for directory in _candidates(instance, parent):
        if directory is not None and directory not in seen and os.path.isdir(directory):
            seen.add(directory)
            yield directory


def _candidates(instance: str, parent: str | None) -> Iterator[str | None]:
    yield _located(instance, parent)
    yield _located(instance)
    name, mounted = f"sfad-{instance}", mounts()
    for path in {
        _up_to(name, path) for pid in psutil.pids() if (path := kernel.cgroup(pid)) is not None
    }:
        yield from (mount.directory(path) for mount in mounted if path)


def _located(instance: str, parent: str | None = None) -> str | None:
    try:
        return locate(instance, parent).directory
    except CgroupImpossible:
        return None


def _up_to(name: str, path: str) -> str | None:
    """Return the outermost cgroup of that name in a path: an agent can make one inside its own."""
    before, found, _ = f"{path}/".partition(f"/{name}/")
    return f"{before}/{name}" if found else None


def _home(own: str) -> str:
    """Return where the daemon's runs belong: beside the leaf that the daemon was moved to, if it is
    in one."""
    above, name = os.path.split(own)
    ours = (
        name == SUPERVISOR
        and os.access(above, os.W_OK)
        and os.access(f"{above}/cgroup.procs", os.W_OK)
    )
    return above if ours else own


def directory_of(path: str | None) -> str | None:
    found = (mount.directory(path) for mount in mounts()) if path is not None else ()
    return next((directory for directory in found if directory is not None), None)


# ---- The files of cgroup v2: control files, and trees of cgroups

MAX_DEPTH, MAX_DESCENDANTS = 64, 4096
"""Levels below the base, and cgroups that can be made there before the daemon has to make room.
Chains of runs have 32 levels by default, container runtimes and systemd need less than ten. An
agent with the daemon's uid can raise both, so nothing here relies on them."""
_MAX_PATH = 4096 - 64
"""Bytes of a path that a walk follows: PATH_MAX, less the name of a control file."""
_REMOVED_WITHIN = 10.0
"""Seconds after which a removal gives up: another process may make cgroups as fast as they are
removed."""
_CHILDLESS = 2
"""Links of a directory without directories in it. A cgroup has dozens of files: listing takes
twenty times as long as stat(2)."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def remove_tree(directory: str) -> None:
    """Remove a cgroup and those in it, deepest first. Raises `OSError` (EBUSY if something lives
    there, or new ones appear).

    It goes by descriptors and `..`, one level at a time: an agent can nest cgroups deeper than a
    path or a recursion reaches."""
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


def make_room(base: str, level: int = 0) -> None:
    """Have the kernel limit the cgroups that processes make below the base, above what is there,
    and at least to this level of it. Raises `OSError`.

    The limits are the base's, because to write those of each run would take six system calls of
    it."""
    words = read(f"{base}/cgroup.stat").split()
    made = int(words[words.index(b"nr_descendants") + 1]) if b"nr_descendants" in words else 0
    write(f"{base}/cgroup.max.depth", b"%d" % (level + MAX_DEPTH))
    write(f"{base}/cgroup.max.descendants", b"%d" % (made + MAX_DESCENDANTS))


def write(path: str, content: bytes) -> None:
    """Write a control file. Raises `OSError` (ENOENT, ENODEV: the cgroup is gone)."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def read(path: str, *, whole: bool = False) -> bytes:
    """Return the content of a control file; `b""` if the cgroup is gone. Raises `OSError` if it is
    there and cannot be read."""
    content = kernel.read(path, whole=whole)
    if content is None:
        # it may be unreadable for another reason than that its cgroup is gone: access is denied, or
        # something is mounted over it
        for name, error in ((path, errno.EACCES), (os.path.dirname(path), errno.ESTALE)):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.stat(name)
                raise OSError(error, os.strerror(error), path)
    return content or b""


def pids(directory: str) -> Iterator[int]:
    """Return the processes of one cgroup, without those of other pid namespaces: they show as 0,
    which means our own process group to kill(2). Raises `OSError`."""
    try:
        content = read(f"{directory}/cgroup.procs", whole=True)
    except OSError as error:
        # a threaded cgroup has none: its processes show above it
        if error.errno != errno.EOPNOTSUPP:
            raise
        content = b""
    return (pid for pid in map(int, content.split()) if pid > 0)


def regain(path: str, base: str) -> None:
    """Give the owner access again to a control file, and to each cgroup from `base` to it. An agent
    with the same uid can take it away."""
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


def nested(directory: str, but: Container[str] = ()) -> Iterator[str]:
    """Yield a cgroup and all cgroups in it, each before those in it, without those whose path is
    too long to be used, and without those of `but` in it and what is in these. Raises `OSError`,
    but not for cgroups that are gone."""
    pending = [directory]
    while pending:
        path = pending.pop()
        if len(os.fsencode(path)) <= _MAX_PATH:
            yield path
            pending += (each for each in inner(path) if each not in but)


def inner(directory: str) -> list[str]:
    """Return the cgroups directly in a cgroup. Raises like `nested`."""
    try:
        if os.stat(directory).st_nlink == _CHILDLESS:
            return []
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in kernel.GONE:
            return []
        raise


# ---- The cgroups of runs, found by run, path or inode

MAX_SEARCHED = 10_000
"""Cgroups that are searched for one that an agent has made."""
LEAF = "self"
"""The cgroup in a run's cgroup with its processes, if they cannot be in the run's own."""


class RunCgroup(Struct, eq=False):
    directory: str
    has_leaf: bool = False
    """Whether processes begin in the leaf."""
    vacated: bool = False
    """Whether all its processes were moved into the leaf, so that it can enable controllers."""
    halted: bool = False
    """Whether a stop has frozen it, and nothing has thawed it since."""
    killed: bool = False
    """Whether `cgroup.kill` may have been written to since it was made: nothing can begin in it."""
    metered: bool = False
    """Whether its memory was charged to it from the start."""
    inodes: list[int] = field(default_factory=list)
    """Of the cgroup and its leaf, as far as they were asked for."""
    events: int | None = None
    """`cgroup.events`, open while it is watched."""
    frozen: trio.Event = field(default_factory=trio.Event)
    """Set when a stop's freeze has taken effect."""
    bounds: Bounds = UNBOUND
    """What was written to it."""
    enforced: dict[str, int] = field(default_factory=dict)
    """By kind of bound that the kernel enforces: how often the kernel had enforced that before."""

    @property
    def leaf(self) -> str:
        return f"{self.directory}/{LEAF}"

    @property
    def home(self) -> str:
        """Where its processes begin."""
        return self.leaf if self.has_leaf else self.directory


class RunCgroups:
    """Knows the cgroups of runs below `base`."""

    def __init__(self, base: BaseCgroup, reactor: Reactor) -> None:
        self.base = base
        self._reactor = reactor
        self._by_run: dict[RunId, RunCgroup] = {}
        self._by_inode: dict[int, RunId] = {}
        self._unasked: dict[str, RunId] = {}
        """Cgroups whose inode was not asked for: most runs end before any process asks something
        of the daemon."""
        self._by_directory: dict[str, RunId] = {}

    def of(self, run: LaunchedRun) -> RunCgroup | None:
        """Return the run's cgroup, if it was made or adopted."""
        return self._by_run.get(run.id)

    def directory(self, run: LaunchedRun) -> str:
        """Return where the run's cgroup is, or would be."""
        return f"{self.directory(run.parent) if run.parent else self.base.directory}/{run.id}"

    def run_with_inode(self, inode: int) -> RunId | None:
        """Return the run of a cgroup, by the cgroup id that PIDFD_GET_INFO tells."""
        while self._unasked and inode not in self._by_inode:
            directory, run_id = self._unasked.popitem()
            with suppress(OSError):  # another process removed it
                found = os.stat(directory).st_ino
                self._by_inode[found] = run_id
                self._by_run[run_id].inodes.append(found)
        return self._by_inode.get(inode)

    def run_of_cgroup(self, inode: int) -> RunId | None:
        """Return the run of a cgroup, or of a cgroup that an agent has made below it."""
        known = self.run_with_inode(inode)
        return known if known is not None else self.nearest(self._directory_with(inode))

    def _directory_with(self, inode: int) -> str | None:
        waiting = [self.base.directory]
        for _ in range(MAX_SEARCHED):
            if not waiting:
                return None
            with suppress(OSError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.inode() == inode:
                            return entry.path
                        waiting.append(entry.path)
        return None

    def inside(self, path: str | None) -> str | None:
        """Return the directory of a cgroup by its path in the hierarchy; None if it is not below
        the base."""
        within = below(path, self.base.path) if path is not None else None
        return f"{self.base.directory}/{within}" if within is not None else None

    def nearest(self, directory: str | None) -> RunId | None:
        """Return the run of a cgroup: the deepest run's at or above it."""
        while directory is not None and len(directory) > len(self.base.directory):
            run_id = self._by_directory.get(directory)
            if run_id is not None:
                return run_id
            directory = os.path.dirname(directory)
        return None

    def run_of(self, pid: int) -> RunId | None:
        return self.nearest(self.inside(kernel.cgroup(pid)))

    def contains(self, run: LaunchedRun, pid: int) -> bool:
        """Return whether a process is in the run itself, or in a cgroup that the run has made."""
        return self.run_of(pid) == run.id

    def holds(self, run: LaunchedRun, pid: int) -> bool:
        """Return whether a process is in the run's cgroup, or below it."""
        directory = self.inside(kernel.cgroup(pid))
        return directory is not None and below(directory, self.directory(run)) is not None

    def members(self, *tops: LaunchedRun) -> Iterator[tuple[int, RunId]]:
        """Yield every process in the cgroups of these runs, with the run it is in. Raises
        `OSError`."""
        for run in tops:
            group = self.of(run)
            for directory in nested(group.directory) if group else ():
                for pid in pids(directory):
                    yield pid, self.nearest(directory) or run.id

    def own_members(self, run: LaunchedRun) -> Iterator[int]:
        """Yield the processes that the run `contains`, and no others. Raises `OSError`."""
        group = self.of(run)
        for directory in nested(group.directory, self._by_directory) if group else ():
            yield from pids(directory)

    def populated(self, run: LaunchedRun) -> bool:
        group = self.of(run)
        return group is not None and b"populated 1" in read(f"{group.directory}/cgroup.events")

    def add(self, run: LaunchedRun, group: RunCgroup) -> RunCgroup:
        self._by_run[run.id] = group
        self._by_directory[group.directory] = self._unasked[group.directory] = run.id
        if group.has_leaf:
            self.add_leaf(run, group)
        return group

    def add_leaf(self, run: LaunchedRun, group: RunCgroup) -> None:
        group.has_leaf = True
        self._unasked[group.leaf] = run.id

    def forget(self, run: LaunchedRun) -> RunCgroup | None:
        """Forget the run's cgroup, and leave it as it is."""
        group = self._by_run.pop(run.id, None)
        if group is not None:
            self.unwatch(group)
            del self._by_directory[group.directory]
            self._unasked.pop(group.directory, None)
            if group.has_leaf:
                self._unasked.pop(group.leaf, None)
            for inode in group.inodes:
                del self._by_inode[inode]
        return group

    def unwatch(self, group: RunCgroup) -> None:
        if group.events is not None:
            self._reactor.discard(group.events)
            os.close(group.events)
            group.events = None

    def unwatch_all(self) -> None:
        for group in self._by_run.values():
            self.unwatch(group)

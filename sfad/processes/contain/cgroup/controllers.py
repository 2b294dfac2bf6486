"""The controllers of cgroup v2: `pids`, `memory` and `cpu`, as far as they were delegated to this
daemon.

A cgroup has the files of a controller if its parent has it in `cgroup.subtree_control`, and so must
every cgroup above (cgroups(7)). `pids` is enabled for every run, because every tree has such a
limit. The others are enabled down the path to a run that has such a limit, because they cost time
at each page and each task switch of the processes below.

A cgroup that enables controllers cannot have processes (EBUSY), so a run whose child run has such a
limit has its processes in a leaf, RUN/self. With `pids` and `cpu` alone that is
*not* refused: the cgroup becomes a thread root, and nothing can be attached below it any more
(EOPNOTSUPP). So the processes in PARENT, the daemon first of all, move into the leaf
PARENT/supervisor before anything is enabled. In systemd 254 and later, `DelegateSubgroup=` of the
unit names that leaf, and systemd itself puts the daemon there.

systemd before 254 cannot restart a unit whose cgroup still enables controllers (219/CGROUP): so
`undo` is called at the end of the daemon, and by the sweep after a daemon that was killed.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from time import monotonic, sleep

from ... import kernel
from ...launcher import CgroupImpossible, LaunchSpec
from ...trampoline.creating import Door, ProcessCreator, free
from ...trampoline.executable import ATTACH, EXEC, REPORT, best
from . import cgroupfs
from .cgroupfs import SUPERVISOR, BaseCgroup, bases, locate, mounts, read, remove_tree

KINDS = ("pids", "memory", "cpu")
_VACATED = "user.sfad.vacated"
"""An extended attribute of the leaf: the daemon, not systemd, has made it and moved there."""
_CONTROL = ".control"
"""The cgroup in a delegated unit in which systemd starts `ExecStopPost=` commands."""
_MOVED_WITHIN = 1.0
"""Seconds to look again and again at a cgroup that is being emptied: each look finds what was
forked since the one before, by processes that the kernel has not frozen yet."""


class Controllers:
    """The controllers that can be used below one instance's base. `complain` is told why one
    cannot."""

    def __init__(
        self, base: BaseCgroup, complain: Callable[[str], object] = lambda _text: None
    ) -> None:
        self._base = base.directory
        self._parent = os.path.dirname(base.directory)
        self._complain = complain
        self.enabled_in: dict[str, set[str]] = {}
        """By directory: the controllers of the cgroups in it."""
        self._before = _words(f"{self._parent}/cgroup.subtree_control")
        self.vacated = False
        """Whether the processes in PARENT were moved away, so that it can enable controllers."""
        self.available = _words(f"{self._parent}/cgroup.controllers") & set(KINDS)
        """The kinds of bound that can be enforced, as far as is known."""

    def set_up(self) -> None:
        """Empty PARENT, so that it can enable controllers, and enable `pids` for every run."""
        if not self.available:
            return
        self.enabled_in.pop(self._parent, None)  # another process may have undone it, with the base
        try:
            self.vacated = _vacate(self._parent) or _was_vacated(self._parent)
            if "pids" in self.available:
                self._enable("pids", self._base)
        except OSError as error:
            self.available = set()
            self._complain(
                "limits of memory, processes and CPU are watched, "
                f"not enforced by the kernel: {_said(error)}"
            )

    def enable(self, kind: str, directory: str) -> bool:
        """Enable a controller for the cgroups in `directory`; return whether that worked."""
        if kind not in self.available:
            return False
        try:
            self._enable(kind, directory)
        except OSError as error:
            self.not_enabled(kind, error)
            if not self.enabled(kind, self._base) and error.errno not in kernel.SHORTAGES:
                self.available.discard(kind)
            return False
        return True

    def not_enabled(self, kind: str, error: OSError) -> None:
        self._complain(
            f"the cgroup controller {kind} cannot be enabled, "
            f"so that limits are watched: {_said(error)}"
        )

    def _enable(self, kind: str, directory: str) -> None:
        for path in reversed(list(self._up(directory))):
            enabled = self.enabled_in.setdefault(path, set())
            if kind not in enabled:
                cgroupfs.write(f"{path}/cgroup.subtree_control", b"+" + kind.encode())
                enabled.add(kind)

    def _up(self, directory: str) -> Iterator[str]:
        while len(directory) >= len(self._parent):
            yield directory
            directory = os.path.dirname(directory)

    def enabled(self, kind: str, directory: str) -> bool:
        return kind in self.enabled_in.get(directory, ())

    def close(self) -> None:
        """Undo what was done to PARENT, once the base is gone. If another instance still needs it,
        that one undoes it later."""
        self.enabled_in.clear()
        if os.path.exists(self._base):
            return
        if self.vacated:
            undo(self._parent, move_back=True)
        elif not _others(self._parent):
            _disable(self._parent, set(KINDS) - self._before)


def undo(parent: str, *, move_back: bool = False) -> None:
    """Disable the controllers of `parent`, if a daemon has vacated it and no instance is left in
    it. With `move_back` the processes in the leaf move back; without it, a leaf that is in use
    stays."""
    leaf = f"{parent}/{SUPERVISOR}"
    with suppress(OSError):
        if not os.path.isdir(leaf) or _others(parent):
            return
        _disable(parent, set(KINDS))
        if move_back:
            move(leaf, parent)
        os.rmdir(leaf)


def release_unit() -> None:
    """Disable, in a process of `ExecStopPost=`, the controllers of the unit's cgroup and of all in
    it, if a daemon has vacated it.

    Nothing is killed: runs are without limits until the next daemon has adopted them. Where systemd
    itself puts the daemon into the leaf, controllers stay as they are."""
    own = kernel.cgroup(os.getpid()) or "/"
    for directory in (found for mount in mounts() if (found := mount.directory(own))):
        unit, name = os.path.split(directory)
        with suppress(OSError):
            if name == _CONTROL and _was_vacated(unit):
                for inner in reversed(list(cgroupfs.nested(unit))):
                    _disable(inner, set(KINDS))


def _others(parent: str) -> bool:
    return any(name.startswith("sfad-") for name in os.listdir(parent))


def _disable(directory: str, kinds: set[str]) -> None:
    for kind in kinds & _words(f"{directory}/cgroup.subtree_control"):
        with suppress(OSError):  # another program's cgroup in it uses the controller
            cgroupfs.write(f"{directory}/cgroup.subtree_control", b"-" + kind.encode())


def _vacate(parent: str) -> bool:
    """Move the processes in `parent` into the leaf; return whether that was necessary. Raises
    `OSError` if they are not ours to move."""
    # the root of the hierarchy may have processes and enable controllers
    if not os.path.exists(f"{parent}/cgroup.type"):
        return False
    sitting = set(cgroupfs.pids(parent))
    if not sitting:
        return False
    # the cgroup of pid 1 is the top of a container, and the next `docker exec` joins it there
    if not (sitting <= {os.getpid()} or (_delegated(parent) and 1 not in sitting)):
        strangers = ", ".join(map(str, sorted(sitting - {os.getpid()})[:5]))
        raise OSError(f"{parent} also holds processes that are not the daemon's ({strangers})")
    with suppress(FileExistsError):
        os.mkdir(f"{parent}/{SUPERVISOR}")
    with suppress(OSError):
        os.setxattr(f"{parent}/{SUPERVISOR}", _VACATED, b"1")
    move(parent, f"{parent}/{SUPERVISOR}")
    return True


def _was_vacated(parent: str) -> bool:
    """Return whether a daemon, not systemd, has made the leaf."""
    try:
        return os.getxattr(f"{parent}/{SUPERVISOR}", _VACATED) == b"1"
    except OSError:
        return False


def _delegated(directory: str) -> bool:
    """Return whether systemd says that the cgroup is delegated: then everything in it belongs to
    the daemon's service."""
    # the first from systemd 251 on; only root can read the second
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            return os.getxattr(directory, name) == b"1"
    return False


def move(source: str, target: str) -> None:
    """Move every process. Raises `OSError`, also if new ones keep appearing."""
    until = monotonic() + _MOVED_WITHIN
    while sitting := list(cgroupfs.pids(source)):
        for pid in sitting:
            with suppress(ProcessLookupError):
                cgroupfs.write(f"{target}/cgroup.procs", str(pid).encode())
        if monotonic() > until:
            raise OSError(f"{source} cannot be emptied")


def _words(path: str) -> set[str]:
    return set(cgroupfs.read(path).decode().split())


def _said(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)


# ---- Whether runs can be contained in cgroups: a child is contained to find out

_PROBE_WAIT, _PROBE_EVERY = 5.0, 0.1
"""Seconds for which a probe is tried again, and between two tries."""


def inhabited(instance: str, parent: str | None = None) -> BaseCgroup | None:
    """Return where an earlier daemon of this instance has left something alive, if runs can be
    contained there now.

    Runs stay there, wherever this process or the configuration would put them."""
    found = mounts()
    with suppress(OSError):
        for directory in bases(instance, parent):
            paths = [path for mount in found if (path := mount.path(directory))]
            if paths and b"populated 1" in read(f"{directory}/cgroup.events"):
                base = BaseCgroup(directory, paths[0])
                with suppress(CgroupImpossible):
                    probe(base)
                    return base
    return None


def base_of(instance: str, parent: str | None = None) -> BaseCgroup:
    """Return where the cgroups of this instance go: where an earlier daemon's are in use, else in
    `parent`, else in this process's own cgroup. Raises `CgroupImpossible`."""
    return inhabited(instance, parent) or locate(instance, parent)


def probe(base: BaseCgroup) -> None:
    """Make the base directory and contain a child in it. Raises `CgroupImpossible`; then nothing is
    left."""
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
    """Probe again while the machine is short of processes or descriptors: it may allow cgroups all
    the same."""
    until = monotonic() + _PROBE_WAIT
    while True:
        try:
            return _probe_inside(directory)
        except OSError as error:
            if error.errno not in kernel.SHORTAGES | {errno.EAGAIN} or monotonic() > until:
                raise
        sleep(_PROBE_EVERY)


def _probe_inside(directory: str) -> None:
    for name in ("cgroup.kill", "cgroup.freeze", "cgroup.events"):
        if not os.path.exists(f"{directory}/{name}"):
            raise CgroupImpossible(
                f"{directory} has no {name}: cgroups can be killed since Linux 5.14"
            )
    stage, number = _reported(directory, attach=True)
    if stage == ATTACH:
        raise CgroupImpossible(
            f"a process cannot be moved to {directory}/probe: {os.strerror(-number)}"
        )


def begins(base: BaseCgroup) -> bool:
    """Return whether children can begin in a new cgroup, instead of attaching themselves."""
    with suppress(OSError):
        return _reported(base.directory, attach=False)[0] == EXEC
    return False


def _reported(directory: str, *, attach: bool) -> tuple[int, int]:
    """Spawn a child in a new cgroup, which then has nothing to execute; return at which stage it
    failed, and with what."""
    cell = f"{directory}/probe"
    os.makedirs(cell, exist_ok=True)
    try:
        with ExitStack() as stack:
            cgroup = os.open(cell, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, cgroup)
            near, far = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, near)
            shut, gate = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, shut)
            os.write(gate, b"\n")
            os.close(gate)
            creator = ProcessCreator(best())
            with ExitStack() as spawning:
                spawning.callback(os.close, far)
                spawning.callback(creator.close)
                spec = LaunchSpec([b"probe"], b"/", [])
                pid, pidfd, memory, _ = creator.create(
                    spec, [], spec.env, door=Door(cgroup, attach), report=far, gate=shut
                )
            report = os.read(near, REPORT.size)
            os.waitid(os.P_PID, pid, os.WEXITED)
        if pidfd >= 0:
            os.close(pidfd)
        if memory is not None:
            free(memory)
    finally:
        remove_tree(cell)
    return REPORT.unpack(report) if len(report) == REPORT.size else (ATTACH, 0)

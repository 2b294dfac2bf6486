"""Whether runs can be contained in cgroups: a child is contained to find out."""

import errno
import os
from contextlib import ExitStack, suppress
from time import monotonic, sleep

from ...launcher import CgroupImpossible, LaunchSpec
from ...trampoline.clone import free
from ...trampoline.executable import ATTACH, EXEC, REPORT, best
from ...trampoline.spawner import Door, Spawner
from .cgroupfs import read, remove_tree
from .location import BaseCgroup, bases, locate, mounts

_PROBE_WAIT, _PROBE_EVERY = 5.0, 0.1
"""Seconds for which a probe is tried again, and between two tries."""


def inhabited(instance: str, parent: str | None = None) -> BaseCgroup | None:
    """Return where an earlier daemon of this instance has left something alive, if runs can be contained there now.

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
    """Return where the cgroups of this instance go: where an earlier daemon's are in use, else in `parent`, else in this process's
    own cgroup. Raises `CgroupImpossible`."""
    return inhabited(instance, parent) or locate(instance, parent)


def probe(base: BaseCgroup) -> None:
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
    until = monotonic() + _PROBE_WAIT
    while True:
        try:
            return _probe_inside(directory)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE) or monotonic() > until:
                raise
        sleep(_PROBE_EVERY)


def _probe_inside(directory: str) -> None:
    for name in ("cgroup.kill", "cgroup.freeze", "cgroup.events"):
        if not os.path.exists(f"{directory}/{name}"):
            raise CgroupImpossible(f"{directory} has no {name}: cgroups can be killed since Linux 5.14")
    stage, number = _reported(directory, attach=True)
    if stage == ATTACH:
        raise CgroupImpossible(f"a process cannot be moved to {directory}/probe: {os.strerror(-number)}")


def begins(base: BaseCgroup) -> bool:
    """Return whether children can begin in a new cgroup, instead of attaching themselves."""
    with suppress(OSError):
        return _reported(base.directory, attach=False)[0] == EXEC
    return False


def _reported(directory: str, *, attach: bool) -> tuple[int, int]:
    """Spawn a child in a new cgroup, which then has nothing to execute; return at which stage it failed, and with what."""
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
            spawner = Spawner(best())
            with ExitStack() as spawning:
                spawning.callback(os.close, far)
                spawning.callback(spawner.close)
                spec = LaunchSpec([b"probe"], b"/", [])
                pid, pidfd, memory = spawner.spawn(spec, [], spec.env, door=Door(cgroup, attach), report=far, gate=shut)
            report = os.read(near, REPORT.size)
            os.waitid(os.P_PID, pid, os.WEXITED)
        if pidfd >= 0:
            os.close(pidfd)
        if memory is not None:
            free(memory)
    finally:
        remove_tree(cell)
    return REPORT.unpack(report) if len(report) == REPORT.size else (ATTACH, 0)

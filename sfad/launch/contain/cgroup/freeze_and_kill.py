"""Control files that act on a whole cgroup: `cgroup.freeze` and `cgroup.kill`."""

import os

from ... import procfs
from . import cgroupfs, location
from .cgroups import RunCgroup


class CgroupControl:
    """Writes control files. Make it when this process is where it belongs (see `Controllers.prepare`)."""

    def __init__(self, base: location.BaseCgroup) -> None:
        self._base = base
        self._own_cgroup = procfs.cgroup(os.getpid())

    def write(self, group: RunCgroup, name: str, content: bytes) -> None:
        """Write a control file, if the cgroup is not gone. Raises `OSError`."""
        self._step_out()
        try:
            cgroupfs.write(f"{group.directory}/{name}", content)
        except OSError as error:
            if error.errno not in procfs.GONE:
                raise

    def _step_out(self) -> None:
        """Go back to where this process belongs: an agent with its uid can move it into a run that is to be frozen."""
        path = procfs.cgroup(os.getpid())
        if path is None or path == self._own_cgroup or location.below(path, self._base.path) is None:
            return
        parent = os.path.dirname(self._base.directory)
        cgroupfs.write(f"{location.directory_of(self._own_cgroup) or parent}/cgroup.procs", b"0")


def thaw_all(group: RunCgroup) -> None:
    """Thaw a run's cgroup and those below it, which may have been paused by themselves. Raises `OSError`."""
    for directory in cgroupfs.nested(group.directory):
        try:
            cgroupfs.write(f"{directory}/cgroup.freeze", b"0")
        except OSError as error:
            if error.errno not in procfs.GONE:
                raise
    group.halted = False

"""Where the cgroups of this instance are, and how /proc/PID/cgroup names them. Makes nothing."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ... import procfs
from ...launcher import CgroupImpossible

SUPERVISOR = "supervisor"
"""The leaf for a daemon that enables controllers; see `controllers`."""


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
class BaseCgroup:
    """The directory of an instance, and how /proc/PID/cgroup names it."""

    directory: str
    path: str


def locate(instance: str, parent: str | None = None) -> BaseCgroup:
    """Return where the cgroups of this instance go: in `parent`, else in this process's own cgroup. Makes nothing.

    Raises `CgroupImpossible`."""
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
                return BaseCgroup(f"{directory}/{name}", _joined(path, name))
    raise CgroupImpossible(f"{parent or own} is not below a cgroup2 mount")


def bases(instance: str, parent: str | None = None) -> Iterator[str]:
    """Yield the instance's directories: where this process would make it, then each one that a process of the machine is in,
    because an earlier daemon may have been started elsewhere. The caller may need the first only: then no process is looked at.

    It does not walk the cgroups of other programs: any user may have made them thousands of levels deep. Raises `OSError`."""
    seen: set[str] = set()
    for directory in _candidates(instance, parent):
        if directory is not None and directory not in seen and os.path.isdir(directory):
            seen.add(directory)
            yield directory


def _candidates(instance: str, parent: str | None) -> Iterator[str | None]:
    yield _located(instance, parent)
    yield _located(instance)
    name, mounted = f"sfad-{instance}", mounts()
    for path in {_up_to(name, path) for pid in procfs.pids() if (path := procfs.cgroup(pid)) is not None}:
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
    """Return where the daemon's runs belong: beside the leaf that the daemon was moved to, if it is in one."""
    above, name = os.path.split(own)
    ours = name == SUPERVISOR and os.access(above, os.W_OK) and os.access(f"{above}/cgroup.procs", os.W_OK)
    return above if ours else own


def directory_of(path: str | None) -> str | None:
    found = (mount.directory(path) for mount in mounts()) if path is not None else ()
    return next((directory for directory in found if directory is not None), None)

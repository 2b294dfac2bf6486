"""A test must not leave children, descriptors, threads or cgroups behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests import outside

PATIENCE = 10.0
"""Seconds that what is on its way out gets: a killed process is a zombie until its parent reaps
it."""
_KEPT_THREADS = ("Trio thread", "Trio worker", "MainThread", "pydevd", "Tokio")
"""trio keeps idle worker threads for later use."""

_cgroups: set[str] = set()
"""Directories like `…/sfad-INSTANCE/…` that this process has made. Other test runs of the machine
make theirs."""


_staying: set[int] = set()
"""Children that outlive the test that started them."""


def stays(pid: int) -> None:
    """Permit a child to outlive this test: a daemon that the tests of a module share."""
    _staying.add(pid)


_parents: set[int] = set()
_kept_descriptors: set[int] = set()


def keep(pid: int, descriptor: int) -> None:
    """Permit a child and a descriptor to outlive the tests. The child's children count as children
    of this process."""
    stays(pid)
    _parents.add(pid)
    _kept_descriptors.add(descriptor)


def drop(pid: int, descriptor: int) -> None:
    """Undo `keep`."""
    _staying.discard(pid)
    _parents.discard(pid)
    _kept_descriptors.discard(descriptor)


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    outside.audit(event, arguments)
    if event == "os.mkdir" and "/sfad-" in str(arguments[0]):
        _cgroups.add(os.fsdecode(str(arguments[0])))


sys.addaudithook(_audit)  # cannot be removed again, so it is added once


@contextmanager
def no_leaks() -> Iterator[None]:
    """Fail if the body leaves a child process, an open descriptor, a thread, or a cgroup of ours
    behind, or a file outside of its directories; or if it opens one there."""
    children, descriptors, threads = _children(), set(_descriptors()), set(threading.enumerate())
    yield
    left = _left(children, descriptors, threads)
    until = time.monotonic() + PATIENCE
    while left and time.monotonic() < until:
        time.sleep(0.01)
        gc.collect()
        left = _left(children, descriptors, threads)
    left += outside.strays()
    assert not left, "the test leaked:\n  " + "\n  ".join(left)


def _left(
    children: set[int], descriptors: set[tuple[int, str]], threads: set[threading.Thread]
) -> list[str]:
    _cgroups.difference_update([path for path in _cgroups if not _is_cgroup(path)])
    new_threads = [
        t for t in set(threading.enumerate()) - threads if not t.name.startswith(_KEPT_THREADS)
    ]
    return [
        *(f"child {pid}: {_command(pid)}" for pid in sorted(_children() - children - _staying)),
        *(f"descriptor {fd}: {target}" for fd, target in sorted(set(_descriptors()) - descriptors)),
        *(f"thread {thread.name}" for thread in new_threads),
        *(f"cgroup {path}" for path in sorted(_cgroups)),
    ]


def cgroups() -> set[str]:
    """Return the cgroup of each daemon on this machine. Other cgroups may come and go meanwhile."""
    found: set[str] = set()
    for directory, below, _ in os.walk("/sys/fs/cgroup"):
        ours = [name for name in below if name.startswith("sfad-")]
        found.update(f"{directory}/{name}" for name in ours)
        below[:] = [name for name in below if name not in ours]
    return found


def _children() -> set[int]:
    """Return the children of every thread, zombies included."""
    tasks = [f"/proc/self/task/{task}" for task in os.listdir("/proc/self/task")]
    found: set[int] = set()
    for task in (*tasks, *(f"/proc/{parent}/task/{parent}" for parent in _parents)):
        with suppress(OSError), open(f"{task}/children") as file:
            found.update(map(int, file.read().split()))
    return found


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in set(os.listdir("/proc/self/fd")) - set(map(str, _kept_descriptors)):
        with suppress(OSError):  # the one of the listing itself
            yield int(name), os.readlink(f"/proc/self/fd/{name}")


def _command(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/stat") as file:
        stat = file.read()
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            words = command.read().split(b"\0")
            return b" ".join(words).decode(errors="replace").strip() or stat[:40]
    return "gone"


def _is_cgroup(path: str) -> bool:
    return os.path.exists(f"{path}/cgroup.procs")

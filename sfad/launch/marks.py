"""The two marks that the processes of a run inherit: a cookie in the environment, and a tag, a number in the soft RLIMIT_MSGQUEUE.

A process can change its own marks, or copy those of another run of the same user. So the cgroup and the ancestors of a process
come first. But processes that an earlier daemon started are not below this process: pid 1 has adopted them, and without cgroups
only their marks tell them. Foreign processes must not be taken for ours. A cookie names instance, run and a random number. A
tag is a mere number: it counts only if neither the process nor an ancestor of it carries the cookie of another run.
"""

import resource

from ..core.ids import run_number
from ..protocol.types import RunId
from . import procfs
from .sealed_environment import COOKIE

CAPACITY = 819_200
"""The kernel's default RLIMIT_MSGQUEUE, bytes (getrlimit(2)). Tags are numbers of its upper half, so that message queues work."""


def tag(instance: str, run_id: RunId) -> int | None:
    """Return the number of a run: the same for the next daemon, unique among the live runs of an instance, and unlikely to be
    another instance's. None if every process has that number by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    top = CAPACITY if hard == resource.RLIM_INFINITY else min(hard, CAPACITY)
    least = top // 2
    number = least + (int(instance, 16) + run_number(run_id)) % max(1, top - least)
    return number if number != soft else None


def cookie(pid: int, instance: str) -> bytes | None:
    """Return the cookie of this instance in the environment that a process was executed with, as the kernel shows it."""
    value = procfs.variable(pid, COOKIE)
    return value if value is not None and value.startswith(instance.encode() + b":") else None


def cookie_run(value: bytes) -> RunId:
    return value.split(b":")[1].decode("ascii", "replace")

"""What a live run has from the kernel that this process has not: a run gets most of it from the
daemon, and not from the shell in which it was asked for (docs/containment.md)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from sfad.protocol.types import RunInfo

_IOPRIO_GET = {"x86_64": 252}
_IOPRIO_GET_GENERIC = 31
_IOPRIO_CLASSES = {0: "none", 1: "realtime", 2: "best-effort", 3: "idle"}
_POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline"}
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "time")
_LOCALE = ("LANG", "LC_ALL", "LC_CTYPE")
_NOT_COMPARED = frozenset({"Max msgqueue size"})
"""By which the daemon marks its runs where it has no cgroups."""


class Difference(NamedTuple):
    what: str
    run: str
    here: str

    def __str__(self) -> str:
        return f"{self.what} {self.run}, and here {self.here}"


def differences(run: RunInfo) -> list[Difference]:
    """Return what differs, by name. Nothing if the run has no process, or one that this process may
    not look at, as on another machine."""
    if run.pid is None or run.status.terminal or not _is_of(run.pid, run.id):
        return []
    there, here = _facts(str(run.pid)), _facts("self")
    sandbox = _NAMESPACES if run.isolation is not None else ()
    return [
        Difference(what, there[what], here[what])
        for what in here
        if what in there
        and there[what] != here[what]
        and what.removesuffix(" namespace") not in sandbox
    ]


def _is_of(pid: int, run: str) -> bool:
    return f"SFA_RUN_ID={run}".encode() in _read(str(pid), "environ").split(b"\0")


def _facts(pid: str) -> dict[str, str]:
    found: dict[str, str] = {}
    with suppress(OSError, ValueError, IndexError, KeyError):
        found |= _scheduling(pid)
    with suppress(OSError, ValueError, KeyError):
        found |= _credentials(pid)
    found |= dict(_limits(pid))
    environment = dict(
        item.split(b"=", 1) for item in _read(pid, "environ").split(b"\0") if b"=" in item
    )
    found |= {
        name: environment.get(name.encode(), b"").decode(errors="replace") or "unset"
        for name in _LOCALE
    }
    for kind in _NAMESPACES:
        with suppress(OSError):
            found[f"{kind} namespace"] = os.readlink(f"/proc/{pid}/ns/{kind}").partition(":")[2]
    return found


def _scheduling(pid: str) -> dict[str, str]:
    stat = _read(pid, "stat").decode(errors="replace").rpartition(") ")[2].split()
    number = 0 if pid == "self" else int(pid)
    priority = ctypes.CDLL(None).syscall(
        ctypes.c_long(_IOPRIO_GET.get(os.uname().machine, _IOPRIO_GET_GENERIC)),
        ctypes.c_int(1),
        ctypes.c_int(number),
    )
    policy = int(stat[38])
    return {
        "nice": stat[16],
        "scheduling policy": _POLICIES.get(policy, str(policy)),
        "CPUs": _ranges(os.sched_getaffinity(number)),
        "I/O class": _IOPRIO_CLASSES.get(priority >> 13, str(priority)),
        "oom_score_adj": _read(pid, "oom_score_adj").decode().strip(),
    }


def _ranges(cpus: set[int]) -> str:
    """Return numbers as taskset(1) writes them: `0-3,7`."""
    starts = sorted(cpu for cpu in cpus if cpu - 1 not in cpus)
    ends = sorted(cpu for cpu in cpus if cpu + 1 not in cpus)
    pairs = zip(starts, ends, strict=True)
    return ",".join(f"{one}-{two}" if two > one else str(one) for one, two in pairs)


def _credentials(pid: str) -> dict[str, str]:
    lines = _read(pid, "status").decode(errors="replace").splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {
        "uid": status["Uid"].split()[1],
        "gid": status["Gid"].split()[1],
        "groups": " ".join(sorted(status["Groups"].split(), key=int)) or "none",
        "umask": status.get("Umask", ""),
        "no_new_privs": status["NoNewPrivs"],
        "seccomp filters": status.get("Seccomp_filters", status["Seccomp"]),
        "capabilities": status["CapEff"],
        "capability bounds": status["CapBnd"],
    }


def _limits(pid: str) -> Iterator[tuple[str, str]]:
    """Yield the soft and hard limits, as `ulimit` sets them."""
    for line in _read(pid, "limits").decode(errors="replace").splitlines()[1:]:
        name, values = line[:26].strip(), line[26:].split()
        if name not in _NOT_COMPARED and len(values) >= 2:
            yield name.lower(), values[0] if values[0] == values[1] else ":".join(values[:2])


def _read(pid: str, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""

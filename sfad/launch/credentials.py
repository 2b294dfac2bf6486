"""The user that a run executes as, when root's daemon starts it for another user."""

import resource
import struct
from dataclasses import dataclass

from . import procfs

MAX_GROUPS = 8192
"""Supplementary groups. What a trampoline is told must fit into a pipe of 64 KiB and on its stack; the kernel has a bound of
65536."""
UNLIMITED = (1 << 64) - 1
LIMIT_KINDS = 16
"""RLIM_NLIMITS of Linux: RLIMIT_CPU is 0, RLIMIT_RTTIME is 15."""
_HEAD = struct.Struct("=4I32Q")
_CAP_SYS_RESOURCE = 1 << 24

Rlimits = tuple[tuple[int, int], ...]
"""Soft and hard limit of each kind, by its number."""


@dataclass(frozen=True, slots=True)
class Credentials:
    uid: int
    gid: int
    groups: tuple[int, ...]
    limits: Rlimits
    no_new_privs: bool = False

    def record(self) -> bytes:
        """Return them in the form that `trampoline.contract` describes."""
        limits = [value for pair in self._possible() for value in pair]
        head = _HEAD.pack(self.uid, self.gid, self.no_new_privs, len(self.groups), *limits)
        return head + struct.pack(f"={len(self.groups)}I", *self.groups)

    def _possible(self) -> Rlimits:
        """Return the limits that this process may give to a child: without CAP_SYS_RESOURCE (in many containers), no higher than
        its own."""
        if _may_raise():
            return self.limits
        own = [resource.getrlimit(kind)[1] for kind in range(LIMIT_KINDS)]
        hard = [UNLIMITED if limit == resource.RLIM_INFINITY else limit for limit in own]
        return tuple((min(pair[0], most), min(pair[1], most)) for pair, most in zip(self.limits, hard, strict=True))


def _may_raise() -> bool:
    lines = (procfs.read("/proc/self/status", whole=True) or b"").splitlines()
    effective = next((int(line[7:], 16) for line in lines if line.startswith(b"CapEff:")), 0)
    return bool(effective & _CAP_SYS_RESOURCE)

"""The user that a run executes as, and an environment for programs that must not obey the run's."""

from __future__ import annotations

import resource
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from . import kernel

# ---- The user that a run executes as, when root's daemon starts it for another user


MAX_GROUPS = 8192
"""Supplementary groups. What a trampoline is told must fit into a pipe of 64 KiB and on its stack;
the kernel has a bound of 65536."""
UNLIMITED = (1 << 64) - 1
LIMIT_KINDS = 16
"""RLIM_NLIMITS of Linux: RLIMIT_CPU is 0, RLIMIT_RTTIME is 15."""
_HEAD = struct.Struct("=4I32Q")
_CAP_SYS_RESOURCE = 1 << 24

Rlimits = tuple[tuple[int, int], ...]
"""Soft and hard limit of each kind, by its number."""


# no struct: helpers load this without msgspec
@dataclass(frozen=True, slots=True)
class Credentials:
    uid: int
    gid: int
    groups: tuple[int, ...]
    limits: Rlimits
    no_new_privs: bool = False

    def record(self) -> bytes:
        """Return them in the form that `trampoline.executable` describes."""
        limits = [value for pair in self._possible() for value in pair]
        head = _HEAD.pack(self.uid, self.gid, self.no_new_privs, len(self.groups), *limits)
        return head + struct.pack(f"={len(self.groups)}I", *self.groups)

    def _possible(self) -> Rlimits:
        """Return the limits that this process may give to a child: without CAP_SYS_RESOURCE (in
        many containers), no higher than its own."""
        if int(kernel.status("self").get(b"CapEff", b"0"), 16) & _CAP_SYS_RESOURCE:
            return self.limits
        own = [resource.getrlimit(kind)[1] for kind in range(LIMIT_KINDS)]
        hard = [UNLIMITED if limit == resource.RLIM_INFINITY else limit for limit in own]
        return tuple(
            (min(pair[0], most), min(pair[1], most))
            for pair, most in zip(self.limits, hard, strict=True)
        )


# ---- An environment on its way through a program that must not obey it
#
# The dynamic loader obeys LD_PRELOAD, libc obeys GCONV_PATH, and a program of the daemon's that
# starts a command would obey them with more rights than the command will have. So each variable is
# handed over under another name, which no program knows. Not by a descriptor: the trampoline closes
# all but three. Not as arguments: every user can read those.
#
# `trampoline.in_python` unseals as well, and imports nothing of the package.


SEAL = b"."
"""Before the name of a variable."""
COOKIE = b"SFA_COOKIE"
"""The environment variable that names instance, run and a random number. It is never sealed."""
_COOKIE_IS = COOKIE + b"="


def sealed(env: Iterable[bytes]) -> list[bytes]:
    """Return `KEY=VALUE` under names that no program knows, but the run's cookie, by which its
    processes are found, as it is."""
    return [item if item.startswith(_COOKIE_IS) else SEAL + item for item in env]


def unsealed(env: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the variables as they were before `sealed`."""
    found = {
        name[len(SEAL) :]: value
        for name, value in env.items()
        if name.startswith(SEAL) and name != SEAL
    }
    return found | own(env)


def own(env: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return what a program that starts a command may obey: nothing that the command's submitter
    chose."""
    return {name: value for name, value in env.items() if name == COOKIE}

"""An environment on its way through a program that must not obey it.

The dynamic loader obeys LD_PRELOAD, libc obeys GCONV_PATH, and a program of the daemon's that starts a command would obey them
with more rights than the command will have. So each variable is handed over under another name, which no program knows. Not by a
descriptor: the trampoline closes all but three. Not as arguments: every user can read those.

`trampoline.in_python` unseals as well, and imports nothing of the package.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, whose import takes as long as all others
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SEAL = b"."
"""Before the name of a variable."""
COOKIE = b"SFA_COOKIE"
"""The environment variable that names instance, run and a random number. It is never sealed."""
_COOKIE_IS = COOKIE + b"="


def sealed(env: Iterable[bytes]) -> list[bytes]:
    """Return `KEY=VALUE` under names that no program knows, but the run's cookie, by which its processes are found, as it is."""
    return [item if item.startswith(_COOKIE_IS) else SEAL + item for item in env]


def unsealed(env: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the variables as they were before `sealed`."""
    found = {name[len(SEAL) :]: value for name, value in env.items() if name.startswith(SEAL) and name != SEAL}
    return found | own(env)


def own(env: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return what a program that starts a command may obey: nothing that the command's submitter chose."""
    return {name: value for name, value in env.items() if name == COOKIE}

"""The environment of a run: what the client sent, without variables of the daemon or of another run, plus SFA_*."""

import os
from collections.abc import Sequence

from ..core.run import Run
from ..protocol.messages import Spawn
from .shims import BASH_ENV, SHIMS, THEIR_BASH_ENV

_FOREIGN = (b"NOTIFY_SOCKET=", b"LISTEN_", b"WATCHDOG_", b"MAINPID=", b"FDSTORE=")
"""Variables by which systemd speaks to one service. A run that inherits them could answer in the service's name."""

_OWN = (
    b"SFA_RUN_ID=", b"SFA_ROOT_ID=", b"SFA_PARENT_ID=", b"SFA_NAME=", b"SFA_DEPTH=", b"SFA_MAX_DEPTH=", b"SFA_CALL_CHAIN=",
    b"SFA_DEADLINE=", b"SFA_ATTEMPT=", b"SFA_SOCKET=", b"SFA_COOKIE=", b"SFA_ALLOWED_TOOLS=", b"SFA_BLOCKED_TOOLS=",
    b"SFA_NO_LOG=", b"SFA_QUIET=", b"SFA_SHIMS=", b"SFA_TASK=", b"SFA_MODEL=", b"SFA_PROVIDER=", b"SFA_INSTRUCTIONS=",
)  # fmt: skip


def run_environment(
    run: Run,
    spawn: Spawn,
    *,
    socket: str,
    deadline: float,
    shims: Sequence[bytes] = (),
) -> list[bytes]:
    """Return `KEY=VALUE` for execve(2). `deadline` is in Unix seconds; `shims` are the directories
    that come first in PATH. The daemon does not trust these variables itself."""
    told = [*_told(run, spawn, socket, deadline)]
    if shims:
        told.append((SHIMS, os.fsdecode(b":".join(shims))))
    kept = [item for item in spawn.env if not item.startswith(_FOREIGN) and not item.startswith(_OWN)]
    if shims:
        kept = _finding_shims(kept, shims)
    return kept + [f"{key}={value}".encode(errors="surrogateescape") for key, value in told]


def _finding_shims(env: Sequence[bytes], shims: Sequence[bytes]) -> list[bytes]:
    """Return an environment whose PATH begins with directories of shims, also after a login shell has set it."""
    kept = []
    for item in env:
        if item.startswith(b"PATH="):
            others = [directory for directory in item[5:].split(b":") if directory not in shims]
            kept.append(b"PATH=" + b":".join([*shims, *others]))
        elif not item.startswith(b"BASH_ENV="):
            kept.append(item)
        elif not item.endswith(b"/" + BASH_ENV):  # else it is that of a run above, and SFA_BASH_ENV holds the person's
            kept.append(f"{THEIR_BASH_ENV}=".encode() + item[9:])
    return [*kept, b"BASH_ENV=" + shims[-1] + b"/" + BASH_ENV]


def _told(run: Run, spawn: Spawn, socket: str, deadline: float) -> Sequence[tuple[str, str]]:
    lineage = run.lineage
    told = [
        ("SFA_RUN_ID", run.id),
        ("SFA_ROOT_ID", lineage[0].id),
        ("SFA_PARENT_ID", run.parent.id if run.parent is not None else ""),
        # what the loop rule compares: a container passes it back in a claim
        ("SFA_NAME", run.identity[1]),
        ("SFA_DEPTH", str(len(lineage) - 1)),
        ("SFA_MAX_DEPTH", str(run.birth.max_depth.value)),
        # without the run itself: an agent that looks for its own name in the chain must not find itself
        ("SFA_CALL_CHAIN", ",".join(r.identity[1] for r in lineage[:-1])),
        ("SFA_DEADLINE", f"{deadline:.0f}"),
        ("SFA_ATTEMPT", str(run.attempt)),
        ("SFA_SOCKET", socket),
    ]
    optional = [
        ("SFA_ALLOWED_TOOLS", ",".join(spawn.allowed_tools)),
        ("SFA_BLOCKED_TOOLS", ",".join(spawn.blocked_tools)),
        ("SFA_NO_LOG", "" if spawn.log else "1"),
        ("SFA_QUIET", "1" if spawn.quiet else ""),
    ]
    agent = [(f"SFA_{name.upper()}", text) for name, text in spawn.placeholders.items()]
    return told + [(key, value) for key, value in optional if value] + agent

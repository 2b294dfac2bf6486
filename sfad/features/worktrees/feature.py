"""The declaration."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from ...config_values import SIZE
from ...feature import Feature, Section
from ...protocol.types import Worktree

WORKTREE = "worktree"
"""What it decides about a run."""


class AgentWorktree(Struct, frozen=True, kw_only=True):
    worktree: bool = False
    """Each run works in a git worktree of its own."""


class WorktreesConfig(Struct, frozen=True, kw_only=True):
    size: Annotated[int, Meta(ge=1 << 20, extra=SIZE)] | None = None
    """Bytes on the disk, of each user. It is measured at each start with a new worktree, for which
    each file is looked at: so there is none unless it is asked for."""


AgentWorktrees = dict[str, AgentWorktree]
"""By the names of agents."""


def branch_of(branch: str | None, name: str, run: str) -> str:
    """Return the branch of a run's worktree: the one that was asked for, else `sfad/NAME-ID`."""
    return branch or f"sfad/{slug(name)}-{run}"


def slug(name: str) -> str:
    """Return a name as it can be in a branch and a path: git-check-ref-format(1) forbids `..`, and
    a `.` at the beginning."""
    return (
        re.sub(r"\.{2,}", ".", re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)).strip("-.")[:64]
        or "run"
    )


def _shown(worktree: Worktree, live: Any) -> Mapping[str, Any]:
    return {
        "worktree": worktree.path.decode(errors="backslashreplace"),
        "branch": branch_of(worktree.branch, live.run.name, live.run.id),
    }


FEATURE = Feature(
    sections=(Section("agents", AgentWorktrees), Section("worktrees", WorktreesConfig)),
    decides={WORKTREE: Worktree},
    shows=_shown,
    part="part",
)

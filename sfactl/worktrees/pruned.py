"""What `prune` has done with git worktrees."""

from dataclasses import dataclass, field

Named = dict[str, str]


@dataclass
class PrunedWorktrees:
    removed: list[str] = field(default_factory=list)
    saved: list[Named] = field(default_factory=list)
    """Of these, what was not committed is now a commit."""
    branches: list[Named] = field(default_factory=list)
    """Of these, the branch stays, or the ref of what was not committed, and has not landed."""
    lost: list[Named] = field(default_factory=list)
    """These had what no commit can keep."""
    kept: list[Named] = field(default_factory=list)
    failed: list[Named] = field(default_factory=list)

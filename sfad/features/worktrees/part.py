"""The part in a daemon: it decides where a run works, and has its first step make that."""

from ...daemon.loop.seam import Heart, Part
from .deciding import Worktrees


def part(heart: Heart) -> Part:
    worktrees = Worktrees(heart)
    return Part(
        reconfigure=worktrees.reconfigure,
        look=worktrees.make,
        decide=worktrees.share,
        check=worktrees.check,
        launch=worktrees.launch,
        again=worktrees.again,
    )

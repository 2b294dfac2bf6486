"""How much of the daemon each run, tree and user may hold.

Everything that clients make the daemon hold has a bound, and each bound is shared out. One run cannot take what others need,
and all runs together leave enough to the owner of the daemon, who must be able to stop them. A run is bounded together with
its tree, because it could start children to multiply its share.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from ..core.access import Peer
from ..protocol.types import RunId

Scope = Literal["run", "tree", "unplaced", "user", "others", "owner"]

FRACTIONS: dict[Scope, float] = {"run": 1 / 8, "tree": 1 / 4, "unplaced": 1 / 8, "user": 1 / 2, "others": 3 / 4, "owner": 1}
"""The part of the whole that each group may hold. `others` is everything but the owner outside any run."""


class ShareGroup(NamedTuple):
    """Peers that share a bound."""

    scope: Scope
    name: str = ""

    def __str__(self) -> str:
        match self.scope:
            case "run" | "user":
                return f"{self.scope} {self.name}"
            case "tree":
                return f"the tree of run {self.name}"
            case "unplaced":
                return "processes that could not be placed"
            case "others":
                return "all runs and other users"
            case "owner":
                return "the owner of the daemon"


@dataclass(frozen=True)
class Holder:
    """The groups that count what a peer holds, the narrowest first."""

    groups: tuple[ShareGroup, ...]

    @classmethod
    def of(cls, peer: Peer, root: RunId | None) -> Holder:
        """Return the groups of a peer. `root`: the root of the tree that it is in."""
        if peer.unplaced:
            inside = [ShareGroup("unplaced")]
        elif peer.run is None or root is None:
            if peer.owner:
                return cls((ShareGroup("owner"),))
            inside = []
        else:
            inside = [ShareGroup("run", peer.run), ShareGroup("tree", root)]
        return cls((*inside, ShareGroup("user", peer.user), ShareGroup("others")))

    @property
    def owner(self) -> bool:
        """Whether the holder is the owner of the daemon, outside any run."""
        return self.groups[0].scope == "owner"

    @cached_property
    def lane(self) -> ShareGroup:
        """The group whose requests take turns with those of other groups: the tree of the peer, else its user."""
        return next(group for group in self.groups if group.scope != "run")


class Shares:
    """The shares of one bounded thing. `what` names it in refusals; `least` is the smallest share of any group."""

    def __init__(self, what: str, whole: int, *, least: int = 0) -> None:
        self.what = what
        self.whole = whole
        self._least = least
        self._held: Counter[ShareGroup] = Counter()

    def share(self, group: ShareGroup) -> int:
        """Return how much the group may hold."""
        return max(self._least, int(self.whole * FRACTIONS[group.scope]))

    def held(self, group: ShareGroup) -> int:
        """Return how much the group holds."""
        return self._held[group]

    def add(self, holder: Holder, amount: int) -> None:
        """Count `amount` more, or less if it is negative."""
        for group in holder.groups:
            self._held[group] += amount
            if not self._held[group]:
                del self._held[group]

    def over(self, holder: Holder, more: int = 0) -> list[ShareGroup]:
        """Return the groups of the holder that would have more than their share if it took `more`."""
        return [group for group in holder.groups if self._held[group] + more > self.share(group)]

    def refusal(self, holder: Holder, more: int) -> str | None:
        """Say why the holder may not take `more`, or return `None`."""
        over = self.over(holder, more)
        if not over:
            return None
        held, share = self._held[over[0]], self.share(over[0])
        return f"{over[0]} would have {held + more} {self.what}, at most {share} are allowed; close some, or try again later"

"""How much of the daemon each run, tree and user may take.

Everything that clients make the daemon keep has a bound, and each bound is shared out. One run
cannot take what others need, and all runs together leave enough to the owner of the daemon, who
must be able to stop them. A run is bounded together with its tree, because it could start children
to multiply its share.
"""

from functools import cached_property
from typing import Literal, NamedTuple, Self

from msgspec import Struct

from ...core.state.access import Peer
from ...host.linux.descriptors import Descriptors, Need
from ...protocol.types import RunId

MAX_CONNECTIONS = 2048
"""Each costs about 2 KiB and a descriptor; 64 trees of 64 runs with a client in each are far below.
Where the process may open few descriptors, half of these. Descriptors that wait for a request or
for a client count like connections."""

LEAST_CONNECTIONS = 8
"""The smallest share of a run, however few descriptors there are."""

MAX_PARTIAL = 64 * 1024 * 1024
"""Bytes of requests that are not complete or wait for their turn, all connections together."""

MAX_UNREAD = 32 * 1024 * 1024
"""Bytes of replies and events that clients have not read, all connections together."""

MAX_REQUESTS = 16384
"""Requests that are not answered, of all connections together: of waits, stops, and of connections
that have ended since. Each costs 1 or 2 KiB."""

MAX_WATCHES = 2048
"""Watches of all connections together. Each event of a run is sent to each that watches it or an
ancestor."""

MAX_RUN_FEEDS = 64
"""Clients that are told of changed runs, of all connections together. Each push is encoded for each
of them."""

Level = Literal["run", "tree", "unidentified", "user", "others", "owner"]

FRACTIONS: dict[Level, float] = {
    "run": 1 / 8,
    "tree": 1 / 4,
    "unidentified": 1 / 8,
    "user": 1 / 2,
    "others": 3 / 4,
    "owner": 1,
}
"""The part of the whole that each group may take. `others` is everything but the owner outside any
run."""


NAMES: dict[Level, str] = {
    "run": "run {}",
    "tree": "the tree of run {}",
    "unidentified": "processes that could not be identified",
    "user": "user {}",
    "others": "all runs and other users",
    "owner": "the owner of the daemon",
}


class ShareGroup(NamedTuple):
    """Peers that share a bound."""

    scope: Level
    name: str = ""

    def __str__(self) -> str:
        return NAMES[self.scope].format(self.name)


class PeerGroups(Struct, frozen=True, dict=True):
    """The groups that a peer is counted in, the narrowest first."""

    all: tuple[ShareGroup, ...]

    @classmethod
    def of(cls, peer: Peer, root: RunId | None) -> Self:
        """Return the groups of a peer. `root`: the root of the tree that it is in."""
        if peer.unidentified:
            inside = [ShareGroup("unidentified")]
        elif peer.run is None or root is None:
            if peer.owner:
                return cls((ShareGroup("owner"),))
            inside = []
        else:
            inside = [ShareGroup("run", peer.run), ShareGroup("tree", root)]
        return cls((*inside, ShareGroup("user", peer.user), ShareGroup("others")))

    @property
    def owner(self) -> bool:
        """Whether the peer is the owner of the daemon, outside any run."""
        return self.all[0].scope == "owner"

    @cached_property
    def lane(self) -> ShareGroup:
        """The group whose requests take turns with those of other groups: the tree of the peer,
        else its user."""
        return next(group for group in self.all if group.scope != "run")


class ClientLoad(NamedTuple):
    """What a connection makes the daemon keep."""

    descriptors: int = 0
    input: int = 0
    """Bytes of requests that have not been handled."""
    output: int = 0
    """Bytes of replies and events that the client has not read."""


class Shares:
    """The shares of one bounded thing. `what` names it in refusals; `least` is the smallest share
    of any group."""

    def __init__(self, what: str, whole: int, *, least: int = 0) -> None:
        self.what = what
        self.whole = whole
        self._least = least
        self._totals: dict[ShareGroup, int] = {}
        self._everything = 0
        self._unshared = int(whole * min(FRACTIONS.values()))
        """No group has more than its share while all have no more than this together."""

    def share(self, group: ShareGroup) -> int:
        return max(self._least, int(self.whole * FRACTIONS[group.scope]))

    def total(self, group: ShareGroup) -> int:
        return self._totals.get(group, 0)

    def _grantable(self, group: ShareGroup) -> int:
        """Return the most that a group is granted now: for a user, half of what other users leave.
        So `n` users leave at least one part in `2 ** n` to the next."""
        if group.scope != "user":
            return self.share(group)
        everyone = ShareGroup("others")
        left = self.share(everyone) - (self.total(everyone) - self.total(group))
        return max(self._least, left // 2)

    def add(self, groups: PeerGroups, amount: int) -> None:
        """Count `amount` more, or less if it is negative."""
        self._everything += amount
        for group in groups.all:
            self._totals[group] = total = self._totals.get(group, 0) + amount
            if not total:
                del self._totals[group]

    def over(self, groups: PeerGroups, more: int = 0) -> list[ShareGroup]:
        """Return the groups that would have more than their share if a peer in all of them took
        `more`."""
        if self._everything + more <= self._unshared:
            return []
        return [group for group in groups.all if self.total(group) + more > self.share(group)]

    def refusal(self, groups: PeerGroups, more: int) -> str | None:
        """Say why a peer of these groups may not take `more`, or return `None`."""
        if self._everything + more <= self._unshared:
            return None
        # not in `over`: who took what was free then does not lose it to another user who comes
        # later
        over = next(
            (group for group in groups.all if self.total(group) + more > self._grantable(group)),
            None,
        )
        if over is None:
            return None
        total, share = self.total(over), self._grantable(over)
        return (
            f"{over} would have {total + more} {self.what}, at most {share} are allowed; "
            "close some, or try again later"
        )


class ClientBounds:
    def __init__(self, descriptors: Descriptors) -> None:
        most = min(MAX_CONNECTIONS, descriptors.limit // 2)
        self._process = descriptors
        self._descriptors = Shares("connections and descriptors", most, least=LEAST_CONNECTIONS)
        self.input = Shares("bytes of unfinished requests", MAX_PARTIAL)
        self.output = Shares("bytes of unread replies and events", MAX_UNREAD)
        self.requests = Shares("open requests", MAX_REQUESTS)
        self.watches = Shares("open watches", MAX_WATCHES)
        self.run_feeds = Shares("open watches of runs (watch_runs)", MAX_RUN_FEEDS)

    def count(self, groups: PeerGroups, more: ClientLoad) -> None:
        for shares, amount in zip((self._descriptors, self.input, self.output), more, strict=True):
            if amount:
                shares.add(groups, amount)

    def refusal(self, groups: PeerGroups, *, uncounted: int = 0, unopened: int = 0) -> str | None:
        """Say why a peer may not have the descriptors that are counted for it and `uncounted` more,
        or return `None`. Of these, `unopened` have yet to be opened."""
        need = Need.OWNER if groups.owner else Need.CLIENT
        return self._descriptors.refusal(groups, uncounted) or self._process.refusal(need, unopened)

"""Quotas of trees over the nodes of a fleet: what the keeper gives.

A node may use its *part* of a quota without asking, as it spends its allowance of a budget. It asks
for more when a tree waits, and gives back what nothing needs. It counts a returned part as gone
before it tells of it, and the keeper counts what it gives before it answers: so all nodes together
never have more slots than there are, whatever is lost, late or repeated."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec import Struct

from ...core.state.quotas import Quota
from .messages import SlotsGiven, SlotsWanted

LACKS_FOR = 15.0
"""Seconds for which a node counts as waiting that has asked: it asks again within a third."""
PARTS, FEW = 4, 4
"""Where no other node waits, one gets one part more of so many, times the nodes that have asked and
so many: not each start has to ask."""


class Holder(Struct, frozen=True):
    """What a node has of a quota."""

    number: int = 0
    """Of its newest request."""
    has: int = 0
    needs: int = 0
    priority: int = 0
    since: float = 0.0
    """When it began to lack some."""
    until: float = 0.0


@dataclass
class Holders:
    """What all nodes have of one quota. One question takes as long with a thousand of them."""

    by_node: dict[str, Holder] = field(default_factory=dict)
    taken: int = 0
    lacking: dict[str, Holder] = field(default_factory=dict)

    def put(self, node: str, holder: Holder) -> None:
        """Note what a node has from now on."""
        self.forget(node)
        self.by_node[node] = holder
        self.taken += holder.has
        if holder.needs:
            self.lacking[node] = holder

    def forget(self, node: str) -> Holder | None:
        self.lacking.pop(node, None)
        found = self.by_node.pop(node, None)
        self.taken -= found.has if found is not None else 0
        return found


@dataclass
class SlotBook:
    """`most`: returns how much there is of a quota; `None` if the keeper has no such one."""

    most: Callable[[Quota], int | None]
    held: dict[Quota, Holders] = field(default_factory=dict)
    _of_nodes: dict[str, set[Quota]] = field(default_factory=dict)

    def put(self, quota: Quota, node: str, holder: Holder) -> None:
        """Note what a node has of a quota from now on."""
        self.held.setdefault(quota, Holders()).put(node, holder)
        self._of_nodes.setdefault(node, set()).add(quota)

    def give(
        self, node: str, number: int, wanted: Iterable[SlotsWanted], at: float
    ) -> tuple[list[SlotsGiven], bool]:
        """Return what a node may use from now on, and whether that, or what it waits for, has
        changed what is known. The same request may come again, to see whether there is more."""
        found, changed = [], False
        for each in wanted:
            quota = each.key, each.user
            holders = self.held.setdefault(quota, Holders())
            before = holders.by_node.get(node, Holder())
            after, rival = before, None
            if number >= before.number:
                after, rival = self._given(quota, node, before, number, each, at)
                self.put(quota, node, after)
            changed |= (before.has, before.needs, before.priority) != (
                after.has,
                after.needs,
                after.priority,
            )
            found.append(SlotsGiven(key=each.key, user=each.user, has=after.has, rival=rival))
        return found, changed

    def _given(
        self,
        quota: Quota,
        node: str,
        before: Holder,
        number: int,
        wanted: SlotsWanted,
        at: float,
    ) -> tuple[Holder, int | None]:
        """Return what a node has from now on, and the highest priority of what waits elsewhere."""
        holders = self.held[quota]
        has = wanted.has if number > before.number else before.has
        needs = max(0, wanted.has + wanted.needs - has)
        since = (before.since or at) if needs else 0.0
        rivals = [
            other for name, other in holders.lacking.items() if name != node and other.until > at
        ]
        first = [
            other.needs
            for other in rivals
            if (-other.priority, other.since) < (-wanted.priority, since)
        ]
        most, taken = self.most(quota), holders.taken - before.has + has
        free = needs if most is None else max(0, most - taken)
        more = min(needs, max(0, free - sum(first)))
        spare = (free - more) // (PARTS * (len(holders.by_node) + FEW))
        after = Holder(
            number=number,
            has=has + more + (spare if more and not rivals else 0),
            needs=needs - more,
            priority=wanted.priority,
            since=since if needs > more else 0.0,
            until=at + LACKS_FOR,
        )
        return after, max((other.priority for other in rivals), default=None)

    def forget(self, node: str) -> bool:
        """Give back what a node had that will not come back. Return whether it had anything."""
        quotas = self._of_nodes.pop(node, set())
        for quota in quotas:
            self.held[quota].forget(node)
        return bool(quotas)

    def known_of(self, node: str) -> list[tuple[str, str, int, int]]:
        """Return what is to be saved of a node: quotas, the number of its newest request, and what
        it has."""
        found = []
        for quota in sorted(self._of_nodes.get(node, ())):
            holder = self.held[quota].by_node[node]
            found.append((*quota, holder.number, holder.has))
        return found

"""Budgets of users and teams over the nodes of a fleet: what the keeper gives, and what the other
nodes ask it for.

A node may charge its *allowance* of a budget without asking anyone. It asks for more when a call, a
reservation or a run lacks some, and gives back what it does not use. Each message tells whole
amounts and bears a number, so that one that is lost, late or repeated does no harm: the node counts
a returned part as gone before it tells of it, and the keeper counts an allowance as given before it
answers. So the sum of what all may charge is never above the budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct, field
from msgspec.structs import replace

from ...core.state.money import to_nanos, to_usd
from .budgets import Budget, Given
from .messages import Allowance, Allowances, AllowanceWanted, AskAllowances

PARTS = 4
"""A node that lacks little gets one part of so many, times the nodes that have asked, of what is
left. So what a node may hold gets small towards the end, and the first of a thousand nodes does not
take it all."""
FEW = 4
"""So many nodes more are expected."""

Key = tuple[str, str]

# ---- The keeper


def give(
    budget: Budget | None, node: str, number: int, wanted: AllowanceWanted, *, here: str
) -> Allowance:
    """Return what a node may charge of a budget from now on, and note it. `here`: the keeper."""
    answer = Allowance(scope=wanted.scope, name=wanted.name, begins=wanted.begins, usd=wanted.usd)
    if budget is None:
        whose = f"{wanted.scope} {wanted.name}"
        return replace(
            answer, waits=f"node {here} has no budget of {whose}: give all nodes the same [budgets]"
        )
    if datetime.fromisoformat(budget.begins) != datetime.fromisoformat(wanted.begins):
        return replace(
            answer,
            waits=f"on node {here} the period began at {budget.begins}, here at {wanted.begins}",
        )
    before = budget.given.get(node)
    if before is not None and number <= before.number:  # it is late, or came before
        return replace(answer, usd=to_usd(before.allowance), number=before.number)
    given = budget.given[node] = Given(number, to_nanos(wanted.usd), to_nanos(wanted.charged_usd))
    need = to_nanos(wanted.need_usd)
    if need > 0:
        left = max(0, budget.left)
        given.lacks = need > left
        if not given.lacks:
            given.allowance += min(left, max(need, left // (PARTS * (len(budget.given) + FEW))))
        elif not budget.held:
            # else what others give back makes it enough, for this node or another one
            given.allowance += left
    scarce = (
        budget.short
        or budget.exhausted
        or any(each.lacks for name, each in budget.given.items() if name != node)
    )
    answer = replace(answer, usd=to_usd(given.allowance), number=number, scarce=scarce)
    if not given.lacks:
        return answer
    if budget.held:
        return replace(answer, waits="other nodes hold the rest")
    return replace(answer, used_up=True, waits="it is used up")


# ---- A node


class Drawing(Struct):
    """What a node asks the keeper for."""

    node: str
    number: int = 0
    needs: dict[Key, int] = field(default_factory=dict)
    """Nano-dollars that were lacking."""
    _charged: dict[Key, int] = field(default_factory=dict)
    """What was charged at the last regular request."""
    _scarce: set[Key] = field(default_factory=set)
    """Budgets of which others lack some."""

    def returned(self, budgets: Iterable[Budget]) -> list[tuple[Budget, int]]:
        """Return the budgets of which this node gives a part back, each with what it keeps: what it
        has charged, if it has charged nothing since it was asked last, if others need it, or if it
        has too little for itself. Ask once a minute."""
        found = []
        for budget in budgets:
            key = (budget.scope, budget.name)
            rests = self._charged.get(key) == budget.charged or key in self._scarce
            self._charged[key] = budget.charged
            lacks = budget.waits is not None and self.needs.get(key, 0) > budget.left
            if budget.left > 0 and (rests or lacks):
                found.append((budget, budget.charged))
        return found

    def request(self, budgets: Iterable[Budget], now: float) -> AskAllowances:
        """Return what to ask the keeper. `now`: Unix time, so that a daemon that has begun again
        goes on with a higher number."""
        self.number = max(self.number + 1, int(now * 1_000_000))
        wanted = []
        for budget in budgets:
            key = (budget.scope, budget.name)
            if not (budget.asked or budget.short or budget.exhausted):
                self.needs.pop(key, None)
            need = max(0, self.needs.get(key, 0) - max(0, budget.left))
            wanted.append(
                AllowanceWanted(
                    scope=budget.scope,
                    name=budget.name,
                    begins=budget.begins,
                    # one that agents told of too late may have charged more than it had
                    usd=to_usd(max(budget.allowance, budget.charged)),
                    charged_usd=to_usd(budget.charged),
                    need_usd=to_usd(need),
                )
            )
        return AskAllowances(id=1, node=self.node, number=self.number, wanted=wanted)

    def understood(self, answer: Allowances) -> Sequence[Allowance]:
        """Return what an answer tells of this node's newest request."""
        if answer.number != self.number:
            return []
        known = [each for each in answer.allowances if each.number in (0, self.number)]
        self.number = max(self.number, *(each.number for each in answer.allowances))
        for each in known:
            key = (each.scope, each.name)
            (self._scarce.add if each.scarce else self._scarce.discard)(key)
            if each.waits is None:
                self.needs.pop(key, None)
        return known

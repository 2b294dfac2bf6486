"""Budgets of users and teams over several machines: what the one that keeps them gives to others.

A node may charge its *allowance* of a budget without asking anyone. It asks for more when a call, a
reservation or a run lacks some, and gives back what it does not use. Each message tells whole
amounts and bears a number, so that one that is lost, late or repeated does no harm: the node counts
a returned part as gone before it tells of it, and the keeper counts an allowance as given before it
answers. So the sum of what all may charge is never above the budget."""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import replace

from ...protocol.requests.allowances import Allowance, AllowanceWanted
from .budgets import Budget, Given, to_nanos, to_usd

PARTS = 4
"""A node that lacks little gets one part of so many, times the nodes that have asked, of what is
left. So what a node may hold gets small towards the end, and the first of a thousand nodes does not
take it all."""
FEW = 4
"""So many nodes more are expected."""


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

"""What a node asks the keeper of budgets for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...core.state.budgets import Budget, to_usd
from ...protocol.requests.allowances import Allowance, Allowances, AllowanceWanted
from .messages import AskAllowances

Key = tuple[str, str]


@dataclass(slots=True)
class Drawing:
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

"""How budgets are shown: as they stand in the present period."""

from collections.abc import Iterable, Iterator

from ...core.state.access import Peer, Scope
from ...core.state.money import to_usd
from ...core.state.run import Run
from ...host.counts import Values
from ...protocol.types import BudgetState
from .budgets import Budget
from .charges import Charges


def states_of(
    charges: Charges, runs: Iterable[Run], peer: Peer, scope: Scope
) -> Iterator[BudgetState]:
    """Yield the budgets that a peer may know of: those that it spends, and for an administrator
    all; outside of runs."""
    for budget in charges.budgets if scope.run is None else ():
        if scope.uid is None or peer.user in budget.members:
            yield _state(budget, charges.reserved_of(budget), runs)


def _state(budget: Budget, reserved: int, runs: Iterable[Run]) -> BudgetState:
    accounts = [run.account for run in runs if run.user in budget.members]
    return BudgetState(
        scope=budget.scope,
        name=budget.name,
        period=budget.period,
        usd=to_usd(budget.allowed),
        used_usd=to_usd(budget.used - reserved),
        reserved_usd=to_usd(reserved),
        renews=budget.renews,
        partial=budget.partial or any(account.cost_may_grow for account in accounts),
        at_most=budget.at_most or any(account.cost_at_most for account in accounts),
        allowance_usd=to_usd(budget.allowance) if budget.keeper is not None else None,
        nodes={node: to_usd(given.allowance) for node, given in budget.given.items()},
    )


def metrics_of(charges: Charges) -> Values:
    """Return the metrics of budgets: of this node."""
    known = {(budget.scope, budget.name): budget for budget in charges.budgets}
    return {
        "sfad_budget_usd": {key: to_usd(budget.allowed) for key, budget in known.items()},
        "sfad_budget_used_usd": {
            key: to_usd(budget.charged - charges.reserved_of(budget))
            for key, budget in known.items()
        },
    }

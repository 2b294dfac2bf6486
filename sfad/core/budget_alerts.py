"""What alerts watch of budgets: the part of each that is used."""

from __future__ import annotations

from .budgets import Budget
from .policy import Policy
from .shared_alerts import BudgetUse, Key, key_of_budget
from .spending import Spending


def budgets_in_use(spending: Spending, policy: Policy) -> dict[Key, BudgetUse]:
    """Return the budgets of which so much is used that there may be an alert. A budget of nothing cannot run out."""
    share = policy.alerts.limit_share
    near = (each for each in spending.budgets if each.allowed and (each.short or each.charged >= share * each.allowed))
    return {key_of_budget(budget): _use_of(budget, spending) for budget in near}


def _use_of(budget: Budget, spending: Spending) -> BudgetUse:
    used = budget.charged - spending.reserved_of(budget)  # what is only reserved may be given back
    share = round(used / budget.allowed, 4)
    words = f"too little is left for a model call: {budget.sentence}" if budget.short else budget.sentence
    return BudgetUse(share, budget.short or used >= budget.allowed, words)

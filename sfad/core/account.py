"""What runs use: what each source says of a run, what is held for it, and what its descendants add."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from ..protocol.kinds import TREE_USE
from ..protocol.types import LimitKind, Role, Source

SOURCES: tuple[Source, ...] = ("gateway", "report", "stream", "session")
"""The best first: what is shown is the first one's figure, what is enforced the largest (SPEC section 8)."""

CostFrom = Literal["agent", "prices"]


@dataclass(frozen=True, slots=True)
class Use:
    """Amounts, as one source tells them. `None` is unknown, never 0. Costs are in USD."""

    turns: int | None = None
    messages: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost: float | None = None
    cost_from: CostFrom | None = None
    planning_cost: float | None = None
    execution_cost: float | None = None
    unpriced_tokens: int | None = None
    """Tokens that are not in `cost`, since their model has no price."""
    partial: bool = False
    """Tokens and costs may still grow: no final figures were seen yet."""

    @property
    def tokens(self) -> int | None:
        """Input and output."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)

    def of(self, kind: LimitKind) -> float | None:
        """The amount that a limit of this kind counts; `None` as well for a kind that no source tells of, such as `pids`."""
        figure: float | None = getattr(self, kind.value, None)
        return figure

    def plus(self, more: Use) -> Use:
        """Both together. A sum of which one part was computed from prices is not the agent's word any more."""
        return Use(
            turns=_sum(self.turns, more.turns),
            messages=_sum(self.messages, more.messages),
            input_tokens=_sum(self.input_tokens, more.input_tokens),
            output_tokens=_sum(self.output_tokens, more.output_tokens),
            cached_tokens=_sum(self.cached_tokens, more.cached_tokens),
            cost=_sum(self.cost, more.cost),
            cost_from="prices" if "prices" in (self.cost_from, more.cost_from) else self.cost_from or more.cost_from,
            planning_cost=_sum(self.planning_cost, more.planning_cost),
            execution_cost=_sum(self.execution_cost, more.execution_cost),
            unpriced_tokens=_sum(self.unpriced_tokens, more.unpriced_tokens),
            partial=self.partial or more.partial,
        )


NOTHING = Use()
"""Nothing is known."""

N = TypeVar("N", int, float)


MOST = 10**15
"""Where sums of reports end: whatever an agent reports, what is shown of it can be encoded in 64 bits."""


def _sum(one: N | None, other: N | None) -> N | None:
    return other if one is None else one if other is None else min(one + other, MOST)


def _first(figures: Iterable[N | None]) -> N | None:
    return next((figure for figure in figures if figure is not None), None)


def _surest(uses: Iterable[Use], figure: Callable[[Use], float | None]) -> Use:
    """The source to show: the first whose figure is final, else the one that has counted the most input, which is never an
    estimate, or without input the largest figure. Of equals the last: a session tells the output that a stream estimates."""
    known = [use for use in uses if figure(use) is not None]
    final = next((use for use in known if not use.partial), None)
    by_input = max(reversed(known), key=lambda use: (use.input_tokens or 0, not use.input_tokens and figure(use)), default=NOTHING)
    return final or by_input


def spent(tokens: int, cost: float | None, role: Role | None) -> dict[LimitKind, float]:
    """What an estimate holds, by kind."""
    amounts: dict[LimitKind, float] = {LimitKind.TOKENS: tokens}
    if cost is not None:
        amounts[LimitKind.COST] = cost
        if role is not None:
            amounts[ROLE_COST[role]] = cost
    return amounts


ROLE_COST: dict[Role, LimitKind] = {"planning": LimitKind.PLANNING_COST, "execution": LimitKind.EXECUTION_COST}


Periods = tuple[tuple[str, str, str], ...]
"""Budgets, by scope and name, and when the period of each had begun."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A reservation that is not settled yet."""

    model: str
    input_tokens: int
    output_tokens: int
    cost: float | None
    role: Role | None
    periods: Periods = ()
    """Those that it was charged to."""

    @property
    def amounts(self) -> dict[LimitKind, float]:
        """By kind."""
        return spent(self.input_tokens + self.output_tokens, self.cost, self.role)

    @property
    def use(self) -> Use:
        """What it comes to if it is charged in full."""
        return Use(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cost=self.cost,
            cost_from=None if self.cost is None else "prices",
            planning_cost=self.cost if self.role == "planning" else None,
            execution_cost=self.cost if self.role == "execution" else None,
        )


@dataclass(slots=True)
class Account:
    """What is known of one run's use."""

    sources: dict[Source, Use] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    held: dict[LimitKind, float] = field(default_factory=dict)
    """The sum of `holds`."""
    below: dict[LimitKind, float] = field(default_factory=dict)
    """What its descendants have used and hold, ended ones included."""
    ended: dict[LimitKind, float] = field(default_factory=dict)
    """Of that, what those have used that have ended."""
    levels: dict[LimitKind, float] = field(default_factory=dict)
    """What the kernel told last of the whole subtree: memory, pids. It is asked where that may be near a limit."""

    @property
    def best(self) -> tuple[Source, Use] | None:
        """What is shown: each number from the best source that knows it, and the best source. What belongs together, input and
        output, a cost and where it is from, comes from one source: numbers of two sources are never mixed. A partial figure
        yields to a final one of the next source, or to one that counts more input if that is partial as well."""
        known = [(source, self.sources[source]) for source in SOURCES if source in self.sources]
        if len(known) < 2:
            return known[0] if known else None
        source, uses = known[0][0], [use for _, use in known]
        tokens = _surest(uses, lambda use: use.tokens)
        cost = _surest(uses, lambda use: use.cost)
        return source, Use(
            turns=_first(use.turns for use in uses),
            messages=_first(use.messages for use in uses),
            input_tokens=tokens.input_tokens,
            output_tokens=tokens.output_tokens,
            cached_tokens=tokens.cached_tokens,
            cost=cost.cost,
            cost_from=cost.cost_from,
            planning_cost=_first(use.planning_cost for use in uses),
            execution_cost=_first(use.execution_cost for use in uses),
            unpriced_tokens=cost.unpriced_tokens,
            partial=tokens.partial or cost.partial,
        )

    @property
    def grows(self) -> bool:
        """Whether its cost may still grow, as far as it is known at all."""
        best = self.best
        return best is not None and best[1].partial and best[1].cost is not None

    @property
    def metered(self) -> bool:
        """Whether anything is known of what the run itself uses."""
        return bool(self.sources or self.holds)

    def hold(self, name: str, hold: Hold) -> None:
        """Adds a reservation."""
        self.holds[name] = hold
        for kind, amount in hold.amounts.items():
            self.held[kind] = self.held.get(kind, 0.0) + amount

    def release(self, name: str) -> None:
        """Takes a reservation back."""
        for kind, amount in self.holds.pop(name).amounts.items():
            self.held[kind] -= amount
        if not self.holds:
            self.held.clear()  # and what sums of binary fractions leave

    def own(self, kind: LimitKind) -> float | None:
        """What the run itself has used and holds: the largest figure of any source. What is held adds to what is reported."""
        held = self.held.get(kind, 0.0)
        figures = [figure for use in self.sources.values() if (figure := use.of(kind)) is not None]
        if held:
            reported = self.sources.get("report", NOTHING).of(kind)
            figures.append(held + (reported or 0.0))
        return max(figures, default=None)

    def used(self, kind: LimitKind) -> float | None:
        """What a limit of this kind counts; `None` where nothing is known."""
        if kind in self.levels:
            return self.levels[kind]
        own = self.own(kind)
        if kind not in self.below:
            return own
        return (own or 0.0) + self.below[kind]

    def own_tree_use(self) -> tuple[float, ...]:
        """What the run itself adds to its ancestors, by kind of `TREE_USE`."""
        return tuple(self.own(kind) or 0.0 for kind in TREE_USE)


NO_TREE_USE = (0.0,) * len(TREE_USE)


def add_ended(accounts: Iterable[Account], used: tuple[float, ...]) -> None:
    """A run has ended: what it has used is its ancestors' for good."""
    for account in accounts:
        for kind, amount in zip(TREE_USE, used, strict=True):
            if amount:
                account.ended[kind] = account.ended.get(kind, 0.0) + amount


def add_below(accounts: Iterable[Account], before: tuple[float, ...], after: tuple[float, ...]) -> None:
    """Passes a change of what a run has used on to its ancestors' accounts."""
    changes = [(kind, new - old) for kind, old, new in zip(TREE_USE, before, after, strict=True) if new != old]
    for account in accounts:
        for kind, change in changes:
            account.below[kind] = account.below.get(kind, 0.0) + change

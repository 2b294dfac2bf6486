"""Budgets over the nodes of a fleet: the keeper and the other nodes never charge more together,
whatever happens to messages."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.core.state.allowances import FEW, PARTS, give
from sfad.core.state.budgets import Budget, to_nanos, to_usd
from sfad.features.fleet.drawing import Drawing
from sfad.features.fleet.messages import AskAllowances
from sfad.protocol.requests.allowances import Allowance, Allowances, AllowanceWanted
from tests.tiers import examples

BEGINS = "2026-06-01T00:00:00+00:00"
KEY = ("user", "ann")


def budget(usd: float, keeper: str | None = None) -> Budget:
    return Budget(
        "user",
        "ann",
        to_nanos(usd),
        frozenset({"ann"}),
        begins=BEGINS,
        renews="midnight",
        keeper=keeper,
    )


def asks(
    number: int, had: float = 0.0, charged: float = 0.0, need: float = 0.0, begins: str = BEGINS
) -> tuple[int, AllowanceWanted]:
    return number, AllowanceWanted(
        scope="user", name="ann", begins=begins, usd=had, charged_usd=charged, need_usd=need
    )


def given_by(kept: Budget, node: str, request: tuple[int, AllowanceWanted]) -> Allowance:
    return give(kept, node, *request, here="n1")


def test_who_lacks_little_gets_one_part_of_what_is_left() -> None:
    kept = budget(8)
    assert given_by(kept, "n2", asks(1, need=0.1)).usd == 8 / (PARTS * (1 + FEW)) == 0.4
    assert given_by(kept, "n3", asks(1, need=3)).usd == 3
    assert to_usd(kept.left) == 4.6
    assert not kept.exhausted


def test_a_request_that_comes_again_or_late_changes_nothing() -> None:
    kept = budget(8)
    first = given_by(kept, "n2", asks(1, need=1))
    assert given_by(kept, "n2", asks(1, need=1)) == first
    assert given_by(kept, "n2", asks(2, had=1, need=1)).usd == 2
    late = given_by(kept, "n2", asks(1, need=1))
    assert (late.usd, late.number) == (2, 2)
    assert to_usd(kept.left) == 6


def answered(drawing: Drawing, *numbers: int, usd: float = 1.0) -> list[int]:
    """Return the numbers of the allowances that a node takes from an answer to the first number."""
    told = [
        Allowance(scope="user", name=f"u{at}", begins=BEGINS, usd=usd, number=number)
        for at, number in enumerate(numbers[1:])
    ]
    answer = Allowances(id=1, number=numbers[0], allowances=told)
    return [each.number for each in drawing.understood(answer)]


def test_an_answer_to_an_earlier_request_tells_a_node_nothing() -> None:
    """It tells of less than the node has given back since."""
    drawing = Drawing("n2")
    first = drawing.request([], 1.0).number
    second = drawing.request([], 1.0).number
    assert answered(drawing, first, 0, first) == []
    assert answered(drawing, second, 0, first, second) == [0, second]


def test_an_allowance_of_an_earlier_or_a_later_request_is_not_taken() -> None:
    """A later one comes from a keeper that a daemon before this one has asked, with a clock that
    was ahead: the next request has a higher number."""
    drawing = Drawing("n2")
    number = drawing.request([], 1.0).number
    assert answered(drawing, number, number - 1) == []
    assert answered(drawing, number, number + 7) == []
    assert drawing.request([], 1.0).number == number + 8


def test_what_is_returned_can_be_given_to_others() -> None:
    kept = budget(8)
    given_by(kept, "n2", asks(1, need=8))
    third = given_by(kept, "n3", asks(1, need=1))
    assert (third.usd, third.waits, third.used_up) == (0, "other nodes hold the rest", False)
    assert kept.may_grow
    second = given_by(kept, "n2", asks(2, had=8, charged=2))
    assert second.scarce, "another node lacks some"
    given_by(kept, "n2", asks(3, had=2, charged=2))
    assert given_by(kept, "n3", asks(2, need=1)).usd == 1


def test_a_budget_that_is_used_up_on_all_nodes() -> None:
    kept = budget(2)
    given_by(kept, "n2", asks(1, need=2))
    given_by(kept, "n2", asks(2, had=2, charged=2))
    third = given_by(kept, "n3", asks(1, need=1))
    assert (third.usd, third.used_up) == (0, True)
    assert not kept.may_grow


def test_what_differs_between_the_nodes_is_told() -> None:
    nothing = give(None, "n2", *asks(1, need=1), here="n1")
    assert (nothing.usd, nothing.waits) == (
        0,
        "node n1 has no budget of user ann: give all nodes the same [budgets]",
    )
    other = given_by(budget(2), "n2", asks(1, need=1, begins="2026-06-02T00:00:00+00:00"))
    assert other.usd == 0
    assert (
        other.waits == f"on node n1 the period began at {BEGINS}, here at 2026-06-02T00:00:00+00:00"
    )
    same = given_by(budget(2), "n2", asks(1, need=1, begins="2026-06-01T02:00:00+02:00"))
    assert same.usd == 1, "the same moment in another time zone"


# ---- All nodes, and a network that loses, repeats, delays and reorders messages


@dataclass
class Node:
    name: str
    budget: Budget
    drawing: Drawing
    lacks: int = 0
    saved: Budget = field(init=False)

    def __post_init__(self) -> None:
        self.saved = deepcopy(self.budget)

    def known(self, answers: list[Allowance]) -> None:
        """As `BudgetEnforcement.allowances_known`."""
        for each in answers:
            self.budget.allowance = to_nanos(each.usd)
            self.budget.asked, self.budget.waits, self.budget.used_up = (
                False,
                each.waits,
                each.used_up,
            )
        self.saved = deepcopy(self.budget)

    def spend(self, nanos: int) -> bool:
        """Charge an amount, or ask for it."""
        if self.budget.admits(nanos):
            self.budget.charged += nanos
            self.saved = deepcopy(self.budget)
            self.lacks = 0
            return True
        self.lacks, self.budget.asked = nanos, True
        self.drawing.needs[KEY] = nanos
        return False


class Fleet:
    def __init__(self, random: Random, nodes: int, usd: float) -> None:
        self.random = random
        self.kept = budget(usd)
        self.nodes = [Node(f"n{n}", budget(usd, "k"), Drawing(f"n{n}")) for n in range(nodes)]
        self.flying: list[tuple[Node, AskAllowances | Allowances]] = []
        self.now = 1.0
        self.sent = 0

    @property
    def charged(self) -> int:
        return self.kept.charged + sum(node.budget.charged for node in self.nodes)

    def ask(self, node: Node, *, regularly: bool) -> None:
        if regularly:
            for each, kept in node.drawing.returned([node.budget]):
                each.allowance = kept
            node.saved = deepcopy(node.budget)
        self.flying.append((node, node.drawing.request([node.budget], self.now)))
        self.sent += 1

    def deliver(self, number: int, *, again: bool = False) -> None:
        node, message = self.flying[number] if again else self.flying.pop(number)
        if isinstance(message, AskAllowances):
            answers = [
                give(self.kept, node.name, message.number, wanted, here="k")
                for wanted in message.wanted
            ]
            self.flying.append((node, Allowances(id=1, number=message.number, allowances=answers)))
        else:
            node.known(list(node.drawing.understood(message)))

    def crash(self, node: Node) -> None:
        """It was killed: the next daemon knows what is saved."""
        node.budget = replace_budget(node.saved)
        node.drawing = Drawing(node.name)

    def step(self) -> None:
        self.now += 0.001
        node = self.random.choice(self.nodes)
        amount = self.random.choice([10, 1000, 10**7, 10**8])
        match self.random.randrange(9):
            case 0 | 1:
                node.spend(amount)
            case 2:
                if self.kept.admits(amount):
                    self.kept.charged += amount
            case 3:
                self.ask(node, regularly=False)
            case 4:
                self.ask(node, regularly=True)
            case 5 | 6 if self.flying:
                self.deliver(self.random.randrange(len(self.flying)))
            case 7 if self.flying:
                if self.random.random() < 0.5:
                    self.deliver(self.random.randrange(len(self.flying)), again=True)
                else:
                    self.flying.pop(self.random.randrange(len(self.flying)))
            case 8 if self.random.random() < 0.2:
                self.crash(node)
            case _:
                pass

    def settle(self) -> None:
        """Let all nodes ask, and nothing be lost."""
        for regularly in (True, False):
            for node in self.nodes:
                self.now += 0.001
                self.ask(node, regularly=regularly)
                while self.flying:
                    self.deliver(0)


def replace_budget(saved: Budget) -> Budget:
    found = deepcopy(saved)
    found.asked, found.waits, found.used_up = False, None, False
    return found


@given(st.randoms(use_true_random=False), st.integers(1, 4))
@settings(max_examples=examples(50), deadline=None)
def test_nodes_never_charge_more_together_than_the_budget(random: Random, nodes: int) -> None:
    fleet = Fleet(random, nodes, usd=1.0)
    for _ in range(200):
        fleet.step()
        assert fleet.charged <= fleet.kept.allowed
        allowed = fleet.kept.charged + sum(
            max(each.budget.allowance, each.budget.charged) for each in fleet.nodes
        )
        assert allowed <= fleet.kept.allowed, "what all may charge"


@given(st.randoms(use_true_random=False), st.integers(1, 4))
@settings(max_examples=examples(40), deadline=None)
def test_the_last_cent_can_be_spent_on_any_node(random: Random, nodes: int) -> None:
    fleet = Fleet(random, nodes, usd=1.0)
    for _ in range(100):
        fleet.step()
    fleet.flying.clear()
    last = fleet.nodes[0]
    rest = fleet.kept.allowed - fleet.charged
    for _ in range(4):
        if rest and last.spend(rest):
            break
        for node in fleet.nodes[1:]:
            node.drawing.needs.clear()
            node.budget.asked = node.budget.short = False
        fleet.settle()
    assert fleet.charged == fleet.kept.allowed


def test_parts_that_are_too_small_are_put_together() -> None:
    fleet = Fleet(Random(1), 3, usd=0.09)
    cent = to_nanos(0.01)
    for node, had in zip(fleet.nodes, (0.035, 0.025, 0.03), strict=True):
        node.drawing.needs[KEY], node.budget.asked = to_nanos(had), True
        fleet.ask(node, regularly=False)
        while fleet.flying:
            fleet.deliver(0)
    assert fleet.kept.left == 0
    for _ in range(4):
        for node in fleet.nodes:
            while node.spend(cent):
                pass
        fleet.settle()
    assert fleet.charged == fleet.kept.allowed


def messages(nodes: int) -> tuple[int, int]:
    """Return how many calls of a cent nodes make until 90 % of their budget, of 10 USD a node, are
    used, and how often they ask."""
    fleet = Fleet(Random(1), nodes, usd=10.0 * nodes)
    calls = rounds = 0
    while fleet.charged < 0.9 * fleet.kept.allowed:
        for node in fleet.nodes:
            if node.spend(to_nanos(0.01)):
                calls += 1
            elif node.budget.waits is None:
                fleet.ask(node, regularly=False)
                while fleet.flying:
                    fleet.deliver(0)
        rounds += 1
        if rounds % 100 == 0:
            fleet.settle()  # a minute has passed
    return calls, fleet.sent


@pytest.mark.rest("computes figures of docs/performance.md")
def test_how_often_the_keeper_is_asked() -> None:
    """The figures are in docs/performance.md."""
    for nodes in (3, 30, 100):
        calls, sent = messages(nodes)
        assert sent < calls / 10, nodes

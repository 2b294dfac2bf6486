"""What is charged to budgets, and what they refuse, as transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Literal

import pytest
from msgspec.structs import replace

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.state.money import to_nanos, to_usd
from sfad.features.budgets.budgets import Budget
from sfad.features.budgets.purses import BudgetPurses
from sfad.features.budgets.told import BudgetsKnown
from sfad.features.gateway.feature import CallBounds, GatewayConfig
from sfad.protocol.requests.gateway import CallDecision
from sfad.protocol.types import Placing, Rule, Source, Status
from tests.core.holding import moment
from tests.core.load import calls_of
from tests.core.test_guard import quota_of
from tests.core.test_holds import holds, kinds
from tests.core.test_money import COST, cost
from tests.core.transcript import ANN, BOB, inside, limits
from tests.features.fleet.in_memory import Node
from tests.features.fleet.test_grants import fleet
from tests.features.gateway.test_call_rates import AMPLE

from .transcript import Budgeted, BudgetedLife, purse

# ---- charges and reservations


def charged(t: Budgeted) -> dict[str, float]:
    """Return the USD that each budget was charged."""
    return {budget.name: to_usd(budget.charged) for budget in t.purses.budgets}


def test_a_reservation_is_asked_of_all_from_the_root_down_and_of_budgets_last() -> None:
    """The outermost run or budget with too little refuses, and then none of them was charged."""
    for spare in product((0.05, 0.5), repeat=5):
        names = ("root", "parent", "run", "user", "team")
        room = dict(zip(names, spare, strict=True))
        t = Budgeted()
        t >> t.budgets(purse(room["user"], "ann"), purse(room["team"], "ann", "bob", team="crew"))
        a = t.start("a", limits=f"cost={room['root']}:pause")
        b = t.start("b", inside(a), limits=f"cost={room['parent']}:pause")
        d = t.start("d", inside(b), limits=f"cost={room['run']}:pause")
        event = t.reserve(d, 0.1)
        (t >> event).skip()
        answer = t.answers[event.token]
        assert isinstance(answer, c.ReserveAnswer)
        short = [name for name in names if room[name] < 0.1]
        if not short:
            assert answer.reservation == "a3-1"
            assert cost(t, a, b, d) == [0.1] * 3
            assert t.charged == {"user ann": 0.1, "team crew": 0.1}
            continue
        assert answer.refusal is not None
        whose = {"root": a, "parent": b, "run": d, "user": "ann", "team": "crew"}[short[0]]
        assert (answer.refusal.whose, answer.refusal.asked) == (whose, 0.1)
        assert answer.refusal.scope == ("tree" if short[0] in names[:3] else short[0])
        assert "Finish with what you have." in answer.refusal.message
        assert cost(t, a, b, d) == [None] * 3
        assert not t.charged
        assert not any(run.account.reservations for run in t.machine.tree)
        assert t.said[-1].startswith("over ")


def test_use_is_charged_to_the_user_and_the_teams() -> None:
    t = Budgeted()
    t >> t.budgets(
        purse(5, "ann"), purse(7, "ann", "bob", team="crew"), purse(3, "bob", team="others")
    )
    a, b = t.chain("a", "b")
    d = t.start("d", BOB)
    told: list[tuple[str, Source, float]] = [
        (a, "stream", 0.25), (b, "report", 0.5), (d, "stream", 0.125), (a, "gateway", 0.375),
        (b, "report", 0.25),
    ]  # fmt: skip
    for run, source, amount in told:
        (t >> t.used(run, source, cost=amount)).skip()
    name = t.reserved(t.reserve(d, 0.5))
    (t >> t.settle(name, cost=0.0625)).skip()
    assert t.charged == {"user ann": 0.625, "team crew": 0.625 + 0.125, "team others": 0.125}
    assert charged(t) == {"ann": 0.625, "crew": 0.75, "others": 0.125}


def test_a_budget_is_near_and_then_exhausted() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9")
    for amount in (0.5, 0.8, 0.9, 1.0, 1.5, 2.0):
        t >> t.used(a, cost=amount)
        t.skip()
    assert t.said == ["near user cost 0.8/1", "over user cost 1/1"]
    assert t.run(a).status is Status.PAUSED


def test_a_refusal_by_an_exhausted_budget_names_the_time_it_renews() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"), purse(9, "ann", "bob", team="crew"))
    a = t.start("a", limits="cost=9")
    (t >> t.used(a, cost=0.999)).skip()
    t.start("b")
    (t >> t.used(a, cost=1.0)).skip()
    for peer in (ANN, inside(a)):
        refusal = t.refused("d", peer)
        assert (refusal.kind, refusal.detail) == (
            Rule.BUDGET,
            "user ann has used 1.00 of 1.00 USD a day; it renews at midnight",
        )
        assert "there is no money left in the budget" in refusal.message
    t.start("d", BOB)
    (t >> t.budgets(purse(1, "ann"), purse(1, "ann", "bob", team="crew", charged=1.0))).skip()
    assert (
        t.refused("e", BOB).detail
        == "team crew has used 1.00 of 1.00 USD a day; it renews at midnight"
    )
    (t >> t.budgets()).skip()
    t.start("e", BOB)


def test_whoever_is_refused_by_a_budget_is_told_what_is_used_and_what_is_only_reserved() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9")
    (t >> t.report(a, cost=0.25)).skip()
    name = t.reserved(t.reserve(a, 0.65))
    words = "user ann has used 0.25 of 1.00 USD a day (0.65 more reserved); it renews at midnight"
    assert words in t.not_reserved(t.reserve(a, 0.5)).message
    assert t.published[-1].message == f"was refused 0.50 USD more: {words}"
    (t >> t.settle(name, cost=0.25)).skip()
    t.reserved(t.reserve(a, 0.5))
    assert t.refused("b").detail == words.replace("0.25", "0.50").replace("0.65", "0.50")


def test_a_refusal_by_a_budget_is_published_once() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9")
    for _ in range(3):
        refusal = t.not_reserved(t.reserve(a, 1.5))
    assert (refusal.scope, refusal.whose, refusal.used, refusal.threshold) == ("user", "ann", 0, 1)
    assert t.said == ["over user cost 0/1 refused"]
    (t >> t.used(a, cost=2.0)).skip()
    assert t.said[1:] == ["near user cost 2/1", "over user cost 2/1"], (
        "what is really used is told all the same"
    )
    assert t.run(a).status is Status.PAUSED


@pytest.mark.parametrize("used", [0.9, 1.0], ids=["less than was reserved", "all of it"])
def test_a_budget_is_near_its_end_by_what_was_used_and_not_by_what_is_reserved(used: float) -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a")

    def told() -> list[str]:
        return [event.type for event in t.published if event.scope == "user"]

    name = t.reserved(t.reserve(a, 1.0))
    assert told() == []
    (t >> t.settle(name, cost=used)).skip()
    assert told() == ["limit_nearing", "limit_exceeded"][: 1 if used < 1 else 2]


def test_what_is_reserved_is_the_part_of_what_counts_that_no_source_tells() -> None:
    """Also where another source tells more than reports or the gateway, and in the tree above."""
    t = Budgeted()
    t >> t.budgets(purse(9, "ann"))
    a = t.start("a", limits="cost=9")
    b = t.start("b", inside(a), limits="cost=9")
    (budget,) = t.purses.budgets

    def reserved() -> list[float]:
        accounts = [t.run(run).account for run in (a, b)]
        held = [each.reserved(COST) for each in accounts]
        return [to_usd(each) for each in (*held, t.purses.charges.reserved_of(budget))]

    name = t.reserved(t.reserve(b, 0.5))
    assert (cost(t, a, b), reserved()) == ([0.5, 0.5], [0.5] * 3)
    (t >> t.used(b, "session", cost=0.375)).skip()
    assert (cost(t, a, b), reserved()) == ([0.5, 0.5], [0.125] * 3)
    (t >> t.used(b, "session", cost=0.75)).skip()
    assert (cost(t, a, b), reserved()) == ([0.75, 0.75], [0] * 3)
    (t >> t.settle(name, cost=0.25)).skip()
    assert (cost(t, a, b), reserved()) == ([0.75, 0.75], [0] * 3)
    t.reserved(t.reserve(b, 1.0))
    assert reserved() == [0.5] * 3
    (t >> t.exited(b, 0)).skip()
    assert (cost(t, a), t.run(a).account.reserved(COST)) == ([1.25], 0)


def test_a_budget_is_partial_after_the_end_of_a_run_with_a_partial_cost() -> None:
    t = Budgeted()
    t >> t.budgets(purse(9, "ann"))
    a, b = t.start("a"), t.start("b")
    (t >> t.used(a, cost=0.5, partial=True)).skip()
    (t >> t.used(b, cost=0.5)).skip()
    assert [t.run(run).account.cost_may_grow for run in (a, b)] == [True, False]
    (t >> t.exited(b, 0)).skip()
    (budget,) = t.purses.budgets
    assert not budget.partial
    (t >> t.used(a, cost=0.75, partial=True)).skip()
    t >> t.exited(a, 1) << "charge user ann 0" << "release a1"
    assert (budget.partial, to_usd(budget.charged)) == (True, 1.25)


def test_a_settlement_gives_nothing_of_yesterday_back_to_today() -> None:
    t = Budgeted()
    t >> t.budgets(purse(10, "ann"))
    yesterday, today = t.start("a"), t.start("b")
    for_less, for_more = (t.reserved(t.reserve(yesterday, 0.25)) for _ in range(2))
    t >> t.budgets(purse(10, "ann", begins="tomorrow"))
    t.charged.clear()
    (t >> t.report(today, cost=0.5)).skip()
    (t >> t.settle(for_less, cost=0.0)).skip()
    assert t.charged == {"user ann": 0.5}
    (t >> t.settle(for_more, cost=0.375)).skip()
    assert t.charged == {"user ann": 0.625}, "what it cost beyond the estimate is spent today"


def test_a_budget_that_is_renewed_during_a_reservation() -> None:
    """A reservation of the old period is not given back to the new one, neither here nor in the
    ledger."""
    t = Budgeted()
    t >> t.budgets(purse(5, "ann"))
    a = t.start("a", limits="cost=9")
    name = t.reserved(t.reserve(a, 3.0))
    assert t.charged == {"user ann": 3.0}
    t >> t.budgets(purse(5, "ann"))
    t.charged.clear()
    t >> t.settle(name, cost=1.0) << "reply 3 Changed a1 running"
    t.quiet()
    (t >> t.report(a, cost=0.5)).skip()
    name = t.reserved(t.reserve(a, 2.0))
    (t >> t.settle(name, cost=0.25)).skip()
    assert t.charged == {"user ann": 0.75}
    assert charged(t) == {"ann": 0.75}
    assert cost(t, a) == [1.75]


def test_a_renewed_budget_is_published_again() -> None:
    t = Budgeted()
    for _ in range(2):
        t >> t.budgets(purse(1, "ann"))
        a = t.start("a", limits="cost=9")
        (t >> t.used(a, cost=1.0)).skip()
        (t >> t.exited(a)).skip()
    assert t.said == ["near user cost 1/1", "over user cost 1/1"] * 2


def test_use_that_a_source_takes_back_is_given_back_to_the_budget() -> None:
    t = Budgeted()
    t >> t.budgets(purse(5, "ann", charged=1.0))
    a = t.start("a", limits="cost=9")
    for amount in (2.0, 0.5, 0.75):
        t >> t.used(a, cost=amount)
        t.skip()
    assert t.charged == {"user ann": 0.75}
    assert charged(t) == {"ann": 1.75}


# ---- model calls


@pytest.mark.parametrize("action", ["pause", "terminate", "warn"])
def test_a_budget_bounds_calls(action: Literal["pause", "terminate", "warn"]) -> None:
    t = Budgeted(action=action)
    a = t.start("a")
    (t >> t.budgets(purse(0.32, ANN.user))).skip()
    name, _ = t.admitted(t.call(a))
    (t >> t.called(name, cost=0.3)).skip()
    call = t.call(a)
    (t >> call).skip()
    if action == "warn":
        assert t.admission(call)
    elif action == "terminate":
        assert isinstance(t.answers[call.token], c.ErrorAnswer | CallDecision)
        assert t.run(a).status is Status.STOPPING
    else:
        assert t.run(a).status is Status.PAUSED
        (t >> t.budgets(purse(5, ANN.user, charged=0.3))).skip()
        assert t.admission(call)[1] is None


def test_a_reply_that_a_budget_cuts_is_told_of() -> None:
    t = Budgeted(action="pause")
    a = t.start("a")
    (t >> t.budgets(purse(0.2, ANN.user))).skip()
    name, output = t.admitted(t.call(a))
    assert output == 13_133
    (t >> t.called(name, cost=0.1999, cut=True)).skip()
    told = [event for event in t.published if event.type == "limit_exceeded"][-1]
    words = "its last reply was cut at 13 133 tokens; user ann has used 0.1999 of 0.20 USD"
    assert told.message.startswith(words)
    assert told.message.endswith("; the next call pauses the run")
    assert (told.scope, told.limit_kind, t.run(a).after_cut) == (
        "user",
        "cost",
        "the next call pauses the run",
    )


def test_a_budget_is_charged_at_most_what_may_not_have_been_used() -> None:
    t = Budgeted()
    budget = purse(1, "ann")
    t >> t.budgets(budget)
    a = t.start("a")
    known, _ = t.admitted(t.call(a))
    (t >> t.called(known, cost=0.1)).skip()

    def said() -> str:
        return budget.sentence(t.purses.charges.reserved_of(budget))

    assert "has used 0.10 of 1.00 USD a day; it renews" in said()
    t.admitted(t.call(a))
    assert "has used 0.10 of 1.00 USD a day (0.303 more reserved); it" in said()
    (t >> t.exited(a)).skip()
    assert "has used at most 0.403 of 1.00 USD a day; it renews" in said()


# ---- the next daemon


def test_reservations_can_be_settled_with_the_next_daemon() -> None:
    t = BudgetedLife()
    (t >> t.budgets(purse(5, "ann"))).skip()
    a, b = t.chain("a", "b")
    name = t.reserved(t.reserve(b, 1.0))
    assert name == "a2-1"
    (t >> t.next_daemon(a, b)).skip()
    (t >> t.budgets(purse(5, "ann", charged=1.0))).skip()
    assert t.run(a).account.below == {"cost": 1_000_000_000}
    (t >> t.settle(name, cost=0.25)).skip()
    assert t.run(a).account.below == {"cost": 250_000_000}
    assert t.charged["user ann"] == 0.25
    assert t.reserved(t.reserve(b, 0.5)) == "a2-2", "the name of another's reservation"
    # a charge of an earlier period is not given back
    (t >> t.next_daemon(a, b)).skip()
    (t >> t.budgets(purse(5, "ann", begins="tomorrow", charged=2.0))).skip()
    (t >> t.settle("a2-2", cost=0.25)).skip()
    assert t.charged["user ann"] == 0.25 + 0.5


# ---- starts and holds


def test_a_budget_without_money_names_its_key() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1.0, "ann", charged=1.0))
    assert t.refused("a").message.endswith(
        "it renews at midnight. Start it again then, "
        "or raise budgets.users.ann.daily_usd in the config, then run: sfactl reload"
    )
    (t >> t.budgets(replace(purse(2, "ann", charged=2.5), renews_at=500.0))).skip()
    assert quota_of(t.refused("a")) == (Rule.BUDGET, "budgets.users.ann.daily_usd", 2.5, 2, 500)


def test_several_reasons_are_told_each() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9 turns=3:pause")
    (t >> t.used(a, cost=1.0, turns=1)).skip()
    (budget,) = holds(t, a)
    assert (budget.kind, budget.command, budget.since) == ("budget", "sfactl reload", moment(0))
    (t >> t.pause(a)).skip()
    assert kinds(t, a) == [("budget", "processes"), ("person", "processes")]
    (t >> t.used(a, cost=1.0, turns=4)).skip()
    assert [kind for kind, _ in kinds(t, a)][:2] == ["limit", "budget"]


# ---- over nodes, and beside many runs


def budgets_of(node: Node) -> Sequence[Budget]:
    """Return the budgets of a user there."""
    purses = node.machine.purses()
    assert isinstance(purses, BudgetPurses)
    return purses.budgets.of("ann")


def test_a_budget_is_charged_where_the_run_was_asked_for_and_only_there() -> None:
    net = fleet("n1", "n2", purses=BudgetPurses)
    one, two = net.nodes["n1"], net.nodes["n2"]
    for node in net.nodes.values():
        node.feed(e.Told(node.now, BudgetsKnown((purse(0.5, "ann"),))))
    one.spawn("job", placing=Placing(node="n2"), limits=limits("time=3600"))
    (budget,) = budgets_of(one)
    assert budget.charged == to_nanos(0.5)  # its limit of 1 USD was lowered to what was left
    net.settle()
    assert two.spend("a1", to_nanos(0.2))
    two.exit("a1")
    net.settle()
    assert budget.charged == to_nanos(0.2)
    assert budgets_of(two)[0].charged == 0


def test_a_call_costs_the_same_beside_many_runs() -> None:
    """In calls of functions, with a bound and a budget that all runs of a user share."""
    costs = set()
    for runs in (10, 40):
        t = Budgeted(sections={"gateway": GatewayConfig(per_user=CallBounds(concurrent_calls=100))})
        t >> t.budgets(purse(1000, "ann"))
        for number in range(runs):
            t.admitted(t.call(t.start(f"n{number}", limits=AMPLE), 10, more=5))
        call = t.call(t.start("last", limits=AMPLE), 10, more=5)
        costs.add(calls_of(partial(t.machine.handle, call)))
    assert len(costs) == 1, costs

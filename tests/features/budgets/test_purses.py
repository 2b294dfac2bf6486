"""Live trees when a budget has run out, as transcripts."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.state.money import to_nanos
from sfad.core.state.policy import Policy
from sfad.features.budgets.budgets import Budget
from sfad.features.budgets.feature import NAME, BudgetsConfig
from sfad.features.budgets.messages import Allowance, AllowanceWanted, AskAllowances
from sfad.features.fleet.deciding.elsewhere import elsewhere
from sfad.protocol.requests.gateway import CallDecision
from sfad.protocol.types import Placing, Status
from tests.core.transcript import ANN, BOB, Transcript, inside

from .transcript import Budgeted, BudgetedLife, purse


def spent(t: Transcript, run: str, usd: float = 1.0) -> None:
    """Have the run use an amount."""
    (t >> t.used(run, cost=usd)).skip()


def test_every_live_tree_of_the_user_is_paused_and_no_other() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9")
    idle, other = t.start("idle", agent_program=True), t.start("other", BOB)
    child = t.start("child", inside(idle))
    t >> t.used(a, cost=0.5)
    t.skip()
    (
        t
        >> t.used(a, cost=1.0)
        << "charge user ann 0.5"
        << "freeze a1"
        << "arm a1 pause_max +86400"
        << "freeze a2"
        << "arm a2 pause_max +86400"
    )
    t.quiet()
    assert [t.run(run).status for run in (a, idle, child, other)] == [Status.PAUSED] * 3 + [
        Status.RUNNING
    ]
    reason = t.run(idle).no_money
    assert reason is not None
    assert (reason.kind, reason.used, reason.threshold) == ("budget", 1.0, 1.0)
    assert "user ann has used 1.00 of 1.00 USD a day; it renews at midnight" in reason.message


def test_a_team_whose_budget_has_run_out() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann", "bob", team="crew"), purse(9, "ann"))
    a, b = t.start("a", limits="cost=9"), t.start("b", BOB, agent_program=True)
    spent(t, a)
    assert [t.run(run).status for run in (a, b)] == [Status.PAUSED] * 2


def test_trees_continue_when_the_budget_is_renewed_or_raised() -> None:
    for again in (purse(1, "ann"), purse(5, "ann", charged=1.0)):
        t = Budgeted()
        t >> t.budgets(purse(1, "ann"))
        a, idle = t.start("a", limits="cost=9"), t.start("idle", agent_program=True)
        spent(t, a)
        t >> t.budgets(purse(1.5, "ann", charged=1.5))  # still nothing left
        t.quiet()
        (t >> t.budgets(again)).skip()
        assert [t.run(run).status for run in (a, idle)] == [Status.RUNNING] * 2
        assert t.run(a).no_money is None


def test_what_was_paused_by_hand_too_stays_paused() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    before, after, only = (
        t.start(name, limits="cost=9", agent_program=True) for name in ("before", "after", "only")
    )
    (t >> t.pause(before)).skip()
    spent(t, only)
    (t >> t.pause(after)).skip()
    t >> t.budgets(purse(1, "ann")) << f"thaw {only}"
    t.skip()
    assert [t.run(run).status for run in (before, after)] == [Status.PAUSED] * 2
    (t >> t.resume(before)).skip()
    assert t.run(before).status is Status.RUNNING


def test_a_limit_that_pauses_it_too_still_holds_it() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=0.5:pause")
    spent(t, a)
    t >> t.budgets(purse(9, "ann", charged=1.0))
    t.quiet()
    assert t.run(a).status is Status.PAUSED
    (t >> t.resume(a)).skip()
    assert t.run(a).status is Status.RUNNING


def test_it_cannot_be_resumed_before_and_a_stop_ends_it() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9")
    spent(t, a)
    message = t.failed(t.resume(a))
    assert message.startswith(
        "run a1 stays paused: there is no money left in a budget: "
        "user ann has used 1.00 of 1.00 USD a day"
    )
    assert "[budgets]" in message
    t >> t.fired(a, "pause_max") << "arm a1 pause_max +86400"
    (t >> t.stop(a)).skip()
    (t >> t.exited(a, None, signal=15)).skip()
    t >> t.budgets(purse(1, "ann"))
    t.quiet()


def test_terminate_and_warn() -> None:
    t = Budgeted(action="terminate")
    t >> t.budgets(purse(1, "ann"))
    a, idle = t.start("a", limits="cost=9"), t.start("idle", agent_program=True)
    run = t.run(idle)
    t >> t.used(a, cost=1.0) << "charge user ann 1" << "terminate a1 SIGTERM" << "arm a1 grace +5"
    t << "terminate a2 SIGTERM" << "arm a2 grace +5"
    (t >> t.exited(idle, 0)).skip()
    assert run.status is Status.FAILED
    assert run.shown_reason is not None
    assert (run.shown_reason.kind, run.shown_reason.limit_kind) == ("limit", "cost")
    t = Budgeted(action="warn")
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9")
    spent(t, a)
    assert t.run(a).status is Status.RUNNING
    assert t.said == ["near user cost 1/1", "over user cost 1/1"]


def test_another_action_in_the_config_counts_at_once() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9")
    spent(t, a)
    t >> e.Reconfigured(t.at, Policy(sections={NAME: BudgetsConfig(action="warn")})) << "thaw a1"
    t.skip()
    assert t.run(a).status is Status.RUNNING


def test_a_tree_that_is_launched_later_is_paused_too() -> None:
    t = Budgeted(trees=1)
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9")
    (t >> t.spawn("b", agent_program=True)).skip()
    (t >> t.committed("a2")).skip()
    spent(t, a)
    (t >> t.stop(a)).skip()
    (t >> t.exited(a)).skip()
    (t >> t.launched("a2")).skip()
    assert t.run("a2").status is Status.PAUSED


def test_a_reservation_of_the_last_money_pauses_no_tree() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9")
    name = t.reserved(t.reserve(a, 1.0))
    assert t.run(a).status is Status.RUNNING
    (t >> t.settle(name, cost=1.0)).skip()
    assert t.run(a).status is Status.PAUSED


def test_an_unsettled_reservation_counts_when_its_run_has_ended() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a, idle = t.start("a", limits="cost=9"), t.start("idle", agent_program=True)
    t.reserved(t.reserve(a, 1.0))
    (t >> t.exited(a)).skip()
    assert t.run(idle).status is Status.PAUSED


def test_the_next_daemon_continues_it() -> None:
    t = BudgetedLife()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9")
    spent(t, a)
    adopted = t.next_daemon(a)
    t >> t.budgets(purse(1, "ann", charged=1.0))
    (t >> adopted).skip()
    assert t.run(a).status is Status.PAUSED
    (t >> t.budgets(purse(1, "ann"))).skip()
    assert t.run(a).status is Status.RUNNING


def test_fg_continues_a_suspended_run_only_when_its_budget_does() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a, idle = t.start("a", limits="cost=9"), t.start("idle", agent_program=True)
    (t >> e.PauseRequested(t.at, t.token(), ANN, idle, suspended=True)).skip()
    spent(t, a)
    (t >> e.ResumeRequested(t.at, t.token(), ANN, idle, (), suspended=True)).skip()
    assert t.run(idle).status is Status.PAUSED
    (t >> t.budgets(purse(5, "ann", charged=1.0))).skip()
    assert t.run(idle).status is Status.RUNNING


def test_a_suspended_run_stays_paused_when_its_budget_is_renewed() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a, idle = t.start("a", limits="cost=9"), t.start("idle", agent_program=True)
    (t >> e.PauseRequested(t.at, t.token(), ANN, idle, suspended=True)).skip()
    spent(t, a)
    (t >> t.budgets(purse(5, "ann", charged=1.0))).skip()
    assert t.run(idle).status is Status.PAUSED
    (t >> e.ResumeRequested(t.at, t.token(), ANN, idle, (), suspended=True)).skip()
    assert t.run(idle).status is Status.RUNNING


def test_a_tree_that_spends_nothing_goes_on_until_it_can() -> None:
    t = Budgeted()
    t >> t.budgets(purse(1, "ann"))
    a = t.start("a", limits="cost=9")
    script, caller, metered, other = (
        t.start("script"),
        t.start("caller"),
        t.start("m", metered=True),
        t.start("server"),
    )
    child = t.start("child", inside(script))
    spent(t, a)
    assert [t.run(run).status for run in (a, metered)] == [Status.PAUSED] * 2
    assert [t.run(run).status for run in (script, caller, other, child)] == [Status.RUNNING] * 4
    process = e.AgentProcess(7, 1, "claude", "claude -p", own_group=True)
    (t >> e.AgentSeen(t.at, child, process)).skip()
    assert t.run(script).status is Status.PAUSED
    (t >> t.call(caller)).skip()
    assert t.run(caller).status is Status.PAUSED
    assert t.run(other).status is Status.RUNNING


def test_a_pause_by_a_limit_or_a_budget_is_of_medium_severity() -> None:
    t = Budgeted(hear=frozenset({"publish"}))
    (t >> t.budgets(purse(1, "ann"))).skip()
    a, b, c = t.start("a", limits="cost=9"), t.start("b", limits="turns=1:pause"), t.start("c")
    (t >> t.used(a, cost=1.0)).skip()
    (t >> t.used(b, turns=2)).skip()
    (t >> t.pause(c)).skip()
    paused = [
        (each.run_id, each.severity, each.message[:14])
        for each in t.published
        if each.type == "run_paused"
    ]
    assert paused == [
        (a, "medium", "there is no mo"),
        (b, "medium", "used 2 turns; "),
        (c, "low", ""),
    ]


# ---- In a fleet: another node keeps the budget, and gives this one an allowance


def of_fleet(usd: float, allowance: float, keeper: str = "n1") -> Budget:
    return replace(purse(usd, "ann"), keeper=keeper, allowance=to_nanos(allowance))


def gives(t: Budgeted, usd: float, **how: Any) -> e.Told:
    return t.allowances(Allowance(scope="user", name="ann", begins="today", usd=usd, **how))


def test_a_call_waits_for_more_of_the_allowance() -> None:
    t = Budgeted()
    t >> t.budgets(of_fleet(9, 0.01))
    a = t.start("a")
    (t >> t.call(a, tokens=1000)) << "draw user ann 0.303"
    t.quiet()
    ((t >> gives(t, 0.5)) << "charge user ann 0.303" << f"reply {t.last_token} Called {a}-1")
    assert t.run(a).status is Status.RUNNING, "it was not paused meanwhile"


def test_a_call_is_lowered_only_when_the_keeper_has_no_more() -> None:
    t = Budgeted()
    t >> t.budgets(of_fleet(9, 0.1))
    a = t.start("a")
    (t >> t.call(a, tokens=1000)).skip()
    (t >> gives(t, 0.1, waits="other nodes hold the rest")).skip()
    answer = t.answers[t.last_token]
    assert isinstance(answer, CallDecision)
    assert answer.max_output == 6466


def test_a_tree_is_paused_while_other_nodes_hold_the_rest_and_ends_when_all_is_used_up() -> None:
    t = Budgeted(action="terminate")
    t >> t.budgets(of_fleet(9, 1))
    a = t.start("a", agent_program=True)
    (t >> t.used(a, cost=1.0)) << "charge user ann 1" << "draw user ann 1e-09"
    t.quiet()
    assert t.run(a).status is Status.RUNNING
    (t >> gives(t, 1, waits="other nodes hold the rest")).skip()
    assert t.run(a).status is Status.PAUSED
    reason = t.run(a).no_money
    assert reason is not None
    assert (
        "user ann has used 1.00 USD here, of 1.00 that node n1 has given of 9.00 USD a day (other "
        "nodes hold the rest)"
    ) in reason.message
    (t >> gives(t, 2)).skip()
    assert t.run(a).status is Status.RUNNING
    (t >> t.used(a, cost=2.0)).skip()
    (t >> gives(t, 2, waits="it is used up", used_up=True)).skip()
    assert t.run(a).status is Status.STOPPING


def test_a_node_whose_keeper_is_away_uses_what_it_has_and_then_holds() -> None:
    t = Budgeted()
    t >> t.budgets(of_fleet(9, 1))
    a = t.start("a", agent_program=True)
    (t >> t.used(a, cost=0.9)).skip()
    (t >> t.allowances(waits="node n1 does not answer")).skip()
    assert t.run(a).status is Status.RUNNING
    (t >> t.used(a, cost=1.0)).skip()
    (t >> t.allowances(waits="node n1 does not answer")).skip()
    assert t.run(a).status is Status.PAUSED
    b = t.start("b", agent_program=True)
    assert t.run(b).status is Status.PAUSED, "a new root starts, and is held"
    (t >> gives(t, 2)).skip()
    assert [t.run(run).status for run in (a, b)] == [Status.RUNNING] * 2


def test_a_reservation_waits_for_the_keeper() -> None:
    t = Budgeted()
    t >> t.budgets(of_fleet(9, 0.001))
    a = t.start("a")
    (t >> t.reserve(a, 0.5)) << "draw user ann 0.5"
    t.quiet()
    (t >> gives(t, 0.6)).skip()
    assert isinstance(answer := t.answers[t.last_token], c.ReserveAnswer)
    assert answer.reservation is not None
    (t >> t.reserve(a, 0.5)).skip()
    (t >> gives(t, 0.6, waits="it is used up", used_up=True)).skip()
    assert isinstance(answer := t.answers[t.last_token], c.ReserveAnswer)
    assert answer.refusal is not None


def test_a_run_that_is_placed_waits_for_its_share_and_its_client() -> None:
    t = Budgeted(elsewhere=elsewhere)
    t >> t.budgets(of_fleet(9, 0.001))
    placing = Placing(node="n3")
    (t >> t.spawn("a", limits="cost=2", placing=placing)) << "draw user ann 2"
    t.quiet()
    (t >> gives(t, 2.5)).skip()
    assert [run.name for run in t.machine.tree] == ["a"]
    (t >> t.spawn("b", limits="cost=2", placing=placing, tied_to=7)).skip()
    (t >> e.ClientGone(t.at, 7)).skip()
    (t >> gives(t, 9)).skip()
    assert [run.name for run in t.machine.tree] == ["a"]


def test_the_keeper_goes_on_when_a_node_gives_back() -> None:
    t = Budgeted()
    kept = replace(purse(2, "ann"), keeper=None)
    t >> t.budgets(kept)
    a = t.start("a", agent_program=True)

    def asks(number: int, had: float, charged: float, need: float) -> e.Told:
        wanted = AllowanceWanted(
            scope="user", name="ann", begins=BEGINS, usd=had, charged_usd=charged, need_usd=need
        )
        return t.asks(AskAllowances(id=1, node="n2", number=number, wanted=[wanted]))

    kept.begins = BEGINS
    (t >> asks(1, 0, 0, 1.5)) << f"reply {t.last_token} Allowances"
    assert t.given(t.last_token) == [1.5]
    assert t.purses.charges.unsaved == {("user", "ann")}
    (t >> t.used(a, cost=0.5)).skip()
    assert t.run(a).status is Status.PAUSED
    assert t.run(a).no_money is not None
    assert (
        "user ann has used 0.50 of 2.00 USD a day in the fleet, and other nodes hold 1.50 more"
        in str(t.run(a).no_money)
    )
    (t >> asks(2, 0.2, 0.2, 0)).skip()
    assert t.run(a).status is Status.RUNNING


BEGINS = "2026-06-01T00:00:00+00:00"

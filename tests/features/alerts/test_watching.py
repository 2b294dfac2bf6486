"""Alerts: raised once a crossing, cleared once when over, and told again by no later daemon."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.context import Context, Reading
from sfad.core.machine import Machine
from sfad.core.state.policy import Policy
from sfad.features.alerts.feature import NAME, AlertsConfig
from sfad.features.alerts.measures import (
    HOLD,
    PARTS,
    Measure,
    RaisedAlert,
    SavedAlerts,
    SummedWindow,
    changed,
)
from sfad.features.alerts.watching import Alerts
from sfad.protocol.types import ApiTrouble, Event, LimitKind
from tests.core.policies import policy as policy_with
from tests.core.transcript import BOB, Transcript, seconds
from tests.features.budgets.transcript import Budgeted, purse

WATCHERS = {NAME: Alerts}


def told(t: Transcript) -> list[str]:
    """The alerts that were published since the last call."""
    events, t.of_features = (
        [command.event for command in t.of_features if isinstance(command, c.Publish)],
        [],
    )
    return [f"{event.state} {event.type} {event.run_id or event.scope}" for event in events]


def last(t: Transcript) -> Event:
    """The alert that was published last."""
    return [command.event for command in t.of_features if isinstance(command, c.Publish)][-1]


def policy(**alerts: Any) -> Policy:
    config = AlertsConfig(**alerts)
    clocks = config.limit_share != 0.8
    return policy_with(sections={NAME: config}, repeats=3, watches_clocks=clocks)


def watched(**alerts: Any) -> Budgeted:
    """A machine without limits on numbers of runs and costs that are far above what the test
    uses."""
    return Budgeted(policy(**alerts), watchers=WATCHERS)


def alerts_of(t: Transcript) -> Alerts:
    found = t.machine.watching.watcher(NAME)
    assert isinstance(found, Alerts)
    return found


def restart(t: Transcript) -> None:
    """Have the next daemon go on with what this one saves."""
    saved = msgspec.msgpack.encode(alerts_of(t).saved())
    t.machine = Machine(t.machine.policy, watchers=WATCHERS)
    alerts_of(t).restore(msgspec.msgpack.decode(saved, type=SavedAlerts))


def reminders(t: Transcript) -> list[tuple[str, float | None]]:
    return [(x.key, x.at) for x in t.of_features if isinstance(x, c.Remind)]


def look_again(t: Transcript, by: float, key: str = "") -> None:
    """Let so many seconds pass and have a run looked at, or what is watched of all runs."""
    t.later(by)
    (t >> t.reminded(NAME, key)).skip()


def due(t: Transcript) -> float | None:
    """When the alerts of all runs are looked at again."""
    return [at for key, at in reminders(t) if not key][-1]


# ---- one alert


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 2 * HOLD)), max_size=40))
def test_raised_and_cleared_in_turn_and_cleared_only_after_the_hold(
    looks: list[tuple[bool, float]],
) -> None:
    raised: RaisedAlert | None = None
    at, below_since, said = 0.0, 0.0, "cleared"
    for above, wait in looks:
        at += wait
        raised, change = changed(raised, Measure(1.0, 1.0, above), at)
        below_since = at if above else below_since
        if change is not None:
            assert change != said
            said = change
        assert (raised is not None) == (said == "raised")
        if change == "cleared":
            assert at - below_since >= HOLD
        if raised is not None and not above:
            assert raised.due is not None
            assert at < raised.due
        if above:
            assert raised is not None


@given(
    st.lists(st.tuples(st.floats(0, 400), st.integers(1, 10**9)), max_size=200), st.floats(60, 4000)
)
def test_a_window_is_late_by_one_part_at_most_and_bounded(
    added: list[tuple[float, int]], span: float
) -> None:
    window, at, everything = SummedWindow(span), 0.0, []
    for wait, amount in added:
        at += wait
        window.add(amount, at)
        everything.append((at, amount))
        within = sum(amount for when, amount in everything if when + span > at)
        late = sum(
            amount for when, amount in everything if when + span * (1 + 1 / PARTS) + 1e-6 > at
        )
        assert within <= window.total(at) <= late
        assert len(window.parts) <= PARTS + 1
    again = SummedWindow(span, window.parts)
    assert again.total(at) == window.total(at)
    assert window.total(at + 2 * span) == 0
    assert window.changes_at() is None


# ---- a run


def test_a_limit_by_its_share() -> None:
    t = watched(limit_share=0.5)
    a = t.start("a", limits="turns=10", timeout=seconds(3000))
    (t >> t.used(a, turns=4)).skip()
    assert told(t) == []
    (t >> t.used(a, turns=5)).skip()
    event = last(t)
    assert (event.state, event.severity, event.value, event.threshold, event.scope) == (
        "raised",
        "high",
        0.5,
        0.5,
        "run",
    )
    assert (
        event.message == "used 5 turns, 50 % of its turns limit of 10 (alerts.limit_share is 0.5)"
    )
    assert told(t) == ["raised alert_limit a1"]
    (t >> t.used(a, turns=6)).skip()
    assert told(t) == []
    (t >> t.limit(a, "turns=50")).skip()
    assert told(t) == []
    look_again(t, HOLD - 1, a)
    assert told(t) == []
    look_again(t, 1, a)
    assert told(t) == ["cleared alert_limit a1"]


def test_a_run_that_goes_up_and_down_raises_one_alert() -> None:
    t = watched(limit_share=0.5)
    a = t.start("a", limits="memory=104857600:warn")
    for _ in range(100):
        (t.later(1) >> t.level(a, "memory", 60 << 20)).skip()
        (t.later(1) >> t.level(a, "memory", 20 << 20)).skip()
    assert told(t) == ["raised alert_limit a1"]


def test_time_counts_as_a_limit() -> None:
    for share in (0.5, 0.8):  # at 0.8 the timer of `limit_nearing` does
        t = watched(limit_share=share)
        a = t.start("a", timeout=seconds(100))
        assert reminders(t) == ([(a, 50.0)] if share == 0.5 else [])
        if share == 0.5:
            look_again(t, 50, a)
        else:
            (t.later(80) >> t.fired(a, "deadline")).skip()
        assert told(t) == ["raised alert_limit a1"]


def test_an_end_clears_at_once() -> None:
    t = watched()
    a = t.start("a", limits="turns=10:warn")
    (t >> t.used(a, turns=9)).skip()
    (t >> t.exited(a)).skip()
    assert told(t) == ["raised alert_limit a1", "cleared alert_limit a1"]


def test_a_model_that_repeats_itself() -> None:
    t = watched()
    a = t.start("a", limits="turns=100:warn")
    for tools in ("x/1 x/1", "x/1"):
        name, _ = t.admitted(t.call(a))
        (t >> t.called(name, tools)).skip()
    assert (last(t).value, last(t).threshold) == (3, 3)
    assert told(t) == ["raised alert_repeating a1"]
    name, _ = t.admitted(t.call(a))
    (t >> t.called(name, "y/1")).skip()
    assert told(t) == []
    look_again(t, HOLD, a)
    assert told(t) == ["cleared alert_repeating a1"]


def test_an_api_that_fails_for_two_minutes() -> None:
    t = watched()
    a = t.start("a", timeout=seconds(3000))
    (t >> t.said_by_agent(a, trouble=ApiTrouble(count=1, status=529))).skip()
    assert reminders(t) == [(a, 120)]
    (t.later(60) >> t.said_by_agent(a, trouble=ApiTrouble(count=2, status=529))).skip()
    look_again(t, 60, a)
    assert last(t).message == "its model has not answered for 120 s: the API answered 529 twice"
    assert told(t) == ["raised alert_unreachable a1"]
    (t >> t.said_by_agent(a)).skip()
    look_again(t, HOLD, a)
    assert told(t) == ["cleared alert_unreachable a1"]


# ---- all runs


def test_what_all_runs_cost() -> None:
    t = watched(cost_usd=1.0, window=3600.0)
    a, b = t.start("a", limits="cost=50"), t.start("b", BOB, limits="cost=50")
    (t >> t.used(a, cost=0.6)).skip()
    (t >> t.used(b, cost=0.4)).skip()
    assert told(t) == []
    (t >> t.used(b, cost=0.41)).skip()
    event = last(t)
    assert (event.state, event.value, event.threshold, event.window_s, event.scope) == (
        "raised",
        1.01,
        1.0,
        3600.0,
        "daemon",
    )
    assert event.message == "runs cost 1.01 USD within 1h (alerts.cost_usd is 1.00)"
    wait = due(t)
    assert wait is not None
    assert told(t) == ["raised alert_cost daemon"]
    (t >> t.used(b, cost=0.40)).skip()  # what was counted stays counted
    assert told(t) == []
    look_again(t, 3600)
    assert told(t) == []
    look_again(t, HOLD)
    assert told(t) == ["cleared alert_cost daemon"]


def test_what_each_user_costs() -> None:
    t = watched(cost_usd=None, cost_usd_per_user=1.0)
    a, b = t.start("a", limits="cost=50"), t.start("b", BOB, limits="cost=50")
    (t >> t.used(a, cost=0.9)).skip()
    (t >> t.used(b, cost=1.5)).skip()
    assert "runs of user bob cost 1.50 USD" in last(t).message
    assert told(t) == ["raised alert_cost user"]


def test_the_recent_cost_of_each_user_and_of_all() -> None:
    t = watched(cost_usd=None, window=3600.0)
    a, b = t.start("a", limits="cost=50"), t.start("b", BOB, limits="cost=50")
    (t >> t.used(a, cost=0.5)).skip()
    (t.later(1800) >> t.used(b, cost=0.25)).skip()
    users = (None, "ann", "bob", "carol")
    assert [alerts_of(t).cost(user, t.at) for user in users] == [
        750_000_000,
        500_000_000,
        250_000_000,
        0,
    ]
    assert [alerts_of(t).cost(user, t.at + 1800) for user in users] == [
        250_000_000,
        0,
        250_000_000,
        0,
    ]
    restart(t)
    assert alerts_of(t).cost("bob", t.at) == 250_000_000


def test_what_is_only_reserved_costs_nothing() -> None:
    t = watched(cost_usd=1.0)
    a = t.start("a", limits="cost=50")
    t.reserved(t.reserve(a, 20.0))
    assert told(t) == []


def test_a_call_under_way_raises_no_alert_about_a_limit() -> None:
    """Neither of its own run nor of one above it, nor after a restart."""
    t = watched(limit_share=0.8)
    a, b = t.chain("a", "b", limits="cost=0.35")
    name, _ = t.admitted(t.call(b))
    assert [t.run(each).account.reserved(LimitKind.COST) for each in (a, b)] == [303_000_000] * 2
    assert told(t) == []
    assert t.run(a).limits[LimitKind.COST].near is False
    (t >> t.called(name, cost=0.3)).skip()
    assert [t.run(each).account.reserved(LimitKind.COST) for each in (a, b)] == [0, 0]
    assert last(t).type == "alert_limit"


def test_terminations() -> None:
    t = watched(terminations=2)
    for number in range(3):
        assert told(t) == []
        run = t.start(f"a{number}", limits="turns=1")
        (t >> t.used(run, turns=2)).skip()
        (t >> t.exited(run)).skip()
        t.of_features = [
            x
            for x in t.of_features
            if isinstance(x, c.Publish) and x.event.type == "alert_terminations"
        ]
    assert (last(t).value, last(t).threshold) == (3, 2)
    assert told(t) == ["raised alert_terminations daemon"]


def test_an_idle_daemon_has_no_timer_of_alerts() -> None:
    t = watched(cost_usd=1.0)
    a = t.start("a", limits="cost=50 turns=100")
    (t >> t.used(a, cost=0.3, turns=1)).skip()
    (t >> t.exited(a)).skip()
    assert reminders(t) == []


def test_the_next_daemon_goes_on() -> None:
    t = watched(cost_usd=1.0)
    a = t.start("a", limits="cost=50")
    (t >> t.used(a, cost=1.5)).skip()
    assert told(t) == ["raised alert_cost daemon"]
    restart(t)
    (t.later(10) >> e.RunsAdopted(t.at, (), "the daemon died")).skip()
    assert due(t) == 3600
    assert told(t) == []
    look_again(t, 3590)
    look_again(t, HOLD)
    assert told(t) == ["cleared alert_cost daemon"]


def test_an_alert_that_is_switched_off_is_cleared() -> None:
    t = watched(cost_usd=1.0)
    a = t.start("a", limits="cost=50")
    (t >> t.used(a, cost=1.5)).skip()
    (t >> e.Reconfigured(t.at, policy(cost_usd=None))).skip()
    look_again(t, HOLD)
    assert told(t) == ["raised alert_cost daemon", "cleared alert_cost daemon"]


def test_a_budget_at_80_and_at_100_percent() -> None:
    t = watched(cost_usd=None)
    (
        t >> t.budgets(purse(1, "ann"), purse(10, "ann", "bob", team="crew"), purse(0, "carol"))
    ).skip()
    a = t.start("a", limits="cost=50")
    (t >> t.used(a, cost=0.79)).skip()
    assert told(t) == []
    (t >> t.used(a, cost=0.85)).skip()
    event = last(t)
    assert (event.severity, event.value, event.threshold) == ("medium", 0.85, 0.8)
    assert event.message == "user ann has used 0.85 of 1.00 USD a day; it renews at midnight"
    assert told(t) == ["raised alert_budget user"]
    (t >> t.used(a, cost=1.0)).skip()
    assert (last(t).severity, last(t).value, last(t).threshold) == ("high", 1.0, 1.0)
    assert told(t) == ["raised alert_budget user"]
    (
        t
        >> t.budgets(
            purse(1.2, "ann", charged=1.0), purse(10, "ann", "bob", team="crew", charged=9.0)
        )
    ).skip()
    assert told(t) == ["raised alert_budget team"]
    look_again(t, HOLD)
    assert last(t).severity == "medium"  # 83 %
    assert told(t) == ["cleared alert_budget user", "raised alert_budget user"]
    (t >> t.budgets(purse(9, "ann"))).skip()
    look_again(t, HOLD)
    assert told(t) == ["cleared alert_budget user", "cleared alert_budget team"]


def test_what_is_only_reserved_of_a_budget_raises_no_alert() -> None:
    t = watched(cost_usd=None)
    (t >> t.budgets(purse(1, "ann"))).skip()
    a = t.start("a", limits="cost=50")
    name = t.reserved(t.reserve(a, 0.9))
    assert told(t) == []
    (t >> t.settle(name, cost=0.9)).skip()
    assert told(t) == ["raised alert_budget user"]


def test_what_another_feature_measures() -> None:
    share, key = 0.5, ("plan", "anthropic/3f2a/5h")
    t = watched()
    halves = t.halves | {"watchers": {NAME: lambda context: measuring(context)}}
    t.machine = Machine(t.machine.policy, **halves)

    def measuring(context: Context) -> Alerts:
        context.readings.append(lambda *_: {key: Reading(share, 1.0, share >= 1, "empty soon")})
        return Alerts(context)

    (t >> t.budgets(purse(1, "ann"))).skip()
    assert told(t) == []
    share = 1.0
    (t >> t.budgets(purse(1, "ann"))).skip()
    assert (last(t).message, last(t).value) == ("empty soon", 1.0)
    assert told(t) == ["raised alert_plan daemon"]

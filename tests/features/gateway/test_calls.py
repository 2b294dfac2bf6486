"""Calls that the gateway asks for: admitted, lowered to what fits, held, refused, settled."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.state.account import Account, Silence, Use
from sfad.core.state.money import to_nanos, to_usd
from sfad.core.state.vocabulary import Timer
from sfad.durable.snapshots import from_saved, to_saved
from sfad.features.gateway.calls import MAX_MODEL, MAX_WAITING
from sfad.protocol.requests.gateway import CallDecision
from sfad.protocol.types import LimitKind, Source, Status, Tokens
from tests.core.transcript import Sums, inside, limits, use
from tests.tiers import examples

from .transcript import Gated

WHOLE = 0.303
"""USD of the call that `Transcript.call` asks for."""


def test_a_call_that_fits_is_not_changed() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.5")
    name, output = t.admitted(t.call(a))
    assert output is None
    assert t.run(a).account.used(LimitKind.COST) == 303_000_000
    (t >> t.called(name, cost=0.01, input_tokens=900, output_tokens=400, turns=2)).skip()
    best = t.run(a).account.best
    assert best is not None
    source, use = best
    assert (source, use.cost, use.turns, use.messages, use.tokens) == (
        "gateway",
        10_000_000,
        2,
        1,
        1300,
    )


def test_failed_calls_are_told_until_one_succeeds_and_in_the_end() -> None:
    t = Gated()
    a = t.start("a", limits="cost=50")

    def ends(**how: Any) -> str | None:
        name, _ = t.admitted(t.call(a, 10))
        (t >> t.call_ended(name, **how)).skip()
        trouble = t.run(a).latest.known_trouble
        return trouble.sentence if trouble is not None else None

    assert ends(error="it hung up") is None
    assert ends(status=529, failed=True) == "the API answered 529 once"
    assert ends(status=529, failed=True) == "the API answered 529 twice"
    assert ends(error="it hung up") == "the API answered 529 twice"
    assert ends(error="no key", failed=True) == "the API failed three times: no key"
    assert ends(status=200, error="overloaded", failed=True) == (
        "the API failed four times: overloaded"
    )
    assert ends(status=200) is None
    for _ in range(6):
        assert ends(status=400, failed=True) == "the API answered 400 once"
    assert ends(status=529, failed=True) == "the API answered 529 twice"
    assert ends(status=200) is None
    ends(status=529, failed=True)
    run = t.run(a)
    t.machine.handle(t.exited(a, 1))
    assert run.ending is not None
    assert run.ending.reason is not None
    assert run.ending.reason.message.endswith("the API answered 529 once")


def test_a_call_without_an_answer_is_told_once_and_ends_with_its_first_byte() -> None:
    t = Gated()
    a = t.start("a", limits="cost=50")
    name, _ = t.admitted(t.call(a, 10))
    other, _ = t.admitted(t.call(a, 10))
    sent = t.at
    t.later(15)
    for each in (name, other):
        (t >> e.CallSilent(t.at, each, Silence("api.example.com", sent))).skip()
    assert t.run(a).unreachable_since == sent
    assert t.progress == ["the API is silent: no byte has come from api.example.com"]
    (t >> e.CallSilent(t.at, other, None)).skip()
    assert len(t.progress) == 1
    (t >> e.CallSilent(t.at, name, None)).skip()
    assert t.progress[1:] == ["the API has begun to answer"]
    assert t.run(a).unreachable_since is None
    (t >> e.CallSilent(t.at, "a1-0", Silence("h", 0.0))).skip()


def test_calls_that_fail_make_the_model_unreachable_until_one_succeeds() -> None:
    t = Gated()
    a = t.start("a", limits="cost=50")

    def ends(**how: Any) -> float | None:
        name, _ = t.admitted(t.call(a, 10))
        (t >> e.CallSilent(t.at, name, Silence("h", t.at))).skip()
        (t >> t.later(5).call_ended(name, **how)).skip()
        return t.run(a).unreachable_since

    first = ends(failed=True, error="given up")
    assert first == 5
    assert ends(failed=True) == first
    assert ends(status=200) is None


def test_a_call_that_does_not_fit_is_lowered() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.2 tokens=100000")
    _, output = t.admitted(t.call(a))
    assert output == (200_000_000 - 3_000_000) // 15_000
    b = t.start("b", limits="tokens=9000")
    assert t.admitted(t.call(b))[1] == 8000
    d = t.start("d", limits="tokens=19000")
    assert t.admitted(t.call(d, choices=4))[1] == 4500


def test_an_input_that_may_be_more_than_estimated_lowers_the_output_too() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.2")
    name, output = t.admitted(t.call(a, more=10_000))
    assert output == (200_000_000 - 33_000_000) // 15_000
    assert t.run(a).account.used(LimitKind.COST) == 3_000_000 + output * 15_000, (
        "it is not reserved"
    )
    t.machine.handle(t.called(name, cost=0.1))
    assert t.admitted(t.call(a, more=30_000))[1] == 4096, "nor is the call refused for it"


def test_an_error_that_is_not_likely_is_kept_from_others_and_not_from_the_output() -> None:
    """Claude's first reply was cut at 4100 tokens with 70 % of the money left."""
    t = Gated()
    a = t.start("a", limits="cost=0.5")
    _, output = t.admitted(t.call(a, tokens=40_000, more=76_000, likely=10_000))
    assert output is None, "it is not lowered"
    (t >> t.call(a, 100)).skip()
    assert [call.state for call in t.machine.waiting_calls(a)] == ["waiting"]
    b = t.start("b", limits="cost=0.2")
    _, output = t.admitted(t.call(b, more=60_000, likely=10_000))
    assert output == (200_000_000 - 33_000_000) // 15_000


def test_what_others_may_have_more_is_waited_for_and_refused_as_a_rate() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.5")
    b = t.start("b", inside(a), limits="cost=5")
    name, _ = t.admitted(t.call(b, 100, more=60_000))
    t.admitted(t.call(a, 100, more=60_000))
    waiting, last = t.call(a, 10_000, least=10_000), t.call(a, 10_000, least=10_000)
    for call in (waiting, last):
        (t >> call).skip()
    (t >> t.called(name, cost=0.01)).skip()
    assert t.admission(waiting)[1] is None
    t.later(60)
    (t >> t.fired(a, Timer.CALLS)).skip()
    answer = t.refusal(last)
    assert answer.retry_after
    assert "once others have told how much input they have" in str(answer.refused)
    assert t.run(a).status is Status.RUNNING


def test_calls_under_way_take_no_turns() -> None:
    """Only the tools that a reply asks for are turns."""
    t = Gated()
    a = t.start("a", limits="turns=2:refuse cost=50")
    names = [t.admitted(t.call(a, 10))[0] for _ in range(5)]
    for name in names[:2]:
        (t >> t.called(name, turns=1)).skip()
    assert "turns limit" in t.not_called(t.call(a, 10))


def test_it_is_not_lowered_below_what_is_worth_a_call() -> None:
    t = Gated()
    a = t.start("a", limits="tokens=5000:refuse")
    refusal = t.not_called(t.call(a, least=4096))
    assert refusal.startswith(
        f"not reserved: 5096 tokens more would take run {a} ('a') above its tokens limit"
    )
    assert t.admitted(t.call(a, least=4000))[1] == 4000


@pytest.mark.parametrize("kind", ["turns", "messages"])
def test_counts_that_are_used_up_admit_no_call(kind: str) -> None:
    t = Gated()
    a = t.start("a", limits=f"{kind}=1:refuse")
    name, _ = t.admitted(t.call(a))
    (t >> t.called(name, turns=1)).skip()
    assert f"above its {kind} limit" in t.not_called(t.call(a))


def test_a_limit_of_an_ancestor_bounds_the_calls_of_all_below_it() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.5:refuse")
    b, d = (t.start(name, inside(a), limits="cost=5") for name in "bd")
    t.admitted(t.call(b))
    waiting = t.call(d)
    (t >> waiting).skip()
    t.later(60)
    (t >> t.fired(d, Timer.CALLS)).skip()
    assert t.admission(waiting)[1] == (500_000_000 - 303_000_000 - 3_000_000) // 15_000
    assert t.run(a).account.used(LimitKind.COST) <= 500_000_000  # type: ignore[operator]


def test_a_call_waits_for_others_that_are_under_way() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.32:refuse")
    name, _ = t.admitted(t.call(a))
    waiting = t.call(a)
    (t >> waiting).skip()
    (t >> t.called(name, cost=0.02)).skip()
    assert t.admission(waiting)[1] == (320_000_000 - 20_000_000 - 3_000_000) // 15_000


def test_a_call_that_has_waited_long_enough_is_to_be_asked_for_again() -> None:
    """The limit is not used up: others may leave most of what they have reserved."""
    t = Gated()
    a = t.start("a", limits="cost=0.32:refuse")
    t.admitted(t.call(a))
    waiting = t.call(a)
    t >> waiting
    t << f"arm {a} calls +60"
    t.later(60)
    (t >> t.fired(a, Timer.CALLS)).skip()
    answer = t.refusal(waiting)
    assert answer.retry_after
    assert "the rest of the cost limit is reserved for other calls" in str(answer.refused)
    assert t.run(a).status is Status.RUNNING


def test_each_waiting_call_has_its_own_time() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.32:refuse")
    t.admitted(t.call(a))
    first = t.call(a)
    t >> first
    t << f"arm {a} calls +60"
    t.later(20)
    second = t.call(a)
    t >> second
    t.quiet()
    t.later(40)
    t >> t.fired(a, Timer.CALLS)
    assert first.token in t.answers
    assert second.token not in t.answers
    assert f"arm {a} calls +20" in t.left
    t.skip()


def test_a_thousand_waiting_calls_are_decided_in_their_order_and_each_is_answered() -> None:
    t = Gated()
    a = t.start("a", limits="messages=1:refuse")
    b = t.start("b", limits="messages=1:refuse")
    name, _ = t.admitted(t.call(a, 10))
    other, _ = t.admitted(t.call(b, 10))
    calls = [t.call(a, 10) for _ in range(MAX_WAITING)]
    for call in calls:
        (t >> call).skip()
    behind = t.call(b, 10)
    (t >> behind).skip()
    assert "wait already" in t.failed(t.call(a, 10))
    (t >> t.call_ended(other)).skip()
    assert t.admission(behind), "the calls of another run are decided, too"
    (t >> t.call_ended(name)).skip()
    assert t.admission(calls[0])
    assert calls[1].token not in t.answers
    t.later(60)
    (t >> t.fired(a, Timer.CALLS)).skip()
    assert all(call.token in t.answers for call in calls)


def test_terminate_ends_the_run_and_answers_at_once() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.05")
    assert "above its cost limit" in t.not_called(t.call(a))
    assert t.run(a).status is Status.STOPPING
    assert f"run {a} is being stopped" in t.failed(t.call(a))


def test_refuse_refuses_and_the_run_goes_on() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.05:refuse")
    for _ in range(2):
        t.not_called(t.call(a))
    assert t.run(a).status is Status.RUNNING
    assert t.said.count("over a1 cost 0/0.05 refused") == 1


@pytest.mark.parametrize("action", ["pause", "request_increase"])
def test_a_call_is_held_until_there_is_more_room(action: str) -> None:
    """Nothing is frozen: another call of the run may be in the middle of its reply."""
    t = Gated()
    a = t.start("a", limits=f"cost=0.05:{action}")
    held = t.call(a)
    t >> held
    assert not any(line.startswith("freeze") for line in t.left)
    t.skip()
    assert held.token not in t.answers
    assert t.run(a).status is Status.PAUSED
    assert t.run(a).shown_reason is not None
    again = t.call(a)
    t >> again
    t.quiet()
    other = t.start("other", limits="cost=5")
    for _ in range(10):
        t.later(59.9)
        name, _ = t.admitted(t.call(other, output=4096))
        (t >> t.called(name, cost=0.01)).skip()
        (t >> t.fired(a, Timer.CALLS)).skip()
        assert held.token not in t.answers
    small = t.resume(a, room="cost=0.06") if action == "pause" else t.approve(a, room="cost=0.06")
    (t >> small).skip()
    answer = t.answers[small.token]
    assert "takes 0.0644 USD more: the new limit must be 0.0645 USD at least" in getattr(
        answer, "message", ""
    )
    (t >> (t.resume(a, room="cost=1") if action == "pause" else t.approve(a, room="cost=1"))).skip()
    assert t.run(a).status is Status.RUNNING
    assert t.admission(held)[1] is None
    assert t.admission(again)[1] is None


def test_a_held_call_is_refused_when_its_run_ends() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.05:request_increase")
    held = t.call(a)
    (t >> held).skip()
    (t >> t.deny(a)).skip()
    answer = t.answers[held.token]
    assert isinstance(answer, c.ErrorAnswer)
    assert "is being stopped" in answer.message


def test_a_run_whose_calls_are_held_is_frozen_when_a_person_pauses_it() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.05:pause")
    (t >> t.call(a)).skip()
    t >> t.pause(a)
    t << f"freeze {a}"
    t.skip()


def test_a_child_has_its_grace_while_only_the_calls_above_it_are_held() -> None:
    """Its processes run. Below a frozen run nothing could use a grace."""
    t = Gated()
    a = t.start("a", limits="cost=0.05:pause")
    b = t.start("b", inside(a))
    (t >> t.call(a)).skip()
    t >> t.stop(b, grace=7)
    assert f"arm {b} grace +7" in t.left
    t.skip()

    d = t.start("d")
    below = t.start("below", inside(d))
    (t >> t.pause(d)).skip()
    t >> t.stop(below, grace=7)
    assert f"arm {below} grace +0" in t.left
    t.skip()


def test_a_paused_run_makes_no_calls() -> None:
    t = Gated()
    a = t.start("a", limits="cost=5")
    b = t.start("b", inside(a))
    (t >> t.pause(a)).skip()
    held = t.call(b)
    t >> held
    t.quiet()
    (t >> t.resume(a)).skip()
    assert t.admission(held)


def test_a_caller_that_hangs_up_is_forgotten() -> None:
    t = Gated()
    a = t.start("a", limits="cost=5")
    (t >> t.pause(a)).skip()
    held = t.call(a)
    (t >> held).skip()
    t >> e.CallWithdrawn(t.at, held.token, "it hung up")
    (t >> t.resume(a)).skip()
    assert held.token not in t.answers
    assert not t.run(a).account.reservations


def test_a_model_without_a_price_is_refused_where_money_is_limited() -> None:
    t = Gated()
    a = t.start("a", limits="cost=5")
    assert 'set [prices."m"]' in t.failed(t.call(a, priced=False))
    b = t.start("b", limits="cost=5:warn")
    assert t.admitted(t.call(b, priced=False))[1] is None


def test_a_warning_bounds_nothing() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.05:warn")
    assert t.admitted(t.call(a))[1] is None


def test_what_a_run_that_ends_had_under_way_is_charged_in_full() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.5")
    b = t.start("b", inside(a))
    t.admitted(t.call(b))
    (t >> t.exited(b)).skip()
    assert t.run(a).account.used(LimitKind.COST) == 303_000_000
    assert not t.run(a).account.reservations


def test_time_does_not_run_while_a_call_is_held() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.05:pause")
    t >> t.call(a)
    assert any(line.startswith(f"arm {a} {Timer.PAUSE_MAX}") for line in t.left)
    t.skip()
    assert t.run(a).clock.since is None


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abd"), st.integers(1, 30_000), st.integers(1, 9000),
            st.integers(0, 30_000), st.floats(0, 1), st.integers(1, 3),
        ),
        max_size=40,
    ),
    st.sampled_from(["terminate", "refuse", "pause", "request_increase"]),
    st.booleans(),
)  # fmt: skip
def test_calls_never_cost_more_than_a_limit(
    steps: list[tuple[str, int, int, int, float, int]], action: str, estimated: bool
) -> None:
    """Whatever is asked for by whom, and however much of it is used: by no more than the error of
    one estimate of input."""
    t = Gated()
    runs = {"a": t.start("a", limits=f"cost=0.5:{action}")}
    runs |= {name: t.start(name, inside(runs["a"]), limits="cost=50") for name in "bd"}
    threshold = limits("cost=0.5")[0].threshold * 1e9
    under_way: list[tuple[str, int, int]] = []
    bill = error = 0
    for whose, output, tokens, doubt, share, choices in steps:
        more = doubt if estimated else 0
        if t.machine.tree.get(runs["a"]) is None or t.run(runs["a"]).status is Status.STOPPING:
            break
        call = t.call(runs[whose], output, tokens=tokens, choices=choices, more=more)
        (t >> call).skip()
        answer = t.answers.get(call.token)
        if isinstance(answer, CallDecision) and answer.reservation is not None:
            most = (answer.max_output or output) * choices
            under_way.append((answer.reservation, tokens + more, most))
            error = max(error, more * 3000)
        if share < 0.6 and under_way:
            name, given_, most = under_way.pop(0)
            cost = given_ * 3000 + int(most * share) * 15_000
            bill += cost
            (
                t
                >> t.called(
                    name, cost=cost / 1e9, input_tokens=given_, output_tokens=int(most * share)
                )
            ).skip()
        committed = bill + sum(given_ * 3000 + most * 15_000 for _, given_, most in under_way)
        assert committed <= threshold + error


def test_what_an_earlier_gateway_did_not_settle_is_charged_in_full() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.5")
    name, _ = t.admitted(t.call(a))
    (t >> e.GatewayGone(t.at)).skip()
    account = t.run(a).account
    assert not account.reservations
    assert account.used(LimitKind.COST) == 303_000_000
    assert account.sources["gateway"].at_most
    assert not account.sources["gateway"].partial
    (t >> t.called(name, cost=0.1)).skip()
    assert account.used(LimitKind.COST) == 303_000_000, "it is not charged twice"


def test_a_users_gateway_settles_what_it_has_asked_for_and_nothing_else() -> None:
    t = Gated()
    a = t.start("a", limits="cost=1")
    users, _ = t.admitted(replace(t.call(a), gateway_uid=1001))
    own, _ = t.admitted(t.call(a))
    (t >> e.GatewayConnected(t.at, frozenset(), 1002)).skip()
    (t >> e.GatewayGone(t.at, (), 1002)).skip()
    assert list(t.run(a).account.reservations) == [users, own]
    (t >> e.GatewayConnected(t.at, frozenset(), 1001)).skip()
    assert list(t.run(a).account.reservations) == [own]
    (t >> e.GatewayGone(t.at)).skip()
    assert not t.run(a).account.reservations


def test_what_an_earlier_gateway_had_noted_is_charged_as_noted() -> None:
    t = Gated()
    a = t.start("a", limits="cost=1")
    noted, _ = t.admitted(t.call(a))
    t.admitted(t.call(a))
    (t >> e.GatewayGone(t.at, (t.called(noted, cost=0.01),))).skip()
    assert not t.run(a).account.reservations
    assert sorted(call.cost_usd or 0 for call in t.calls) == [0.01, WHOLE]


# ---- records


def test_each_call_is_recorded_with_what_its_run_was_charged() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.5:refuse")
    name, output = t.admitted(t.call(a, output=50_000))
    t.later(3)
    used = use(
        input_tokens=900, output_tokens=400, cached_tokens=100, cost=0.01, turns=2, messages=1
    )
    told, tools = (
        Tokens(input=900, output=400, cached=100, cache_write=50),
        [("Bash", "1"), ("Read", "2")],
    )
    (
        t
        >> t.call_ended(
            name, used, status=200, tokens=told, tools=tools, first_byte_s=0.5, seconds=3.0
        )
    ).skip()
    (call,) = t.calls
    assert (call.run_id, call.state, call.model, call.upstream, f"{a}-{call.number}") == (
        a,
        "ended",
        "m",
        "anthropic",
        name,
    )
    assert (call.input_tokens, call.cached_tokens, call.cache_write_tokens, call.output_tokens) == (
        900,
        100,
        50,
        400,
    )
    assert (call.cost_usd, call.status, call.tools, call.first_byte_s, call.elapsed_s) == (
        0.01,
        200,
        2,
        0.5,
        3.0,
    )
    assert (call.clamped_to, call.reserved_input, call.reserved_output, call.waited_s) == (
        output,
        1000,
        output,
        0.0,
    )
    assert (call.refused, call.error, call.partial) == (None, None, False)


def test_a_refused_call_is_recorded_with_the_reason() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.05:refuse")
    refusal = t.not_called(t.call(a))
    unpriced = t.call(a, priced=False)
    message = t.failed(unpriced)
    assert [(call.state, call.refused, call.cost_usd, call.waited_s) for call in t.calls] == [
        ("refused", refusal, None, 0.0),
        ("refused", message, None, 0.0),
    ]
    assert len({call.number for call in t.calls}) == 2


def test_a_call_whose_price_is_not_known_now_is_refused_also_while_its_run_is_held() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.05:pause")
    (t >> t.call(a)).skip()
    unsure = e.CallPrice(None, unsure="the list cannot be loaded")
    assert (
        t.failed(replace(t.call(a), price=unsure))
        == "the price of the call is not known now: the list cannot be loaded"
    )
    assert [call.state for call in t.calls] == ["refused"]


def test_a_call_of_a_run_that_has_ended_is_refused_and_recorded_with_a_short_name() -> None:
    t = Gated()
    a = t.start("a")
    (t >> t.exited(a)).skip()
    assert t.failed(t.call(a, model="m" * 1000)) == f"run {a} has ended"
    assert [(call.run_id, call.state, call.model) for call in t.calls] == [
        (a, "refused", "m" * MAX_MODEL)
    ]


def test_a_call_that_waits_is_told_and_recorded_once_that_is_decided() -> None:
    t = Gated(hear=frozenset({"waits"}))
    a = t.start("a", limits="cost=0.32:refuse")
    name, _ = t.admitted(t.call(a))
    first, second = t.call(a), t.call(a)
    for each in (first, second):
        t >> each
        assert t.left.count(f"waits {a}") == 1
        t.skip()
    assert [call.state for call in t.machine.waiting_calls(a)] == ["waiting", "waiting"]
    t.later(5)
    (t >> e.CallWithdrawn(t.at, second.token, "it hung up")).skip()
    (t >> t.called(name, cost=0.02)).skip()
    assert [(call.state, call.error) for call in t.calls] == [
        ("withdrawn", "it hung up"),
        ("ended", None),
    ]
    assert t.calls[0].waited_s == 5.0
    admitted = t.admission(first)[0]
    (call,) = t.machine.calls_under_way(a)
    assert (call.state, call.waited_s, f"{a}-{call.number}") == ("under_way", 5.0, admitted)


def test_a_call_that_will_be_asked_again_is_not_recorded() -> None:
    """As before a re-execution."""
    t = Gated()
    a = t.start("a", limits="cost=0.05:pause")
    held = t.call(a)
    (t >> held).skip()
    t >> e.CallWithdrawn(t.at, held.token, None)
    assert t.calls == []


def test_what_a_gateway_never_learnt_to_be_admitted_is_given_back() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.5")
    known, _ = t.admitted(t.call(a, output=1000))
    t.admitted(t.call(a, output=1000))
    (t >> e.GatewayConnected(t.at, frozenset([known, "of another run"]))).skip()
    account = t.run(a).account
    assert list(account.reservations) == [known]
    (t >> t.called(known, cost=0.1)).skip()
    assert account.used(LimitKind.COST) == 100_000_000
    assert not account.sources["gateway"].partial
    assert [(call.state, call.cost_usd or 0) for call in t.calls] == [
        ("withdrawn", 0),
        ("ended", 0.1),
    ]


def test_what_may_not_have_been_used_ends_no_run() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.35")
    t.admitted(t.call(a))
    (t >> e.GatewayGone(t.at)).skip()
    assert t.run(a).account.unsure(LimitKind.COST) == 303_000_000
    assert "0.303 USD of that may not have been used" in t.not_called(t.call(a))
    assert t.run(a).status is Status.RUNNING


def test_what_a_child_that_has_ended_may_not_have_used_ends_no_run_above_it() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.35")
    b = t.start("b", inside(a))
    below = t.start("c", inside(b))
    t.admitted(t.call(below))
    for ended in (below, b):
        (t >> t.exited(ended)).skip()
    assert t.run(a).account.ended_unsure[LimitKind.COST] == 303_000_000
    assert "0.303 USD of that may not have been used" in t.not_called(t.call(a))
    assert t.run(a).status is Status.RUNNING
    saved = msgspec.msgpack.encode(t.run(a).account, enc_hook=to_saved)
    again = from_saved(Account, msgspec.msgpack.decode(saved))
    assert again.ended_unsure == t.run(a).account.ended_unsure


def test_what_is_charged_as_reserved_is_recorded_with_the_cause() -> None:
    t = Gated()
    a, b = t.start("a", limits="cost=1"), t.start("b", limits="cost=1")
    t.admitted(t.call(a))
    t.admitted(t.call(b))
    (t >> t.exited(b)).skip()
    (t >> e.GatewayGone(t.at)).skip()
    of_run, of_gateway = t.calls
    assert (of_run.run_id, of_run.cost_usd, of_run.at_most, of_run.output_tokens) == (
        b,
        WHOLE,
        True,
        20_000,
    )
    assert "its run ended" in (of_run.error or "")
    assert (of_gateway.run_id, of_gateway.cost_usd, of_gateway.at_most) == (a, WHOLE, True)
    assert "the gateway was killed" in (of_gateway.error or "")


STEP = st.tuples(
    st.sampled_from(
        ["ask", "settle", "withdraw", "gateway", "connected", "resume", "wait", "exit"]
    ),
    st.integers(0, 9),
)


@settings(max_examples=examples(50))
@given(
    steps=st.lists(STEP, max_size=40),
    action=st.sampled_from(["terminate", "refuse", "pause", "request_increase"]),
)
def test_every_call_is_recorded_once_and_the_records_add_up(
    steps: list[tuple[str, int]], action: str
) -> None:
    t = Gated()
    a = t.start("a", limits=f"cost=0.9:{action}")
    account = t.run(a).account
    asked: list[e.CallAsked] = []
    for kind, number in steps:
        names = list(account.reservations)
        match kind:
            case "ask":
                asked.append(t.call(a, output=1000 * (number + 1), least=500))
                (t >> asked[-1]).skip()
            case "settle" if names:
                (
                    t
                    >> t.called(
                        names[number % len(names)], cost=0.001 * number, input_tokens=number
                    )
                ).skip()
            case "withdraw" if asked:
                (t >> e.CallWithdrawn(t.at, asked[number % len(asked)].token, "it hung up")).skip()
            case "gateway":
                (t >> e.GatewayGone(t.at)).skip()
            case "connected":
                (t >> e.GatewayConnected(t.at, frozenset(names[:number]))).skip()
            case "resume":
                (t >> t.resume(a, room="cost=5")).skip()
            case "wait":
                t.later(10 * number)
                if t.machine.tree.get(a) is not None:
                    (t >> t.fired(a, Timer.CALLS)).skip()
            case "exit":
                (t >> t.exited(a)).skip()
    open_ = [*t.machine.waiting_calls(a), *t.machine.calls_under_way(a)]
    assert len(open_) + len(t.calls) == len(asked)
    assert len({call.number for call in (*open_, *t.calls)}) == len(asked)
    told = account.sources.get("gateway", Use())
    assert to_nanos(sum(call.cost_usd or 0.0 for call in t.calls)) == (told.cost or 0)
    assert sum(call.input_tokens or 0 for call in t.calls) == (told.input_tokens or 0)


# ---- near the limit


def test_a_call_waits_before_it_is_lowered_as_long_as_others_may_leave_room() -> None:
    """The call for a title reserves all that its program asks for, and uses little of it."""
    t = Gated()
    a = t.start("a", limits="cost=0.5:refuse")
    title, output = t.admitted(t.call(a))
    assert output is None
    answer = t.call(a)
    (t >> answer).skip()
    assert answer.token not in t.answers
    (t >> t.called(title, cost=0.004)).skip()
    assert t.admission(answer)[1] is None


@pytest.mark.parametrize("action", ["pause", "request_increase"])
def test_a_limit_that_pauses_lowers_a_call_only_if_the_rest_is_ample_for_the_runs_replies(
    action: str,
) -> None:
    t = Gated()
    a = t.start("a", limits=f"cost=0.4:{action}")
    name, output = t.admitted(t.call(a, output=64_000))
    assert output == (400_000_000 - 3_000_000) // 15_000, (
        "before its first reply nothing tells that this is too little"
    )
    (t >> t.called(name, output_tokens=8000, cost=0.123)).skip()
    name, output = t.admitted(t.call(a, output=64_000))
    assert output == (277_000_000 - 3_000_000) // 15_000
    (t >> t.called(name, output_tokens=10_000, cost=0.153)).skip()
    held = t.call(a, output=64_000)
    (t >> held).skip()
    assert (held.token in t.answers, t.run(a).status) == (False, Status.PAUSED)


def test_a_run_whose_reply_was_cut_can_be_completed_once_it_has_more_room() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.2:pause")
    name, _ = t.admitted(t.call(a))
    (t >> t.called(name, output_tokens=13_133, cost=0.1999, cut=True)).skip()
    held = t.call(a)
    (t >> held).skip()
    assert t.run(a).status is Status.PAUSED
    (t >> t.resume(a, room="cost=1")).skip()
    (t >> t.called(t.admission(held)[0], cost=0.1)).skip()
    run = t.run(a)
    (t >> t.exited(a, 0)).skip()
    assert run.status is Status.COMPLETED


@pytest.mark.parametrize("action", ["terminate", "refuse"])
@pytest.mark.parametrize("code", [0, 1])
def test_a_run_whose_reply_was_cut_by_a_limit_fails_whatever_its_agent_says(
    action: str, code: int
) -> None:
    t = Gated()
    a = t.start("a", limits=f"cost=0.2:{action}", attempts=3)
    b = t.start("b", inside(a), limits="cost=5", attempts=3)
    parent, child = t.run(a), t.run(b)
    name, output = t.admitted(t.call(b))
    assert output == 13133
    (t >> t.called(name, cost=0.1999, cut=True)).skip()
    assert child.status is Status.RUNNING, "its agent may print what it has"
    told = next(event for event in t.published if event.type == "limit_exceeded")
    assert (told.type, told.action) == ("limit_exceeded", None), "nothing follows yet"
    next_ = {"terminate": "the next call ends the run", "refuse": "the next call is refused"}
    assert told.message.startswith("its last reply was cut at 13 133 tokens; used 0.1999 USD")
    assert told.message.endswith(next_[action])
    for run in (b, a):
        (t >> t.exited(run, code)).skip()
    for ended in (child, parent):
        assert ended.ending is not None
        assert ended.ending.reason is not None
        assert (ended.status, ended.ending.reason.limit_kind) == (Status.FAILED, "cost")
        assert ended.ending.reason.message.startswith(
            "its last reply was cut at 13 133 tokens; used 0.1999 USD"
        )


def test_a_reply_that_ends_by_itself_at_what_was_asked_for_is_no_breach() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.5")
    run = t.run(a)
    name, output = t.admitted(t.call(a))
    assert output is None
    (t >> t.called(name, cost=0.3)).skip()
    (t >> t.exited(a, 0)).skip()
    assert run.status is Status.COMPLETED


# ---- around the gateway


@pytest.mark.parametrize(
    ("limits", "ends"), [("cost=5", True), ("cost=5:warn", False), ("turns=5", False)]
)
def test_use_that_the_gateway_did_not_see_is_told_and_ends_a_run_that_a_person_has_bounded(
    limits: str, ends: bool
) -> None:
    t = Gated(hear=frozenset({"publish"}))
    a = t.start("a", limits=limits, gated=True)
    b = t.start("b", inside(a), gated=True)
    t >> t.used(b, "session", input_tokens=900, output_tokens=100)
    assert f"publish gateway_bypassed {b}" in t.left
    t.skip()
    assert (t.run(a).seen.bypassed, t.run(b).seen.bypassed) == ({"below"}, {"session"})
    assert (t.run(b).status is Status.STOPPING, t.run(a).status) == (ends, Status.RUNNING)
    t >> t.used(b, "session", input_tokens=1800, output_tokens=200)
    assert f"publish gateway_bypassed {b}" not in t.left, "it is told once"
    t.skip()


def test_figures_of_calls_that_the_gateway_saw_or_sees_now_tell_of_no_way_around_it() -> None:
    t = Gated()
    a = t.start("a", limits="cost=5", gated=True)
    name, _ = t.admitted(t.call(a))
    (t >> t.used(a, "session", input_tokens=1000, output_tokens=100)).skip()
    (t >> t.called(name, input_tokens=1000, output_tokens=100)).skip()
    (t >> t.used(a, "stream", input_tokens=2000, output_tokens=300)).skip()
    assert not t.run(a).seen.bypassed
    (t >> t.used(a, "stream", input_tokens=30_000, output_tokens=300)).skip()
    assert t.run(a).seen.bypassed
    free = t.start("free", limits="cost=5")
    (t >> t.used(free, "session", input_tokens=1000, output_tokens=100)).skip()
    assert not t.run(free).seen.bypassed, "it does not use the gateway"


def test_what_a_child_uses_through_the_gateway_may_be_in_the_output_of_the_run_above_it() -> None:
    t = Gated()
    a = t.start("a", limits="cost=5", gated=True)
    b = t.start("b", inside(a), gated=True)
    name, _ = t.admitted(t.call(b))
    (t >> t.called(name, input_tokens=30_000, output_tokens=100)).skip()
    (t >> t.used(a, input_tokens=30_000, output_tokens=120)).skip()
    assert not t.run(a).seen.bypassed
    (t >> t.used(a, input_tokens=90_000, output_tokens=120)).skip()
    assert t.run(a).seen.bypassed == {"stream"}


@pytest.mark.parametrize("source", ["stream", "report"])
def test_an_agent_that_meters_itself_goes_around_nothing(source: Source) -> None:
    t = Gated(hear=frozenset({"publish"}))
    a = t.start("a", limits="cost=5", gated=True)
    b = t.start("b", inside(a), gated=True, tells_each_call=True)
    t.left = []
    t >> t.used(b, source, input_tokens=90_000, output_tokens=100)
    t >> e.ModelReached(t.at, b, "opencode", "api.openai.com:443")
    t >> t.used(b, "session", input_tokens=100_000, output_tokens=100)
    t.quiet()
    assert not t.run(b).seen.bypassed
    t >> t.used(b, "session", input_tokens=300_000, output_tokens=100)
    assert t.run(b).seen.bypassed == {"session"}, "a program within it uses more than it tells"
    t.skip()


def test_the_word_about_a_way_around_the_gateway_names_the_option_for_it() -> None:
    t = Gated()
    a = t.start("a", limits="cost=5", gated=True)
    (t >> t.used(a, "session", input_tokens=900)).skip()
    reason = t.run(a).shown_reason
    assert reason is not None
    assert "If it shall go around it, start it with --no-gateway" in reason.message


@pytest.mark.parametrize(("limits", "ends"), [("cost=5", True), ("cost=5:warn", False)])
def test_a_call_on_a_connection_to_a_model_tells_of_a_way_around_the_gateway(
    limits: str, ends: bool
) -> None:
    t = Gated(hear=frozenset({"publish"}))
    a = t.start("a", limits=limits, gated=True)
    (t >> t.called(t.admitted(t.call(a))[0], input_tokens=9)).skip()
    reached = e.ModelReached(t.at, a, "opencode", "api.openai.com:443", 34 << 10)
    t >> reached << f"publish gateway_bypassed {a}"
    t.skip()
    assert t.run(a).seen.bypassed == {"connection"}
    assert (t.run(a).status is Status.STOPPING) == ends
    reason = t.run(a).shown_reason
    assert (
        reason is not None
        and reason.message.startswith(
            "it calls its model around the gateway: 'opencode' runs in it, it has a connection to "
            "api.openai.com:443, on which 34 KiB were sent and answered"
        )
    ) == ends
    t >> reached
    t.quiet()
    if not ends:  # another cause is told for itself
        t >> t.used(a, "session", input_tokens=90_000)
        assert f"publish gateway_bypassed {a}" in t.left
        t.skip()


@pytest.mark.parametrize(("limits", "ends"), [("cost=5", True), ("cost=5:warn", False)])
def test_work_that_is_handed_to_a_server_outside_is_told_and_ends_a_run_that_a_person_has_bounded(
    limits: str, ends: bool
) -> None:
    """Also where the run does not use the gateway: its meter sees nothing of it, either."""
    t = Gated(hear=frozenset({"publish"}))
    a = t.start("a", limits=limits)
    b = t.start("b", inside(a))
    handed = e.HandedOff(t.at, b, "claude", "`claude --bg` hands work to a server")
    t >> handed << f"publish handed_off {b}"
    t.skip()
    assert t.run(b).seen.handed_off == {"`claude --bg` hands work to a server"}
    assert (t.run(b).status is Status.STOPPING, t.run(a).status) == (ends, Status.RUNNING)
    t >> handed
    t.quiet()


def test_a_connection_tells_nothing_of_a_run_whose_calls_need_not_come_through_the_gateway() -> (
    None
):
    t = Gated(hear=frozenset({"publish"}))
    free = t.start("free", limits="cost=5")
    t >> e.ModelReached(t.at, free, "opencode", "api.openai.com:443")
    t.quiet()
    assert not t.run(free).seen.bypassed


def test_what_went_around_the_gateway_adds_to_what_came_through_it() -> None:
    t = Gated(purses=Sums)
    a = t.start("a", limits="cost=5:warn", gated=True)
    b = t.start("b", inside(a), gated=True)

    def shown() -> tuple[Source, float | None, int | None, bool]:
        best = t.run(b).account.best
        assert best is not None
        assert t.run(a).account.used(LimitKind.COST) == best[1].cost
        assert t.charged == {"ann": to_usd(best[1].cost)}
        return best[0], to_usd(best[1].cost), best[1].tokens, best[1].partial

    (t >> t.called(t.admitted(t.call(b))[0], input_tokens=900, cost=0.25)).skip()
    assert shown() == ("gateway", 0.25, 900, False)
    (t >> t.used(b, "session", input_tokens=90, output_tokens=10, cost=0.5)).skip()
    assert not t.run(b).seen.bypassed, "that may be one of the gateway's calls"
    (t >> t.used(b, "around", input_tokens=90, output_tokens=10, cost=0.5)).skip()
    assert t.run(b).seen.bypassed == {"session"}
    assert shown() == ("gateway", 0.75, 1000, True)
    # the session of the program that calls through the gateway is found, too
    (t >> t.used(b, "session", input_tokens=1000, output_tokens=10, cost=0.875)).skip()
    assert shown() == ("session", 0.875, 1010, True)

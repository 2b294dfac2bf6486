"""Limits that conclude: one last call, with what was kept back for it, then the run ends."""

from __future__ import annotations

import pytest

from sfad.core import events as e
from sfad.core.state.vocabulary import Timer
from sfad.features.gateway.calls import LAST_WORDS
from sfad.protocol.requests.gateway import CallDecision
from sfad.protocol.types import LimitKind, Status
from tests.core.transcript import inside

from .transcript import Gated


def decision(t: Gated, run: str, output: int = 20_000) -> CallDecision:
    """Return the answer to a call."""
    event = t.call(run, output)
    (t >> event).skip()
    answer = t.answers[event.token]
    assert isinstance(answer, CallDecision), answer
    return answer


def concluding(limit: str = "cost=1:conclude") -> tuple[Gated, str, str]:
    """Return a run whose last call is under way, and the reservation of that."""
    t = Gated()
    a = t.start("a", limits=limit)
    for _ in range(3):
        answer = decision(t, a)
        assert answer.last is None
        assert answer.reservation is not None
        (t >> t.called(answer.reservation, cost=0.29, input_tokens=1000, output_tokens=19_000))
        t.skip()
    answer = decision(t, a)
    assert answer.last == LAST_WORDS
    assert answer.reservation is not None
    return t, a, answer.reservation


def test_the_last_call_has_what_was_kept_back() -> None:
    t, a, last = concluding()
    reserved = t.run(a).account.reservations[last]
    # 0.87 is used, so that less than 0.03 is left of the first nine tenths
    assert reserved.cost is not None
    assert 0.1 < reserved.cost / 1e9 <= 0.13
    assert t.said.count("over a1 cost 0.87/1 refused") == 1
    assert t.run(a).latest.last_call == "under_way"
    (t >> t.called(last, cost=0.12, input_tokens=1000, output_tokens=7000)).skip()
    used = t.run(a).account.used(LimitKind.COST)
    assert used is not None
    assert used <= 1_000_000_000
    assert t.run(a).status is Status.RUNNING
    refused = decision(t, a, 10).refused
    assert refused is not None
    assert "has made its last call" in refused
    assert t.run(a).status is Status.STOPPING
    assert t.run(a).outcome is Status.FAILED


def test_a_run_that_makes_no_further_call_is_stopped_after_a_while() -> None:
    t, a, last = concluding()
    (t >> t.called(last, cost=0.1)).skip()
    t.later(t.machine.policy.stop.result_wait)
    (t >> e.TimerFired(t.at, a, Timer.RESULT)).skip()
    run = t.run(a)
    assert (run.status, run.outcome) == (Status.STOPPING, Status.FAILED)
    assert run.ending is not None
    assert run.ending.reason is not None
    assert (run.ending.reason.kind, run.ending.reason.limit_kind) == ("limit", "cost")
    assert "that was kept back" in run.ending.reason.message


def test_a_run_that_ends_after_its_last_call_is_not_completed() -> None:
    t, a, last = concluding()
    (t >> t.called(last, cost=0.1)).skip()
    (t >> e.MainExited(t.at, a, 0, empty=True)).skip()
    assert "run_failed a1" in t.events


def test_a_last_call_that_gets_no_answer_may_be_made_again() -> None:
    t, a, last = concluding()
    (t >> t.call_ended(last, failed=True, status=529)).skip()
    assert decision(t, a).last == LAST_WORDS


def test_without_room_for_a_last_call_the_run_is_terminated() -> None:
    t = Gated()
    a = t.start("a", limits="cost=0.01:conclude")
    assert "above its cost limit" in t.not_called(t.call(a, tokens=5000))
    assert t.run(a).status is Status.STOPPING


@pytest.mark.parametrize("kind", ["turns", "tokens"])
def test_turns_and_tokens(kind: str) -> None:
    t = Gated()
    limit = "turns=2:conclude" if kind == "turns" else "tokens=30000:conclude"
    a = t.start("a", limits=f"{limit} cost=50")
    first = decision(t, a)
    assert first.last is None
    assert first.reservation is not None
    (t >> t.called(first.reservation, input_tokens=1000, output_tokens=24_000, turns=1)).skip()
    assert decision(t, a).last == LAST_WORDS


def test_each_run_below_the_limit_has_a_last_call_of_its_own() -> None:
    t = Gated()
    a = t.start("a", limits="cost=1:conclude")
    b, d = (t.start(name, inside(a), limits="cost=5") for name in ("b", "d"))
    for _ in range(3):
        answer = decision(t, b)
        assert answer.reservation is not None
        (t >> t.called(answer.reservation, cost=0.29)).skip()
    last = decision(t, b)
    assert last.last == LAST_WORDS
    assert last.reservation is not None
    (t >> t.called(last.reservation, cost=0.02)).skip()
    assert decision(t, d).last == LAST_WORDS
    assert t.run(a).status is Status.RUNNING


@pytest.mark.parametrize(
    "limit", ["time=60:conclude", "messages=5:conclude", "silence=60:conclude"]
)
def test_other_kinds_cannot_conclude(limit: str) -> None:
    t = Gated()
    assert "cannot conclude" in t.failed(t.spawn("a", limits=limit))

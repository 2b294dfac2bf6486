"""Rates and parallel calls of runs and users."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.core import events as e
from sfad.core.state.policy import CallBounds, CallPolicy, Policy
from sfad.core.state.quotas import SlidingRate
from sfad.core.state.vocabulary import Timer
from sfad.protocol.types import Status
from tests.core.transcript import BOB, Transcript

AMPLE = "cost=50 turns=100"


FREE = CallBounds()


def bounded(*, run: CallBounds = FREE, user: CallBounds = FREE, wait: float = 60.0) -> Transcript:
    """Return a machine with bounds."""
    return Transcript(
        calls_per_run=run,
        calls_per_user=user,
        calls=CallPolicy(wait=wait),
        files={"gateway.per_run.calls_per_minute": "F"},
    )


def test_a_call_above_the_rate_waits_until_there_is_room() -> None:
    t = bounded(run=CallBounds(calls_per_minute=2))
    a = t.start("a", limits=AMPLE)
    for _ in range(2):
        t.admitted(t.call(a, 10))
        t.later(10)
    waiting, next_ = t.call(a, 10), t.call(a, 10)
    t >> waiting
    t << f"arm {a} calls +40"
    t >> next_
    t.quiet()
    t.later(40)
    t >> t.fired(a, Timer.CALLS)
    assert t.admission(waiting)
    assert f"arm {a} calls +10" in t.left
    t.skip().later(10)
    (t >> t.fired(a, Timer.CALLS)).skip()
    assert t.admission(next_)


def test_a_call_that_would_wait_too_long_is_refused_with_the_time() -> None:
    t = bounded(run=CallBounds(calls_per_minute=1), wait=30)
    a = t.start("a", limits=AMPLE)
    t.admitted(t.call(a, 10))
    t.later(18)
    answer = t.postponed(t.call(a, 10))
    assert answer.retry_after == 42
    assert str(answer.refused) == (
        f"run {a} ('a') has made 1 model call within a minute, "
        "and gateway.per_run.calls_per_minute in F allows 1; the next is possible in 42 s"
    )
    t.later(12)
    first = t.call(a, 10)
    (t >> first).skip()
    assert "1 model call already wait" in str(t.postponed(t.call(a, 10)).refused)
    assert first.token not in t.answers
    assert t.run(a).status is Status.RUNNING, "its agent may try again"


def test_parallel_calls_wait_for_each_other_and_are_refused_after_that() -> None:
    t = bounded(run=CallBounds(concurrent_calls=2))
    a, b = t.start("a", limits=AMPLE), t.start("b", limits=AMPLE)
    name, _ = t.admitted(t.call(a, 10))
    t.admitted(t.call(a, 10))
    t.admitted(t.call(b, 10))
    waiting, next_ = t.call(a, 10), t.call(a, 10)
    for call in (waiting, next_):
        (t >> call).skip()
    (t >> t.called(name, cost=0.01)).skip()
    assert t.admission(waiting)
    t.later(60)
    (t >> t.fired(a, Timer.CALLS)).skip()
    answer = t.refusal(next_)
    assert answer.retry_after == 1
    assert (
        "has 2 model calls under way, and gateway.per_run.concurrent_calls in the config allows 2"
        in str(answer.refused)
    )


def test_bounds_of_a_user_are_shared_by_all_its_runs() -> None:
    t = bounded(
        user=CallBounds(concurrent_calls=1, calls_per_minute=3),
        run=CallBounds(calls_per_minute=1),
        wait=0,
    )
    a, b, other = (
        t.start("a", limits=AMPLE),
        t.start("b", limits=AMPLE),
        t.start("c", BOB, limits=AMPLE),
    )
    name, _ = t.admitted(t.call(a, 10))
    assert "user ann has 1 model call under way" in str(t.postponed(t.call(b, 10)).refused)
    t.admitted(t.call(other, 10))
    for run in (b, t.start("d", limits=AMPLE)):
        (t >> t.called(name, cost=0.01)).skip()
        name, _ = t.admitted(t.call(run, 10))
    (t >> t.called(name, cost=0.01)).skip()
    assert "user ann has made 3 model calls" in str(
        t.postponed(t.call(t.start("f", limits=AMPLE), 10)).refused
    )


def test_a_call_that_waits_for_its_runs_rate_takes_no_place_of_its_user() -> None:
    t = bounded(run=CallBounds(calls_per_minute=1), user=CallBounds(calls_per_minute=2))
    a, b = t.start("a", limits=AMPLE), t.start("b", limits=AMPLE)
    t.admitted(t.call(a, 10))
    (t >> t.call(a, 10)).skip()
    t.admitted(t.call(b, 10))


def test_what_cannot_be_paid_for_does_not_wait_for_a_rate() -> None:
    t = bounded(run=CallBounds(calls_per_minute=1))
    a = t.start("a", limits="messages=1:refuse")
    t.admitted(t.call(a, 10))
    t.later(60)
    t.machine.handle(e.GatewayGone(t.at))
    assert "messages limit" in t.not_called(t.call(a, 10))


def test_another_bound_counts_at_once() -> None:
    t = bounded(run=CallBounds(calls_per_minute=1))
    a = t.start("a", limits=AMPLE)
    t.admitted(t.call(a, 10))
    waiting = t.call(a, 10)
    (t >> waiting).skip()
    (t >> e.Reconfigured(t.at, Policy(calls_per_run=CallBounds(calls_per_minute=2)))).skip()
    assert t.admission(waiting)


@given(
    st.integers(1, 4),
    st.lists(st.floats(0, 30), max_size=12).map(sorted),
    st.integers(0, 12),
)
def test_when_the_window_has_room(limit: int, times: list[float], ahead: int) -> None:
    """As if each call that waits were made as soon as it may."""
    window = SlidingRate(limit, 10.0)
    for at in times:
        window.take(at)
    now = times[-1] if times else 0.0
    made = [at for at in times if at + 10 > now]
    for _ in range(ahead + 1):
        free_at = max(now, made[-limit] + 10) if len(made) >= limit else now
        made.append(free_at)
    # sums are rounded in another order
    assert window.free_at(now, ahead) == pytest.approx(made[-1])

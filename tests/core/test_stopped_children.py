"""A run that ends before its children says which of them its end has stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sfad.core import events as e
from sfad.core.life.attempts import backoff
from sfad.protocol.types import RunId, StoppedChildren

from .transcript import Transcript, inside, limits, seconds

End = Callable[[Transcript, RunId], e.Event]


def end_of(t: Transcript, run: RunId) -> str:
    """Return the message of the event of a run's end."""
    return next(
        event.message
        for event in t.published
        if event.run_id == run
        and event.type in ("run_completed", "run_failed", "run_timeout", "run_cancelled")
    )


def ended(t: Transcript, run: RunId, event: e.Event) -> str:
    (t >> event).skip()
    (t >> t.emptied(run)).skip()
    return end_of(t, run)


ONE = "stopped 1 child that was still running: writer"


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (lambda t, a: t.exited(a, 0, empty=False), f"{ONE}; wait for it"),
        # that nothing else is alive in its containment is no matter
        (lambda t, a: t.exited(a, 0, empty=True), f"{ONE}; wait for it"),
        (lambda t, a: t.exited(a, 3, empty=False), f"exited with code 3; {ONE}"),
        (lambda t, a: t.exited(a, None, signal=9, empty=False), f"killed by SIGKILL; {ONE}"),
        (lambda t, a: t.stop(a), "stopped by user ann (SIGTERM); stopped 1 child with it: writer"),
    ],
)
def test_the_words_depend_on_what_ended_it(end: End, message: str) -> None:
    t = Transcript()
    a = t.start("a")
    b = t.start("writer", inside(a))
    assert ended(t, a, end(t, a)) == message
    assert end_of(t, b) == f"its ancestor {a} ('a') ended or was stopped"


def test_a_limit_that_ends_it_stops_children_with_it() -> None:
    t = Transcript()
    a = t.start("a", limits=(*limits("turns=5"), seconds(100)))
    t.start("writer", inside(a))
    message = ended(t, a, t.used(a, turns=6))
    assert message.endswith("; stopped 1 child with it: writer")


def stopped_by_end(t: Transcript, a: RunId) -> StoppedChildren | None:
    run = t.run(a)
    (t >> t.exited(a, 0, empty=False)).skip()
    return run.stopped_children


def test_many_children_are_counted_and_some_are_named() -> None:
    t = Transcript()
    a = t.start("a")
    for name in ("w", "w", "x", "y", "z", "z"):
        t.start(name, inside(a))
    found = stopped_by_end(t, a)
    assert found == StoppedChildren(
        count=6,
        names=["w", "x", "y"],
        message="stopped 6 children that were still running: w (2), x, y and 2 more; wait for them",
    )


def test_only_a_run_that_may_detach_is_told_of_that() -> None:
    t = Transcript(allow_detach=True)
    a = t.start("a")
    t.start("writer", inside(a))
    found = stopped_by_end(t, a)
    assert found is not None
    assert found.message == f"{ONE}; wait for it, or --detach"


def test_children_that_wait_or_are_paused_do_not_run() -> None:
    t = Transcript()
    a = t.start("a")
    b = t.start("b", inside(a))
    (t >> t.pause(b)).skip()
    found = stopped_by_end(t, a)
    assert found is not None
    assert found.message == ("stopped 1 child that was still paused: b; wait for it")


def test_each_run_on_the_way_down_names_its_own_children_and_one_that_had_ended_is_not() -> None:
    t = Transcript()
    a, b, c = t.chain("a", "b", "c")
    (t >> t.exited(t.start("done", inside(a)), 0)).skip()
    (t >> t.exited(a, 0, empty=False)).skip()
    (t >> t.emptied(a)).skip()
    assert end_of(t, a).startswith("stopped 1 child that was still running: b;")
    assert end_of(t, b).endswith("; stopped 1 child with it: c")
    assert "stopped 1" not in end_of(t, c)


def test_one_that_ends_after_its_children_stops_none() -> None:
    t = Transcript()
    a, b = t.chain("a", "b")
    (t >> t.exited(b, 0)).skip()
    (t >> t.exited(a, 0)).skip()
    assert end_of(t, a) == ""


def test_an_attempt_tells_of_its_own_children_only() -> None:
    t = Transcript()
    a = t.start("a", attempts=2)
    t.start("writer", inside(a))
    (t >> t.exited(a, 1, empty=False)).skip()
    (t >> t.emptied(a)).skip()
    assert t.progress[-1].startswith(f"attempt 1 of 2 exited with code 1; {ONE}; the next begins")
    t.later(backoff(a, 1, first=1.0, cap=60.0))
    (t >> t.fired(a, "retry")).skip()
    (t >> t.launched(a)).skip()
    (t >> t.exited(a, 0)).skip()
    assert end_of(t, a) == ""

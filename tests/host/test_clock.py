"""One heap, one task, no polling: time is trio's, so an hour passes at once."""

from __future__ import annotations

import weakref

import trio
from trio.testing import MockClock

from sfad.host.clock import Timers


def fail(error: Exception) -> None:
    raise error


async def test_timers_fire_in_order_and_once(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    timers, fired = Timers(fail), list[tuple[str, float]]()
    began = trio.current_time()

    def note(name: str) -> None:
        fired.append((name, round(trio.current_time() - began, 6)))

    for name, at in (("c", 30.0), ("a", 10.0), ("b", 20.0), ("gone", 15.0)):
        timers.arm(name, began + at, lambda name=name: note(name))  # type: ignore[misc]
    timers.disarm("gone")
    timers.disarm("never armed")
    nursery.start_soon(timers.serve)
    await trio.sleep(100)
    assert fired == [("a", 10.0), ("b", 20.0), ("c", 30.0)]
    assert len(timers) == 0


async def test_a_timer_can_be_moved_both_ways(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    timers, fired = Timers(fail), list[float]()
    began = trio.current_time()
    nursery.start_soon(timers.serve)
    timers.arm("x", began + 50, lambda: fired.append(trio.current_time() - began))
    await trio.sleep(1)
    timers.arm("x", began + 10, lambda: fired.append(trio.current_time() - began))
    timers.arm("y", began + 5, lambda: fired.append(trio.current_time() - began))
    timers.arm("y", began + 70, lambda: fired.append(trio.current_time() - began))
    await trio.sleep(200)
    assert [round(at, 6) for at in fired] == [10.0, 70.0]


async def test_a_timer_may_arm_the_next(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    timers, fired = Timers(fail), list[float]()
    began = trio.current_time()

    def again() -> None:
        fired.append(round(trio.current_time() - began, 6))
        if len(fired) < 3:
            timers.arm("x", trio.current_time() + 10, again)

    timers.arm("x", began + 10, again)
    nursery.start_soon(timers.serve)
    await trio.sleep(100)
    assert fired == [10.0, 20.0, 30.0]


class Key:
    """A key whose life can be watched."""


def test_disarmed_timers_do_not_pile_up() -> None:
    timers = Timers(fail)
    kept = weakref.WeakSet[Key]()
    for _ in range(10_000):
        kept.add(key := Key())
        timers.arm(key, 1e9, lambda: None)
        timers.disarm(key)
    assert len(timers) == 0
    assert len(kept) < 1000


async def test_a_call_that_fails_does_not_keep_the_others(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    errors: list[Exception] = []
    fired: list[str] = []
    timers = Timers(errors.append)
    timers.arm("x", trio.current_time() + 1, lambda: fail(ValueError("x")))
    timers.arm("y", trio.current_time() + 2, lambda: fired.append("y"))
    nursery.start_soon(timers.serve)
    await trio.sleep(3)
    assert ([str(error) for error in errors], fired) == (["x"], ["y"])

"""Work that keeps a CPU busy is done one after the other, and askers take turns; what has waited
goes on in its order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable

import trio
import trio.testing

from sfad.host.tasks import FairLock, Line, LoopRounds


async def test_an_asker_waits_for_one_piece_of_work_of_each_other_asker() -> None:
    lock, done = FairLock(), list[str]()
    begun = trio.Event()

    async def work(name: str, *groups: str) -> None:
        async with lock.turn(groups):
            await begun.wait()
            done.append(name)

    async with trio.open_nursery() as nursery:
        for name, groups in (
            *(("many", ("tree a", "user ann")),) * 20,
            *(("of ann's other tree", ("tree b", "user ann")),) * 2,
            *(("of bob", ("user bob",)),) * 2,
            ("of nobody", ()),
        ):
            nursery.start_soon(work, name, *groups)
            await trio.testing.wait_all_tasks_blocked()
        begun.set()
    assert done[:6] == ["many", "of bob", "of nobody", "of ann's other tree", "of bob", "many"]
    assert len(done) == 25


async def test_a_line_goes_on_in_its_order_one_a_round() -> None:
    line, rounds, there = Line(), LoopRounds(), trio.Event()
    went_on, at = list[int](), Counter[int]()

    async def wait(number: int) -> None:
        if number % 3:  # others are ready before those in front of them, or have failed
            await there.wait()
        elif number % 2:
            raise ValueError

    async def take(number: int, place: Awaitable[None]) -> None:
        try:
            await place
        except ValueError:
            assert number % 6 == 3
        went_on.append(number)
        at[rounds.number] += 1

    trio.lowlevel.add_instrument(rounds)
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(take, number, line.place("key", wait(number)))
        nursery.start_soon(take, 100, line.place("another key", wait(0)))
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(went_on) == [0, 100], "no other line waits"
        assert not line.is_empty("key")
        there.set()
    trio.lowlevel.remove_instrument(rounds)
    assert [number for number in went_on if number < 100] == list(range(100))
    assert max(at.values()) <= 2
    assert line.is_empty("key")


async def test_who_leaves_a_line_without_going_on_is_not_waited_for() -> None:
    line, went_on = Line(), list[str]()

    async def forever() -> None:
        await trio.sleep_forever()

    async def at_once() -> None:
        await trio.lowlevel.checkpoint()

    async def take(name: str, place: Awaitable[None]) -> None:
        await place
        went_on.append(name)

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0):
            stuck = line.place("key", forever())
            nursery.start_soon(take, "behind", line.place("key", at_once()))
            await stuck
    assert went_on == ["behind"]

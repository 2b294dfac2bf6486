"""Work that keeps a CPU busy is done one after the other, and askers take turns; what has waited
goes on in its order."""

from __future__ import annotations

from collections import Counter

import trio
import trio.testing

from sfad.host.tasks import ROUND_REQUESTS, Background, FairLock, Line, LoopRounds


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


class Shared:
    """Work that those in a line wait for."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = trio.Event()

    async def work(self) -> int:
        self.begun += 1
        number = self.begun
        await self.go_on.wait()
        if number == 9:
            raise ValueError("the ninth")
        return number


async def test_a_line_goes_on_in_its_order_some_a_round() -> None:
    """No task waits for those that `begin` executes, and all that come before a piece of work
    begins share it."""
    background, rounds, shared = Background(print), LoopRounds(), Shared()
    line, went_on, at = Line(background), list[tuple[int, int]](), Counter[int]()

    async def wait(number: int, key: str = "key") -> None:
        went_on.append((number, await line.wait(key, shared.work)))
        at[rounds.number] += 1
        if number % 2:  # it may wait for a second thing
            await background.aside()
            await trio.lowlevel.checkpoint()

    trio.lowlevel.add_instrument(rounds)
    async with trio.open_nursery() as nursery:
        await nursery.start(background.serve)
        background.begin(wait(0))
        await trio.testing.wait_all_tasks_blocked()
        for number in range(1, 100):
            background.begin(wait(number))
        assert len(nursery.child_tasks) == 1
        background.begin(wait(100, "another key"))
        await trio.testing.wait_all_tasks_blocked()
        assert not went_on
        assert shared.begun == 2, "of each key one"
        assert not line.is_empty("key")
        shared.go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(rounds)
    assert [number for number, _ in went_on if number < 100] == list(range(100))
    assert ROUND_REQUESTS <= max(at.values()) <= ROUND_REQUESTS + 2
    assert line.is_empty("key")


async def test_what_fails_in_a_line_is_raised_in_each_that_waits_for_it() -> None:
    background, shared = Background(print), Shared()
    line, raised = Line(background), list[str]()
    shared.begun = 8
    shared.go_on.set()

    async def wait() -> None:
        try:
            await line.wait("key", shared.work)
        except ValueError as error:
            raised.append(str(error))

    async with trio.open_nursery() as nursery:
        await nursery.start(background.serve)
        nursery.start_soon(wait)  # a task
        await trio.lowlevel.checkpoint()
        background.begin(wait())
        await trio.testing.wait_all_tasks_blocked()
        background.begin(line.wait("key", shared.work))  # type: ignore[arg-type]
        await trio.testing.wait_all_tasks_blocked()
        assert line.is_empty("key"), "work that succeeds afterwards is waited for as before"
        nursery.cancel_scope.cancel()
    assert raised == ["the ninth"] * 2


async def test_what_waits_in_a_line_is_closed_with_the_daemon() -> None:
    background, shared, closed = Background(print), Shared(), list[str]()
    line = Line(background)

    async def wait() -> None:
        try:
            await line.wait("key", shared.work)
        finally:
            closed.append("descriptors")

    async with trio.open_nursery() as nursery:
        await nursery.start(background.serve)
        background.begin(wait())
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert closed == ["descriptors"]

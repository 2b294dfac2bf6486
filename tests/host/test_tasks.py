"""Work that keeps a CPU busy is done one after the other, and askers take turns."""

from __future__ import annotations

import trio
import trio.testing

from sfad.host.tasks import FairLock


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

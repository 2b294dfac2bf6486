"""What the reactor does once no task has anything to do."""

from __future__ import annotations

import trio

from sfad.processes import watch as module
from sfad.processes.watch import Reactor


async def test_idle_calls_wait_until_no_task_is_ready(nursery: trio.Nursery) -> None:
    reactor, made, busy, all_made = Reactor(), list[int](), True, trio.Event()

    async def work() -> None:
        while busy:
            await trio.lowlevel.checkpoint()

    nursery.start_soon(reactor.run)
    nursery.start_soon(work)
    await trio.lowlevel.checkpoint()
    for number in range(10):
        reactor.when_idle(made.append, number)
    reactor.when_idle(trio.lowlevel.current_trio_token().run_sync_soon, all_made.set)
    for _ in range(20):
        await trio.lowlevel.checkpoint()
    assert made == []
    busy = False
    with trio.fail_after(60):
        await all_made.wait()
    assert made == list(range(10))
    nursery.cancel_scope.cancel()
    reactor.close()


def test_few_calls_wait_for_an_idle_loop_and_none_is_lost() -> None:
    reactor, made = Reactor(), list[int]()
    for number in range(module.MOST_IDLE + 2):
        reactor.when_idle(made.append, number)
    assert made == [0, 1]
    reactor.finish_idle()
    assert made == list(range(module.MOST_IDLE + 2))
    reactor.close()

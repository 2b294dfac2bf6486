"""When the daemon looks for ended orphans."""

from __future__ import annotations

import math
import os
import signal

import pytest
import trio
import trio.testing

from sfad.launch import procfs
from sfad.launch.watch.reaper import ChildSignals, Orphans


async def test_orphans_are_looked_at_when_a_signal_tells_and_not_by_time(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    orphans = Orphans()
    looks = 0

    def children() -> set[int]:
        nonlocal looks
        looks += 1
        return {1}  # alive, and no child of this process

    monkeypatch.setattr(procfs, "children", children)
    nursery.start_soon(orphans.serve)
    await trio.sleep(60)
    assert (looks, trio.lowlevel.current_statistics().seconds_to_next_deadline) == (1, math.inf)
    orphans.notice()
    await trio.sleep(60)
    assert looks == 2


async def test_a_signal_that_another_thread_has_taken_ends_nothing(nursery: trio.Nursery) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    both = [ChildSignals() for _ in range(2)]  # one signal makes both readable, and the first reads it
    told = [0, 0]
    heard = trio.Event()

    def notice(which: int) -> None:
        told[which] += 1
        if all(told):
            heard.set()

    try:
        for which, signals in enumerate(both):
            nursery.start_soon(signals.serve, lambda which=which: notice(which))
        await trio.testing.wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGCHLD)
        with trio.fail_after(60):
            await heard.wait()
        nursery.cancel_scope.cancel()
    finally:
        for signals in both:
            signals.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""When the daemon looks for ended orphans."""

from __future__ import annotations

import math
import select
import signal
import threading

import pytest
import trio
import trio.testing

from sfad.processes import kernel
from sfad.processes.launcher import ChildSignals
from sfad.processes.watch import Orphans


async def test_orphans_are_looked_at_when_a_signal_tells_and_not_by_time(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    orphans = Orphans()
    looks = 0

    def children(_parent: int) -> set[int]:
        nonlocal looks
        looks += 1
        return {1}  # alive, and no child of this process

    monkeypatch.setattr(kernel, "children", children)
    nursery.start_soon(orphans.serve)
    await trio.sleep(60)
    assert (looks, trio.lowlevel.current_statistics().seconds_to_next_deadline) == (1, math.inf)
    orphans.notice()
    await trio.sleep(60)
    assert looks == 2


def test_a_signal_that_another_thread_has_taken_ends_nothing() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signals = ChildSignals()
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGCHLD)
        assert select.select([signals], [], [], 60)[0] == [signals]
        # as a thread without the mask would
        assert signal.sigtimedwait({signal.SIGCHLD}, 0) is not None
        signals.take()
        assert select.select([signals], [], [], 0)[0] == []
    finally:
        signals.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

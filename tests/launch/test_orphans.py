"""When the daemon looks for ended orphans."""

from __future__ import annotations

import math

import pytest
import trio

from sfad.launch import procfs
from sfad.launch.watch.reaper import Orphans


@pytest.mark.usefixtures("autojump_clock")
async def test_orphans_are_looked_at_when_a_signal_tells_and_not_by_time(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
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

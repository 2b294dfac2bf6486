"""When the daemon looks for ended orphans without a signal."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from sfad.launch import procfs
from sfad.launch.watch.reaper import Orphans


@pytest.mark.parametrize("owned", [False, True])
async def test_only_a_live_orphan_is_looked_at_again(
    owned: bool, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    orphans = Orphans()
    init = 1  # alive, and no child of this process
    monkeypatch.setattr(procfs, "children", lambda: {init})
    if owned:
        orphans.owned[init] = "a1"
    nursery.start_soon(orphans.serve)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(1)
    await trio.testing.wait_all_tasks_blocked()
    assert (trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf) is owned

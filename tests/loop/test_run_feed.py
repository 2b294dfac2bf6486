"""The run feed by a clock of its own: nothing while nobody follows, and at most so many pushes and
looks."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import trio

from sfad.core.state.access import EVERYTHING, Scope
from sfad.daemon.loop.announcing import INTERVAL, LOOKS, SLICE, Load, RunFeed
from sfad.host.clock import Timers
from sfad.processes.launcher import Footprint
from sfad.runs.catalogue import KnownRun

UID = 1001
"""Of the run b1."""


def test_cores_are_counted_between_two_looks() -> None:
    first = Load(Footprint(1, 0, cpu_s=10.0), at=100.0)
    second = first.after(Footprint(1, 0, cpu_s=13.0), 102.0)
    assert (first.cpu, second.cpu) == (None, 1.5)
    assert second.after(Footprint(1, 0, cpu_s=12.0), 104.0).cpu == 0.0  # a process has ended
    assert second.after(Footprint(1, 0, cpu_s=None), 104.0).cpu is None


def test_only_what_a_person_would_see_is_told() -> None:
    told = Load(Footprint(2, 500_000_000, cpu_s=1.0), cpu=0.5)
    assert not Load(Footprint(2, 505_000_000, cpu_s=9.0), cpu=0.52).differs(told)
    assert Load(Footprint(3, 500_000_000), cpu=0.5).differs(told)
    assert Load(Footprint(2, 511_000_000), cpu=0.5).differs(told)
    assert Load(Footprint(2, 500_000_000), cpu=0.6).differs(told)
    assert Load(Footprint(2, 500_000_000)).differs(told)


class Launcher:
    """Counts how often it is asked."""

    containment = "cgroup"

    def __init__(self) -> None:
        self.looks = 0

    def footprints(self, runs: Sequence[str], *, cpu: bool) -> dict[str, Footprint]:
        self.looks += 1
        assert cpu
        assert len(runs) <= SLICE
        return {run: Footprint(1, 0, 0.0) for run in runs}


class Catalogue:
    def __init__(self, runs: int) -> None:
        self.live = {
            f"b{number}": SimpleNamespace(lineage_ids=(f"b{number}",)) for number in range(runs)
        }

    def heard(self, _live: object, _now: float) -> float | None:
        return None

    def in_memory(self, run: str, *_load: object) -> KnownRun | None:
        return KnownRun(run, UID if run == "b1" else 0, (run,)) if run in self.live else None  # type: ignore[arg-type]


def ids(told: list[list[KnownRun] | None]) -> list[str]:
    return [run.lineage_ids[-1] for runs in told for run in runs or ()]


async def test_looks_and_pushes_only_while_somebody_follows(
    autojump_clock: trio.testing.MockClock,
) -> None:
    launcher, catalogue, timers = (
        Launcher(),
        Catalogue(3 * SLICE),
        Timers(lambda error: pytest.fail(str(error))),
    )
    feed = RunFeed(catalogue, launcher, timers)  # type: ignore[arg-type]
    told: list[list[KnownRun] | None] = []
    told_user: list[list[KnownRun] | None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.serve)
        nursery.start_soon(feed.serve)
        feed.changed(["b1"])
        await trio.sleep(60)
        assert (launcher.looks, told, len(timers)) == (0, [], 0)
        forget = feed.follow(lambda: EVERYTHING, told.append)
        forget_user = feed.follow(lambda: Scope(UID, None), told_user.append)
        await trio.sleep(LOOKS - INTERVAL)
        assert launcher.looks == 3
        assert sorted(ids(told)) == sorted(catalogue.live)
        assert ids(told_user) == ["b1"]
        forget_user()
        told.clear()
        for _ in range(1000):
            feed.changed(["b1", "b2"])
            await trio.sleep(INTERVAL / 100)
        assert 8 <= len(told) <= 12
        feed.changed(["gone"])
        await trio.sleep(INTERVAL)
        assert told[-1] is None
        forget()
        looks = launcher.looks
        told.clear()
        feed.changed(["b1"])
        await trio.sleep(60)
        assert (launcher.looks - looks <= 1, told, len(timers)) == (True, [], 0)
        nursery.cancel_scope.cancel()

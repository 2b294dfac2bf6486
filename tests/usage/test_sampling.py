"""Sampling: how rarely it looks, what it tells, and what it finds in time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from sfad.core.events import Frozen
from sfad.host.linux.process_events import ForkAlarm
from sfad.processes.launcher import LaunchSpec
from sfad.usage.sampling import MachineTotals, Sampler
from tests.harness import until
from tests.processes import programs
from tests.processes.fake import FakeLauncher, Script
from tests.processes.rig import PATIENCE, Rig, rigged

MIB = 1 << 20


class Still(MachineTotals):
    """A machine on which only that happens what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.forked = 0
        self.held = 1000 * MIB
        self.killed = 0
        self.looks = 0
        self.told = True
        self.broken = False

    def tells_forks(self) -> bool:
        return self.told

    async def wait_forks(self, _count: int) -> None:
        await trio.lowlevel.checkpoint()

    def forks(self) -> int:
        if self.broken:
            raise OSError(24, "Too many open files")
        self.looks += 1
        forked, self.forked = self.forked, 0
        return forked

    def memory(self) -> int:
        return self.held

    def oom_kills(self) -> int:
        return self.killed


class Telling(Still):
    """A machine whose kernel tells how many pids it gives out."""

    def __init__(self) -> None:
        super().__init__()
        self.told_at: list[int] = []
        self._forking = trio.Event()

    async def wait_forks(self, count: int) -> None:
        self.told_at.append(count)
        while self.forked < count:
            await self._forking.wait()

    def fork(self, count: int) -> None:
        self.forked += count
        self._forking.set()
        self._forking = trio.Event()


class Stage:
    """A sampler of simulated runs."""

    def __init__(self, machine: Still | None = None) -> None:
        self.launcher = FakeLauncher(
            emit=lambda _event: None, script=lambda _run, _spec: Script(after=None)
        )
        self.machine = machine or Still()
        self.seen: list[tuple[str, str, int, bool]] = []
        self.forgets: tuple[str, ...] = ()
        """Runs that the callback forgets."""
        self.sampler = Sampler(self.launcher, self._see, machine=self.machine)

    def _see(self, *seen: Any) -> None:
        self.seen.append(seen)
        for run in self.forgets:
            self.sampler.forget(run)

    def run(
        self, run: str, kind: str = "pids", threshold: float = 1000, *, fresh: bool = True
    ) -> None:
        self.launcher.launch(run, None, LaunchSpec([b"agent"], b"/", []), lambda _remains: True)
        self.sampler.watch(run, kind, threshold, fresh=fresh)

    @property
    def counts(self) -> list[tuple[str, ...]]:
        """The runs that were counted, each time."""
        return [call[2] for call in self.launcher.calls if call[0] == "amounts"]  # type: ignore[misc]


@pytest.fixture
async def stage(autojump_clock: MockClock) -> AsyncIterator[Stage]:
    async with serving(Stage()) as made:
        yield made


@asynccontextmanager
async def serving(made: Stage) -> AsyncIterator[Stage]:
    async with trio.open_nursery() as nursery:
        await nursery.start(made.launcher.serve)
        nursery.start_soon(made.sampler.serve)
        yield made
        nursery.cancel_scope.cancel()


async def test_a_run_is_not_counted_again_while_the_machine_does_not_fork(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.run("a1")
    await trio.sleep(1)
    assert stage.counts == [("a1",)]
    stage.run("a2")
    stage.machine.forked = 700
    await trio.sleep(60)
    stage.machine.forked = 90
    await trio.sleep(60)
    assert stage.counts == [("a1",)]
    stage.machine.forked = 10
    await trio.sleep(60)
    assert stage.counts == [("a1",), ("a1", "a2")]
    assert stage.seen == []


async def test_nothing_is_looked_at_before_the_kernel_tells_so_many_forks(
    autojump_clock: MockClock,
) -> None:
    machine = Telling()
    async with serving(Stage(machine)) as stage:
        stage.run("a1")
        stage.run("a2")
        await trio.sleep(60)
        # 80 % of a thousand, and each run has a process
        assert (machine.looks, machine.told_at) == (2, [799])
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
        stage.launcher.used["a1", "pids"] = 750
        machine.fork(799)
        await trio.sleep(60)
        assert stage.counts[-1] == ("a1", "a2")
        assert machine.told_at[-1] == 50
        assert stage.seen == []
        looks = machine.looks
        stage.run("a3", threshold=10)
        await trio.sleep(60)
        assert machine.told_at[-1] == 8
        assert machine.looks <= looks + 2


async def test_a_run_near_its_limit_is_looked_at_whether_or_not_it_forks(
    autojump_clock: MockClock,
) -> None:
    """The kernel tells no fork that fails."""
    machine = Telling()
    async with serving(Stage(machine)) as stage:
        stage.launcher.used["a1", "pids"] = 1000
        stage.run("a1")
        await trio.sleep(1)
        assert stage.seen == [("a1", "pids", 1000, False)]
        stage.launcher.breached["a1"] = {"pids"}
        machine.forked += 1
        await trio.sleep(1)
        assert stage.seen[-1] == ("a1", "pids", 1000, True)
        assert machine.told_at == []


@pytest.mark.parametrize("change", ["a lower limit", "a limit of memory"])
async def test_another_limit_ends_the_rest(change: str, autojump_clock: MockClock) -> None:
    async with serving(Stage(Telling())) as stage:
        stage.run("a1")
        await trio.sleep(60)
        looks = stage.machine.looks
        if change == "a lower limit":
            stage.sampler.watch("a1", "pids", 1)
        else:
            stage.sampler.watch("a1", "memory", 200 * MIB)
        await trio.sleep(1)
        assert stage.machine.looks >= looks + 2


async def test_a_run_near_its_limit_is_told_again_only_when_it_grows(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.run("a1", threshold=100)
    for used in (79, 80, 82, 84, 85, 100, 101, 102, 103, 90, 106):
        stage.launcher.used["a1", "pids"] = used
        stage.machine.forked = 100
        await trio.sleep(1)
    assert stage.seen == [("a1", "pids", used, False) for used in (80, 85, 100, 101, 106)]


async def test_a_breach_that_the_kernel_enforced_is_told_once(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.run("a1", threshold=100)
    stage.launcher.used["a1", "pids"] = 40
    stage.launcher.breached["a1"] = {"pids"}
    for _ in range(3):
        stage.machine.forked = 100
        await trio.sleep(1)
    assert stage.seen == [("a1", "pids", 40, True)]


async def test_another_threshold(stage: Stage, autojump_clock: MockClock) -> None:
    stage.run("a1", threshold=10)
    stage.launcher.used["a1", "pids"] = 11
    await trio.sleep(1)
    stage.sampler.watch("a1", "pids", 100)
    await trio.sleep(1)
    assert [used for *_, used, _ in stage.seen] == [11]
    assert len(stage.counts) == 2
    stage.sampler.watch("a1", "pids", 12)
    await trio.sleep(1)
    assert [used for *_, used, _ in stage.seen] == [11, 11]


async def test_memory_is_looked_at_when_the_machine_has_less_of_it(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.run("a1", "memory", 200 * MIB)
    await trio.sleep(1)
    stage.machine.held -= 500 * MIB  # others shrink,
    await trio.sleep(1)
    assert len(stage.counts) == 1
    stage.machine.held += 70 * MIB  # which does not hide that it grows
    await trio.sleep(1)
    assert len(stage.counts) == 1
    stage.machine.held += 20 * MIB
    stage.launcher.used["a1", "memory"] = 190 * MIB
    await trio.sleep(0.3)
    assert stage.seen == [("a1", "memory", 190 * MIB, False)]
    await trio.sleep(60)
    assert len(stage.counts) == pytest.approx(62, abs=2)  # near its limit: every second


async def test_memory_is_looked_at_from_time_to_time(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.run("a1", "memory", 200 * MIB)
    await trio.sleep(60)
    assert len(stage.counts) == pytest.approx(7, abs=1)


async def test_an_out_of_memory_kill_makes_the_sampler_look(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.run("a1", "memory", 200 * MIB)
    await trio.sleep(1)
    stage.machine.killed += 1
    stage.launcher.breached["a1"] = {"memory"}
    await trio.sleep(0.2)
    assert stage.seen == [("a1", "memory", MIB, True)]


async def test_there_is_no_timer_if_nothing_is_watched(
    stage: Stage, autojump_clock: MockClock
) -> None:
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
    stage.run("a1")
    await trio.sleep(10)
    looks = stage.machine.looks
    assert looks == pytest.approx(20, abs=2)
    stage.sampler.forget("a1")
    await trio.sleep(10)
    assert stage.machine.looks <= looks + 1
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf


@pytest.mark.parametrize(
    ("threshold", "forks", "apart"),
    [(1024, 0, 0.5), (100, 0, 0.1), (1024, 30, 0.5), (1024, 600, 0.05)],
)
async def test_how_often(
    stage: Stage, autojump_clock: MockClock, threshold: int, forks: int, apart: float
) -> None:
    stage.run("a1", threshold=threshold)
    forking = stage.machine.forks
    stage.machine.forks = lambda: forking() or forks  # type: ignore[method-assign]
    await trio.sleep(2)
    before = stage.machine.looks
    await trio.sleep(5)
    assert stage.machine.looks - before == pytest.approx(5 / apart, rel=0.1)


async def test_it_looks_more_rarely_if_the_kernel_enforces_the_limits(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.launcher.enforced["pids"] = "kernel"
    stage.run("a1", threshold=1024)
    await trio.sleep(60)
    assert stage.machine.looks == pytest.approx(30, abs=1)


async def test_a_new_small_limit_is_looked_at_soon(stage: Stage, autojump_clock: MockClock) -> None:
    stage.run("a1")
    await trio.sleep(1.1)
    before = stage.machine.looks
    stage.run("a2", threshold=50)
    await trio.sleep(0.2)
    assert stage.machine.looks - before >= 2


async def test_a_machine_that_does_not_tell_its_forks(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.machine.told = False
    stage.run("a1", threshold=1024)
    await trio.sleep(10.5)
    assert len(stage.counts) == 10


async def test_without_free_descriptors_it_looks_later(
    stage: Stage, autojump_clock: MockClock
) -> None:
    stage.run("a1", threshold=1024)
    await trio.sleep(1)
    stage.machine.broken = True
    await trio.sleep(10)
    stage.machine.broken = False
    stage.machine.forked = 1000
    stage.launcher.used["a1", "pids"] = 1000
    await trio.sleep(1)
    assert stage.seen == [("a1", "pids", 1000, False)]


async def test_the_callback_may_forget_the_run(stage: Stage, autojump_clock: MockClock) -> None:
    stage.forgets = ("a1", "a2")
    for run in ("a1", "a2"):
        stage.run(run, threshold=10)
        stage.launcher.used[run, "pids"] = 11
    await trio.sleep(1)
    assert len(stage.seen) == 1


# Real runs.


def test_this_machine_tells_its_forks() -> None:
    machine = MachineTotals()
    assert machine.tells_forks()
    assert machine.forks() >= 0
    assert 10 * MIB < machine.memory() < 1 << 45
    assert machine.oom_kills() >= 0


async def test_the_kernel_tells_when_so_much_was_forked() -> None:
    machine = MachineTotals()
    machine.tells_forks()
    try:
        ForkAlarm(0, 1).close()
    except OSError as error:
        pytest.skip(f"the kernel tells no forks here: {error}")
    machine.forks()
    returned = False

    async def wait() -> None:
        nonlocal returned
        await machine.wait_forks(2000)
        returned = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        forked = 0
        with trio.fail_after(PATIENCE):
            while not returned:
                await trio.run_process(
                    ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do (:) & done; wait"]
                )
                forked += 10
    assert forked <= 2010
    machine.forks()
    with trio.fail_after(PATIENCE):
        await machine.wait_forks(0)  # at once


async def test_where_the_kernel_tells_no_forks_nothing_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "socket.socket", lambda *_: (_ for _ in ()).throw(PermissionError(1, "as in a container"))
    )
    with trio.fail_after(PATIENCE):
        await MachineTotals().wait_forks(1 << 20)


class Watching:
    """A sampler of real runs that kills a run above its limit, as the daemon does."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.most: dict[str, int] = {}
        self.over = trio.Event()
        self.limits: dict[str, float] = {}
        self.sampler = Sampler(rig.launcher, self._seen)

    def watch(self, run: str, kind: str, threshold: float) -> None:
        self.limits[run] = threshold
        self.sampler.watch(run, kind, threshold, fresh=True)

    def _seen(self, run: str, _kind: str, used: int, breached: bool) -> None:
        self.most[run] = max(used, self.most.get(run, 0))
        if used > self.limits[run] or breached:
            self.rig.launcher.kill(run)
            self.over.set()


@asynccontextmanager
async def watching(containment: str) -> AsyncIterator[Watching]:
    async with rigged(containment) as rig, trio.open_nursery() as nursery:
        made = Watching(rig)
        nursery.start_soon(made.sampler.serve)
        yield made
        nursery.cancel_scope.cancel()


async def test_a_fork_bomb_is_found(containment: str) -> None:
    async with watching(containment) as made:
        made.rig.launch("a2", "sleep", "1000")
        made.watch("a2", "pids", 100)
        made.rig.python("a1", programs.BOMB, "400", "10")
        made.watch("a1", "pids", 100)
        with trio.fail_after(PATIENCE):
            await made.over.wait()
        print("found at", made.most["a1"])
        assert 100 < made.most["a1"] <= 401
        assert "a2" not in made.most
        await made.rig.stop("a1", "a2")


async def test_a_memory_hog_is_found(containment: str) -> None:
    async with watching(containment) as made:
        made.rig.python("a1", programs.HOG, "400", "10")
        made.watch("a1", "memory", 200 * MIB)
        with trio.fail_after(PATIENCE):
            await made.over.wait()
        print("found at", made.most["a1"])
        assert 200 * MIB < made.most["a1"] < 450 * MIB
        await made.rig.stop("a1")


async def test_the_subtree_counts_even_if_it_is_paused(containment: str, tmp_path: Path) -> None:
    async with watching(containment) as made:
        made.rig.launch("a1", "sleep", "1000")
        with (tmp_path / "out").open("wb") as out:
            made.rig.python("a2", programs.SHARERS, "40", "1", parent="a1", stdout=out.fileno())
        await until(lambda: b"ready" in (tmp_path / "out").read_bytes(), "ready")
        made.rig.launcher.freeze("a1")
        await made.rig.wait(Frozen, "a1")
        made.limits["a1"] = 1000
        made.sampler.watch("a1", "pids", 50)
        await until(lambda: made.most, "counted")
        assert made.most == {"a1": 42}
        await made.rig.stop("a2", "a1")

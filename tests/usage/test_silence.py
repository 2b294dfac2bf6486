"""When runs are looked at for a sign of life, and what counts as one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from sfad.agents.command import Command
from sfad.core import events as e
from sfad.host.clock import wall_clock
from sfad.processes.launcher import Footprint, Launcher
from sfad.runs.live import Live, Output, Parts
from sfad.storage.output.files import OutputFiles
from sfad.usage.silence import LEAST, LOOKS, Signs, SilenceWatch
from tests.core.transcript import Transcript


class Kernel:
    """What the kernel tells of the processes of all runs."""

    def __init__(self) -> None:
        self.cpu = 0.0
        self.processes = 1
        self.looks: list[float] = []

    def footprints(self, runs: Iterable[str], *, cpu: bool = False) -> dict[str, Footprint]:
        assert cpu
        self.looks.append(trio.current_time())
        return {run: Footprint(self.processes, 0, self.cpu) for run in runs}


class World:
    def __init__(self, directory: Path) -> None:
        self.core, self.kernel, self.began = Transcript(), Kernel(), trio.current_time()
        self.lives: dict[str, Live] = {}
        self.told: list[tuple[str, float, float]] = []
        self.lines: dict[str, float] = {}
        """When the newest line of each run's session was written."""
        self.written: dict[str, float] = {}
        """The same, as of the last look."""
        self.watch = SilenceWatch(
            Signs(self.lives, OutputFiles(directory), lambda run: self.written.get(run, 0.0)),
            cast("Launcher", self.kernel),
            self._hear,
            nearing=1.0,
            look_at_sessions=self._look_at_sessions,
        )

    async def _look_at_sessions(self, runs: Iterable[str]) -> None:
        """Find what was written in the meantime."""
        self.written |= {run: self.lines[run] for run in runs if run in self.lines}

    def _hear(self, event: e.Event) -> None:
        assert isinstance(event, e.LevelSeen)
        self.told.append((event.run, round(event.at - self.began, 1), round(event.level, 1)))
        self.watch.watched.pop(event.run, None)

    def run(self, limit: float, *argv: str) -> Live:
        name = f"r{len(self.lives)}"
        run = self.core.run(
            self.core.start(name, limits=f"silence={limit}:warn", argv=argv or ("x",))
        )
        live = self.lives[run.id] = Live(
            run,
            Command([b"x"], b"/", []),
            Output(log=False),
            Parts(),
            cast("Launcher", self.kernel),
            wall_clock() - timedelta(seconds=1),
        )
        self.watch.watch(live)
        return live


@asynccontextmanager
async def watching(directory: Path) -> AsyncIterator[World]:
    world = World(directory)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.watch.serve)
        yield world
        nursery.cancel_scope.cancel()


async def test_nothing_is_looked_at_while_no_run_has_a_limit(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with watching(tmp_path) as world:
        await trio.sleep(86_000)
        assert world.kernel.looks == []


async def test_a_run_is_looked_at_some_times_within_its_limit(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with watching(tmp_path) as world:
        world.run(3600)
        await trio.sleep(200)
        assert [at - world.began for at in world.kernel.looks] == [LEAST]
        await trio.sleep(3500)
        assert len(world.kernel.looks) == LOOKS + 1
        assert world.told == [("a1", 3600.0, 3600.0)]


async def test_what_a_program_uses_to_start_is_no_sign(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with watching(tmp_path) as world:
        world.run(60)
        await trio.sleep(1)
        world.kernel.cpu = 1.5
        await trio.sleep(100)
        assert world.told == [("a1", 60.0, 60.0)]


@pytest.mark.parametrize("limit", [4, 10, 60, 900])
async def test_a_silence_is_found_soon_after_a_cpu_was_used_last(
    autojump_clock: MockClock, tmp_path: Path, limit: float
) -> None:
    async with watching(tmp_path) as world:
        world.run(limit)
        for _ in range(int(limit * 3 / 0.5)):  # twice as much as counts
            world.kernel.cpu += 0.02 * 0.5
            await trio.sleep(0.5)
        assert world.told == []
        await trio.sleep(3 * limit)
        ((_, at, _),) = world.told
        between_looks = max(LEAST, limit / LOOKS)  # a CPU's work is averaged over it
        assert limit * 4 - between_looks <= at <= limit * 4 + between_looks + 0.5


async def test_processes_that_come_and_go_are_a_sign(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Without cgroups their CPU is not known once they have ended."""
    async with watching(tmp_path) as world:
        world.run(20)
        for number in range(100):
            world.kernel.processes = 1 + number % 2
            await trio.sleep(1)
        assert world.told == []


async def test_what_the_loop_is_told_is_a_sign_of_the_run_and_of_those_above_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with watching(tmp_path) as world:
        live = world.run(20)
        await trio.sleep(15)
        live.hear(trio.current_time())
        await trio.sleep(18)
        assert world.told == []
        assert world.watch.heard(live, trio.current_time()) == world.began + 15
        await trio.sleep(3)
        assert world.told == [("a1", 35.0, 20.0)]


async def test_what_an_agent_program_uses_while_it_waits_is_no_sign(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """opencode uses 1.0 to 1.6 % of a CPU for a model that does not answer."""
    async with watching(tmp_path) as world:
        world.run(20, "opencode", "run", "go")
        for _ in range(60):
            world.kernel.cpu += 0.016
            await trio.sleep(1)
        ((_, at, _),) = world.told
        assert at <= 20 + LEAST


async def test_a_line_that_the_last_look_at_its_session_finds_is_a_sign(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with watching(tmp_path) as world:
        live = world.run(20)
        await trio.sleep(15)
        world.lines[live.run.id] = wall_clock().timestamp()
        await trio.sleep(5.5)
        assert world.told == []
        world.lines.clear()
        world.written.clear()  # the clock of files does not move here: the line would stay new
        await trio.sleep(30)
        assert len(world.told) == 1

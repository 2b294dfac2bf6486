"""What worktrees do in a daemon, and that they do nothing for other runs. Git is executed in
`tests/e2e/test_worktrees.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from sfad.core.state.access import Peer
from sfad.daemon.loop.runtime import Runtime
from sfad.durable.snapshots import RunSnapshot, origin_of, progress_of
from sfad.features.worktrees.feature import WORKTREE
from sfad.protocol.errors import RequestError
from sfad.protocol.messages import Spawn
from sfad.protocol.types import Placing, Status, Worktree
from sfad.runs.live import Live
from sfad.runs.showing import info_of
from sfad.start.prepared import Prepared
from tests.features.calls import calls
from tests.loop.shell import AGENT, shell, spawned, spec_of
from tests.processes.fake import FakeLauncher

ANN = Peer(os.geteuid(), "ann")
OWN = Worktree(path=b"/trees/a", repository=b"/src/.git", start="1" * 40, origin=b"/src")
ENTRY = '[agents.a]\ncommand = ["a"]\n'


async def prepared(runtime: Runtime, order: Spawn, run: str | None = None) -> Prepared:
    peer = replace(ANN, run=run)
    return await runtime.starting.prepare(runtime.starting.around(order, peer, None))


async def with_worktree(runtime: Runtime, decided: Worktree = OWN) -> Live:
    """Return a run that the daemon has as from an earlier one."""
    live = runtime.catalogue.live[await spawned(runtime, AGENT, ANN)]
    live.parts.decide(WORKTREE, decided)
    live.command.cwd = b"/trees/a/sub"
    runtime.parts.adopt(live)
    return live


@pytest.mark.parametrize("config", ["", ENTRY])
async def test_a_run_without_a_worktree_calls_nothing_of_worktrees(
    tmp_path: Path, config: str
) -> None:
    """Though another one had one. An agent's entry that says nothing of them calls for nothing."""
    async with shell(tmp_path, FakeLauncher, config) as runtime:
        live = await with_worktree(runtime)
        info = info_of(live, 0.0)
        assert (info.worktree, info.branch) == ("/trees/a", f"sfad/{live.run.name}-{live.run.id}")
        live.parts.decide(WORKTREE, None)
        with calls("worktrees") as found:
            assert (await prepared(runtime, AGENT)).parts.of(WORKTREE) is None
            other = runtime.catalogue.live[await spawned(runtime, AGENT, ANN)]
            assert runtime.parts.launch(other, spec_of([]), []) == spec_of([])
            info = info_of(other, 0.0)
            assert (info.worktree, info.branch) == (None, None)
            assert runtime.parts.again(AGENT, info) == AGENT
        assert not found


async def test_a_run_is_launched_in_its_worktree(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        live = await with_worktree(runtime)
        env = [b"PWD=/src", b"GIT_DIR=/src/.git", b"A=1"]
        launch = runtime.parts.launch(live, spec_of(env), [])
        assert launch.env == [b"PWD=/trees/a/sub", b"A=1"]
        assert launch.cwd == b"/src"
        assert launch.first_step is not None
        assert b"path=/trees/a" in launch.first_step
        live.parts.decide(WORKTREE, replace(OWN, shared=True))
        assert runtime.parts.launch(live, spec_of(env), []) == spec_of(launch.env)


@pytest.mark.parametrize(
    ("cwd", "shares"), [(b"/trees/a", True), (b"/trees/a/sub", True), (b"/trees/ab", False)]
)
async def test_what_starts_in_the_worktree_of_a_run_shares_it(
    tmp_path: Path, cwd: bytes, shares: bool
) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        live = await with_worktree(runtime)
        below = await prepared(runtime, replace(AGENT, cwd=cwd), live.run.id)
        branch = f"sfad/{live.run.name}-{live.run.id}"
        shared = replace(OWN, branch=branch, shared=True) if shares else None
        assert below.parts.of(WORKTREE) == shared


async def test_a_placed_run_has_none(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        placed = replace(AGENT, worktree=Worktree(), placing=Placing())
        p, around = Prepared.of(placed), runtime.starting.around(placed, ANN, None)
        runtime.parts.load(p, around)
        with pytest.raises(RequestError, match="--worktree and --fleet exclude each other"):
            runtime.parts.check(p, around)


async def test_a_worktree_that_was_taken_while_a_gateway_was_waited_for(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        around = runtime.starting.around(AGENT, ANN, None)
        p = Prepared.of(AGENT)
        p.parts.decide(WORKTREE, replace(OWN, of="a7"))
        other = await with_worktree(runtime)
        with pytest.raises(Exception, match=f"run {other.run.id} works in the worktree of run a7"):
            runtime.parts.check(p, around)


@pytest.mark.parametrize(
    ("config", "agent", "asked"),
    [("", None, Worktree()), (ENTRY + "worktree = true\n", "a", None)],
)
async def test_a_further_run_works_in_the_same_one(
    tmp_path: Path, config: str, agent: str | None, asked: Worktree | None
) -> None:
    async with shell(tmp_path, FakeLauncher, config) as runtime:
        live = await with_worktree(runtime)
        kept = replace(AGENT, agent=agent, worktree=asked)
        info = info_of(live, trio.current_time())
        assert runtime.parts.again(kept, info).worktree == Worktree()
        ended = replace(info, status=Status.COMPLETED)
        assert runtime.parts.again(kept, ended).worktree == Worktree(of=info.id)
        assert runtime.parts.again(kept, replace(ended, worktree=None)) == kept


async def test_it_is_saved_with_the_run_under_its_name(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        live = await with_worktree(runtime)
        saved = RunSnapshot.decoded(origin_of(live), progress_of(live), None).origin
        assert saved.parts.of(WORKTREE) == OWN
        assert saved.parts.sandbox is None

"""`TrioDaemon` and `TrioRun`: the same for trio."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from sfactl import Refused, TrioDaemon
from sfactl.api import awaited, blocking, runs
from sfad.protocol.types import Status
from tests import harness
from tests.conftest import Start
from tests.harness import PATIENCE


@pytest.fixture
def real(share: Start) -> harness.Daemon:
    return share()


@pytest.fixture
async def daemon(real: harness.Daemon) -> AsyncIterator[TrioDaemon]:
    async with TrioDaemon(str(real.socket)) as daemon:
        yield daemon


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_both_forms_have_the_same_methods() -> None:
    assert public(awaited.TrioRun) == public(runs.Run)
    assert public(awaited.TrioDaemon) == public(blocking.Daemon)


async def test_runs_of_several_tasks(daemon: TrioDaemon) -> None:
    statuses: list[Status] = []

    async def one(code: int) -> None:
        run = await daemon.spawn(["sh", "-c", f"echo {code}; exit {code}"])
        statuses.append((await run.wait()).status)
        assert b"".join([piece async for piece in run.logs(follow=True)]) == b"%d\n" % code

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for code in (0, 1, 0, 1):
                nursery.start_soon(one, code)
    assert sorted(statuses) == [Status.COMPLETED] * 2 + [Status.FAILED] * 2


async def test_a_wait_is_cancelled_and_the_daemon_goes_on(daemon: TrioDaemon) -> None:
    run = await daemon.spawn(["sleep", "1000"])
    with trio.move_on_after(0.05) as scope:
        await run.wait()
    assert scope.cancelled_caught
    with trio.fail_after(PATIENCE):
        assert (await run.info()).status is Status.RUNNING
        assert (await run.stop(grace=0)).stopped == [run.id]
        assert (await run.wait()).status is Status.CANCELLED


async def test_events_across_a_restart(real: harness.Daemon, daemon: TrioDaemon) -> None:
    run = await daemon.spawn(["sleep", "1000"])
    types = []
    with trio.fail_after(PATIENCE):
        async for event in run.events():
            types.append(event.type)
            if event.type == "run_started":
                await trio.to_thread.run_sync(real.kill)
                await trio.to_thread.run_sync(real.restart)
                await run.stop(grace=0)
    assert types[-1] == "run_cancelled"
    assert len(types) == len(set(types))


async def test_a_refusal(daemon: TrioDaemon) -> None:
    with pytest.raises(Refused):
        await daemon.spawn(["true"], limits={"cost": 1}, gateway=False)

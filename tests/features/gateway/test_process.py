"""Runs that wait for the gateway."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest
import trio

from sfad.features.gateway.process import GatewayProcess
from sfad.protocol.messages import Spawn
from tests.harness import until
from tests.loop.shell import ANN, shell
from tests.processes.fake import FakeLauncher
from tests.server.test_looks import served

from .gateways import gateways_of


async def test_what_waits_for_a_gateway_goes_on_once_it_has_begun_its_work(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(gateways_of(runtime).serve)
        waiting = [gateways_of(runtime).start_for_run(os.getuid()) for _ in range(2)]
        gateway = gateways_of(runtime).own
        await until(lambda: gateway.pid is not None)
        assert not any(each.known for each in waiting)
        gateway.note_serving()  # it would tell the daemon's socket so, but there is none here
        assert [await each.wait() for each in waiting] == [None, None]
        assert gateways_of(runtime).start_for_run(os.getuid()).known, (
            "one that comes later goes on at once"
        )
        await gateways_of(runtime).stop()
        nursery.cancel_scope.cancel()


async def test_runs_that_wait_for_the_gateway_are_admitted_in_the_order_of_their_arrival(
    tmp_path: Path,
) -> None:
    """Before that, all of them wait for the settings of their user's programs. One that comes when
    the gateway has begun its work does not overtake them."""
    env = [b"HOME=/", b"PATH=/nowhere"]

    def spawns(first: int, after: int) -> list[Spawn]:
        return [
            Spawn(id=n, argv=[b"true"], cwd=b"/", env=env, name=f"n{n}", gateway=True)
            for n in range(first, after)
        ]

    async with served(tmp_path, [ANN]) as (runtime, (client,)), trio.open_nursery() as nursery:
        nursery.start_soon(gateways_of(runtime).serve)
        client.send(*spawns(2, 42))
        gateway = gateways_of(runtime).own
        await until(lambda: gateway.pid is not None)
        gateway.note_serving()
        await until(lambda: bool(runtime.catalogue.live))
        client.send(*spawns(42, 52))
        await client.replies(50)
        admitted = [each.run.name for each in runtime.catalogue.live.values()]
        assert admitted == [f"n{n}" for n in range(2, 52)]
        await gateways_of(runtime).stop()
        nursery.cancel_scope.cancel()


def ended(gateway: GatewayProcess, pid: int | None) -> bool:
    return gateway.pid != pid


async def test_a_gateway_that_does_not_begin_its_work_is_ended_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was stopped, or imports from a file system that does not answer."""
    monkeypatch.setattr("sfad.features.gateway.process.BEGINNING", 0.01)
    async with shell(tmp_path, FakeLauncher) as runtime, trio.open_nursery() as nursery:
        gateway = gateways_of(runtime).own
        nursery.start_soon(gateways_of(runtime).serve)
        for _ in range(2):
            serving = gateways_of(runtime).start_for_run(os.getuid())
            assert await serving.wait() == "it has not begun its work within 0.01 s"
            await until(partial(ended, gateway, gateway.pid))
        await gateways_of(runtime).stop()
        nursery.cancel_scope.cancel()


async def test_who_asks_again_at_once_does_not_keep_a_gateway_from_its_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        starts: list[int] = []

        def start(*_: object, **__: object) -> int:
            starts.append(1)
            raise OSError(errno.EAGAIN, "no process")

        async def again() -> None:
            while True:
                assert await gateways_of(runtime).start_for_run(os.getuid()).wait() is not None

        monkeypatch.setattr("sfad.processes.own_processes.OwnProcess.start", start)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gateways_of(runtime).serve)
            nursery.start_soon(again)
            await until(lambda: len(starts) >= 3)
            nursery.cancel_scope.cancel()

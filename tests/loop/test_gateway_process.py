"""Runs that wait for the gateway."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest
import trio

from sfad.daemon.loop.gateway_process import Serving
from sfad.host.tasks import LoopRounds
from tests.harness import until
from tests.processes.fake import FakeLauncher

from .shell import shell


async def test_what_waits_for_a_gateway_goes_on_in_the_order_of_its_arrival(
    tmp_path: Path,
) -> None:
    """One a round: trio executes the tasks of a round in any order, and thousands at once would
    keep the loop from all else."""
    async with shell(tmp_path, FakeLauncher) as runtime:
        rounds, went_on = LoopRounds(), list[int]()
        at = Counter[int]()

        async def wait(number: int, serving: Serving) -> None:
            assert await serving.wait() is None
            went_on.append(number)
            at[rounds.number] += 1

        trio.lowlevel.add_instrument(rounds)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.gateways.serve)
            for number in range(100):
                nursery.start_soon(wait, number, runtime.gateways.start_for_run(os.getuid()))
            gateway = runtime.gateways.own
            await until(lambda: gateway.pid is not None)
            assert not went_on
            gateway.note_serving()  # it would tell the daemon's socket so, but there is none here
            await until(lambda: len(went_on) == 100)
            assert went_on == list(range(100))
            assert max(at.values()) == 1
            assert runtime.gateways.start_for_run(os.getuid()).known, (
                "one that comes later goes on at once"
            )
            await runtime.gateways.stop()
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
                assert await runtime.gateways.start_for_run(os.getuid()).wait() is not None

        monkeypatch.setattr("sfad.daemon.loop.gateway_process.start_own", start)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.gateways.serve)
            nursery.start_soon(again)
            await until(lambda: len(starts) >= 3)
            nursery.cancel_scope.cancel()

"""Runs that wait for the gateway."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest
import trio

from sfad.host.tasks import ROUND_REQUESTS, LoopRounds
from tests.harness import until
from tests.processes.fake import FakeLauncher

from .shell import shell


async def test_what_waits_for_a_gateway_goes_on_a_few_at_a_time(tmp_path: Path) -> None:
    """Thousands at once would keep the loop from all else for seconds."""
    async with shell(tmp_path, FakeLauncher) as runtime:
        rounds, why = LoopRounds(), set[str | None]()
        went_on: Counter[int] = Counter()

        def then(trouble: str | None) -> None:
            why.add(trouble)
            went_on[rounds.number] += 1

        trio.lowlevel.add_instrument(rounds)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.gateways.serve)
            for _ in range(10 * ROUND_REQUESTS):
                runtime.gateways.start_for_run(os.getuid(), then)
            gateway = runtime.gateways.own
            await until(lambda: gateway.pid is not None)
            assert not went_on
            gateway.note_serving()  # it would tell the daemon's socket so, but there is none here
            await until(lambda: went_on.total() == 10 * ROUND_REQUESTS)
            assert max(went_on.values()) == ROUND_REQUESTS
            runtime.gateways.start_for_run(os.getuid(), then)
            assert went_on.total() == 10 * ROUND_REQUESTS + 1, (
                "one that comes later goes on at once"
            )
            assert why == {None}
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

        def again(trouble: str | None) -> None:
            assert trouble is not None
            runtime.gateways.start_for_run(os.getuid(), again)

        monkeypatch.setattr("sfad.daemon.loop.gateway_process.start_helper", start)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.gateways.serve)
            runtime.gateways.start_for_run(os.getuid(), again)
            await until(lambda: len(starts) >= 3)
            nursery.cancel_scope.cancel()

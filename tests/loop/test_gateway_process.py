"""Runs that wait for the gateway."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import trio

from sfad.daemon.loop.gateway_process import ANSWERED_AT_ONCE
from sfad.host.tasks import LoopTurns
from tests.harness import until
from tests.processes.fake import FakeLauncher

from .shell import shell


async def test_what_waits_for_a_gateway_goes_on_a_few_at_a_time(tmp_path: Path) -> None:
    """Thousands at once would keep the loop from all else for seconds."""
    async with shell(tmp_path, FakeLauncher) as runtime:
        turns, why = LoopTurns(), set[str | None]()
        went_on: Counter[int] = Counter()

        def then(trouble: str | None) -> None:
            why.add(trouble)
            went_on[turns.number] += 1

        trio.lowlevel.add_instrument(turns)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.gateways.serve)
            for _ in range(10 * ANSWERED_AT_ONCE):
                runtime.gateways.start_for_run(os.getuid(), then)
            gateway = runtime.gateways.own
            await until(lambda: gateway.pid is not None)
            assert not went_on
            gateway.note_serving()  # it would tell the daemon's socket so, but there is none here
            await until(lambda: went_on.total() == 10 * ANSWERED_AT_ONCE)
            assert max(went_on.values()) == ANSWERED_AT_ONCE
            runtime.gateways.start_for_run(os.getuid(), then)
            assert went_on.total() == 10 * ANSWERED_AT_ONCE + 1, "one that comes later goes on at once"
            assert why == {None}
            await runtime.gateways.stop()
            nursery.cancel_scope.cancel()

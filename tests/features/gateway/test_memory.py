"""What was decided about a run that is led to one gateway is not taken for another one."""

from __future__ import annotations

from pathlib import Path

import trio

from sfad.start.prepared import Prepared
from tests.harness import as_root, until
from tests.loop.shell import shell
from tests.processes.fake import FakeLauncher
from tests.start.test_memory import BOB, prepared

from .gateways import gateways_of


def address(p: Prepared) -> bytes:
    return next(item for item in p.command.env if item.startswith(b"OPENAI_BASE_URL="))


@as_root
async def test_no_run_gets_the_address_of_another_user_s_gateway(tmp_path: Path) -> None:
    """That user has another gateway, and after that another one at another address."""
    async with (
        shell(tmp_path, FakeLauncher, everyone=True) as runtime,
        trio.open_nursery() as nursery,
    ):
        first = await prepared(runtime)
        of_bob = await prepared(runtime, peer=BOB)
        assert address(of_bob) != address(first)
        assert await prepared(runtime, peer=BOB) is of_bob
        nursery.start_soon(gateways_of(runtime).serve)
        await until(lambda: gateways_of(runtime).known(1) is None)
        gateways_of(runtime).of(2).address()  # it may get the port that is free now
        again = await prepared(runtime, peer=BOB)
        assert again is not of_bob
        assert address(again) == b"OPENAI_BASE_URL=%b/openai" % (
            gateways_of(runtime).of(1).address().encode()
        )
        nursery.cancel_scope.cancel()

"""What isolation does in a daemon, and that it does nothing for other runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sfad.core.state.access import Peer
from sfad.daemon.loop.runtime import Runtime
from sfad.durable.snapshots import RunSnapshot, origin_of, progress_of
from sfad.features.isolation.feature import ISOLATION
from sfad.protocol.errors import RequestError
from sfad.protocol.messages import Spawn
from sfad.protocol.types import Isolation
from sfad.runs.live import Live
from sfad.runs.showing import info_of
from sfad.start.prepared import Prepared
from tests.features.calls import calls
from tests.loop.shell import AGENT, shell, spawned, spec_of
from tests.processes.fake import FakeLauncher

ANN = Peer(os.geteuid(), "ann")
NET = Isolation(network=False, egress=["example.org"], directory=b"/work", writable=[b"/more"])


async def prepared(runtime: Runtime, order: Spawn, run: str | None = None) -> Prepared:
    peer = replace(ANN, run=run)
    return await runtime.starting.prepare(runtime.starting.around(order, peer, None))


async def isolated(runtime: Runtime) -> Live:
    """Return a run that the daemon has as from an earlier one."""
    live = runtime.catalogue.live[await spawned(runtime, AGENT, ANN)]
    live.parts.decide(ISOLATION, NET)
    live.parts.gateway = True
    runtime.parts.adopt(live)
    return live


async def test_a_run_that_is_not_isolated_calls_nothing_of_isolation(tmp_path: Path) -> None:
    """Though another one was."""
    async with shell(tmp_path, FakeLauncher) as runtime:
        live = await isolated(runtime)
        with calls("isolation") as found:
            assert runtime.parts.launch(live, spec_of([]), []).sandbox is not None
            assert info_of(live, 0.0).isolation == "net"
            assert info_of(live, 0.0).egress == ("example.org",)
        assert found
        live.parts.decide(ISOLATION, None)
        with calls("isolation") as found:
            assert (await prepared(runtime, AGENT)).parts.sandbox is None
            other = runtime.catalogue.live[await spawned(runtime, AGENT, ANN)]
            assert runtime.parts.launch(other, spec_of([]), []).sandbox is None
            assert info_of(other, 0.0).isolation is None
        assert not found


@pytest.mark.needs("bwrap")
async def test_what_an_isolated_run_starts_is_isolated(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        live = await isolated(runtime)
        below = await prepared(runtime, AGENT, live.run.id)
        assert below.parts.of(ISOLATION) == NET
        asked = Isolation(network=False, egress=["example.org"], writable=[b"/more", b"/work"])
        assert runtime.parts.inherited(below) == {ISOLATION: asked}
        assert runtime.parts.inherited(await prepared(runtime, AGENT)) == {}


@pytest.mark.needs("bwrap")
async def test_the_config_isolates_each_run(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher, '[isolation]\ndefault = "net"') as runtime:
        decided = (await prepared(runtime, AGENT)).parts.of(ISOLATION)
        assert (decided.network, decided.directory) == (False, b"/")


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"writable": [b"work"]}, "each writable path must be absolute"),
        ({"readable": [b"/a\0b"]}, "a NUL byte in a readable path"),
        ({"readable": [b"/" + b"a" * 70000]}, "bytes of writable and readable paths"),
    ],
)
async def test_paths_that_mean_nothing(tmp_path: Path, asked: dict[str, Any], why: str) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        with pytest.raises(RequestError, match=why):
            await prepared(runtime, replace(AGENT, isolation=Isolation(**asked)))


async def test_it_is_saved_with_the_run_under_its_name(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        live = await isolated(runtime)
        saved = RunSnapshot.decoded(origin_of(live), progress_of(live), None).origin
        assert saved.parts == live.parts
        assert saved.parts.of(ISOLATION) == NET
        assert saved.parts.sandbox == NET

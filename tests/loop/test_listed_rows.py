"""A live run is shown and encoded once for many lists, as long as nothing happens."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sfad.core.state.access import EVERYTHING
from sfad.daemon.loop.runtime import Runtime
from sfad.protocol.messages import List
from sfad.protocol.types import RunInfo
from sfad.runs import catalogue
from sfad.storage.ledger.queries import Page
from tests.bench.ours import CONFIG
from tests.loop.shell import shell, spawned
from tests.processes.fake import FakeLauncher


def listed(runtime: Runtime) -> dict[str, msgspec.Raw]:
    found = runtime.catalogue.select(Page(List(id=0), EVERYTHING))
    rows = found.rows(found.live)
    return {msgspec.msgpack.decode(row, type=RunInfo).id: row for row in rows}


async def test_a_live_run_is_encoded_once_until_something_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "SIGNS_FOR", 1000.0)
    async with shell(tmp_path, FakeLauncher, CONFIG) as runtime:
        run = await spawned(runtime)
        first, again = listed(runtime), listed(runtime)
        assert first[run] is again[run]
        runtime.catalogue.live[run].reach("half of it")
        row = listed(runtime)[run]
        assert msgspec.msgpack.decode(row, type=RunInfo).milestone == "half of it"
        other = await spawned(runtime)
        assert listed(runtime).keys() == {run, other}
        assert listed(runtime)[run] is not row  # the core has decided something
        monkeypatch.setattr(catalogue, "SIGNS_FOR", 0.0)
        row = listed(runtime)[run]
        assert listed(runtime)[run] is not row  # time passes

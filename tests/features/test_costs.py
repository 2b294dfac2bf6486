"""What a run costs that uses no feature."""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
from msgspec.structs import replace

from sfad.core.state.access import Peer
from sfad.daemon.loop import runtime as loop
from sfad.features.listed import FEATURES
from sfad.runs.showing import info_of
from tests.loop.shell import AGENT, shell, spawned, spec_of
from tests.processes.fake import FakeLauncher

ANN = Peer(os.geteuid(), "ann")
_NUMBERS = itertools.count()


async def calls_of_a_plain_run(directory: Path) -> Counter[str]:
    """Count the Python calls of what is done for a run once its daemon is warm: it is decided
    about, launched, changed and shown."""
    found: Counter[str] = Counter()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            found[f"{frame.f_code.co_filename}:{frame.f_code.co_name}"] += 1

    async with shell(directory, FakeLauncher) as runtime:
        live = runtime.catalogue.live[await spawned(runtime, AGENT, ANN)]
        for measured in (False, True):
            order = replace(
                AGENT, argv=[b"agent", b"%d" % next(_NUMBERS)]
            )  # nothing is known of it
            around = runtime.starting.around(order, ANN, None)
            sys.setprofile(called if measured else None)
            try:
                await runtime.starting.prepare(around)
                runtime.parts.launch(live, spec_of([]), [])
                for told in runtime.parts.changed:
                    told([live.run])
                info_of(live, 0.0)
            finally:
                sys.setprofile(None)
    return found


@pytest.mark.parametrize("names", [("checks",), ("admitted",), ("checks", "admitted")])
async def test_what_it_does_not_use_costs_no_call(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
) -> None:
    with_them = await calls_of_a_plain_run(tmp_path_factory.mktemp("with"))
    without = {name: each for name, each in FEATURES.items() if name not in names}
    monkeypatch.setattr(loop, "FEATURES", without)
    assert await calls_of_a_plain_run(tmp_path_factory.mktemp("without")) == with_them
    assert not [call for call in with_them for name in names if f"/features/{name}/" in call]

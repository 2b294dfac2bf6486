"""What is known of a run is the same wherever it is: live, ended a short while ago, or in the ledger only."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfad.core.access import EVERYTHING, Scope
from sfad.ledger.reader import Page
from sfad.protocol.messages import List, Spawn
from sfad.protocol.types import RunId, Status
from sfad.runs import catalogue as module
from sfad.runs.catalogue import RunCatalogue
from tests.launch.fake import FakeLauncher
from tests.loop.shell import shell, spawned, stopped, until


def known(catalogue: RunCatalogue, run: RunId) -> tuple[Status, list[RunId], list[RunId], list[RunId]]:
    """The status of a run, its chain, and the runs that are found by its prefix and on a page of its name."""
    info = catalogue.info(run)
    assert info is not None
    page = catalogue.select(Page(List(id=0, name=info.name), EVERYTHING))
    return info.status, catalogue.lineage(run), catalogue.find(run, EVERYTHING), [each.id for each in page.runs]


async def test_a_run_is_known_through_all_of_its_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECENT", 1)
    async with shell(tmp_path, FakeLauncher) as runtime:
        catalogue, told = runtime.catalogue, list[RunId]()
        run = await spawned(runtime)
        await until(lambda: known(catalogue, run)[0] is Status.RUNNING)
        assert known(catalogue, run)[1:] == ([run], [run], [run])
        assert (catalogue.kept(run), catalogue.over(run)) == (True, False)
        assert list(catalogue.live_runs(Scope(uid=None, run=run), name="agent")) == [run]
        runtime.subscribers.on_end(run, lambda info: told.append(info.id))

        await stopped(runtime, run)
        await until(lambda: catalogue.over(run))
        assert told == [run]
        as_recent = known(catalogue, run)
        assert as_recent == (Status.CANCELLED, [run], [run], [run])
        newest = catalogue.newest_ended("agent", EVERYTHING)
        assert newest is not None
        assert newest.id == run

        other = await spawned(runtime)
        await stopped(runtime, other)
        assert run not in catalogue._recent
        assert known(catalogue, run)[:3] == as_recent[:3], "the ledger says the same"
        assert [each.id for each in catalogue.select(Page(List(id=0), EVERYTHING)).runs] == [run, other]


async def test_a_request_with_a_known_key_gets_the_same_run_until_that_is_deleted(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        spawn = Spawn(id=1, argv=[b"agent"], cwd=b"/", env=[], key="k")
        first = await spawned(runtime, spawn)
        assert await spawned(runtime, spawn) == first
        await stopped(runtime, first)
        assert await spawned(runtime, spawn) == first, "the client may have lost the answer"
        runtime.catalogue.forget([first])
        assert await spawned(runtime, spawn) != first

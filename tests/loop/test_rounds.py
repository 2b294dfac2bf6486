"""What comes in one round is decided first, then saved in one write, then done."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
import trio.testing

from sfad.core import commands as c
from sfad.core import events as e
from sfad.daemon.loop.pending_requests import PendingSpawn
from sfad.daemon.loop.runtime import Runtime
from sfad.durable.spool import SavedSpawns
from sfad.processes.launcher import LaunchRecord, LaunchSpec, Remember
from sfad.protocol.types import RunId, Status
from sfad.runs.live import Live
from sfad.storage.store import Store
from tests.harness import until
from tests.loop.shell import AGENT, ANN, shell, undecided
from tests.processes.fake import FakeLauncher


class Silent(FakeLauncher):
    """Tells nothing by itself."""

    def launch(
        self, run: RunId, parent: RunId | None, spec: LaunchSpec, remember: Remember
    ) -> None:
        self.calls.append(("launch", run, parent, spec))
        remember(LaunchRecord(spec.nonce, spec.bounds, 1001, 1001))


def writes(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Return the keys of each write from now on."""
    found, write = list[set[str]](), Store.write

    def noted(store: Store, changes: Mapping[str, bytes | None], *, look: bool = True) -> None:
        found.append(set(changes))
        write(store, changes, look=look)

    monkeypatch.setattr(Store, "write", noted)
    return found


def start(runtime: Runtime, told: list[Status | str]) -> None:
    """Ask for a run. `told` gets the status with which its client would be told of it."""

    def answer(said: c.Answer) -> None:
        if isinstance(said, c.SpawnDone):
            info = runtime.catalogue.begun(said.run.id)
            told.append(info.status if info is not None else "gone")
        else:
            assert isinstance(said, c.ErrorAnswer)
            told.append(said.message)

    around = runtime.starting.around(AGENT, ANN, None, connection=1)
    runtime.requests.spawn(PendingSpawn(undecided(around), around), answer)


async def launched(runtime: Runtime, runs: int) -> list[RunId]:
    launcher = runtime.resources.launcher
    assert isinstance(launcher, FakeLauncher)
    await until(lambda: sum(call[0] == "launch" for call in launcher.calls) == runs)
    return list(runtime.catalogue.live)


async def test_a_run_that_began_and_ended_is_saved_once_and_its_client_told_that_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be told of an end that is not on record."""
    async with shell(tmp_path, Silent) as runtime:
        told, over = list[Status | str](), trio.Event()
        start(runtime, told)
        (run,) = await launched(runtime, 1)
        runtime.watchers.wait_for_end(run, lambda _info: over.set())
        saved, now = writes(monkeypatch), trio.current_time()
        with runtime.resources.early_events.together:
            runtime.launcher_events.arrived(e.LaunchSucceeded(now, run, 1001))
            runtime.launcher_events.arrived(e.MainExited(now, run, code=0, empty=True))
            assert not saved
        assert saved[0] == {f"now/{run}"}
        assert sum(f"now/{run}" in keys for keys in saved) == 1
        assert told == [Status.RUNNING]
        await over.wait()
        info = runtime.catalogue.info(run)
        assert info is not None
        assert (info.status, info.exit_code) == (Status.COMPLETED, 0)
        (started, ended) = (info.started_at, info.ended_at)
        assert started is not None
        assert ended is not None
        assert started <= ended
        for what in ("run_started", "run_completed"):
            assert runtime.resources.ledger.records.has_event(run, what)


async def test_admissions_of_a_round_share_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(tmp_path, Silent) as runtime:
        await trio.testing.wait_all_tasks_blocked()
        saved = writes(monkeypatch)
        for _ in range(3):
            start(runtime, [])
        assert not any(key.startswith("run/") for keys in saved for key in keys)
        runs = await launched(runtime, 3)
        assert [keys for keys in saved if any(key.startswith("run/") for key in keys)] == [
            {f"{kind}/{run}" for run in runs for kind in ("run", "now")}
        ]


async def test_what_keeps_one_from_being_saved_is_not_that_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(tmp_path, Silent) as runtime:
        await trio.testing.wait_all_tasks_blocked()
        save = SavedSpawns.save

        def fails(spawns: SavedSpawns, live: Live) -> None:
            if live.run.id == "a2":
                raise OSError("it has no room")
            save(spawns, live)

        with monkeypatch.context() as patched:
            patched.setattr(SavedSpawns, "save", fails)
            told = list[Status | str]()
            for _ in range(3):
                start(runtime, told)
            assert await launched(runtime, 2) == ["a1", "a3"]
        assert "could not be recorded: the spool: it has no room" in str(told[0])

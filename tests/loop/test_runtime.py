"""The loop applies what the core has decided, even if a part of it fails."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
import trio

from sfad.core import events as e
from sfad.core.state.request import Asked
from sfad.core.state.vocabulary import Timer
from sfad.daemon.loop.pending_requests import PendingSpawn
from sfad.daemon.loop.runtime import Runtime
from sfad.durable.spool import RunJournal
from sfad.protocol.messages import Spawn
from sfad.protocol.types import Status
from sfad.start.asking import MAX_SHOWN
from sfad.storage.ledger import writer
from sfad.storage.store import Store
from tests.harness import until
from tests.loop.shell import bare, refused, shell, spawned, stopped, undecided
from tests.processes.fake import FakeLauncher


class Clumsy(FakeLauncher):
    """A launcher that is short of descriptors whenever it has to signal."""

    def terminate(self, run: str, signal: int) -> None:
        """Fail."""
        raise OSError(errno.EMFILE, "Too many open files", f"{run} {signal}")


async def test_a_command_that_fails_does_not_stop_the_next_ones(tmp_path: Path) -> None:
    async with shell(tmp_path, Clumsy) as runtime:
        run = await spawned(runtime)
        # the signal could not be sent; the grace ends all the same, and SIGKILL comes
        await stopped(runtime, run)
        assert run not in runtime.catalogue.live
    assert "Too many open files" in (tmp_path / "log").read_text()


async def test_a_pending_end_does_not_delay_a_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a tree with many ends, each waiting for a session file, would exceed its time and
    the grace of a stop."""
    async with shell(tmp_path, FakeLauncher) as runtime:
        run = await spawned(runtime)
        await until(lambda: runtime.catalogue.live[run].run.status is Status.RUNNING)
        with monkeypatch.context() as patched:
            patched.setattr("sfad.daemon.loop.launcher_events.LAST_LOOK_WAIT", 0.01)
            patched.setattr(runtime.metering, "may_wait", lambda _run: True)
            patched.setattr(runtime.metering, "learn_use", lambda _run, **_: trio.sleep_forever())  # noqa: ASYNC105 - its caller awaits it
            runtime.launcher_events.arrived(
                e.MainExited(trio.current_time(), run, code=0, empty=True)
            )
            assert run in runtime.catalogue.live
            runtime.launcher_events.arm(run, Timer.DEADLINE, trio.current_time())
            await until(lambda: run not in runtime.catalogue.live)
        ended = runtime.catalogue.info(run)
        assert ended is not None
        assert ended.status is Status.COMPLETED, "it had ended before its time was up"


async def _ends_with_a_bug(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await spawned(runtime)
    await until(lambda: runtime.catalogue.live[run].run.status is Status.RUNNING)
    with monkeypatch.context() as patched:
        patched.setattr(runtime.metering, "may_wait", lambda _run: True)
        patched.setattr(runtime.metering, "learn_use", AsyncMock(side_effect=KeyError("a bug")))
        runtime.launcher_events.arrived(e.MainExited(trio.current_time(), run, code=0, empty=True))
        await until(lambda: run not in runtime.catalogue.live)


async def test_a_run_ends_though_a_bug_keeps_its_use_from_being_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        for _ in range(2):  # and the daemon serves on
            await _ends_with_a_bug(runtime, monkeypatch)
    assert "KeyError: 'a bug'" in (tmp_path / "log").read_text()


async def test_a_run_whose_snapshot_cannot_be_saved_is_not_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next daemon would take it for queued, and launch it a second time."""
    async with shell(tmp_path, FakeLauncher, "[quotas]\ntrees = 1") as runtime:
        first = await spawned(runtime)
        second = await spawned(runtime)
        assert runtime.catalogue.live[second].run.status is Status.QUEUED
        full = OSError(errno.ENOSPC, "No space left on device")
        with monkeypatch.context() as patched:
            patched.setattr(Store, "write", Mock(side_effect=full))
            await stopped(runtime, first)
            assert second not in runtime.catalogue.live
        found = runtime.catalogue.info(second)
        assert found is not None
        assert found.status is Status.FAILED
        assert found.reason is not None
        assert "no room to save" in found.reason.message
        assert await spawned(runtime) in runtime.catalogue.live


@pytest.mark.parametrize("where", ["PendingSpawn.live", "RunJournal.admit"])
async def test_a_run_that_a_bug_keeps_from_being_admitted_keeps_no_slot_and_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    cls, method = where.split(".")
    owner = {"PendingSpawn": PendingSpawn, "RunJournal": RunJournal}[cls]
    async with shell(tmp_path, FakeLauncher, "[quotas]\ntrees = 1") as runtime:
        with monkeypatch.context() as patched:
            patched.setattr(owner, method, Mock(side_effect=TypeError("a bug")))
            assert "internal error; the daemon's log has the traceback" in await refused(runtime)
        assert not runtime.catalogue.live
        run = await spawned(runtime)
        await until(lambda: runtime.catalogue.live[run].run.status is Status.RUNNING)
    assert "a bug" in (tmp_path / "log").read_text()


async def test_refusals_while_the_ledger_fails_write_nothing_to_the_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY_LAST", 0.5)
    async with shell(tmp_path, FakeLauncher) as runtime:
        with closing(
            sqlite3.connect(tmp_path / "state" / "ledger.db", isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            await refused(runtime)
            await until(
                lambda: (
                    runtime.resources.ledger.trouble is not None
                    and runtime.resources.ledger.backlog > 0
                )
            )
            with monkeypatch.context() as patched:
                patched.setattr(Store, "write", written := Mock())
                for _ in range(50):
                    assert "locked" in await refused(runtime)
                assert written.call_count <= 1, "numbers are taken by the hundred"
            other.execute("ROLLBACK")
        await until(lambda: runtime.resources.ledger.trouble is None)
        await spawned(runtime)


def test_a_long_command_is_shown_cut_and_named_by_the_whole() -> None:
    def shown(text: str) -> Asked:
        order = Spawn(id=1, argv=[b"sh", b"-c", text.encode()], cwd=b"/", env=[])
        return undecided(bare(order)).asked

    first, second = shown("x" * 100_000 + "1"), shown("x" * 100_000 + "2")
    assert first.shown.argv == second.shown.argv
    assert sum(map(len, first.shown.argv)) <= MAX_SHOWN + 1
    assert first.shown.argv[-1].endswith("…")
    assert first.identity.name != second.identity.name

"""The shell applies what the core has decided, whatever becomes of a part of it."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from unittest.mock import Mock

import pytest
import trio

from sfad import config as configuration
from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.access import Peer
from sfad.durable.journal import RunJournal
from sfad.host.timers import Timers
from sfad.ledger import Ledger
from sfad.loop.reports import Reports
from sfad.loop.resources import Resources
from sfad.loop.runtime import Runtime
from sfad.loop.translate import MAX_SHOWN, asked_of
from sfad.observe.log import Log
from sfad.output.files import OutputStore
from sfad.protocol.messages import Spawn
from sfad.protocol.types import Status
from sfad.spool import Store
from tests.harness import PATIENCE
from tests.launch.fake import FakeLauncher, Script

ANN = Peer(0, "ann")


class Clumsy(FakeLauncher):
    """A launcher that is short of descriptors whenever it has to signal."""

    def terminate(self, run: str, signal: int) -> None:
        """Fails."""
        raise OSError(errno.EMFILE, "Too many open files", f"{run} {signal}")


@asynccontextmanager
async def shell(directory: Path, kind: type[FakeLauncher], config: str = "") -> AsyncIterator[Runtime]:
    """A runtime with a real ledger and no processes."""
    ledger = Ledger(directory / "state", patience=0.05)
    (directory / "sfad.toml").write_text(config)
    loaded = configuration.load([directory / "sfad.toml"])
    log, reports = Log("error", file=directory / "log"), Reports()
    timers = Timers(log.internal_error)
    launcher = kind(emit=reports.put, clock=trio.current_time, script=lambda _run, _spec: Script(after=None))
    resources = Resources(
        log, timers, RunJournal(directory / "spool", timers, print), ledger, OutputStore(directory / "output"), launcher,
        reports, "/s", str(directory),
    )  # fmt: skip
    runtime = Runtime(resources, loaded, shut_down=lambda: None, read_config=lambda: (loaded, []))
    runtime.saver.start_ledger()
    reports.pass_on(runtime.reported)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(runtime.serve)
            yield runtime
            nursery.cancel_scope.cancel()
    runtime.close()
    ledger.close()
    runtime.log.close()


async def spawned(runtime: Runtime) -> str:
    """A run that was admitted."""
    answer = await asked(runtime)
    assert isinstance(answer, c.Admitted)
    return answer.run.id


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what the ledger's thread brings about."""
    while not condition():  # noqa: ASYNC110 - it tells nobody
        await trio.sleep(0.01)


async def refused(runtime: Runtime) -> str:
    """Why there is no run."""
    answer = await asked(runtime)
    assert isinstance(answer, c.Failed)
    return answer.message


async def stopped(runtime: Runtime, run: str) -> None:
    """Returns when it is over."""
    over = trio.Event()
    runtime.requests.ask(lambda _said: over.set(), lambda token, now: e.StopRequested(now, token, ANN, (run,), grace=0.01))
    await over.wait()


async def asked(runtime: Runtime) -> c.Answer:
    """The answer to a spawn."""
    answers = list[c.Answer]()
    done = trio.Event()

    def answer(said: c.Answer) -> None:
        answers.append(said)
        done.set()

    spawn = Spawn(id=1, argv=[b"agent"], cwd=b"/", env=[])
    runtime.requests.spawn(ANN, spawn, [], 1, answer, lambda _run: None)
    await done.wait()
    return answers[0]


async def test_a_command_that_fails_does_not_take_the_next_ones_along(tmp_path: Path) -> None:
    async with shell(tmp_path, Clumsy) as runtime:
        run = await spawned(runtime)
        # the signal could not be sent; the grace ends all the same, and SIGKILL comes
        await stopped(runtime, run)
        assert run not in runtime.catalogue.live
    assert "Too many open files" in (tmp_path / "log").read_text()


async def test_an_end_that_waits_does_not_hold_a_timer_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree with many ends, each of which waits for a session file, would outlive its time and the grace of a stop."""
    async with shell(tmp_path, FakeLauncher) as runtime:
        run = await spawned(runtime)
        await until(lambda: runtime.catalogue.live[run].run.status is Status.RUNNING)
        with monkeypatch.context() as patched:
            patched.setattr("sfad.loop.ends.PATIENCE", 0.01)
            patched.setattr(runtime.metering, "may_wait", lambda _run: True)
            patched.setattr(runtime.metering, "settle", lambda _run, **_: trio.sleep_forever())  # noqa: ASYNC105 - its caller awaits it
            runtime.reported(e.MainExited(trio.current_time(), run, code=0, empty=True))
            assert run in runtime.catalogue.live
            runtime._arm(run, "deadline", trio.current_time())
            await until(lambda: run not in runtime.catalogue.live)
        ended = runtime.catalogue.info(run)
        assert ended is not None
        assert ended.status is Status.COMPLETED, "it had ended before its time was up"


async def test_what_the_spool_has_no_room_for_is_not_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that comes after this one would take it for queued, and start it again."""
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
        assert "no room to remember" in found.reason.message
        assert await spawned(runtime) in runtime.catalogue.live


async def test_refusals_while_the_ledger_fails_cost_the_spool_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        with closing(sqlite3.connect(tmp_path / "state" / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await refused(runtime)
            await until(lambda: runtime.ledger.trouble is not None and runtime.ledger.held > 0)
            with monkeypatch.context() as patched:
                patched.setattr(Store, "write", written := Mock())
                for _ in range(50):
                    assert "locked" in await refused(runtime)
                assert written.call_count <= 1, "numbers are taken by the hundred"
            other.execute("ROLLBACK")
        await until(lambda: runtime.ledger.trouble is None)
        await spawned(runtime)


def test_a_long_command_is_shown_short_and_named_by_all_of_it() -> None:
    def shown(text: str) -> e.Asked:
        return asked_of(Spawn(id=1, argv=[b"sh", b"-c", text.encode()], cwd=b"/", env=[]), 1)

    first, second = shown("x" * 100_000 + "1"), shown("x" * 100_000 + "2")
    assert first.argv == second.argv
    assert sum(map(len, first.argv)) <= MAX_SHOWN + 1
    assert first.argv[-1].endswith("…")
    assert first.name != second.name

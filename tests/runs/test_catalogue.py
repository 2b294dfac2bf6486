"""What is known of a run is the same wherever it is: live, ended a short while ago, or in the
ledger only."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Raw
from msgspec.structs import replace

from sfad.core import events as e
from sfad.core.state.access import EVERYTHING, Peer, Scope
from sfad.core.state.account import Use
from sfad.core.state.money import NANOS
from sfad.daemon.lookup import find_run
from sfad.daemon.loop.runtime import Runtime
from sfad.daemon.server.connection import RunRows
from sfad.protocol.framing import pack
from sfad.protocol.messages import List, RunList, Spawn, unpack_reply
from sfad.protocol.types import RunId, RunInfo, Status
from sfad.runs import catalogue
from sfad.runs import catalogue as module
from sfad.runs.catalogue import EncodedRuns, RunCatalogue, row_of
from sfad.runs.live import Live
from sfad.storage.ledger import ledger
from sfad.storage.ledger.queries import Page
from tests.harness import until
from tests.ledger.samples import traced_reader
from tests.loop.shell import refused, shell, spawned, stopped
from tests.processes.fake import FakeLauncher


def known(
    catalogue: RunCatalogue, run: RunId
) -> tuple[Status, list[RunId], list[RunId], list[RunId]]:
    """The status of a run, its chain, and the runs that are found by its prefix and on a page of
    its name."""
    info = catalogue.info(run)
    assert info is not None
    return (
        info.status,
        catalogue.lineage(run),
        catalogue.find(run, EVERYTHING),
        listed(catalogue, name=info.name),
    )


def listed(catalogue: RunCatalogue, scope: Scope = EVERYTHING, **query: Any) -> list[RunId]:
    """The runs of a page."""
    return [info.id for info in page_of(catalogue, scope, **query)]


def page_of(catalogue: RunCatalogue, scope: Scope = EVERYTHING, **query: Any) -> list[RunInfo]:
    """A page as a client reads it."""
    found = catalogue.select(Page(List(id=0, **query), scope), limits=query.get("limits", True))
    reply = unpack_reply(pack(RunRows(id=0, runs=found.rows(found.live), next=found.next)))
    assert isinstance(reply, RunList)
    return reply.runs


async def test_a_run_is_known_through_all_of_its_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: list[str]
) -> None:
    monkeypatch.setattr(module, "RECENT", 1)
    async with shell(tmp_path, FakeLauncher) as runtime:
        catalogue, told = runtime.catalogue, list[RunId]()
        run = await spawned(runtime)
        await until(lambda: known(catalogue, run)[0] is Status.RUNNING)
        assert known(catalogue, run)[1:] == ([run], [run], [run])
        assert (catalogue.kept(run), catalogue.over(run)) == (True, False)
        assert list(catalogue.live_runs(Scope(uid=None, run=run), name="agent")) == [run]
        runtime.watchers.wait_for_end(run, lambda info: told.append(info.id))

        await stopped(runtime, run)
        await until(lambda: catalogue.over(run))
        assert told == [run]
        as_recent = known(catalogue, run)
        assert as_recent == (Status.CANCELLED, [run], [run], [run])
        assert find_run(catalogue, "agent", EVERYTHING) == run

        other = await spawned(runtime)
        await stopped(runtime, other)
        assert any(
            "argv" in statement for statement in statements(sql, lambda: catalogue.info(run))
        ), "not in memory"
        assert known(catalogue, run)[:3] == as_recent[:3], "the ledger says the same"
        assert listed(catalogue) == [run, other]


async def test_a_row_of_an_ended_run_is_read_and_encoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: list[str]
) -> None:
    monkeypatch.setattr(module, "RECENT", 1)
    async with shell(tmp_path, FakeLauncher) as runtime:
        catalogue, runs = runtime.catalogue, [await ended(runtime) for _ in range(3)]
        known = [info for run in runs if (info := catalogue.info(run)) is not None]
        assert page_of(catalogue) == catalogue.with_totals(known)
        few = statements(sql, lambda: listed(catalogue))
        runs += [await ended(runtime) for _ in range(5)]
        assert listed(catalogue) == runs
        assert statements(sql, lambda: listed(catalogue)) == few
        assert not any("argv" in sql for sql in few), "no row is read"
        assert listed(catalogue, rows=2) == runs[-2:]
        assert listed(catalogue, Scope(uid=1, run=None)) == []


async def ended(runtime: Runtime) -> RunId:
    """A run that is over."""
    run = await spawned(runtime)
    await stopped(runtime, run)
    await until(lambda: runtime.catalogue.over(run))
    return run


@pytest.fixture
def sql(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is executed by connections that a ledger reads with."""
    found: list[str] = []
    monkeypatch.setattr(ledger, "open_reader", traced_reader(found))
    return found


def statements(sql: list[str], what: Callable[[], object]) -> list[str]:
    """The SQL that is executed, without its numbers."""
    begin = len(sql)
    what()
    return [re.sub(r"\d+", "", statement) for statement in sql[begin:]]


async def test_the_totals_of_a_tree_are_those_of_its_end(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        top = await spawned(runtime)
        spawn = Spawn(id=1, argv=[b"child"], cwd=b"/", env=[])
        below = [await spawned(runtime, spawn, Peer(0, "ann", run=top)) for _ in range(2)]

        def totals() -> dict[RunId, float | None]:
            return {info.id: info.total_cost_usd for info in page_of(runtime.catalogue)}

        for run, cost in zip(below, (1, 2), strict=True):
            runtime.feed(
                e.UseSeen(trio.current_time(), run, "stream", Use(cost=cost * NANOS // 100))
            )
        await stopped(runtime, below[0])
        assert totals() == {top: 0.03, below[0]: 0.01, below[1]: 0.02}
        runtime.feed(e.UseSeen(trio.current_time(), below[1], "stream", Use(cost=4 * NANOS // 100)))
        assert totals() == {top: 0.05, below[0]: 0.01, below[1]: 0.04}
        await stopped(runtime, top)
        await until(lambda: runtime.catalogue.over(top))
        assert totals() == {top: 0.05, below[0]: 0.01, below[1]: 0.04}
        assert totals() == {top: 0.05, below[0]: 0.01, below[1]: 0.04}, "as encoded before"


async def test_a_run_that_was_deleted_leaves_memory(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        run = await ended(runtime)
        assert listed(runtime.catalogue) == [run]
        assert listed(runtime.catalogue, limits=False) == [run]
        assert runtime.catalogue.encoded_size > 0
        runtime.catalogue.forget([run])
        assert runtime.catalogue.encoded_size == 0


async def test_rows_leave_out_what_is_as_its_default_and_the_limits_of_ended_runs_if_asked(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        over, live = await ended(runtime), await spawned(runtime)
        await until(lambda: runtime.catalogue.over(over))
        info = runtime.catalogue.info(over)
        assert info is not None
        for _ in range(2):  # encoded now, and as it was encoded before
            whole, lean = page_of(runtime.catalogue), page_of(runtime.catalogue, limits=False)
            assert [each.id for each in whole] == [over, live]
            assert whole[0] == info
            assert lean[0] == replace(info, limits=[])
            assert (
                [state.kind for state in lean[1].limits]
                == [state.kind for state in whole[1].limits]
                != []
            )
        with_limits, without = (
            memoryview(row_of(info, limits=limits)).nbytes for limits in (True, False)
        )
        assert len(pack(info)) == with_limits > 1.3 * without


async def test_who_asks_often_has_the_kernel_asked_for_signs_of_life_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        run = await spawned(runtime)
        live, looks = runtime.catalogue.live[run], list[float]()
        await until(lambda: live.run.status is Status.RUNNING)

        def heard(_live: Live, now: float) -> float:
            looks.append(now)
            return now

        runtime.catalogue.heard = heard
        live.signs = None
        begun = runtime.catalogue.begun(run)
        assert (looks, begun is not None and begun.last_heard_at) == ([], None)
        monkeypatch.setattr(catalogue, "SIGNS_FOR", 3600.0)
        first, second = runtime.catalogue.shown(live), runtime.catalogue.shown(live)
        assert first.last_heard_at is not None
        assert (len(looks), second.last_heard_at is not None) == (1, True)
        monkeypatch.setattr(catalogue, "SIGNS_FOR", 0.0)
        runtime.catalogue.shown(live)
        assert len(looks) == 2


def test_rows_that_were_not_asked_for_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MAX_BYTES", 30)
    rows, row = EncodedRuns(), Raw(b"0123456789")
    for number in (1, 2, 3):
        rows.add(number, row)
    assert rows.of([1, 9]) == [row, None]
    rows.add(4, row)
    assert (rows.of([1, 2, 3, 4]), rows.size) == ([row, None, row, row], 30)
    rows.add(5, Raw(bytes(100)))
    assert (rows.of([1, 3, 4, 5]), rows.size) == ([None] * 4, 0)


async def test_a_run_that_the_ledger_could_not_admit_is_listed(tmp_path: Path) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        before = await ended(runtime)
        with closing(
            sqlite3.connect(tmp_path / "state" / "ledger.db", isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            await refused(runtime)
            first, failed = page_of(runtime.catalogue)
            assert (first.id, failed.status) == (before, Status.FAILED)
            assert listed(runtime.catalogue, rows=1) == [failed.id]
            assert listed(runtime.catalogue, name="other") == []
            other.execute("ROLLBACK")
        runtime.catalogue.forget([failed.id])
        assert listed(runtime.catalogue) == [before]


async def test_a_request_with_a_known_key_gets_the_same_run_until_that_is_deleted(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path, FakeLauncher) as runtime:
        spawn = Spawn(id=1, argv=[b"agent"], cwd=b"/", env=[], key="k")
        first = await spawned(runtime, spawn)
        assert await spawned(runtime, spawn) == first
        await stopped(runtime, first)
        assert await spawned(runtime, spawn) == first, "the client may have lost the answer"
        runtime.catalogue.forget([first])
        assert await spawned(runtime, spawn) != first

"""Writes can be read again, and each admission is answered."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sfad.core.state.access import EVERYTHING
from sfad.core.state.run import run_id
from sfad.host.probe import current_boot
from sfad.host.tasks import LoopRounds
from sfad.protocol.messages import List
from sfad.protocol.types import (
    Action,
    CallInfo,
    Event,
    LimitKind,
    LimitState,
    Reason,
    RunInfo,
    Source,
    Status,
    StoppedChildren,
    Usage,
)
from sfad.storage.ledger import Ledger, OpenedLedger, RunExtra, schema, writer
from sfad.storage.ledger.queries import Page, Reader
from sfad.storage.ledger.rows import (
    call_op,
    event_of,
    event_op,
    insert_op,
    run_extra,
    run_info,
    statements,
)

from .samples import PLAIN, WHEN, Answers, call, calls, events, run, runs_of, started

PATHS = st.text(max_size=20)
MOMENTS = st.datetimes(
    min_value=datetime(2020, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)
)
NUMBERS = st.integers(0, 2**62)
USD = st.floats(0, 1e6)


def usage_of(source: str) -> st.SearchStrategy[Usage]:
    """A usage that a source may report."""
    return st.builds(
        Usage, turns=st.none() | NUMBERS, cost_usd=st.none() | USD, source=st.just(source)
    )


def shown(number: int, *, usage_by_source: dict[Source, Usage], **changes: Any) -> RunInfo:
    """A run with the best source's usage and the last source's cost: figures of several sources are
    shown together."""
    sources = list(usage_by_source.values()) or [Usage()]
    best = msgspec.structs.replace(sources[0], cost_usd=sources[-1].cost_usd)
    return run(number, usage=best, usage_by_source=usage_by_source, **changes)


RUNS = st.builds(
    shown,
    st.integers(1, 2**40),
    name=PATHS,
    type=st.none() | PATHS,
    status=st.sampled_from(Status),
    parent_id=st.none() | st.just("a1"),
    chain=st.lists(PATHS),
    argv=st.lists(PATHS),
    pid=st.none() | NUMBERS,
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    reason=st.none() | st.builds(Reason, kind=PATHS, message=PATHS, cost_usd=st.none() | USD),
    attempts=NUMBERS,
    limits=st.lists(
        st.builds(
            LimitState,
            kind=st.sampled_from(LimitKind),
            threshold=USD,
            action=st.sampled_from(Action),
            source=PATHS,
            used=st.none() | USD,
            enforced_by=st.sampled_from(["kernel", "nothing"]),
        )
    ),
    usage_by_source=st.fixed_dictionaries(
        {}, optional={source: usage_of(source) for source in ("report", "stream")}
    ),
    descendants=NUMBERS,
    deadline=st.none() | MOMENTS,
    milestone=st.none() | PATHS,
    model=st.none() | PATHS,
    provider=st.none() | PATHS,
    task=st.none() | PATHS,
    allowed_tools=st.lists(PATHS).map(tuple),
    blocked_tools=st.lists(PATHS).map(tuple),
    stopped_children=st.none()
    | st.builds(StoppedChildren, count=NUMBERS, names=st.lists(PATHS), message=PATHS),
    created_at=MOMENTS,
    ended_at=st.none() | MOMENTS,
    labels=st.dictionaries(PATHS, PATHS),
)
EXTRAS = st.builds(
    RunExtra,
    uid=st.none() | st.integers(0, 2**32 - 1),
    mode=st.none() | PATHS,
    pid_started=st.none() | NUMBERS,
    boot_id=PATHS.filter(bool),
    result_head=st.none() | st.binary(max_size=1024),
)


@given(info=RUNS, extra=EXTRAS)
def test_a_row_gives_back_the_run_it_was_made_of(info: RunInfo, extra: RunExtra) -> None:
    row = insert_op("admit", info, extra, None).row
    assert run_info(row) == info
    assert run_extra(row) == extra


@given(
    st.builds(
        Event,
        type=PATHS,
        severity=st.sampled_from(["low", "medium", "high"]),
        time=MOMENTS,
        seq=st.integers(1, 2**62),
        run_id=st.none() | PATHS,
        agent_name=st.none() | PATHS.filter(bool),
        message=PATHS,
        used=st.none() | USD,
    )
)
def test_a_row_gives_back_the_event_it_was_made_of(event: Event) -> None:
    assert event_of(event_op(event).row) == event


async def test_an_admission_is_in_the_file_when_it_is_reported(tmp_path: Path) -> None:
    answers = Answers()
    with started(tmp_path, answers) as ledger:
        ledger.admit(run(1), PLAIN)
        assert answers.admitted == []
        await answers.until(lambda: bool(answers.admitted))
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
            assert other.execute("SELECT id, status FROM runs").fetchall() == [("a1", "accepted")]
        assert ledger.records.get("a1") == run(1)
    assert answers.failed == []


async def test_charges_of_a_period_add_up_across_restarts(tmp_path: Path) -> None:
    today, tomorrow = WHEN, WHEN + timedelta(days=1)
    with started(tmp_path) as ledger:
        for usd in (0.25, 0.5, -0.125):
            ledger.charge("user", "ann", today, usd)
        ledger.charge("team", "ann", today, 4.0)
        assert await ledger.flush()
    with started(tmp_path) as ledger:
        assert (
            ledger.records.charged("user", "ann", today),
            ledger.records.charged("user", "ann", tomorrow),
        ) == (0.625, 0.0)
        ledger.charge("user", "ann", tomorrow, 1.0)
        assert await ledger.flush()
        assert (
            ledger.records.charged("user", "ann", today),
            ledger.records.charged("user", "ann", tomorrow),
        ) == (0.625, 1.0)


async def test_a_call_is_written_once_whatever_asks_for_it_again(tmp_path: Path) -> None:
    answers, refused = Answers(), call(2, state="refused", cost_usd=None, refused="too much")
    with started(tmp_path, answers) as ledger:
        for each in (
            call(1),
            refused,
            call(1, cost_usd=9.0),
            replace(refused, more=3),
            refused,
            call(1, run=2),
        ):
            ledger.record_call(each)
        assert await ledger.flush()
        assert calls(ledger) == [call(1), replace(refused, more=3)]
        await answers.until(lambda: len(answers.calls) == 6)
        assert answers.calls[0] == ("a1", call(1).time.timestamp(), 1)
    opened = OpenedLedger(tmp_path)
    opened.upsert([], [call(1, cost_usd=9.0), call(3)])
    assert calls(opened) == [call(1), replace(refused, more=3), call(3)]
    opened.close()


CALLS = st.builds(
    call,
    st.integers(0, 10**9),
    upstream=PATHS,
    model=st.none() | PATHS,
    cost_usd=st.none() | USD,
    status=st.none() | NUMBERS,
    refused=st.none() | PATHS,
    **dict.fromkeys(("partial", "streamed"), st.booleans()),
)


@given(CALLS)
def test_a_row_gives_back_the_call_it_was_made_of(info: CallInfo) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    for sql, values in statements([call_op(info)]):
        connection.execute(sql, values)
    assert Reader(connection).calls(info.run_id, (0.0, 0), 1) == [info]
    connection.close()


async def test_a_run_s_life(tmp_path: Path) -> None:
    ended = run(
        1,
        status=Status.FAILED,
        exit_code=3,
        pid=77,
        ended_at=WHEN,
        reason=Reason(kind="exit", message="3"),
    )
    extra = RunExtra(uid=1000, pid_started=5, result_head=b"x" * 3000)
    with started(tmp_path) as ledger:
        ledger.admit(run(1), PLAIN)
        ledger.record(run(1, status=Status.RUNNING, pid=77, started_at=WHEN), extra)
        ledger.record(ended, extra)
        assert await ledger.flush()
        assert ledger.records.get("a1") == ended
    again = OpenedLedger(tmp_path)
    assert again.records.get("a1") == ended
    kept = again.records.details("a1")
    assert kept is not None
    assert kept.result_head == b"x" * 1024
    assert kept.boot_id == current_boot()
    assert (again.records.get("a2"), again.records.details("a2"), again.next_number) == (
        None,
        None,
        2,
    )
    again.close()


async def test_reads_see_queued_writes(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        ledger.admit(run(1), PLAIN)
        await ledger.flush()
        ledger.record(run(1, status=Status.COMPLETED), PLAIN)
        ledger.refuse(
            run(2, status=Status.REJECTED_DEPTH, parent_id="a1", root_id="a1", labels={"k": "v"}),
            PLAIN,
        )
        assert ledger.records.get("a1") == run(1, status=Status.COMPLETED)
        assert [info.status for info in runs_of(ledger.records, Page(List(id=1), EVERYTHING))] == [
            "completed",
            "rejected_depth",
        ]
        assert [
            info.id
            for info in runs_of(
                ledger.records, Page(List(id=1, labels={"k": "v"}), EVERYTHING, within="a1")
            )
        ] == ["a2"]
        assert (ledger.records.lineage("a2"), ledger.records.find("a", EVERYTHING)) == (
            ["a1", "a2"],
            ["a1", "a2"],
        )
        before = runs_of(ledger.records, Page(List(id=1), EVERYTHING))
        await ledger.flush()
        assert runs_of(ledger.records, Page(List(id=1), EVERYTHING)) == before


async def test_a_save_creates_nothing(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        ledger.record(run(9, status=Status.FAILED), PLAIN)
        assert await ledger.flush()
        assert ledger.records.get("a9") is None


async def test_refusals_are_counted(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        ledger.refuse(run(1, status=Status.REJECTED_LOOP), PLAIN)
        for _ in range(3):
            ledger.count_refusal("a1")
        assert await ledger.flush()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        assert other.execute("SELECT refusals_counted FROM runs").fetchall() == [(3,)]


async def test_numbers_and_event_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    event = Event(type="run_accepted", time=WHEN, run_id="a1", message="m", used=0.0)
    with started(tmp_path) as ledger:
        ledger.admit(run(40), PLAIN)
        assert (
            ledger.next_number,
            ledger.record_event(event).seq,
            ledger.record_event(event).seq,
        ) == (41, 1, 2)
        await ledger.flush()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        other.executescript("DELETE FROM runs; DELETE FROM events;")
    with started(tmp_path) as ledger:
        assert (ledger.next_number, ledger.record_event(event).seq) == (41, 3)
        await ledger.flush()
        assert events(ledger, 2) == [msgspec.structs.replace(event, seq=3)]
    with started(tmp_path, floor_number=100) as ledger:
        assert ledger.next_number == 101


async def test_an_event_without_a_time_is_a_bug_and_takes_no_number(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        with pytest.raises(ValueError, match="no time"):
            ledger.record_event(Event(type="x"))
        assert ledger.record_event(Event(type="x", time=WHEN)).seq == 1


async def test_what_became_of_writes_waits_for_a_listener(tmp_path: Path) -> None:
    answers = Answers()
    ledger = Ledger(OpenedLedger(tmp_path), LoopRounds())
    ledger.admit(run(1), PLAIN)
    await ledger.flush()
    ledger.report_to(answers)
    assert answers.admitted == ["a1"]
    ledger.close()


async def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with started(tmp_path / "state") as ledger:
            ledger.admit(run(1), PLAIN)
            await ledger.flush()
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "state").iterdir()}
    finally:
        os.umask(old)
    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


async def test_the_environment_has_no_column() -> None:
    assert not [name for name in schema.RUN_COLUMNS if "env" in name]


async def test_a_burst_shares_transactions_and_answers_each_client_once(tmp_path: Path) -> None:
    answers = Answers()
    ids = [run_id(number) for number in range(1, 3001)]
    with started(tmp_path, answers) as ledger:
        for number in range(1, 3001):
            ledger.admit(run(number, labels={"n": str(number)}), PLAIN)
            ledger.record(run(number, status=Status.RUNNING), PLAIN)
            ledger.record_event(Event(type="run_started", time=WHEN))
            ledger.record(run(number, status=Status.COMPLETED), PLAIN)
        assert await ledger.flush()
        await answers.until(lambda: len(answers.admitted) == 3000)
        assert answers.admitted == ids
        assert [
            info.status for info in runs_of(ledger.records, Page(List(id=1, rows=5000), EVERYTHING))
        ] == ["completed"] * 3000
        assert len(events(ledger)) == 3000
        assert [
            info.id
            for info in runs_of(ledger.records, Page(List(id=1, labels={"n": "7"}), EVERYTHING))
        ] == ["a7"]


async def test_a_long_burst_does_not_let_the_log_grow_without_bound(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for batch in range(20):
            for number in range(batch * 1000 + 1, batch * 1000 + 1001):
                ledger.admit(run(number), PLAIN)
            await ledger.flush()
        # 20 000 rows make some 60 MB of log
        assert (tmp_path / "ledger.db-wal").stat().st_size < 40_000_000
        assert ledger.records.size_bytes > 5_000_000


async def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        for number in range(1, 501):
            ledger.admit(run(number), PLAIN)
        assert ledger.close() == 0
        assert not (tmp_path / "ledger.db-wal").exists()
    again = OpenedLedger(tmp_path)
    assert again.next_number == 501
    again.close()


async def test_a_bug_in_the_writer_fails_admissions_and_forgets_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    with started(tmp_path, answers) as ledger:
        ledger.admit(run(1), PLAIN)
        assert await ledger.flush()
        with monkeypatch.context() as patch:
            patch.setattr(writer, "statements", lambda _: 1 // 0)
            ledger.admit(run(2), PLAIN)
            ledger.record(run(1, status=Status.COMPLETED), PLAIN)
            assert not await ledger.flush()
        assert [one for one, _ in answers.failed] == ["a2"]
        await answers.until(lambda: ledger.backlog == 0)
        assert [info.status for info in runs_of(ledger.records, Page(List(id=1), EVERYTHING))] == [
            Status.COMPLETED
        ]


async def test_a_bad_operation_does_not_hold_up_the_others(tmp_path: Path) -> None:
    answers = Answers()
    with started(tmp_path, answers) as ledger:
        ledger.admit(run(1), PLAIN)
        await ledger.flush()
        ledger.admit(run(1), PLAIN)
        ledger.refuse(run(1, status=Status.REJECTED_RATE), PLAIN)
        ledger.admit(run(2), PLAIN)
        ledger.refuse(run(3, status=Status.REJECTED_RATE, cwd="\udc80"), PLAIN)
        ledger.admit(run(4), PLAIN)
        assert await ledger.flush()
        await answers.until(lambda: len(answers.admitted) == 3)
        assert answers.admitted == ["a1", "a2", "a4"]
        assert [one for one, _ in answers.failed] == ["a1"]
        assert (sum(lost for _, lost in answers.troubles), ledger.trouble) == (2, None)
        assert ledger.records.get("a1") == run(1)


def test_close_returns_unwritten_operations_when_trio_is_over(tmp_path: Path) -> None:
    async def main() -> Ledger:
        return Ledger(OpenedLedger(tmp_path), LoopRounds())

    ledger = trio.run(main)
    ledger.admit(run(1), PLAIN)
    assert ledger.close() == 0
    again = OpenedLedger(tmp_path)
    assert again.records.get("a1") == run(1)
    again.close()

"""Advice: percentiles, head-room and ranges by hand; and from a real ledger."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from sfad.core.state.access import EVERYTHING
from sfad.features.advice import learning
from sfad.features.advice.learning import MIN_RUNS, EndedRun, advise, learn, percentile, rounded_up
from sfad.features.advice.messages import Advice
from sfad.protocol.kinds import KINDS
from sfad.protocol.paths import LEDGER
from sfad.protocol.types import LimitKind, Reason, RunInfo, Status, Usage
from sfad.storage.ledger import LedgerError
from tests.core.policies import policy
from tests.ledger.samples import PLAIN, run, started, traced_reader

TIME, TURNS, MESSAGES, TOKENS, COST = (
    LimitKind.TIME,
    LimitKind.TURNS,
    LimitKind.MESSAGES,
    LimitKind.TOKENS,
    LimitKind.COST,
)


def done(**used: float) -> EndedRun:
    return EndedRun(
        Status.COMPLETED, None, {LimitKind(kind): value for kind, value in used.items()}, {}
    )


def failed(on: str | None = None, **limits: float) -> EndedRun:
    return EndedRun(
        Status.FAILED,
        on,
        {TURNS: 1000.0},
        {LimitKind(kind): value for kind, value in limits.items()},
    )


def about(kind: LimitKind, advice: list[Advice]) -> Advice:
    [found] = [each for each in advice if each.kind is kind]
    return found


# ---- the arithmetic


@pytest.mark.parametrize(
    ("values", "p95"),
    [
        ([7], 7),
        (range(1, 21), 19),
        (range(1, 22), 20),
        (range(1, 101), 95),
        (range(100, 0, -1), 95),
        ([1] * 95 + [9] * 5, 1),
        ([1] * 94 + [9] * 6, 9),
    ],
)
def test_the_percentile_is_by_nearest_rank(values: list[float], p95: float) -> None:
    assert percentile(list(values)) == p95


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200))
def test_at_least_95_in_100_are_within_it_and_fewer_below(values: list[float]) -> None:
    found = percentile(values)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= 95 * len(values)
    assert sum(value < found for value in values) * 100 < 95 * len(values)


@pytest.mark.parametrize(
    ("kind", "amount", "written"),
    [
        (TURNS, 18.75, 19), (TURNS, 20.0, 20), (TIME, 61.2, 62), (TIME, 0.25, 1),
        (COST, 0.36 * 1.25, 0.45), (COST, 0.451, 0.46), (MESSAGES, 1234.5, 1235),
        (TOKENS, 999.5, 1000), (TOKENS, 1000, 1000), (TOKENS, 1001, 1100),
        (TOKENS, 229_265, 230_000), (TOKENS, 1_000_000, 1_000_000), (TOKENS, 1_000_001, 1_100_000),
        (TURNS, 0, 0),
    ],
)  # fmt: skip
def test_rounding_as_a_person_would(kind: LimitKind, amount: float, written: float) -> None:
    assert rounded_up(kind, amount) == pytest.approx(written, abs=1e-9)


@given(st.sampled_from([TIME, TURNS, MESSAGES, TOKENS, COST]), st.floats(0, 1e12))
def test_rounding_goes_up_and_not_far(kind: LimitKind, amount: float) -> None:
    found = rounded_up(kind, amount)
    assert found >= amount * (1 - 1e-9) - 1e-6
    assert found <= amount + max(1, amount * 0.1 if kind is TOKENS else 0)


def test_head_room_over_what_successful_runs_used() -> None:
    advice = advise(
        [
            *(
                done(turns=n, time=10 * n, cost=n / 100, tokens=1000 * n, messages=n)
                for n in range(1, 21)
            ),
            *[failed()] * 5,
        ]
    )
    assert {
        each.kind.value: (each.p95, each.suggested, each.runs, each.ended) for each in advice
    } == {
        "time": (190, 238, 20, 25),
        "turns": (19, 24, 20, 25),
        "messages": (19, 24, 20, 25),
        "tokens": (19_000, 24_000, 20, 25),
        "cost": (0.19, 0.24, 20, 25),
    }
    assert {each.note for each in advice} == {""}


def test_the_range_bounds_it() -> None:
    advice = advise([done(turns=90, time=3599, cost=99, tokens=0) for _ in range(MIN_RUNS)])
    assert {each.kind.value: each.suggested for each in advice} == {
        "time": 3600,
        "turns": 100,
        "messages": None,
        "tokens": 1,
        "cost": 100,
    }
    assert about(TURNS, advice).note == "113 would be outside the range"
    assert (about(TURNS, advice).least, about(TURNS, advice).most) == (1, 100)
    longer = about(TIME, advise([done(time=3599)] * MIN_RUNS, policy=policy(max_time=7200)))
    assert (longer.suggested, longer.most) == (4499, 7200)


def test_a_run_for_nothing_gets_the_least() -> None:
    advice = advise([done(turns=0, cost=0, time=0)] * MIN_RUNS)
    assert [about(kind, advice).suggested for kind in (TURNS, COST, TIME)] == [1, 0.01, 1]


def test_too_few_runs_are_noted() -> None:
    advice = advise([*[done(turns=5)] * (MIN_RUNS - 1), done(time=5), *[failed("turns")] * 20])
    turns = about(TURNS, advice)
    assert (turns.p95, turns.suggested, turns.runs) == (None, None, 19)
    assert turns.note == "no advice: usage is known for 19 successful runs; 20 are needed"
    assert turns.failed_share == 0.5


def test_without_runs() -> None:
    assert [(each.failed_share, each.limit, each.ended) for each in advise([])] == [
        (None, None, 0)
    ] * 5


def test_the_share_that_failed_on_it_and_the_newest_limit() -> None:
    advice = advise(
        [
            failed("turns", time=60),
            failed("turns", turns=25),
            *[done(turns=1)] * 5,
            failed("cost", turns=10),
        ]
    )
    shares = {each.kind.value: each.failed_share for each in advice}
    assert shares == {"time": 0, "turns": 0.25, "messages": 0, "tokens": 0, "cost": 0.125}
    assert {each.kind.value: each.limit for each in advice} == {
        "time": 60,
        "turns": 25,
        "messages": None,
        "tokens": None,
        "cost": None,
    }


runs = st.builds(
    EndedRun,
    st.sampled_from([Status.COMPLETED, Status.COMPLETED, Status.FAILED]),
    st.sampled_from([None, "turns", "tool"]),
    st.dictionaries(
        st.sampled_from([TIME, TURNS, MESSAGES, TOKENS, COST]), st.integers(0, 10**7).map(float)
    ),
    st.dictionaries(st.sampled_from([TIME, TURNS]), st.floats(1, 100)),
)


@given(st.lists(runs, max_size=60))
def test_advice_is_always_within_the_range(ended: list[EndedRun]) -> None:
    for each in advise(ended):
        assert (each.suggested is None) == (each.runs < MIN_RUNS) == (each.p95 is None)
        assert each.suggested is None or KINDS[each.kind].least <= each.suggested <= (
            each.most or math.inf
        )
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=Advice) == each


# ---- the file


def ended(number: int, turns: int | None, **changes: Any) -> RunInfo:
    usage = Usage(turns=turns, elapsed_s=1.5, source="none" if turns is None else "stream")
    return run(
        number, **{"status": Status.COMPLETED, "usage": usage, "type": "developer", **changes}
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs 1 to 120: the 40 newest of `dev` used their number in turns, the one before them 1 000;
    and other runs."""
    path = tmp_path_factory.mktemp("advice")
    trio.run(written, path)
    return path


async def written(path: Path) -> None:
    with started(path) as ledger:
        for info in a_history():
            ledger.admit(info, PLAIN)
        await ledger.flush()


def a_history() -> Iterator[RunInfo]:
    yield from (ended(number, 1000) for number in range(1, 21))
    yield from (ended(number, number) for number in range(21, 61))
    over = Reason(kind="limit", message="used 26 turns", limit_kind="turns", threshold=25.0)
    above = Reason(kind="ancestor", message="its ancestor ended", limit_kind="turns")
    yield from (
        ended(number, 26, status=Status.FAILED, reason=over, name="other")
        for number in range(61, 71)
    )
    yield from (
        ended(number, 26, status=Status.CANCELLED, reason=above, name="other")
        for number in range(71, 81)
    )
    yield from (ended(number, 3, type="qa") for number in range(81, 101))
    yield from (ended(number, None, status=Status.RUNNING) for number in range(101, 111))
    yield from (ended(number, None, status=Status.REJECTED_LOOP) for number in range(111, 121))


def test_the_newest_of_a_type(directory: Path) -> None:
    turns = about(TURNS, learn(directory, EVERYTHING, type="developer", rows=60))
    assert (turns.p95, turns.suggested, turns.runs, turns.ended, turns.failed_share) == (
        58,
        73,
        40,
        60,
        10 / 60,
    )
    assert about(TURNS, learn(directory, EVERYTHING, type="developer")).p95 == 1000


def test_of_a_name_of_both_and_of_all(directory: Path) -> None:
    assert about(TURNS, learn(directory, EVERYTHING, name="other")).ended == 20
    assert about(TURNS, learn(directory, EVERYTHING, name="other")).failed_share == 0.5
    assert about(TURNS, learn(directory, EVERYTHING, name="claude", type="qa")).p95 == 3
    assert about(TURNS, learn(directory, EVERYTHING)).ended == 100
    assert about(TURNS, learn(directory, EVERYTHING, rows=20)).p95 == 3
    assert {
        each.ended
        for each in [
            *learn(directory, EVERYTHING, type="x"),
            *learn(directory, EVERYTHING, name="x"),
        ]
    } == {0}
    assert {each.ended for each in learn(directory, EVERYTHING, rows=-1)} == {0}


def test_advice_about_time_and_limits(directory: Path) -> None:
    time = about(TIME, learn(directory, EVERYTHING, type="qa"))
    assert (time.p95, time.suggested, time.limit) == (1.5, 2, 120)
    assert about(COST, learn(directory, EVERYTHING)).note.startswith(
        "no advice: usage is known for 0 successful runs;"
    )


async def test_descendants_count_where_the_limit_counts_them(tmp_path: Path) -> None:
    own = Usage(turns=5, tokens=1000, cost_usd=0.10, elapsed_s=1.0, source="stream")
    with started(tmp_path) as ledger:
        for number in range(1, 21):
            ledger.admit(run(number, status=Status.COMPLETED, usage=own, name="alone"), PLAIN)
            ledger.admit(
                run(100 + number, status=Status.COMPLETED, usage=own, name="lead", descendants=2),
                PLAIN,
            )
        await ledger.flush()
    rest = [{"kind": "cost", "threshold": 1.0, "action": "warn", "source": "x", "used": 0.5}]
    with closing(sqlite3.connect(tmp_path / LEDGER)) as connection, connection:
        connection.execute(
            "UPDATE runs SET limits = ? WHERE name = 'lead'", (msgspec.json.encode(rest).decode(),)
        )
    alone, lead = (
        learn(tmp_path, EVERYTHING, name="alone"),
        learn(tmp_path, EVERYTHING, name="lead"),
    )
    assert [about(kind, alone).p95 for kind in (TURNS, TOKENS, COST)] == [5, 1000, 0.10]
    assert [about(kind, lead).p95 for kind in (TURNS, TOKENS, COST)] == [5, None, 0.5]
    assert about(COST, lead).limit == 1.0


def test_the_largest_that_any_source_tells(directory: Path, tmp_path: Path) -> None:
    both = {"report": Usage(turns=5, source="report"), "stream": Usage(turns=50, source="stream")}
    with (
        closing(sqlite3.connect(directory / LEDGER)) as source,
        closing(sqlite3.connect(tmp_path / LEDGER)) as copy,
    ):
        source.backup(copy)
        copy.execute("UPDATE runs SET usage = ?", (msgspec.json.encode(both).decode(),))
        copy.commit()
    assert about(TURNS, learn(tmp_path, EVERYTHING, type="qa")).p95 == 50


def test_a_search_by_name_reads_no_other_rows(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[str] = []
    monkeypatch.setattr(learning, "open_reader", traced_reader(executed))
    plans = {}
    with closing(sqlite3.connect(directory / LEDGER)) as connection:
        for key, query in {"name": {"name": "x"}, "type": {"type": "x"}, "all": {}}.items():
            executed.clear()
            learn(directory, EVERYTHING, **query)  # type: ignore[arg-type]
            (sql,) = (statement for statement in executed if " FROM runs " in statement)
            plans[key] = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]
    assert plans == {
        "name": ["SEARCH runs USING INDEX runs_name (name=?)"],
        "type": ["SCAN runs"],
        "all": ["SCAN runs"],
    }


async def test_it_reads_while_the_daemon_writes_and_in_a_worker_thread(tmp_path: Path) -> None:
    with started(tmp_path) as ledger:
        ledger.admit(ended(1, 4), PLAIN)
        await ledger.flush()
        advice = await trio.to_thread.run_sync(learn, tmp_path, EVERYTHING)
        assert about(TURNS, advice).ended == 1
        ledger.admit(ended(2, 4), PLAIN)
        await ledger.flush()


def test_a_ledger_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"ledger\.db cannot be read: unable to open"):
        learn(tmp_path, EVERYTHING)
    (tmp_path / LEDGER).write_bytes(b"no database" * 100)
    with pytest.raises(LedgerError, match="cannot be read: file is not a database"):
        learn(tmp_path, EVERYTHING)


def test_a_damaged_row_counts_for_nothing(directory: Path, tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(directory / LEDGER)) as source,
        closing(sqlite3.connect(tmp_path / LEDGER)) as copy,
    ):
        source.backup(copy)
        copy.execute("UPDATE runs SET usage = '{' WHERE number = 50")
        copy.commit()
    assert [each.ended for each in learn(tmp_path, EVERYTHING)] == [
        each.ended - 1 for each in learn(directory, EVERYTHING)
    ]

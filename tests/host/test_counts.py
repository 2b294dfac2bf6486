"""What is counted, and what bounds it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sfad.host.counts import MAX_TYPES, MAX_USERS, OTHER, UNTYPED, Counts, Histogram, type_label
from sfad.protocol.types import Action, Event, RunInfo, Status, Usage

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def info(
    run: str = "a1",
    *,
    kind: str | None = None,
    parent: str | None = None,
    usage: Usage | None = None,
) -> RunInfo:
    return RunInfo(
        id=run, name="a", kind="agent", type=kind, status=Status.COMPLETED, parent_id=parent,
        root_id=run, depth=0, chain=["a"], pid=None, argv=["a"], cwd="/", user="ann", channel="cli",
        exit_code=0, signal=None, reason=None, attempts=1, limits=[], usage=usage or Usage(),
        processes=None, memory_bytes=None, descendants=0, deadline=None, milestone=None,
        created_at=NOW, started_at=NOW, ended_at=NOW,
    )  # fmt: skip


@given(st.lists(st.floats(0, 1e6)))
def test_a_histogram_counts_each_value_in_one_bucket(values: list[float]) -> None:
    histogram = Histogram.of((1.0, 10.0, 100.0))
    for value in values:
        histogram.observe(value)
    assert histogram.counts[0] == sum(value <= 1 for value in values)
    assert histogram.count == len(values)
    # from Python 3.12 on, sum() adds more exactly
    assert histogram.total == pytest.approx(sum(values))


@given(st.lists(st.tuples(st.text(max_size=80), st.booleans()), max_size=200))
def test_types_are_capped_and_harmless(runs: list[tuple[str, bool]]) -> None:
    counts = Counts()
    for kind, child in runs:
        counts.run_ended(info(kind=kind, parent="a0" if child else None))
    assert len(counts.by_type) <= MAX_TYPES + 2
    assert all(
        label.isprintable() and label.isascii() and len(label) <= 64 for label in counts.by_type
    )
    assert sum(counts.ended.values()) == len(runs)


def test_a_child_introduces_no_type_and_does_not_take_the_place_of_a_registered_one() -> None:
    counts = Counts()
    counts.registers(["review\x1b[31m"])
    for number in range(MAX_TYPES):
        counts.run_ended(info(kind=f"t{number}"))
    counts.run_ended(info(kind="late"))
    counts.run_ended(info(kind="child", parent="a0"))
    counts.run_ended(info(kind="t3", parent="a0", usage=Usage(elapsed_s=2.0)))
    counts.run_ended(info(kind="review\x1b[31m", parent="a0"))
    assert set(counts.by_type) == {f"t{number}" for number in range(MAX_TYPES)} | {
        OTHER,
        "review??31m",
    }
    assert counts.by_type["t3"].duration.count == 1
    assert type_label("review\x1b[31m") == "review??31m"


def test_a_child_without_a_type_is_untyped() -> None:
    counts = Counts()
    counts.run_ended(info(parent="a0"))
    assert set(counts.by_type) == {UNTYPED}


def test_what_is_unknown_is_not_counted_as_zero() -> None:
    counts = Counts()
    counts.run_ended(info(kind="x", usage=Usage(elapsed_s=3.0, turns=4)))
    found = counts.by_type["x"]
    assert (found.duration.total, found.turns.total, found.cost.count) == (3.0, 4, 0)


def test_breaches_of_the_last_hour() -> None:
    counts, hit = Counts(), Event(type="limit_exceeded", limit_kind="turns", action=Action.PAUSE)
    for at in (0.0, 1800.0, 1801.0):
        counts.published(hit, at)
    assert [counts.hit_in_an_hour(now) for now in (1900, 3599, 3600, 5399, 5400)] == [3, 3, 2, 2, 0]
    counts.published(hit, 1_000_000.0)
    assert len(counts.hit_by_minute) == 1  # what is older than an hour is forgotten
    assert counts.hit == {"turns": {"pause": 4}}


def test_queued_runs_are_measured_apart_and_forgotten() -> None:
    counts = Counts()
    counts.published(Event(type="run_queued", run_id="a1"), 0.0)
    counts.run_started("a1", 100.0)
    counts.run_started("a2", 0.002)
    assert (counts.queue_wait.total, counts.spawn.total) == (100.0, 0.002)
    counts.run_ended(info("a1"))
    assert counts.queued == []


def test_counts_can_be_handed_over() -> None:
    counts = Counts()
    counts.published(Event(type="limit_exceeded", limit_kind="turns", action=Action.PAUSE), 60.0)
    counts.run_ended(info(kind="x", usage=Usage(elapsed_s=3.0)))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(counts), type=Counts) == counts


def test_users_are_counted_apart_up_to_a_bound() -> None:
    counts = Counts()
    for number in range(MAX_USERS + 5):
        counts.run_ended(
            replace(info(usage=Usage(cost_usd=0.5, input_tokens=3)), user=f"u{number}")
        )
    counts.run_ended(replace(info(usage=Usage(cost_usd=0.5)), user="u1"))
    assert len(counts.by_user) == MAX_USERS + 1
    assert (
        counts.by_user["u1"].ended,
        counts.by_user["u1"].cost_usd,
        counts.by_user["u1"].input_tokens,
    ) == (2, 1.0, 3)
    assert (counts.by_user[OTHER].ended, counts.user_label("late")) == (5, OTHER)

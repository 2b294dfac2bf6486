"""Texts for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfactl import output
from sfactl.commands import info, status, tree, why
from sfactl.showing import table
from sfactl.top.table import children
from sfad.protocol.types import Status

from .samples import NOON, daemon, hold, reason, run


@given(st.text())
def test_what_is_shown_never_steers_a_terminal(text: str) -> None:
    shown = output.plain(text)
    assert shown.isprintable()
    assert (shown == text) is text.isprintable()


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=5))
def test_a_table_has_a_line_a_row(rows: list[tuple[str, str]]) -> None:
    assert len(table.drawn(("A", "B"), rows).split("\n")) == len(rows) + 1


def test_columns_are_as_wide_as_a_terminal_shows_them() -> None:
    assert output.width("日本") == 4
    assert output.width("e\u0301") == 1
    assert output.width("हिन्दी") == 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (59.9, "59s"),
        (200, "3m20s"),
        (7500, "2h05m"),
        (356_400, "4d03h"),
    ],
)
def test_durations(value: float | None, text: str) -> None:
    assert output.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0 B"), (1536, "1.5 KiB"), (1 << 41, "2 TiB")]
)
def test_sizes(value: int | None, text: str) -> None:
    assert output.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (9999, "9999"),
        (12_345, "12.3k"),
        (999_949, "999.9k"),
        (1_250_000, "1.2M"),
    ],
)
def test_counts(value: int | None, text: str) -> None:
    assert output.short(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0.00"), (0.003, "0.003"), (0.45, "0.45"), (12, "12.00")]
)
def test_money(value: float | None, text: str) -> None:
    assert output.usd(value) == text


def test_a_tree_draws_children_below_parents_and_keeps_orphans() -> None:
    runs = [
        run(id="a1"),
        run(id="a2", parent_id="a1"),
        run(id="a3", parent_id="a2"),
        run(id="a4", parent_id="a1"),
        run(id="a9", parent_id="gone"),
    ]
    starts = [line.split("  ")[0:2] for line in tree.lines(children(runs))]
    drawn = ["".join(words) if words[0] in ("│", "") else words[0] for words in starts]
    assert drawn == ["a1", "├─ a2", "│└─ a3", "└─ a4", "a9"]


@pytest.mark.parametrize(
    ("state", "changes", "says"),
    [
        (Status.COMPLETED, {"exit_code": 0}, "exited with 0 after 3.0s"),
        (
            Status.COMPLETED,
            {},
            "completed: its main process ended after 3.0s; its exit status is not known",
        ),
        (
            Status.COMPLETED,
            {"reason": reason("result", "it said so")},
            "completed: it said so; its exit status is not known",
        ),
        (
            Status.LOST,
            {"reason": reason("daemon", "it ended unseen")},
            (
                "a1 (worker) was lost: it ended unseen. Its exit status is not known; "
                "sfactl logs a1 has what it wrote"
            ),
        ),
        (
            Status.CANCELLED,
            {"reason": reason("stop", "stopped by user ann")},
            "stopped by user ann",
        ),
        (
            Status.REJECTED_DEPTH,
            {"reason": reason("depth", "5 of 5")},
            "refused by the depth rule: 5 of 5",
        ),
        (
            Status.RUNNING,
            {},
            "bounded by time 2m → terminate (from default), 1m30s left until its deadline",
        ),
        (
            Status.PAUSED,
            {"holds": (hold("person", "by hand", command="sfactl resume a1"),)},
            "a1 (worker) is paused: by hand; sfactl resume a1 continues it",
        ),
        (
            Status.PAUSED,
            {"holds": (hold("a kind of a newer daemon", "the moon is full"),)},
            "a1 (worker) is paused: the moon is full",
        ),
        (Status.PAUSED, {}, "a1 (worker) is paused: no reason is known"),
        (
            Status.RETRYING,
            {
                "holds": (
                    hold(
                        "retry",
                        "attempt 1 of 3 has failed; the next begins",
                        blocks="start",
                        until=NOON + timedelta(seconds=40),
                    ),
                )
            },
            "is retrying: attempt 1 of 3 has failed; the next begins at "
            f"{output.clock(NOON + timedelta(seconds=40), NOON)}, in 10s; it is bounded by",
        ),
        (
            Status.RUNNING,
            {"holds": (hold("call", "2 model calls wait: x", blocks="call", command="y"),)},
            "a1 (worker) is running: 2 model calls wait: x (y); it is bounded by",
        ),
    ],
)
def test_why(state: Status, changes: dict[str, object], says: str) -> None:
    assert says in why.sentence(run(state, **changes), NOON + timedelta(seconds=30))


@pytest.mark.parametrize(
    ("state", "changes", "shown"),
    [
        (Status.COMPLETED, {"exit_code": 0}, "completed"),
        (Status.COMPLETED, {}, "completed (exit unknown)"),
        (Status.FAILED, {"exit_code": 3}, "failed (exit 3)"),
        (Status.FAILED, {"signal": 9}, "failed (signal 9)"),
        (Status.FAILED, {"reason": reason("agent", "it said so")}, "failed (exit unknown)"),
        (Status.FAILED, {"reason": reason("launch", "no such file"), "started_at": None}, "failed"),
        (Status.FAILED, {"reason": reason("launch", "no such file")}, "failed"),
        (Status.CANCELLED, {"reason": reason("stop")}, "cancelled"),
        (Status.LOST, {"reason": reason("daemon")}, "lost"),
        (Status.RUNNING, {}, "running"),
    ],
)
def test_an_exit_status_that_nobody_saw_is_not_shown_as_one(
    state: Status, changes: dict[str, object], shown: str
) -> None:
    assert output.outcome(run(state, **changes)) == shown


def test_info_of_a_lost_run_says_what_is_not_known() -> None:
    facts = dict(info.facts(run(Status.LOST, reason=reason("daemon", "it ended unseen"))))
    assert (facts["status"], facts["reason"]) == ("lost", "it ended unseen")
    assert facts["exit"].startswith("not known")
    assert "exit" not in dict(info.facts(run(Status.COMPLETED, exit_code=0)))


@pytest.mark.parametrize(
    ("changes", "name", "shown"),
    [
        ({}, "memory", "1 MiB; ledger 12 KiB; no backup yet"),
        (
            {
                "backup_bytes": 8 << 10,
                "backup_at": datetime.now(UTC) - timedelta(days=3, hours=3, minutes=5),
            },
            "memory",
            "1 MiB; ledger 12 KiB; backup 8 KiB, 3d03h old",
        ),
        (
            {"ledger_trouble": "the disk is full; free some"},
            "LEDGER",
            "CANNOT BE WRITTEN, nothing new is started: the disk is full; free some",
        ),
        ({"live": 30, "queued": 27}, "runs", "30 live, 27 of them queued, 0 admitted, 0 refused"),
        ({"live": 3}, "runs", "3 live, 0 queued, 0 admitted, 0 refused"),
        ({"live": 3, "adopted": 2}, "runs", "3 live (adopted 2), 0 queued, 0 admitted, 0 refused"),
    ],
)
def test_the_daemons_backup_and_adopted_runs(
    changes: dict[str, object], name: str, shown: str
) -> None:
    assert dict(status.facts(daemon(**changes)))[name] == shown
    assert {"adopted", "backup_bytes", "backup_at"} <= set(output.content(daemon(**changes)))

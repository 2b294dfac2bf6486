"""The tree as data: each run once, below its parent, whatever is sorted, filtered and folded."""

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from sfactl.top.cells import Layout, bars, heading
from sfactl.top.table import MOST_ENDED, RunTable
from sfad.core.state.run import run_id
from sfad.protocol.kinds import KINDS
from sfad.protocol.types import Action, LimitKind, LimitState, RunInfo, Status, Usage

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def info(number: int, parent: int | None = None, **fields: object) -> RunInfo:
    known = {
        "id": run_id(number), "name": f"run{number}", "kind": "agent", "type": None,
        "status": Status.RUNNING, "parent_id": None if parent is None else run_id(parent),
        "root_id": run_id(1), "depth": 0, "chain": [], "pid": 1, "argv": ["true"], "cwd": "/",
        "user": "ann", "channel": "cli", "exit_code": None, "signal": None, "reason": None,
        "attempts": 1, "limits": [], "usage": Usage(), "processes": None, "memory_bytes": None,
        "descendants": 0, "deadline": None, "milestone": None, "created_at": NOW, "started_at": NOW,
        "ended_at": None,
    }  # fmt: skip
    return RunInfo(**(known | fields))  # type: ignore[arg-type]


forests = st.lists(st.integers(0, 30), min_size=1, max_size=30).map(
    lambda parents: [
        info(at + 1, parent if 0 < parent <= at else None) for at, parent in enumerate(parents)
    ]
)


@given(
    forests,
    st.sampled_from(sorted(RunTable().orders)),
    st.sets(st.integers(1, 30)),
    st.sampled_from(["", "run1", "run2 running", "none"]),
)
def test_each_run_is_shown_once_below_its_parent(
    runs: list[RunInfo], order: str, folded: set[int], words: str
) -> None:
    table = RunTable()
    table.replace(runs, 0.0)
    table.sort_by(order)
    table.filter_by(words)
    for number in folded:
        table.fold(run_id(number), folded=True)
    shown = [row.run.id for row in table.rows]
    assert len(shown) == len(set(shown))
    for at, row in enumerate(table.rows):
        assert row.run.parent_id is None or row.run.parent_id in shown[:at]
    if not words:
        assert len(shown) + sum(row.hidden for row in table.rows) == len(runs)
    matching = {
        run.id for run in runs if all(word in f"{run.name} running" for word in words.split())
    }
    if not folded:
        assert matching <= set(shown)


def test_a_deep_tree_is_no_deep_recursion() -> None:
    table = RunTable()
    table.replace([info(1), *(info(number, number - 1) for number in range(2, 3000))], 0.0)
    table.sort_by("cost")
    assert len(table.rows) == 2999


def test_ended_runs_are_forgotten_but_not_live_ones() -> None:
    table = RunTable()
    for number in range(1, 3 * MOST_ENDED):
        table.update(
            [
                info(
                    number,
                    root_id=run_id(number),
                    status=Status.COMPLETED if number % 2 else Status.RUNNING,
                )
            ],
            0.0,
        )
    statuses = [run.status for run in table.runs.values()]
    assert statuses.count(Status.COMPLETED) == MOST_ENDED
    assert statuses.count(Status.RUNNING) == 3 * MOST_ENDED // 2 - 1


@given(st.integers(12, 300), st.booleans())
def test_the_width_is_shared_out_whole(width: int, users: bool) -> None:
    layout = Layout.of(width, users=users)
    used = 0 if not layout.milestone else layout.milestone + 1
    used += layout.name + sum(column.width + 1 for column in layout.columns) + 1 + layout.bars
    assert used == width


@given(
    st.lists(
        st.tuples(st.sampled_from(list(LimitKind)), st.floats(0, 1e6), st.floats(0, 1e6)),
        max_size=11,
    ),
    st.integers(8, 40),
)
def test_bars_fit(limits: list[tuple[LimitKind, float, float]], room: int) -> None:
    states = [
        LimitState(kind=kind, threshold=threshold, action=Action.TERMINATE, source="", used=used)
        for kind, threshold, used in limits
    ]
    assert sum(len(text) for text, _ in bars(states, 5.0, room, 0.8)) <= room


def test_each_kind_of_limit_has_a_letter_of_its_own() -> None:
    assert set(KINDS) == set(LimitKind)
    letters = [spec.letter for spec in KINDS.values()]
    assert all(len(letter) == 1 and letter.isprintable() for letter in letters)
    assert len(set(letters)) == len(letters)


def test_a_narrow_terminal_keeps_the_state_before_the_limits() -> None:
    layout = Layout.of(30)
    assert ([column.title for column in layout.columns], layout.bars) == (["STATE"], 0)
    assert Layout.of(37).bars == 8


def test_the_user_is_shown_where_there_are_others_and_groups_the_trees() -> None:
    own = pwd.getpwuid(os.getuid()).pw_name
    table = RunTable()
    others = []
    for runs in (
        [info(1, user=own)],
        [info(2, user="zoe"), info(3, user="ben"), info(4, user="zoe")],
    ):
        table.update(runs, 0.0)
        others.append(table.of_others)
    assert others == [False, True]
    assert "USER" in [column.title for column in Layout.of(120, users=True).columns]
    assert "USER" not in [column.title for column in Layout.of(120).columns]
    table.sort_by("user")
    assert [row.run.user for row in table.rows] == sorted([own, "ben", "zoe", "zoe"])


def test_queued_runs_that_are_only_counted_stand_in_the_first_line() -> None:
    table = RunTable()
    table.replace([info(1), info(2, status=Status.QUEUED)], 0.0)
    table.left_out = 9_999
    shown = heading(table, None, "", 100, datetime.now(UTC)).text
    assert "10001 live  10000 queued (1 of them shown)" in shown

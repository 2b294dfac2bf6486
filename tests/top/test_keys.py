"""What keys do to what is shown, without a terminal and a daemon."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sfactl.top import frame
from sfactl.top.errands import Errands
from sfactl.top.keys import Keys
from sfad.core.ids import run_id
from sfad.protocol import messages as m
from sfad.protocol.types import Action, AlertState, Event, LimitKind, LimitState, Reason, RunInfo, Status
from tests.top.test_table import info

NOW = datetime(2026, 1, 31, 22, 4, 5, tzinfo=UTC)
COST = Reason(kind="limit", message="used 6 USD; its cost limit is 5 USD", limit_kind="cost", threshold=5.0, used=6.0)


def paused(number: int, parent: int | None = None, action: Action = Action.PAUSE, **fields: object) -> RunInfo:
    """Return a run that its cost limit has paused."""
    limits = [LimitState(kind=LimitKind.COST, threshold=5.0, action=action, source="--limit", used=6.0)]
    return info(number, parent, status=Status.PAUSED, reason=COST, limits=limits, **fields)


def shown(*runs: RunInfo) -> Keys:
    found = Keys(None, lambda work: work(), lambda: None, lambda: None)
    found.take(m.RunList(id=0, runs=list(runs)))
    screen(found)
    return found


def press(keys: Keys, *pressed: str) -> list[str]:
    """Press keys, and return the lines of the screen."""
    for key in pressed:
        keys.press(key, key if len(key) == 1 else None)
        screen(keys)
    return screen(keys)


def screen(keys: Keys, width: int = 80) -> list[str]:
    return [line.text.rstrip() for line in frame.draw(keys, width, 24, NOW)]


def typed(text: str) -> Sequence[str]:
    return ["slash" if c == "/" else c for c in text]


def test_a_folded_line_is_marked_like_the_worst_run_in_it_and_n_unfolds_it() -> None:
    keys = shown(info(1), info(2, 1), paused(3, 2), info(4), info(5, 4))
    lines = press(keys, "z", "home")
    marked = [line for line in lines[2:] if line.startswith("!")]
    assert [line.split()[:3] for line in marked] == [["!a1", "run1", "+2"]]
    assert [line.split()[:3] for line in lines if "run4" in line] == [["a4", "run4", "+1"]]
    press(keys, "n")
    assert keys.cursor.run == run_id(3)
    assert [row.run.id for row in keys.rows] == [run_id(1), run_id(2), run_id(3), run_id(4)]  # the other tree stays folded


def test_n_tells_what_the_filter_hides_until_the_next_key() -> None:
    keys = shown(paused(1), info(2))
    lines = press(keys, *typed("/run2"), "enter", "n")
    assert "the filter hides 1 run in trouble: Esc shows all runs" in lines
    press(keys, "escape", "n")
    assert keys.cursor.run == run_id(1)
    assert "no run is in trouble" in press(shown(info(1)), "n")
    assert "no run is in trouble" not in press(shown(info(1)), "n", "j")


def test_n_passes_old_failures_while_a_live_run_is_in_trouble() -> None:
    failed = info(1, status=Status.FAILED)
    keys = shown(failed, paused(2), info(3), paused(4))
    chosen = []
    for _ in range(4):
        press(keys, "n")
        chosen.append(keys.cursor.run)
    assert set(chosen) == {run_id(2), run_id(4)}
    assert chosen[:2] == chosen[2:]
    press(keys := shown(failed, info(2)), "end", "n")
    assert keys.cursor.run == failed.id


def test_a_run_that_waits_for_approval_does_not_look_like_a_plain_pause() -> None:
    asks = paused(1, action=Action.REQUEST_INCREASE, deadline=NOW + timedelta(minutes=9, seconds=5))
    lines = press(shown(asks, paused(2)))
    assert [line.split()[2] for line in lines[2:4]] == ["approval", "paused"]
    assert any("waits for approval until" in line and "9m05s left" in line for line in lines)


def test_earlier_alerts_name_their_runs_and_leave_out_those_that_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown(info(1), info(2))

    def event(run: int, state: Any, message: str) -> Event:
        return Event(type="alert_limit", time=NOW, run_id=run_id(run), scope="run", state=state, message=message)

    near = "cost 4.10 of 5.00 USD (82 %)"
    told = [event(1, "raised", near), event(1, "cleared", "over"), event(1, "raised", near), event(9, "cleared", "over: it ended")]
    alert = AlertState(type="alert_limit", scope="run", value=0.82, threshold=0.8, message=near, since=NOW, run_id=run_id(1))
    found.alerts = [alert]
    page = m.EventPage(id=0, events=told, reached=4)
    monkeypatch.setattr(Errands, "send", lambda _self, _request, _reply, done, _failed: done(page))
    press(found, "A")
    assert found.pane is not None
    raised, _, *earlier = found.pane.lines
    assert raised.endswith(f"a1 (run1) {near}")
    assert [line.split("  ", 1)[1] for line in earlier] == [
        "alert_limit  a9 over: it ended", "alert_limit  a1 (run1) over", f"alert_limit  a1 (run1) {near}",
    ]  # fmt: skip


def test_the_worst_comes_first_and_what_has_ended_last() -> None:
    many = [info(1, status=Status.FAILED), info(2, status=Status.COMPLETED), *(info(number) for number in range(3, 40)), paused(40)]
    lines = screen(shown(*many))
    assert "1 in trouble  1 ended badly" in lines[0]
    assert re.match(r"!\w+ run40 ", lines[2])
    keys = shown(*many)
    assert [row.run.id for row in keys.rows][-2:] == [run_id(1), run_id(2)]


@pytest.mark.parametrize(("key", "action"), [("l", Action.PAUSE), ("r", Action.PAUSE), ("a", Action.REQUEST_INCREASE)])
@pytest.mark.parametrize("text", ["cost=7", "7"])
def test_a_limit_is_typed_whole_or_from_its_amount_on(monkeypatch: pytest.MonkeyPatch, key: str, action: Action, text: str) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(Errands, "send", lambda _self, request, *_rest: sent.append(request))
    press(shown(paused(1, action=action)), key, *text, "enter")
    assert [(limit.kind, limit.threshold) for limit in sent[0].limits] == [(LimitKind.COST, 7.0)]


def test_a_wrong_limit_is_told_without_a_prefix() -> None:
    lines = press(shown(paused(1)), "l", *"cost=ban", "enter")
    assert any(line.startswith("cost=ban: 'ban' is not") for line in lines), lines


@pytest.mark.parametrize("key", ["a", "d"])
def test_only_a_run_that_has_asked_is_approved_or_denied(key: str) -> None:
    keys = shown(paused(1))
    assert "a1 does not wait for approval; l changes its limits" in press(keys, key)
    assert keys.prompt is None


def test_a_filter_chooses_the_run_that_it_means_and_not_the_one_above() -> None:
    keys = shown(info(1), info(2, 1, name="crash"), info(3, 2))
    press(keys, *typed("/crash"), "enter")
    assert [row.run.id for row in keys.rows] == [run_id(1), run_id(2)]
    assert keys.cursor.run == run_id(2)


def test_nothing_is_cut_off_without_a_hint() -> None:
    keys = shown(info(1))
    keys.say("word " * 25 + "end", bad=True)
    assert any(line.endswith(" end") for line in screen(keys))
    lines = press(keys, "question_mark")
    assert any("── keys" in line and line.endswith("[ ] scroll") for line in lines)

"""What keys do to what is shown, in the application with runs that are made up."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual import events

from sfactl.connecting.connection import Unreachable
from sfactl.top import app as module
from sfactl.top.app import TopApp
from sfactl.top.daemon import OutputTail, R, Show, Tail, Take
from sfactl.top.pane import alert_lines
from sfad.core.state.run import run_id
from sfad.protocol import messages as m
from sfad.protocol.kinds import KINDS
from sfad.protocol.types import (
    Action,
    AlertState,
    Event,
    Hold,
    LimitKind,
    LimitState,
    Reason,
    RunId,
    RunInfo,
    Status,
)
from tests.tiers import first, sampled, variant
from tests.top.test_table import info

NOW = datetime(2026, 1, 31, 22, 4, 5, tzinfo=UTC)
COST = Reason(
    kind="limit",
    message="used 6 USD; its cost limit is 5 USD",
    limit_kind="cost",
    threshold=5.0,
    used=6.0,
)


def paused(
    number: int, parent: int | None = None, action: Action = Action.PAUSE, **fields: object
) -> RunInfo:
    """Return a run that its cost limit has paused."""
    limits = [
        LimitState(kind=LimitKind.COST, threshold=5.0, action=action, source="--limit", used=6.0)
    ]
    asks = action is Action.REQUEST_INCREASE
    hold = Hold(
        kind="approval" if asks else "limit", blocks="processes", words=COST.message, ends="",
        until=fields.get("deadline"), command="", limit_kind=LimitKind.COST,  # type: ignore[arg-type]
    )  # fmt: skip
    return info(
        number, parent, status=Status.PAUSED, reason=COST, limits=limits, holds=(hold,), **fields
    )


class Away:
    """A daemon that is away."""

    first, of_fleet = m.RunList(id=0, runs=[]), False

    def start(self, take: Take, away: Callable[[str], object]) -> None:
        """Tell nothing."""

    def call(self, _request: m.Request, _expected: type[R]) -> R:
        raise Unreachable("/nowhere/s", "missing", "there is no daemon")

    def tail(self, run: RunId, show: Show, *, stderr: bool) -> Tail:
        return OutputTail("/nowhere/s", run, stderr=stderr, show=show)


class Driven(TopApp):
    """The application at a fixed time."""

    def now(self) -> datetime:
        return NOW


class Shown:
    """The application with these runs, in a terminal that is not there."""

    def __init__(self, runner: asyncio.Runner, app: TopApp) -> None:
        self._runner, self.app = runner, app

    def press(self, *keys: str) -> list[str]:
        """Type keys without pause, and return the lines of the screen."""

        async def type_in() -> None:
            for key in keys:
                self.app.post_message(events.Key(key, key if len(key) == 1 else None))
            await self.settled()

        self._runner.run(type_in())
        return self.lines

    def do(self, act: Callable[[], object]) -> list[str]:
        async def within() -> None:
            act()
            self.app.show()
            await self.settled()

        self._runner.run(within())
        return self.lines

    async def settled(self) -> None:
        """Wait until all keys are taken, and what they changed is drawn."""
        for _ in range(3):
            drawn = asyncio.Event()
            self.app.call_later(drawn.set)
            await drawn.wait()
            await self.app.typed.join()
            drawn.clear()
            # a screen that is being left drops its callbacks; the application and its first screen
            # stay
            (self.app if len(self.app.screen_stack) > 1 else self.app.screen).call_after_refresh(
                drawn.set
            )
            await drawn.wait()

    @property
    def lines(self) -> list[str]:
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]

    @property
    def chosen(self) -> RunId | None:
        return self.app.runs.run_id

    @property
    def rows(self) -> list[RunId]:
        return [row.run.id for row in self.app.table.rows]


@contextmanager
def shown(*runs: RunInfo, width: int = 80) -> Iterator[Shown]:
    with asyncio.Runner() as runner:
        app = Driven(Away())  # type: ignore[arg-type]
        running = app.run_test(size=(width, 24))
        runner.run(running.__aenter__())
        try:
            one = Shown(runner, app)
            one.do(lambda: app.take(m.RunList(id=0, runs=list(runs))))
            yield one
        finally:
            runner.run(running.__aexit__(None, None, None))


def typed(text: str) -> Sequence[str]:
    return ["slash" if c == "/" else c for c in text]


def test_a_folded_line_is_marked_like_the_worst_run_in_it_and_n_unfolds_it() -> None:
    with shown(info(1), info(2, 1), paused(3, 2), info(4), info(5, 4)) as top:
        lines = top.press("z", "home")
        marked = [line for line in lines[2:] if line.startswith("!")]
        assert [line.split()[:3] for line in marked] == [["!a1", "run1", "+2"]]
        assert [line.split()[:3] for line in lines if "run4" in line] == [["a4", "run4", "+1"]]
        top.press("n")
        assert top.chosen == run_id(3)
        # the other tree stays folded
        assert top.rows == [run_id(1), run_id(2), run_id(3), run_id(4)]


def test_n_tells_what_the_filter_hides_until_the_next_key() -> None:
    with shown(paused(1), info(2)) as top:
        lines = top.press(*typed("/run2"), "enter", "n")
        assert "the filter hides 1 run in trouble: Esc shows all runs" in lines
        top.press("escape", "n")
        assert top.chosen == run_id(1)
    with shown(info(1)) as top:
        assert "no run is in trouble" in top.press("n")
        assert "no run is in trouble" not in top.press("j")


@variant
def test_n_passes_old_failures_while_a_live_run_is_in_trouble() -> None:
    failed = info(1, status=Status.FAILED)
    with shown(failed, paused(2), info(3), paused(4)) as top:
        chosen = []
        for _ in range(4):
            top.press("n")
            chosen.append(top.chosen)
        assert set(chosen) == {run_id(2), run_id(4)}
        assert chosen[:2] == chosen[2:]
    with shown(failed, info(2)) as top:
        top.press("end", "n")
        assert top.chosen == failed.id


def test_a_run_that_waits_for_approval_does_not_look_like_a_plain_pause() -> None:
    asks = paused(1, action=Action.REQUEST_INCREASE, deadline=NOW + timedelta(minutes=9, seconds=5))
    with shown(asks, paused(2)) as top:
        assert [line.split()[2] for line in top.lines[2:4]] == ["approval", "paused"]
        assert any(
            "waits for approval until" in line and "9m05s left" in line for line in top.lines
        )


def test_earlier_alerts_name_their_runs_and_leave_out_those_that_are_raised() -> None:
    runs = {each.id: each for each in (info(1), info(2))}

    def event(run: int, state: Any, message: str) -> Event:
        return Event(
            type="alert_limit",
            time=NOW,
            run_id=run_id(run),
            scope="run",
            state=state,
            message=message,
        )

    near = "cost 4.10 of 5.00 USD (82 %)"
    told = [
        event(1, "raised", near),
        event(1, "cleared", "over"),
        event(1, "raised", near),
        event(9, "cleared", "over: it ended"),
    ]
    alert = AlertState(
        type="alert_limit",
        scope="run",
        value=0.82,
        threshold=0.8,
        message=near,
        since=NOW,
        run_id=run_id(1),
    )
    raised, _, *earlier = alert_lines([alert], told, runs)
    assert raised.endswith(f"a1 (run1) {near}")
    assert [line.split("  ", 1)[1] for line in earlier] == [
        "alert_limit  a9 over: it ended", "alert_limit  a1 (run1) over",
        f"alert_limit  a1 (run1) {near}",
    ]  # fmt: skip


def test_the_worst_comes_first_and_what_has_ended_last() -> None:
    many = [
        info(1, status=Status.FAILED),
        info(2, status=Status.COMPLETED),
        *(info(number) for number in range(3, 40)),
        paused(40),
    ]
    with shown(*many) as top:
        assert "1 in trouble  1 ended badly" in top.lines[0]
        assert re.match(r"!\w+ run40 ", top.lines[2])
        assert top.rows[-2:] == [run_id(1), run_id(2)]


@first(1)
@pytest.mark.parametrize(
    ("key", "action"), [("l", Action.PAUSE), ("r", Action.PAUSE), ("a", Action.REQUEST_INCREASE)]
)
@pytest.mark.parametrize("text", sampled(["7", "cost=7"]))
def test_a_limit_is_typed_whole_or_from_its_amount_on(
    monkeypatch: pytest.MonkeyPatch, key: str, action: Action, text: str
) -> None:
    sent: list[Any] = []

    async def ask(_source: Away, request: m.Request, _expected: type[m.RunReply]) -> m.RunReply:
        sent.append(request)
        return m.RunReply(id=0, run=info(1))

    monkeypatch.setattr(module, "ask", ask)
    with shown(paused(1, action=action)) as top:
        top.press(key, *text, "enter")
    assert [(limit.kind, limit.threshold) for limit in sent[0].limits] == [(LimitKind.COST, 7.0)]


def test_a_wrong_limit_is_told_without_a_prefix_and_forgets_the_keys_behind_it() -> None:
    with shown(paused(1)) as top:
        lines = top.press("l", *"cost=ban", "enter", "q")
        assert any(line.startswith("cost=ban: 'ban' is not") for line in lines), lines
        assert any(line.endswith(": cost=ban") for line in lines), lines


@pytest.mark.parametrize("key", ["a", "d"])
def test_only_a_run_that_has_asked_is_approved_or_denied(key: str) -> None:
    with shown(paused(1)) as top:
        assert "a1 does not wait for approval; l changes its limits" in top.press(key)
        assert not top.app.prompt.display


def test_a_filter_chooses_the_run_that_it_means_and_not_the_one_above() -> None:
    with shown(info(1), info(2, 1, name="crash"), info(3, 2)) as top:
        top.press(*typed("/crash"))
        assert top.rows == [run_id(1), run_id(2)]
        top.press("enter")
        assert top.chosen == run_id(2)
        top.press(*typed("/zz"))
        assert "no run has: crashzz" in top.lines
        top.press("escape")
        assert len(top.rows) == 3


def test_nothing_is_cut_off_without_a_hint() -> None:
    with shown(info(1)) as top:
        lines = top.do(lambda: top.app.say("word " * 25 + "end", bad=True))
        assert any(line.endswith(" end") for line in lines)
        lines = top.press("question_mark")
        assert any("── keys" in line and line.endswith("[ ] scroll") for line in lines)


def test_the_help_has_each_key_and_each_kind_of_limit() -> None:
    with shown(info(1)) as top:
        top.press("question_mark")
        text = " ".join("\n".join(top.app.pane.words).split())
    assert [
        f"{spec.letter} {kind.replace('_', ' ')}"
        for kind, spec in KINDS.items()
        if spec.letter not in text
    ] == []
    assert "n the next run in trouble" in text
    assert all(f"{spec.letter} {kind.replace('_', ' ')}" in text for kind, spec in KINDS.items())


def test_the_cursor_stays_on_its_run_while_lines_come_and_go() -> None:
    with shown(*(info(number) for number in range(1, 60))) as top:
        top.press("end")
        assert top.chosen == run_id(59)
        top.do(
            lambda: top.app.take(
                m.RunsPush(id=0, runs=[paused(number) for number in range(60, 90)])
            )
        )
        assert top.chosen == run_id(59)
        assert any("a59 run59" in line for line in top.lines[2:20]) or any(
            "run59 " in line for line in top.lines[2:20]
        )
        top.press(*typed("/run59"), "enter", "escape")
        assert top.chosen == run_id(59)
        assert len(top.rows) == 89


def test_until_a_person_moves_the_cursor_it_is_where_the_trouble_is() -> None:
    with shown(info(1), info(2)) as top:
        top.do(lambda: top.app.take(m.RunsPush(id=0, runs=[paused(2)])))
        assert top.chosen == run_id(2)
        top.press("down")
        top.do(lambda: top.app.take(m.RunsPush(id=0, runs=[paused(3)])))
        assert top.chosen == run_id(1)


def test_markup_in_names_is_text() -> None:
    with shown(info(1, name="[red]x[/red]"), info(2, name="\x1b[31my")) as top:
        text = "\n".join(top.press("s"))
        assert "stop a1 ([red]x[/red])? y/N" in text or "stop a2" in text
        lines = top.press("n", "w")
        assert any("[red]x[/red]" in line for line in lines)
        assert not any("\x1b" in line for line in lines)


def test_the_command_palette_runs_what_keys_run() -> None:
    with shown(paused(1), info(2)) as top:
        commands = {
            each.title: each.callback for each in top.app.get_system_commands(top.app.screen)
        }
        top.press("ctrl+p")
        assert len(top.app.screen_stack) == 2
        top.press("escape")
        assert len(top.app.screen_stack) == 1
        assert "hide or show ended runs" in commands
        assert "Change theme" not in commands


@pytest.mark.parametrize("examples", sampled([5, 30]))
def test_a_prompt_takes_any_keys_and_any_paste(examples: int) -> None:
    keys = [
        "left",
        "right",
        "home",
        "end",
        "backspace",
        "delete",
        "ctrl+u",
        "ctrl+w",
        "a",
        "é",
        "q",
        "A",
    ]
    with shown(info(1)) as top:
        top.press("l")
        line = top.app.prompt.input

        @settings(max_examples=examples, deadline=None)
        @given(st.lists(st.sampled_from(keys), max_size=12), st.text(max_size=12))
        def type_in(typed: list[str], pasted: str) -> None:
            top.do(lambda: top.app.post_message(events.Paste(pasted)))
            top.press(*typed)
            assert top.app.prompt.display
            assert 0 <= line.cursor_position <= len(line.value)
            assert line.value.isprintable()

        type_in()
        top.press("ctrl+u", "ctrl+k", *"cost=x")
        assert line.value == "cost=x"

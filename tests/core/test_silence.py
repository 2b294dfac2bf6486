"""The limit of silence, under each action. The shell measures it; the core decides."""

from __future__ import annotations

from typing import Any

import pytest

from sfad.core import events as e
from sfad.core.state.limits import SILENT_AGENT
from sfad.protocol.types import Action, LimitKind, Status

from .transcript import Transcript


def test_a_known_agent_program_is_warned_about_after_half_an_hour_and_no_other_run() -> None:
    t = Transcript()
    a, b, c = (
        t.start("a", agent_program=True),
        t.start("b"),
        t.start("c", agent_program=True, limits="silence=900:pause"),
    )
    assert (t.held(a, "silence").limit, t.held(a, "silence").action) == (SILENT_AGENT, Action.WARN)
    assert "silence" not in t.run(b).limits
    assert t.held(c, "silence").limit.threshold == 900
    off = Transcript(program_profile=False)
    assert "silence" not in off.run(off.start("a", agent_program=True)).limits


def test_silence_that_terminates() -> None:
    t = Transcript()
    a = t.start("a", limits="silence=900:terminate")
    assert (t >> t.level(a, "silence", 719.9)).said == []
    assert (t >> t.level(a, "silence", 720)).said == ["near a1 silence 720/900"]
    assert (t >> t.level(a, "silence", 900)).said[-1] == "over a1 silence 900/900"
    t.skip()
    t.later(1)
    (t >> t.exited(a, 0)).skip()
    reason = t.reasons[a]
    assert reason is not None
    assert (reason.limit_kind, reason.threshold, reason.used) == ("silence", 900, 900)
    assert (
        reason.message == "gave no sign of life for 15m; its silence limit is 15m, set by --limit"
    )


def test_a_silence_that_is_over_does_not_count() -> None:
    t = Transcript()
    a = t.start("a", limits="silence=900:warn")
    (t >> t.level(a, "silence", 901)).skip()
    assert t.run(a).account.used(LimitKind.SILENCE) is None
    (t >> t.limit(a, "silence=600:terminate")).skip()
    assert t.run(a).status is Status.RUNNING, "a lower limit looks at the next silence"
    (t >> t.level(a, "silence", 600)).skip()
    assert t.run(a).status is Status.STOPPING


def test_a_paused_run_gets_more_room_or_is_only_warned_about() -> None:
    t = Transcript()
    a = t.start("a", limits="silence=900:pause")
    (t >> t.level(a, "silence", 905)).skip()
    assert t.run(a).status is Status.PAUSED
    assert (
        t.failed(t.resume(a, room="silence=901:pause"))
        == "run a1 has used 905s already: the new limit must be above that"
    )
    (t >> t.resume(a, room="silence=1800:pause")).skip()
    assert (t.run(a).status, t.held(a, "silence").limit.threshold) == (Status.RUNNING, 1800)
    assert t.run(a).account.used(LimitKind.SILENCE) is None


def test_the_session_of_a_silent_run_is_continued_as_often_as_there_are_attempts() -> None:
    t = Transcript()
    a = t.start("a", limits="silence=900:continue", attempts=2, retry_delay=1)
    (t >> e.AgentSessionSaved(t.at, a, "s")).skip()
    (t >> t.level(a, "silence", 900)).skip()
    assert t.run(a).status is Status.RETRYING
    assert t.run(a).latest.next_resumes
    (t >> t.exited(a, 0)).skip()
    (t >> t.emptied(a)).skip()
    t.later(60)
    (t >> t.fired(a, "retry")).skip()
    (t >> t.launched(a)).skip()
    assert (t.run(a).attempt, t.run(a).latest.resumes) == (2, True)
    assert not t.held(a, "silence").over
    (t >> t.level(a, "silence", 900)).skip()
    (t >> t.exited(a, 0)).skip()
    assert t.reasons[a].message.endswith("set by --limit; its session cannot be continued")  # type: ignore[union-attr]


def test_a_run_without_a_session_cannot_be_continued() -> None:
    t = Transcript()
    a = t.start("a", limits="silence=900:continue", attempts=3)
    (t >> t.level(a, "silence", 900)).skip()
    assert t.run(a).status is Status.STOPPING


@pytest.mark.parametrize(
    "options",
    [{"limits": "silence=900:continue"}, {"agent_program": True, "on_limit": Action.CONTINUE}],
)
def test_to_continue_needs_further_attempts(options: dict[str, Any]) -> None:
    t = Transcript()
    assert "needs further attempts, as in: --attempts 3" in t.failed(t.spawn("a", **options))
    assert t.start("b", **options, attempts=2)


def test_on_limit_continue_is_of_silence_alone() -> None:
    t = Transcript()
    a = t.start("a", agent_program=True, on_limit=Action.CONTINUE, attempts=2)
    actions = {kind.value: held.action for kind, held in t.run(a).limits.items()}
    assert (actions["silence"], actions["turns"], actions["time"]) == (
        Action.CONTINUE,
        Action.TERMINATE,
        Action.TERMINATE,
    )

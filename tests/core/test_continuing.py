"""A session is continued, in the next attempt or by another run, as transcripts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sfad.core import events as e
from sfad.core.life.attempts import backoff
from sfad.protocol.types import ErrorCode, RunId, Status

from .test_adopting import Life
from .transcript import Transcript

DIED = "the daemon died while it ran; how it ended cannot be known"


def saved(t: Transcript, run: RunId, session: str = "s") -> e.AgentSessionSaved:
    """Return the event that the run's agent has saved its session."""
    return e.AgentSessionSaved(t.at, run, session)


def to_next_attempt(t: Transcript, run: RunId) -> None:
    (t >> t.emptied(run)).skip()
    t >> t.fired(run, "retry") << f"launch {run}"


def test_an_attempt_after_a_failure_continues_the_session_if_that_is_asked_for() -> None:
    for resume in (True, False):
        t = Transcript()
        a = t.start("a", attempts=2, resume=resume)
        (t >> saved(t, a)).skip()
        (t >> t.exited(a, 1)).skip()
        to_next_attempt(t, a)
        assert (t.run(a).latest.resumes, t.run(a).agent_session) == (resume, "s")
        assert ("the next continues its session" in t.progress[0]) is resume


def test_a_session_is_saved_and_recorded_once() -> None:
    t = Transcript(hear=frozenset({"save"}))
    a = t.start("a")
    t >> saved(t, a) << "save a1 running"
    t >> saved(t, a)
    t >> saved(t, a, "other") << "save a1 running"
    t.quiet()


def test_a_limit_ends_an_attempt_for_the_next_which_continues() -> None:
    """What happens without a session, or in the last attempt: `test_silence`."""
    t = Transcript()
    a = t.start("a", attempts=2, limits="silence=900:continue")
    (t >> saved(t, a)).skip()
    t >> t.level(a, "silence", 900)
    assert "terminate a1 SIGTERM" in t.left
    t.skip()
    assert t.run(a).status is Status.RETRYING
    (t >> t.exited(a, None, signal=15)).skip()
    to_next_attempt(t, a)
    assert t.run(a).latest.resumes
    assert t.progress[0].startswith(
        "attempt 1 of 2 gave no sign of life for 15m; the next continues its session in "
    )


def test_a_plain_attempt_follows_one_that_was_continued() -> None:
    t = Transcript()
    a = t.start("a", attempts=3, limits="silence=900:continue")
    (t >> saved(t, a)).skip()
    (t >> t.level(a, "silence", 900)).skip()
    (t >> t.exited(a, None, signal=15)).skip()
    to_next_attempt(t, a)
    (t >> t.launched(a)).skip()
    (t >> t.exited(a, 1)).skip()
    to_next_attempt(t, a)
    assert not t.run(a).latest.resumes


def test_a_lost_attempt_is_continued() -> None:
    for reboot in (False, True):
        t = Life()
        a = t.start("a", attempts=2, resume=True)
        (t >> saved(t, a)).skip()
        (
            t
            >> t.next_daemon(startable=[a], reboot=reboot)
            << f"arm a1 retry +{backoff(a, 1, first=1.0, cap=60.0):g}"
        )
        t.quiet()  # no signal: it could arrive late, and end the next attempt
        assert t.run(a).status is Status.RETRYING
        assert t.progress[-1].startswith(
            f"attempt 1 of 2 is lost: {DIED}; the next continues its session in "
        )
        t >> t.fired(a, "retry") << "launch a1"
        assert t.run(a).latest.resumes


def test_what_the_meters_learn_of_a_dead_daemons_run_counts_before() -> None:
    t = Life()
    a = t.start("a", attempts=2, resume=True)
    (t >> t.next_daemon(startable=[a], learnt=[saved(t, a)])).skip()
    assert (t.run(a).status, t.run(a).agent_session) == (Status.RETRYING, "s")


@pytest.mark.parametrize("lacks", ["resume", "session", "attempts", "request", "life"])
def test_a_lost_attempt_stays_lost_without(lacks: str) -> None:
    t = Life()
    a = t.start("a", attempts=1 if lacks == "attempts" else 2, resume=lacks != "resume")
    if lacks != "session":
        (t >> saved(t, a)).skip()
    if lacks == "life":
        (t >> t.said_by_agent(a, finished=True)).skip()
    (t >> t.next_daemon(startable=[] if lacks == "request" else [a])).skip()
    assert t.ended(a, Status.COMPLETED if lacks == "life" else Status.LOST).startswith(DIED)


def test_an_adopted_run_whose_end_is_not_known_is_continued() -> None:
    t = Life()
    a = t.start("a", attempts=2, resume=True)
    (t >> saved(t, a)).skip()
    (t >> t.next_daemon(a, startable=[a])).skip()
    (t >> t.exited(a, None)).skip()
    assert t.run(a).status is Status.RETRYING


def test_one_run_at_most_continues_another() -> None:
    t = Transcript()
    first, second = t.spawn("b", continues="a7"), t.spawn("c", continues="a7")
    (t >> first).skip()
    assert (
        t.failed(second)
        == "run a7 was continued by a1 already; to continue that one: sfactl continue a1"
    )
    late = replace(t.spawn("d", continues="a8"), continued_by="a9")
    assert (
        t.failed(late)
        == "run a8 was continued by a9 already; to continue that one: sfactl continue a9"
    )
    answer = t.answers[late.token]
    assert getattr(answer, "code", None) is ErrorCode.WRONG_STATE


def test_a_live_run_is_not_continued() -> None:
    t = Transcript()
    a = t.start("a")
    assert (
        t.failed(t.spawn("b", continues=a))
        == "run a1 has not ended: wait for it (sfactl wait a1) or stop it first"
    )


def test_a_continuation_that_could_not_be_recorded_does_not_count() -> None:
    t = Transcript()
    (t >> t.spawn("b", continues="a7")).skip()
    (t >> t.commit_failed("a1")).skip()
    again = t.spawn("b", continues="a7")
    (t >> again).skip()
    assert again.token not in t.answers, "it waits for the ledger"

"""Purses: what the core does without a feature that has some."""

from __future__ import annotations

from sfad.core.state.vocabulary import ReasonKind
from sfad.protocol.types import LimitKind, Reason, Status

from .test_adopting import Life
from .test_holds import kinds
from .transcript import Transcript

MONEY = Reason(kind=ReasonKind.BUDGET, message="there is no money left")


def test_a_person_resumes_what_a_feature_has_paused_that_is_gone() -> None:
    t = Life()
    a = t.start("a")
    (t >> t.pause(a)).skip()
    paused = t.run(a).paused
    assert paused is not None
    paused.no_money = MONEY
    assert kinds(t, a) == [("budget", "processes")]
    (t >> t.next_daemon(a)).skip()
    assert kinds(t, a) == [("person", "processes")]
    (t >> t.resume(a)).skip()
    assert t.run(a).status is Status.RUNNING


def test_a_reply_is_told_of_that_a_limit_has_cut_which_is_gone() -> None:
    t = Transcript()
    a = t.start("a", limits="cost=0.2:refuse")
    name, output = t.admitted(t.call(a))
    assert output is not None
    del t.run(a).limits[LimitKind.COST]
    (t >> t.called(name, output_tokens=output, cost=0.1999, cut=True)).skip()
    (told,) = [message for message in t.progress if "cut" in message]
    assert told.endswith("; a limit that has been raised since had no room for more")
    assert t.run(a).cut is not None

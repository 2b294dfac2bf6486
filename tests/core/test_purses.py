"""Purses: what the core does without a feature that has some."""

from __future__ import annotations

from sfad.core.state.vocabulary import ReasonKind
from sfad.protocol.types import Reason, Status

from .test_adopting import Life
from .test_holds import kinds

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

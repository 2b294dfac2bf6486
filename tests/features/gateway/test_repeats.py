"""Tool calls that a model repeats."""

from __future__ import annotations

from sfad.core import events as e
from sfad.protocol.types import Event, Repetition, RunId, Status
from tests.core.policies import policy

from .transcript import Gated


def replied(t: Gated, run: RunId, tools: str) -> list[Event]:
    """A reply asks for tools. Return what is published of it."""
    name, _ = t.admitted(t.call(run, 10))
    before = len(t.repeated)
    (t >> t.called(name, tools, turns=len(tools.split()))).skip()
    return t.repeated[before:]


def test_the_same_call_again_and_again_is_told_once_a_streak() -> None:
    t = Gated(repeats=3)
    a = t.start("a", limits="cost=50 turns=100")
    assert replied(t, a, "Bash/1 Bash/1") == []
    assert t.run(a).repeating is None
    (told,) = replied(t, a, "Bash/1 Bash/1")
    assert (told.severity, told.limit_kind, told.threshold, told.used) == ("high", "repeats", 3, 3)
    assert told.message == (
        "its model asked for the tool 'Bash' with the same arguments 3 times in a row "
        "(limits.repeats is 3)"
    )
    assert replied(t, a, "Bash/1") == []
    assert t.run(a).repeating == Repetition(tool="Bash", count=5)
    assert replied(t, a, "") == []
    assert t.run(a).repeating is not None, "a reply without tools breaks no streak"
    assert replied(t, a, "Bash/2 Bash/1 Bash/1") == []
    assert t.run(a).repeating is None
    assert len(replied(t, a, "Bash/1")) == 1
    assert t.run(a).status is Status.RUNNING


def test_each_run_has_its_own_streak_and_the_bound_follows_the_config() -> None:
    t = Gated(repeats=3)
    a, b = (t.start(name, limits="cost=50 turns=100") for name in "ab")
    for run in (a, b):
        assert replied(t, run, "Bash/1 Bash/1") == []
    assert replied(t, a, "Read/1 Read/1") == []
    (t >> e.Reconfigured(t.at, policy(repeats=2))).skip()
    assert len(replied(t, a, "Read/1")) == 1

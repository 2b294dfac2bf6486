"""A root gets the profile of agent programs when the first one starts in it."""

from __future__ import annotations

from typing import Any

import pytest

from sfad.core import events as e
from sfad.protocol.types import Action, Limit, LimitKind, RunId

from .test_unadmitted import seen
from .transcript import Transcript, inside, limits, seconds

DEFAULTS = {"time": 120, "turns": 25, "cost": 1}
PROFILE = {"time": 1800, "turns": 100, "cost": 5}


def of(t: Transcript, run: RunId) -> dict[str, float]:
    """Return the thresholds that a profile sets."""
    return {kind: t.run(run).limits[LimitKind(kind)].limit.threshold for kind in PROFILE}


def widened(t: Transcript) -> int:
    return t.events.count("limits_widened a1")


def night(t: Transcript, **asked: Any) -> RunId:
    return t.start("night", argv=("sh", "night.sh"), **asked)


def test_a_program_that_was_seen_widens_its_root_once() -> None:
    t = Transcript(hear=frozenset({"publish"}))
    a = night(t)
    t >> e.AgentSeen(t.at, a, seen(program="unknown"))
    t.skip()
    assert of(t, a) == DEFAULTS
    t.later(100)
    t >> e.AgentSeen(t.at, a, seen())
    assert t.changed == {a}
    t.skip()
    assert of(t, a) == PROFILE
    assert t.run(a).limits[LimitKind.TIME].limit.source == "profile coding-agent"
    assert t.run(a).deadline == 1800
    (told,) = [event for event in t.published if event.type == "limits_widened"]
    assert told.message == (
        "'claude' starts in it, so it has the profile coding-agent: time 2m → 30m, turns 25 → 100, "
        "cost 1.00 USD → 5.00 USD; to set limits yourself: --timeout, --limit"
    )
    t >> e.AgentSeen(t.at, a, seen(31))
    assert widened(t) == 1


def test_a_child_run_of_a_program_has_the_room_of_the_profile() -> None:
    t = Transcript()
    a = night(t)
    b = t.start("claude", inside(a), argv=("claude", "-p", "x"), agent_program=True)
    assert (of(t, a), of(t, b), widened(t)) == (PROFILE, PROFILE, 1)


def part(t: Transcript, above: RunId, name: str = "part", **asked: Any) -> RunId:
    return t.start(name, inside(above), argv=("sh", f"{name}.sh"), **asked)


def test_a_program_deep_in_the_tree_widens_each_run_above_it() -> None:
    t = Transcript()
    a = night(t)
    b, beside = part(t, a), part(t, a, "beside")
    c = part(t, b, "inner")
    (t >> e.AgentSeen(t.at, c, seen())).skip()
    assert (of(t, a), of(t, b), of(t, c), of(t, beside)) == (PROFILE, PROFILE, PROFILE, DEFAULTS)
    assert [event for event in t.events if "widened" in event] == [
        f"limits_widened {run}" for run in (a, b, c)
    ]
    d = t.start("claude", inside(beside), argv=("claude",), agent_program=True)
    assert (of(t, beside), of(t, d)) == (PROFILE, PROFILE)


def test_a_typed_limit_in_between_stays_and_bounds_what_is_below() -> None:
    t = Transcript()
    a = night(t)
    b = part(t, a, limits=limits("turns=20"))
    c = part(t, b, "inner")
    (t >> e.AgentSeen(t.at, c, seen())).skip()
    assert (of(t, a), of(t, b), of(t, c)) == (
        PROFILE,
        DEFAULTS | {"turns": 20},
        PROFILE | {"turns": 20},
    )


def test_a_part_of_a_root_with_typed_limits_is_widened_alone() -> None:
    t = Transcript()
    a = night(t, limits=(seconds(300),))
    b = part(t, a)
    (t >> e.AgentSeen(t.at, b, seen())).skip()
    # below a root with 25 turns; that its time ends with the root's is not a limit of its own
    assert (of(t, a), of(t, b)) == (DEFAULTS | {"time": 300}, PROFILE | {"turns": 25})


def test_what_was_typed_below_a_narrower_root_stays() -> None:
    t = Transcript()
    a = night(t)
    b = part(t, a, limits=limits("turns=50"))
    assert of(t, b) == DEFAULTS
    (t >> e.AgentSeen(t.at, b, seen())).skip()
    assert (of(t, a), of(t, b)) == (PROFILE, DEFAULTS)


def test_a_program_that_is_refused_widens_nothing() -> None:
    t = Transcript(max_depth=1)
    a = night(t)
    t.refused("claude", inside(a), argv=("claude",), agent_program=True)
    assert of(t, a) == DEFAULTS


@pytest.mark.parametrize(
    "asked",
    [
        {"limits": (seconds(60),)},
        {"limits": limits("cost=3")},
        {"limits": limits("turns=5", "agent nightly (a.toml)")},
        {"run_type": "qa"},
    ],
)
def test_limits_that_someone_has_set_stay(asked: dict[str, Any]) -> None:
    t = Transcript()
    a = night(t, **asked)
    before = of(t, a)
    (t >> e.AgentSeen(t.at, a, seen())).skip()
    assert (of(t, a), widened(t)) == (before, 0)


def test_limits_that_were_changed_later_stay() -> None:
    t = Transcript()
    a = night(t)
    (t >> t.limit(a, "turns=5")).skip()
    (t >> e.AgentSeen(t.at, a, seen())).skip()
    assert of(t, a) == DEFAULTS | {"turns": 5}


def test_what_the_config_has_is_only_raised() -> None:
    time = Limit(kind=LimitKind.TIME, threshold=3000, source="defaults.timeout in sfad.toml")
    t = Transcript(defaults={LimitKind.TIME: time})
    a = night(t)
    (t >> e.AgentSeen(t.at, a, seen())).skip()
    assert (t.run(a).limits[LimitKind.TIME].limit.threshold, widened(t)) == (3000, 0)


def test_the_action_of_on_limit_stays() -> None:
    t = Transcript()
    a = night(t, on_limit=Action.PAUSE)
    (t >> e.AgentSeen(t.at, a, seen())).skip()
    assert (of(t, a), {t.run(a).limits[LimitKind(kind)].action for kind in PROFILE}) == (
        PROFILE,
        {Action.PAUSE},
    )


def test_program_profile_off_keeps_the_defaults() -> None:
    t = Transcript(program_profile=False)
    a = night(t)
    (t >> e.AgentSeen(t.at, a, seen())).skip()
    assert of(t, a) == DEFAULTS

"""Limits of sessions: the smaller of the session's caps and what its profile or its agent's entry
sets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sfad.core.admission.candidate import session_limits_of
from sfad.core.state.limits import Limits
from sfad.core.state.policy import Invalid, Policy, SessionsConfig
from sfad.core.state.request import SessionAsked
from sfad.protocol.types import Action, Limit, LimitKind
from tests.core.asking import asked_for
from tests.core.policies import changed

TIME, TURNS, TOKENS, COST = LimitKind.TIME, LimitKind.TURNS, LimitKind.TOKENS, LimitKind.COST
POLICY = Policy()


def limit(
    kind: LimitKind, threshold: float, action: Action | None = None, source: str = "asked"
) -> Limit:
    return Limit(kind=kind, threshold=threshold, action=action, source=source)


def limits(
    *asked: Limit, entry: tuple[Limit, ...] = (), policy: Policy = POLICY, **of_run: Any
) -> Limits:
    """Return the limits of a session that asks for these, of an agent with these in its entry."""
    run = asked_for(("agent",), limits=entry, session=SessionAsked(asked), **of_run)
    return session_limits_of(run, None, policy, 1000)


def given_(found: Limits, kind: LimitKind) -> tuple[float, Action, str]:
    return found[kind].limit.threshold, found[kind].action, found[kind].limit.source


def test_without_a_wish_the_defaults_of_sessions_apply() -> None:
    found = limits()
    assert given_(found, TIME) == (300, Action.TERMINATE, "sessions.default_timeout_minutes")
    assert given_(found, TOKENS) == (50_000, Action.TERMINATE, "sessions.default_token_budget")
    assert (found[TURNS].limit.threshold, found[COST].limit.threshold) == (25, 1.0)


def test_an_action_alone_is_that_of_all_its_limits_and_widens_none() -> None:
    plain, warned = limits(run_type="qa"), limits(run_type="qa", on_limit=Action.WARN)
    assert warned == plain, "a limit that only warns would bound nothing"
    paused = limits(limit(TURNS, 5), limit(COST, 0.3, Action.REFUSE), on_limit=Action.PAUSE)
    assert [paused[kind].action for kind in (TIME, TURNS, COST)] == ["pause", "pause", "refuse"]
    found = limits(limit(TIME, 400), run_type="architect", on_limit=Action.REFUSE)
    assert (found[TIME].action, found[TOKENS].action) == (Action.TERMINATE, Action.REFUSE)


def test_more_tokens_are_lowered_and_fewer_are_given() -> None:
    assert given_(limits(limit(TOKENS, 500_000)), TOKENS) == (
        200_000,
        Action.TERMINATE,
        "sessions.max_token_budget",
    )
    assert given_(limits(limit(TOKENS, 1000)), TOKENS) == (1000, Action.TERMINATE, "asked")


@pytest.mark.parametrize(
    ("wish", "most"),
    [
        (limit(TIME, 601), "10m, the default of sessions.max_timeout_minutes"),
        (limit(TURNS, 26), "25, the default of sessions.max_tool"),
    ],
)
def test_more_time_or_turns_are_refused(wish: Limit, most: str) -> None:
    with pytest.raises(
        Invalid, match=rf"{wish.kind} = .* is more than a session may have: at most {most}"
    ):
        limits(wish)


def test_what_to_do_depends_on_the_reader() -> None:
    configured = replace(POLICY, files={"sessions.max_timeout_minutes": "/f"})
    person = (
        "at most 10m, set by sessions.max_timeout_minutes. "
        "To allow more, raise sessions.max_timeout_minutes in /f, then run"
    )
    with pytest.raises(Invalid, match=person):
        limits(limit(TIME, 601), policy=configured)
    with pytest.raises(
        Invalid,
        match=r"at most 10m, the default of sessions.max_timeout_minutes. Ask for at most 10m$",
    ):
        limits(limit(TIME, 601), channel="mcp")
    with pytest.raises(
        Invalid,
        match=r"at most 100.00 USD, the default of limits.max_cost. Ask for at most 100.00 USD$",
    ):
        limits(limit(COST, 101), channel="mcp")
    for wish, range_ in (limit(TIME, 0), "1s to 10m"), (limit(TURNS, 0), "1 to 25"):
        with pytest.raises(Invalid, match=f"is outside the range of a session: {range_}$"):
            limits(wish)


def test_a_profile_that_terminates_is_a_cap() -> None:
    found = limits(run_type="qa")  # 10 turns, 2 minutes, 0.50 USD
    assert given_(found, TURNS) == (10, Action.TERMINATE, "type qa")
    assert given_(found, TIME) == (120, Action.TERMINATE, "type qa")
    with pytest.raises(Invalid, match=r"set by type qa$"):
        limits(limit(COST, 0.6), run_type="qa")
    assert given_(limits(limit(COST, 0.4), run_type="qa"), COST)[0] == 0.4


def test_a_profile_that_only_warns_is_no_cap() -> None:
    found = limits(run_type="researcher")  # 50 turns, 20 minutes, warn
    assert given_(found, TURNS) == (25, Action.TERMINATE, "sessions.max_tool_calls_per_run")
    assert given_(found, TIME) == (300, Action.TERMINATE, "sessions.default_timeout_minutes")
    assert given_(limits(limit(TURNS, 20), run_type="researcher"), TURNS) == (
        20,
        Action.TERMINATE,
        "asked",
    )


def test_a_wish_only_to_be_warned_does_not_loosen_a_cap() -> None:
    assert given_(limits(limit(TURNS, 5, Action.WARN)), TURNS)[1] is Action.TERMINATE
    assert given_(limits(limit(TURNS, 5, Action.PAUSE)), TURNS)[1] is Action.PAUSE
    assert given_(limits(limit(COST, 0.4, Action.WARN), run_type="qa"), COST)[1] is Action.TERMINATE


def test_the_entry_of_an_agent_may_have_more_than_the_default_but_not_than_the_maximum() -> None:
    entry = (
        limit(TIME, 480, source="agent a"),
        limit(TOKENS, 900_000, source="agent a"),
        limit(TURNS, 50, source="agent a"),
    )
    found = limits(entry=entry)
    assert [given_(found, kind)[0] for kind in (TIME, TOKENS, TURNS)] == [480, 200_000, 25]
    assert [given_(found, kind)[2] for kind in (TIME, TOKENS)] == [
        "agent a",
        "sessions.max_token_budget",
    ]
    with pytest.raises(Invalid, match="at most 8m, set by agent a"):
        limits(limit(TIME, 540), entry=entry)


def test_the_ceilings_of_all_runs_hold() -> None:
    found = limits(policy=changed(POLICY, max_time=60.0, max_turns=7))
    assert (found[TIME].limit.threshold, found[TURNS].limit.threshold) == (60, 7)


@given(
    asked=st.dictionaries(st.sampled_from([TIME, TURNS, TOKENS]), st.integers(1, 10**6)),
    entry=st.dictionaries(st.sampled_from([TIME, TURNS, TOKENS]), st.integers(1, 100)),
    run_type=st.sampled_from([None, "qa", "developer", "researcher", "coding-agent"]),
    actions=st.sampled_from([None, *Action]),
)
def test_no_session_has_more_than_its_caps(
    asked: dict[LimitKind, int],
    entry: dict[LimitKind, int],
    run_type: str | None,
    actions: Action | None,
) -> None:
    caps = {TIME: 600, TURNS: 25, TOKENS: 200_000}
    try:
        found = limits(
            *(limit(kind, value, actions) for kind, value in asked.items()),
            entry=tuple(limit(kind, value) for kind, value in entry.items()),
            run_type=run_type,
            policy=replace(POLICY, sessions=SessionsConfig()),
        )
    except Invalid:
        return
    for kind, cap in caps.items():
        assert found[kind].limit.threshold <= cap
        assert found[kind].action is not Action.WARN

"""Who may start sessions, and how many: the guard's rules for runs that a model asked for."""

from __future__ import annotations

from typing import Any

import pytest

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.state.access import OPERATOR_ONLY, Peer, why_sessions_refused
from sfad.core.state.policy import SessionsConfig, SpawnRateLimit
from sfad.core.state.request import SessionAsked
from sfad.core.state.vocabulary import Timer
from sfad.protocol.types import Refusal, Rule, RunId

from .transcript import BOB, Transcript, inside


def session(**more: Any) -> dict[str, Any]:
    """Return the fields of a spawn that is a session."""
    return {"session": SessionAsked(), "leaf": not more.get("nested", False)} | more


def refused(t: Transcript, name: str, *peer: Peer, **more: Any) -> Refusal:
    return t.refused(name, *peer, **session(**more))


def sessions(**numbers: Any) -> Transcript:
    return Transcript(sessions=SessionsConfig(**numbers))


def test_the_fourth_at_once_is_refused_and_told_when() -> None:
    t = sessions()
    for name in "abc":
        t.start(name, **session())
    t.later(60)
    refusal = refused(t, "d")
    assert (refusal.kind, refusal.key, refusal.limit, refusal.value) == (
        Rule.CONCURRENCY, "sessions.max_concurrent_per_user", 3, 3,
    )  # fmt: skip
    assert refusal.possible_in_s == 240
    assert "3 sessions of user ann are already running, and 3 is the limit" in refusal.message
    assert (
        "A start will be possible at 2027-01-15 12:04:00 UTC, in 4m00s at the latest"
        in refusal.message
    )
    assert "raise sessions.max_concurrent_per_user in the config" in refusal.message
    t.start("e", BOB, **session())
    t.start("plain")


def test_an_end_makes_room() -> None:
    t = sessions(max_concurrent_per_user=1)
    a = t.start("a", **session())
    assert refused(t, "b").key == "sessions.max_concurrent_per_user"
    (t >> t.exited(a)).skip()
    t.start("b", **session())


def test_all_users_together_have_a_bound() -> None:
    t = sessions(max_concurrent_global=1)
    t.start("a", BOB, **session())
    assert refused(t, "b").key == "sessions.max_concurrent_global"


def test_a_paused_session_tells_no_time() -> None:
    t = sessions(max_concurrent_per_user=1)
    a = t.start("a", **session())
    (t >> t.pause(a)).skip()
    refusal = refused(t, "b")
    assert refusal.possible_in_s is None
    assert "possible when one of them has ended" in refusal.message


def test_after_fewer_are_allowed_the_time_is_that_when_enough_have_ended() -> None:
    t = sessions(max_concurrent_per_user=3)
    t.start("a", **session())
    t.later(10)
    t.start("b", **session())
    policy = Transcript(sessions=SessionsConfig(max_concurrent_per_user=1)).machine.policy
    t.machine.handle(e.Reconfigured(t.at, policy))
    assert refused(t, "c").possible_in_s == 300


def test_the_eleventh_in_an_hour_is_refused_and_told_when() -> None:
    t = sessions()
    for number in range(10):
        run = t.start(f"a{number}", **session())
        (t >> t.exited(run)).skip()
        t.later(60)
    refusal = refused(t, "b")
    assert (refusal.kind, refusal.key, refusal.limit, refusal.value) == (
        Rule.RATE,
        "sessions.spawn_rate_limit",
        10,
        10,
    )
    assert refusal.possible_in_s == 3000
    assert "10 sessions within the last 1h00m, and 10 is the limit" in refusal.message
    assert "at 2027-01-15 12:50:00 UTC, in 50m00s." in refusal.message
    t.start("plain")
    t.start("c", BOB, **session())
    t.later(3000)
    t.start("d", **session())


def test_a_session_that_could_not_be_recorded_does_not_count() -> None:
    t = sessions(spawn_rate_limit=SpawnRateLimit(max_requests=1))
    outcome = t.machine.handle(t.spawn("a", **session()))
    (run,) = (command.run.id for command in outcome.commands if isinstance(command, c.Admit))
    t.machine.handle(t.commit_failed(run))
    t.start("b", **session())


def test_an_earlier_daemons_sessions_count() -> None:
    t = sessions(spawn_rate_limit=SpawnRateLimit(max_requests=1))
    t.machine.session_started_before("ann", t.at - 100)
    assert refused(t, "a").possible_in_s == 3500


def test_a_reload_changes_the_rate() -> None:
    t = sessions(spawn_rate_limit=SpawnRateLimit(max_requests=1))
    t.start("a", **session())
    t.machine.handle(
        e.Reconfigured(
            t.at,
            Transcript(
                sessions=SessionsConfig(spawn_rate_limit=SpawnRateLimit(max_requests=2))
            ).machine.policy,
        )
    )
    t.start("b", **session())


def test_after_a_lower_rate_enough_must_have_left_the_window() -> None:
    t = sessions(spawn_rate_limit=SpawnRateLimit(max_requests=3))
    for name in "abc":
        t.start(name, **session())
        t.later(60)
    t.machine.handle(
        e.Reconfigured(
            t.at,
            Transcript(
                sessions=SessionsConfig(spawn_rate_limit=SpawnRateLimit(max_requests=1))
            ).machine.policy,
        )
    )
    assert refused(t, "d").possible_in_s == 3600 - 60


def test_sessions_may_be_off() -> None:
    refusal = refused(sessions(enabled=False), "a")
    assert (refusal.kind, refusal.detail) == (
        Rule.ENABLED,
        "sessions.enabled = false in the daemon's config",
    )


def test_a_model_is_told_to_wait_for_what_it_has() -> None:
    t = sessions(max_concurrent_per_user=1)
    t.start("a", **session())
    assert "wait for your sessions with sessions_info" in refused(t, "b", channel="mcp").message
    assert "reload" not in refused(t, "b", channel="mcp").message
    main = t.start("main")
    assert "with sfactl session info RUN --wait 60" in refused(t, "b", inside(main)).message


def test_a_refused_loop_names_the_parameter_of_the_road() -> None:
    t = sessions()
    main = t.start("main")
    assert refused(t, "main", inside(main)).message.endswith("give it its own --name.")
    assert refused(t, "main", inside(main), channel="mcp").message.endswith(
        "give it its own worker_name."
    )


def may(t: Transcript, run: RunId) -> bool:
    return why_sessions_refused(inside(run), t.run(run).birth.permissions, OPERATOR_ONLY) is None


def test_the_main_agent_may_and_its_subagents_may_not() -> None:
    t = sessions()
    main = t.start("main")
    own = t.start("own", inside(main), **session())
    child = t.start("child", inside(main))
    assert [may(t, run) for run in (main, own, child)] == [True, False, False]
    assert refused(t, "x", inside(own)).detail == (
        f"run {own} is a session that was started without --nested and may not start others"
    )
    assert refused(t, "x", inside(child)).detail.startswith(
        f"run {child} is a subagent: sessions are for the main agent"
    )
    assert t.run(own).parent is t.run(main)
    t.start("plain", inside(child))


def test_a_session_of_a_person_is_a_subagent() -> None:
    t = sessions()
    own = t.start("own", **session())
    assert not may(t, own)
    assert t.refused("x", inside(own)).kind is Rule.PERMISSION


@pytest.mark.parametrize("fields", [{"nested": True}, session(nested=True)], ids=["run", "session"])
def test_the_main_agent_grants_it_for_one_run(fields: dict[str, Any]) -> None:
    t = sessions()
    main = t.start("main")
    child = t.start("child", inside(main), **fields)
    assert may(t, child)
    below = t.start("below", inside(child), **session())
    assert not may(t, below)
    assert not may(t, t.start("plain", inside(child)))


def test_a_subagent_cannot_grant_what_it_has_not() -> None:
    t = sessions()
    main = t.start("main")
    child = t.start("child", inside(main))
    refusal = t.refused("x", inside(child), nested=True)
    assert (refusal.kind, "is a subagent" in refusal.message) == (Rule.PERMISSION, True)


def test_to_detach_is_no_way_to_become_a_main_agent() -> None:
    t = Transcript(allow_detach=True)
    main = t.start("main")
    child = t.start("child", inside(main))
    free = t.start("free", inside(child), detach=True)
    assert t.run(free).parent is None
    assert not may(t, free)


def test_leaf_and_nested_exclude_each_other() -> None:
    t = sessions()
    assert "leaf and nested exclude each other" in t.failed(t.spawn("a", leaf=True, nested=True))


def test_a_denied_spawn_denies_sessions() -> None:
    t = sessions()
    main = t.start("main", deny=frozenset({"spawn"}))
    assert refused(t, "x", inside(main)).kind is Rule.PERMISSION


def test_its_time_ends_it() -> None:
    t = sessions()
    a = t.start("a", **session())
    t.later(300)
    t.machine.handle(t.fired(a, Timer.DEADLINE))
    assert t.run(a).ending is not None

"""Each rule of the guard, its words, and the order of the rules."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.state.access import FULL, AccessRules, Peer
from sfad.core.state.run import Birth, run_id
from sfad.protocol.types import Claim, Refusal, Rule, Status

from .policies import changed
from .transcript import ANN, BOB, Transcript, bound, inside
from .transcript import seconds as limit


def test_a_refusal_is_recorded_published_and_answered_and_that_is_all() -> None:
    t = Transcript(hear=frozenset({"publish"}), enabled=False)
    (
        t
        >> t.spawn("a")
        << "recordrefusal a1"
        << "publish run_rejected a1"
        << "reply 1 Refused enabled a1"
    )
    t.quiet()
    assert t.machine.refused == 1
    assert t.machine.admitted == 0
    assert not len(t.machine.tree)


def test_a_refused_run_has_the_rules_status_and_reason() -> None:
    t = Transcript(enabled=False)
    commands = t.machine.handle(t.spawn("a")).commands
    run = next(command.run for command in commands if isinstance(command, c.RecordRefusal))
    assert run.status is Status.REJECTED_ENABLED
    assert run.shown_reason is not None
    assert run.shown_reason.kind == "enabled"
    assert run.ended_at == run.birth.created_at


def test_every_refusal_tells_a_model_to_finish() -> None:
    t = Transcript(max_depth=1)
    a = t.start("a")
    for refusal in (t.refused("a", inside(a)), t.refused("b", inside(a))):
        assert "finish your task with what you already have" in refusal.message


@pytest.mark.parametrize(
    ("numbers", "asked", "way"),
    [
        (
            {"enabled": False},
            {},
            "To allow it, set enabled in the config to true, then run: sfactl reload",
        ),
        (
            {"trees": 1},
            {"queue": False},
            "Leave out --no-queue to wait for a slot, or raise quotas.trees in /etc/c, then run: ",
        ),
        (
            {"spawns_per_hour": 1},
            {},
            "Wait, or raise quotas.spawns_per_hour in the config, then run: sfactl reload",
        ),
    ],
)
def test_a_person_is_told_the_way_out_and_a_model_to_finish(
    numbers: dict[str, Any], asked: dict[str, Any], way: str
) -> None:
    t = Transcript(files={"quotas.trees": "/etc/c"}, **numbers)
    if numbers.get("enabled", True):
        t.start("first")
    assert way in (told := t.refused("a", **asked).message)
    assert "Do not try again" not in told
    assert t.refused("a", claim=Claim(depth=1), **asked).message.endswith(
        "finish your task with what you already have."
    )


def test_a_user_who_may_not_change_the_config_is_told_who_may() -> None:
    t = Transcript(
        access=AccessRules(all_users=True, admin_gid=9),
        files={"quotas.spawns_per_hour": "/etc/c"},
        spawns_per_hour=1,
    )
    ask = "ask root, or a member of access.admin_group, to raise "
    cases: list[tuple[int, set[int], str]] = [(1001, set(), ask), (1002, {9}, "raise ")]
    for uid, gids, way in cases:
        peer = Peer(uid, f"u{uid}", owner=False, gids=frozenset(gids))
        t.start("a", peer)
        message = t.refused("a", peer).message
        assert f"Wait, or {way}quotas.spawns_per_hour" in message
        assert ("/etc/c" in message) is bool(gids)


def test_disabled() -> None:
    refusal = Transcript(enabled=False).refused("a")
    assert (refusal.kind, refusal.detail) == (
        Rule.ENABLED,
        "enabled = false in the daemon's config",
    )
    assert "'a' was not started" in refusal.message


def test_draining() -> None:
    t = Transcript()
    t.start("a")
    (t >> _drain(t)).skip()
    assert t.refused("b").detail == "the daemon is stopping"


def test_nothing_is_born_into_a_tree_that_is_being_emptied() -> None:
    t = Transcript()
    a, b = t.chain("a", "b")
    (t >> t.stop(a)).skip()
    # the child asks, which was not stopped by itself
    assert t.refused("c", inside(b)).detail == f"run {b} ('b') is being stopped"
    assert t.refused("c", inside(a)).detail == f"run {a} ('a') is being stopped"


def test_nothing_is_born_into_what_a_failed_attempt_left() -> None:
    t = Transcript()
    a = t.start("a", attempts=2)
    (t >> t.exited(a, 1, empty=False)).skip()
    assert t.refused("c", inside(a)).kind is Rule.ENABLED


def test_a_peer_that_cannot_be_placed_is_refused() -> None:
    refusal = Transcript().refused(
        "a", Peer(1000, "ann", unidentified="it ended before it could be identified")
    )
    assert refusal.kind is Rule.PERMISSION
    assert (
        refusal.detail
        == "the calling process could not be identified: it ended before it could be identified"
    )


@pytest.mark.parametrize("detach", [False, True])
def test_a_peer_whose_run_has_ended_is_refused_and_not_taken_for_a_person(detach: bool) -> None:
    t = Transcript(allow_detach=True)
    a = t.start("a")
    (t >> t.exited(a)).skip()
    refusal = t.refused("b", inside(a), detach=detach)
    assert refusal.kind is Rule.PERMISSION
    assert refusal.detail == f"the calling process could not be identified: its run {a} has ended"


def test_another_users_peer_is_refused_even_inside_a_run() -> None:
    t = Transcript()
    a = t.start("a")
    stranger = Peer(1001, "bob", owner=False)
    assert (
        t.refused("b", stranger).detail
        == "this daemon serves another user; bob (uid 1001) may not use it"
    )
    assert t.refused("b", Peer(1001, "bob", owner=False, run=a)).kind is Rule.PERMISSION


def test_a_leaf_may_not_start_others() -> None:
    t = Transcript()
    a = t.start("a", leaf=True)
    refusal = t.refused("b", inside(a))
    assert (refusal.kind, refusal.detail) == (
        Rule.PERMISSION,
        f"run {a} was started with --leaf and may not start others",
    )


def test_a_detached_run_from_inside_needs_the_config() -> None:
    t = Transcript()
    a = t.start("a")
    assert t.refused("b", inside(a), detach=True).detail == (
        f"run {a} may not start a detached run (guard.allow_detach = false)"
    )


def test_detached_is_a_root_with_the_bounds_of_a_root() -> None:
    t = Transcript(allow_detach=True, max_depth=1)
    a = t.start("a", max_descendants=bound(1))
    b = t.start("b", inside(a), detach=True)
    assert t.run(b).parent is None
    assert t.run(b).birth.max_descendants.value == 64
    assert t.run(a).admitted == 0


def test_detaching_does_not_shed_permissions() -> None:
    t = Transcript(allow_detach=True)
    a = t.start("a", deny=frozenset({"stop"}))
    b = t.start("b", inside(a), detach=True)
    assert "stop" not in t.run(b).birth.permissions.verbs


def test_detaching_does_not_shed_the_chain_of_the_loop_rule() -> None:
    t = Transcript(allow_detach=True)
    a, b = t.chain("a", "b")
    d = t.start("d", inside(b), detach=True)
    f = t.start("f", inside(d))
    assert t.refused("a", inside(b), detach=True).path == ["a", "b", "a"]
    assert t.refused("b", inside(f)).path == ["b", "d", "f", "b"]
    assert t.refused("a", inside(f), detach=True).path == ["a", "b", "d", "f", "a"]
    assert t.run(a).name == "a"


def test_loop_tells_the_whole_path() -> None:
    t = Transcript()
    _, _, b = t.chain("x", "a", "b")
    refusal = t.refused("a", inside(b))
    assert refusal.kind is Rule.LOOP
    assert refusal.detail == "agent 'a' already runs higher in the chain: a → b → a"
    assert refusal.path == ["a", "b", "a"]
    assert refusal.value == 2
    assert "give it its own --name" in refusal.message
    assert "a → b → a" in refusal.message


def test_loop_compares_kind_and_name() -> None:
    t = Transcript()
    (a,) = t.chain("a")
    assert t.start("a", inside(a), kind="skill")
    assert t.refused("a", inside(a)).path == ["a", "a"]


def test_loop_compares_the_identity_of_a_registered_agent_and_not_its_name() -> None:
    t = Transcript()
    a = t.start("one", agent="reviewer")
    b = t.start("helper", inside(a))
    event = t.spawn("two", inside(b), agent="reviewer")
    t >> event << "recordrefusal a3" << f"reply {event.token} Refused loop a3"
    refused = t.answers[event.token]
    assert isinstance(refused, c.SpawnRefused)
    assert refused.refusal.path == ["reviewer", "helper", "reviewer"]
    assert "whatever its name" in refused.refusal.message
    assert t.start("one", inside(b)), "a name that no identity has"


@pytest.mark.parametrize("unnamed", ["child", "loop"])
def test_what_no_one_named_is_a_loop_only_if_the_config_says_so(unnamed: str) -> None:
    t = Transcript(unnamed=unnamed)
    (a,) = t.chain("claude")
    if unnamed == "child":
        assert t.start("claude", inside(a), unnamed=True) != a
    else:
        assert t.refused("claude", inside(a), unnamed=True).path == ["claude", "claude"]
    assert t.refused("claude", inside(a)).kind is Rule.LOOP


def test_a_sibling_of_the_same_name_is_no_loop() -> None:
    t = Transcript()
    (a,) = t.chain("a")
    t.start("b", inside(a))
    t.start("b", inside(a))


def test_depth_counts_from_the_root() -> None:
    t = Transcript()
    runs = t.chain("a", "b", "c", "d", "e")
    assert len(t.run(runs[-1]).lineage) == 5
    refusal = t.refused("f", inside(runs[-1]))
    assert (refusal.kind, refusal.value, refusal.limit) == (Rule.DEPTH, 5, 5)
    assert refusal.detail == "the chain already holds 5 runs; max_depth is 5, set by default"


def test_depth_narrows_below_a_root_and_never_widens() -> None:
    t = Transcript()
    a = t.start("a", max_depth=bound(3, "SFA_MAX_DEPTH"))
    b = t.start("b", inside(a), max_depth=bound(9))
    refusal = t.refused("c", inside(t.start("c", inside(b))), max_depth=bound(9))
    assert refusal.kind is Rule.LOOP  # the rule before
    c_ = next(run.id for run in t.machine.tree if run.name == "c")
    assert t.refused("d", inside(c_), max_depth=bound(9)).detail.endswith(
        "max_depth is 3, set by SFA_MAX_DEPTH"
    )
    tight = t.start("tight", inside(a), max_depth=bound(2, "--max-depth"))
    assert (
        t.refused("d", inside(tight)).detail
        == "the chain already holds 2 runs; max_depth is 2, set by --max-depth"
    )


@pytest.mark.parametrize("value", [0, -1])
def test_not_positive_means_inherited_or_default(value: int) -> None:
    t = Transcript()
    a = t.start("a", max_depth=bound(value), max_descendants=bound(value))
    assert t.run(a).birth.max_depth == bound(5, "default")
    assert t.run(a).birth.max_descendants == bound(64, "default")
    b = t.start("b", inside(a), max_depth=bound(value))
    assert t.run(b).birth.max_depth == bound(5, "default")


def test_ceilings_hold_at_a_root_with_the_range_in_the_message() -> None:
    t = Transcript()
    assert t.start("a", max_depth=bound(32), max_descendants=bound(1024))
    assert t.failed(t.spawn("b", max_depth=bound(33, "SFA_MAX_DEPTH"))) == (
        "max_depth = 33 (SFA_MAX_DEPTH) is above guard.depth_ceiling = 32; ask for at most 32"
    )
    assert "guard.descendants_ceiling = 1024" in t.failed(t.spawn("b", max_descendants=bound(1025)))


def test_budget_counts_the_whole_subtree_and_ended_runs() -> None:
    t = Transcript()
    a = t.start("a", max_descendants=bound(2, "--max-descendants"))
    b = t.start("b", inside(a))
    c_ = t.start("c", inside(b))
    (t >> t.exited(c_)).skip()
    refusal = t.refused("d", inside(b))
    assert (refusal.kind, refusal.value, refusal.limit) == (Rule.BUDGET, 2, 2)
    assert refusal.detail == (
        f"run {a} ('a') has already admitted 2 descendants; "
        "max_descendants is 2, set by --max-descendants"
    )


def test_a_tighter_budget_in_between_counts_too() -> None:
    t = Transcript()
    a = t.start("a")
    b = t.start("b", inside(a), max_descendants=bound(1))
    c_ = t.start("c", inside(b))
    assert t.refused("d", inside(c_)).detail.startswith(f"run {b} ('b') has already admitted 1")
    assert t.start("d", inside(a))  # beside it there is room


def test_the_outermost_full_ancestor_is_named() -> None:
    t = Transcript()
    a = t.start("a", max_descendants=bound(2))
    b = t.start("b", inside(a), max_descendants=bound(1))
    t.start("c", inside(b))
    assert t.refused("d", inside(b)).detail.startswith(f"run {a} ('a')")


def test_two_hundred_ask_at_once_and_sixty_four_get_a_yes() -> None:
    t = Transcript()
    a = t.start("a")
    for number in range(200):
        (t >> t.spawn(f"child-{number}", inside(a))).skip()
    refused = [answer for answer in t.answers.values() if isinstance(answer, c.SpawnRefused)]
    assert t.machine.admitted == 1 + 64
    assert len(refused) == 136
    assert {answer.refusal.kind for answer in refused} == {Rule.BUDGET}


def test_rate_of_roots_of_one_user() -> None:
    t = Transcript(spawns_per_hour=2)
    a = t.start("a")
    t.later(600)
    t.start("b")
    t.start("child", inside(a))  # not a root
    refusal = t.refused("c")
    assert (refusal.kind, refusal.value, refusal.limit) == (Rule.RATE, 2, 2)
    assert refusal.detail == (
        "user ann started 2 trees within the last 3600 s; quotas.spawns_per_hour is 2; "
        "one more fits in 3000 s"
    )
    assert t.start("c", BOB)
    t.later(2999.9)
    assert t.refused("c").kind is Rule.RATE
    t.later(0.1)
    assert t.start("c")


def test_a_refusal_takes_nothing_from_the_rate() -> None:
    t = Transcript(spawns_per_hour=2)
    for _ in range(5):
        t.refused("a", claim=Claim(depth=9))
    assert t.start("a")
    assert t.start("b")


def test_concurrency_of_a_user_and_of_the_daemon() -> None:
    t = Transcript(trees_per_user=2, trees=3)
    t.start("a")
    t.start("b")
    refusal = t.refused("c", queue=False)
    assert (refusal.kind, refusal.value, refusal.limit) == (Rule.CONCURRENCY, 2, 2)
    when = "; a slot is free in 2m00s at the latest, when trees reach their time limits"
    whose = "2 agent trees are already running for user ann; quotas.trees_per_user is 2"
    assert refusal.detail == f"{whose}, and the request said not to queue{when}"
    assert (refusal.key, refusal.possible_in_s) == ("quotas.trees_per_user", 120)
    t.start("a", BOB)
    refusal = t.refused("b", BOB, queue=False)
    assert refusal.detail == (
        "3 agent trees are already running; "
        f"quotas.trees is 3, and the request said not to queue{when}"
    )
    assert (refusal.key, refusal.value, refusal.limit, refusal.possible_in_s) == (
        "quotas.trees",
        3,
        3,
        120,
    )
    (t >> t.spawn("c")).skip()
    assert t.refused("d", queue=False).possible_in_s == 120, "after the one that waits"
    t.later(100)
    assert t.refused("d", queue=False).possible_in_s == 20


def test_the_queue_of_a_user_is_bounded() -> None:
    t = Transcript(trees_per_user=1, trees=2, queued_per_user=2)
    t.start("a")
    for name in ("b", "c"):
        (t >> t.spawn(name)).skip()
    refusal = t.refused("d")
    assert (refusal.kind, refusal.key, refusal.value, refusal.limit) == (
        Rule.CONCURRENCY,
        "quotas.queued_per_user",
        2,
        2,
    )
    assert refusal.possible_in_s == 120
    assert "2 trees of user ann wait to start" in refusal.message
    assert t.start("b", BOB), "others have a queue of their own"
    assert t.refused("d", queue=False).key == "quotas.trees_per_user"


def quota_of(refusal: Refusal) -> tuple[object, ...]:
    return refusal.kind, refusal.key, refusal.value, refusal.limit, refusal.possible_in_s


def test_quotas_tell_key_value_limit_and_when() -> None:
    t = Transcript(spawns_per_hour=1)
    t.start("a")
    t.later(600)
    assert quota_of(t.refused("b")) == (Rule.RATE, "quotas.spawns_per_hour", 1, 1, 3000)


def test_children_need_no_slot() -> None:
    t = Transcript(trees=1)
    a = t.start("a")
    assert t.start("b", inside(a), queue=False)


def test_the_order_of_the_rules() -> None:
    """Every rule would refuse; one after the other is fixed, and the next one answers."""
    t = Transcript(trees=1, spawns_per_hour=1, max_depth=1, max_descendants=1, allow_detach=True)
    a = t.start("a", max_depth=bound(2), leaf=True)
    spoke = [t.refused("a", Peer(1000, "ann", run=a)).kind]
    t.run(a).birth = structs.replace(t.run(a).birth, permissions=FULL)
    spoke.append(t.refused("a", inside(a)).kind)
    spoke.append(t.refused("b", inside(a), max_depth=bound(1)).kind)
    t.start("b", inside(a))
    spoke.append(t.refused("c", inside(a)).kind)
    spoke.append(t.refused("r", queue=False).kind)
    t.later(3600)
    spoke.append(t.refused("r", queue=False).kind)
    assert spoke == [
        Rule.PERMISSION,
        Rule.LOOP,
        Rule.DEPTH,
        Rule.BUDGET,
        Rule.RATE,
        Rule.CONCURRENCY,
    ]
    (t >> _drain(t)).skip()
    assert t.refused("a", inside(a)).kind is Rule.ENABLED


def test_a_claim_from_outside_is_added() -> None:
    t = Transcript()
    claim = Claim(names=["a", "b"], depth=2)
    assert t.refused("a", claim=claim).path == ["a", "b", "a"]
    # a claim does not say the kind, so it matches either
    assert t.refused("b", kind="skill", claim=claim).path == ["b", "b"]
    assert t.refused("c", claim=Claim(depth=5)).detail.startswith("the chain already holds 5 runs")
    assert t.refused("c", claim=Claim(names=["v", "w", "x", "y", "z"])).kind is Rule.DEPTH
    assert t.start("c", claim=claim)


def test_a_claim_holds_for_the_whole_tree_below() -> None:
    """Otherwise a container would be a way to begin at depth 0 again."""
    t = Transcript()
    c_ = t.start("c", claim=Claim(names=["a", "b"], depth=3))
    d = t.start("d", inside(c_))
    assert t.refused("a", inside(d)).path == ["a", "b", "c", "d", "a"]
    assert t.refused("b", inside(d), kind="skill").path == ["b", "c", "d", "b"]
    assert t.refused("e", inside(d)).detail.startswith("the chain already holds 5 runs")


def test_a_claim_never_loosens() -> None:
    t = Transcript(max_depth=1)
    a = t.start("a", claim=Claim(depth=-100))
    assert t.refused("b", inside(a), claim=Claim(depth=-100)).kind is Rule.DEPTH


def test_what_a_peer_inside_a_run_claims_is_not_asked() -> None:
    """The kernel knows better; every run has SFA_* in its environment."""
    t = Transcript()
    a = t.start("a")
    assert t.start("b", inside(a), claim=Claim(names=["a", "b"], depth=9))


def test_beyond_ten_a_minute_refusals_are_counted() -> None:
    t = Transcript(enabled=False)
    for number in range(1, 11):
        (
            t
            >> t.spawn("a")
            << f"recordrefusal {run_id(number)}"
            << f"reply {number} Refused enabled {run_id(number)}"
        )
        t.later(1)
    t >> t.spawn("a") << "countrefusal aa" << "reply 11 Refused enabled counted"
    t.later(50)  # the first is a minute old
    t >> t.spawn("a") << "recordrefusal ab" << "reply 12 Refused enabled ab"
    t >> t.spawn("a") << "countrefusal ab" << "reply 13 Refused enabled counted"
    t.quiet()
    assert t.machine.refused == 13


def test_refusals_are_counted_for_each_run_and_rule() -> None:
    t = Transcript()
    a = t.start("a")
    b = t.start("b", leaf=True)
    for _ in range(10):
        t.refused("a", inside(a))
    t >> t.spawn("a", inside(a)) << "countrefusal ac" << "reply 13 Refused loop counted"
    (
        t
        >> t.spawn("c", inside(a), detach=True)
        << "recordrefusal ad"
        << "reply 14 Refused permission ad"
    )
    t >> t.spawn("c", inside(b)) << "recordrefusal ae" << "reply 15 Refused permission ae"
    t.quiet()


def test_refusals_of_runs_that_ended_are_forgotten() -> None:
    t = Transcript()
    for number in range(50):
        a = t.start(f"a-{number}", leaf=True)
        t.refused("b", inside(a))
        (t >> t.exited(a)).skip()
        t.refused("b", inside(a))
    assert len(t.machine.refused_callers) <= 1


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"attempts": 0}, "attempts = 0 is outside 1 to 100"),
        ({"attempts": 101}, "attempts = 101 is outside 1 to 100"),
        ({"retry_delay": -1.0}, "retry_delay = -1 s is outside 0 s to 3600 s"),
        ({"retry_delay": float("nan")}, "retry_delay = nan s is outside"),
        ({"retry_delay": float("inf")}, "retry_delay = inf s is outside"),
    ],
)
def test_values_outside_their_range_are_refused_with_the_range(
    asked: dict[str, Any], words: str
) -> None:
    t = Transcript()
    assert t.failed(t.spawn("a", **asked)).startswith(words)
    assert t.machine.refused == 0


@pytest.mark.parametrize("seconds", [0.99, 3600.1, float("nan"), -1.0])
def test_time_limits_outside_their_range_are_refused_with_the_range(seconds: float) -> None:
    t = Transcript()
    message = t.failed(t.spawn("a", timeout=limit(seconds)))
    assert "(--timeout) is outside its range: 1s to 1h" in message
    assert (
        ". To allow more, raise limits.max_time in the config, then run: sfactl reload" in message
    ) is (seconds > 3600)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "--all",
        "-",
        "a/b",
        "x" * 65,
        "a\n",
        "a\x1b[31m",
        "a\u202eb",
        "a\u200bb",
        "a\ufe0f",
        "\u3164",
        "\u0308a",
        "a,b",
        "\U0001f680",
    ],
)
def test_bad_names_are_refused(name: str) -> None:
    t = Transcript()
    assert "1 to 64 letters, digits, . _ and -" in t.failed(t.spawn(name))


def test_names_are_of_any_script_and_compared_in_one_form() -> None:
    t = Transcript()
    for name in ("日本語", "обзор", "हिन्दी", "סקירה"):
        assert t.run(t.start(name)).name == name
    a = t.start("Übersicht")
    assert t.refused("U\u0308bersicht", inside(a)).kind == "loop"


def _drain(t: Transcript) -> e.DrainRequested:
    return e.DrainRequested(t.at)


@pytest.mark.parametrize(
    ("limits", "starts"),
    [
        ("cost=1", False),
        ("tokens=9000:refuse", False),
        ("cost=1:warn", True),
        ("turns=3", True),
        ("", True),
    ],
)
def test_a_bound_on_money_that_nothing_would_keep_is_refused(limits: str, starts: bool) -> None:
    t = Transcript()
    if starts:
        t.start("a", limits=limits, uncounted="no one looks")
        return
    refusal = t.refused("a", limits=limits, uncounted="no one looks")
    assert refusal.kind is Rule.UNENFORCEABLE
    assert "no one looks. Start it with --gateway" in refusal.message
    t.start("a", limits=limits)
    told = t.refused("b", inside("a1"), limits=limits, uncounted="no one looks")
    assert "finish your task with what you already have" in told.message


@pytest.mark.parametrize(
    ("limits", "reports", "starts"),
    [
        ("planning_cost=1", False, False),
        ("execution_cost=1:pause", False, False),
        ("planning_cost=1", True, True),
        ("planning_cost=1:warn", False, True),
        ("cost=1", False, True),
    ],
)
def test_a_limit_of_a_roles_cost_needs_reports(limits: str, reports: bool, starts: bool) -> None:
    """The gateway and meters know no roles."""
    t = Transcript()
    if starts:
        t.start("a", limits=limits, gated=True, reports=reports)
        return
    refusal = t.refused("a", limits=limits, gated=True, reports=reports)
    assert refusal.kind is Rule.UNENFORCEABLE
    assert f"nothing would enforce its {limits.partition('=')[0]} limit of 1.00 USD" in (
        refusal.message
    )
    assert "Name --meter report if its agents report so; or let the limit only warn" in (
        refusal.message
    )


@pytest.mark.parametrize(
    ("limits", "gated", "starts"),
    [
        ("cost=1", True, False),
        ("tokens=9000", True, False),
        ("cost=1:warn", True, True),
        ("", True, True),
        ("cost=1", False, True),
    ],
)
def test_a_child_around_the_gateway_that_no_meter_knows_is_refused(
    limits: str, gated: bool, starts: bool
) -> None:
    """The limits of a run that goes without the gateway do not rest on it."""
    t = Transcript()
    t.start("root", limits=limits, gated=gated)
    t.start("child", inside("a1"), gated=gated)
    if starts:
        t.start("script", inside("a2"), uncounted="no one looks")
        return
    refusal = t.refused("script", inside("a2"), uncounted="no one looks")
    assert refusal.kind is Rule.UNENFORCEABLE
    assert (
        f"nothing would enforce the {limits.partition('=')[0]} limit of run a1" in refusal.message
    )
    assert "no one looks. Do not try again; finish your task" in refusal.message
    t.start("script", inside("a2"), gated=gated)


def test_what_was_made_of_a_request_counts_for_nobody_else_and_for_one_policy() -> None:
    """Equal requests have the same `Asked`."""
    t = Transcript()
    first = t.spawn("x")

    def born(peer: Peer) -> Birth:
        asked = structs.replace(first, at=t.at, token=t.token(), peer=peer)
        outcome = t.machine.handle(asked)
        (run,) = [each.run for each in outcome.commands if isinstance(each, c.Admit)]
        return run.birth

    one, two, other = born(ANN), born(ANN), born(BOB)
    assert two == structs.replace(one, id=two.id, number=two.number)
    assert two.number == one.number + 1
    assert (other.user, other.uid) == (BOB.user, BOB.uid)
    policy = changed(t.machine.policy, max_depth=3)
    t.machine.handle(e.Reconfigured(t.at, policy))
    assert born(ANN).max_depth.value == 3

"""Limits of a new run: kinds, ranges, profiles, precedence, narrowing. docs/limits.md says the
same."""

from __future__ import annotations

from itertools import product
from math import inf, nan, nextafter

import pytest

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.state.limits import ActiveLimit, crossings
from sfad.core.state.money import to_core
from sfad.core.state.policy import DEFAULT_LIMITS, Learnt, Policy
from sfad.protocol.kinds import KINDS, METERED_KINDS
from sfad.protocol.known import PROFILES
from sfad.protocol.limits import format_amount
from sfad.protocol.types import Action, ErrorCode, Limit, LimitKind, Status
from tests.together import together

from .transcript import Transcript, inside, limits

# least, most (None: no upper end), whole numbers only, whether it takes an action
RANGES: dict[str, tuple[float, float | None, bool, bool]] = {
    "time": (1, 3600, False, True),
    "turns": (1, 100, True, True),
    "messages": (1, None, True, True),
    "tokens": (1, None, True, True),
    "cost": (0.01, 100, False, True),
    "planning_cost": (0.01, 100, False, True),
    "execution_cost": (0.01, 100, False, True),
    "output": (65536, 1 << 30, True, False),
    "silence": (1, None, False, True),
    "memory": (1 << 20, None, True, True),
    "pids": (1, None, True, True),
    "cpu": (0.01, None, False, False),
    "plan": (1, 100, False, True),
}
# turns, seconds, USD, action
OF_TYPES = {
    "developer": (25, 10 * 60, 1.00, "terminate"),
    "qa": (10, 2 * 60, 0.50, "terminate"),
    "planner": (15, 5 * 60, 2.00, "terminate"),
    "architect": (50, 30 * 60, 5.00, "warn"),
    "researcher": (50, 20 * 60, 5.00, "warn"),
    "security-architect": (30, 15 * 60, 3.00, "terminate"),
    "code-reviewer": (20, 10 * 60, 1.50, "warn"),
    "devops": (30, 15 * 60, 2.00, "terminate"),
    "coding-agent": (100, 30 * 60, 5.00, "terminate"),
}


def shown(t: Transcript, run: str, *kinds: str) -> str:
    """Return the limits of a run in the form in which they are requested."""
    found = t.run(run).limits.items()
    return " ".join(
        f"{kind}={held.limit.threshold:g}:{held.action}"
        for kind, held in found
        if not kinds or kind in kinds
    )


def asking(kind: str, threshold: float, action: Action | None = None) -> tuple[Limit, ...]:
    return (Limit(kind=LimitKind(kind), threshold=threshold, action=action, source="--limit"),)


# ---- ranges


def test_there_is_a_range_of_every_kind() -> None:
    assert list(RANGES) == [kind.value for kind in LimitKind] == [kind.value for kind in KINDS]


@pytest.mark.parametrize("kind", RANGES)
def test_each_range_includes_its_ends_and_nothing_outside(kind: str) -> None:
    least, most, whole, _ = RANGES[kind]
    inside_it = [least, most if most is not None else 10.0**12]
    outside = [0.0, -1.0, nan, inf, -inf, -1e-320, nextafter(least, 0), least - 1]
    outside += [nextafter(most, inf), most + 1, 1e300] if most is not None else []
    outside += [least + 0.5] if whole else []
    inside_it += [] if whole else [least + 0.5]
    for threshold in inside_it:
        t = Transcript()
        a = t.start("a", limits=asking(kind, threshold), reports=True)
        assert t.held(a, kind).limit.threshold == threshold
    for threshold in outside:
        t = Transcript()
        event = t.spawn("a", limits=asking(kind, threshold))
        message = t.failed(event)
        answer = t.answers[event.token]
        assert isinstance(answer, c.ErrorAnswer)
        assert answer.code is ErrorCode.BAD_REQUEST
        assert message.startswith(f"{kind} = {threshold:g}"), message
        assert "is outside its range: " in message
        assert "(--limit)" in message
        assert format_amount(LimitKind(kind), least) in message
        assert (
            f" to {format_amount(LimitKind(kind), most)}" if most is not None else " or more"
        ) in message
        assert ("whole numbers" in message) is whole
        raisable = kind != "plan"  # a window has no more than 100 %
        assert ("raise limits.max_" in message) is (
            raisable and most is not None and threshold > most
        )
        assert not len(t.machine.tree)
        assert t.machine.refused == 0, "a usage error is no refusal"


def test_resume_and_approve_check_ranges_too() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=10:pause")
    (t >> t.used(a, turns=11)).skip()
    for room in ("turns=101", "turns=10.5", "turns=nan"):
        assert "is outside its range: 1 to 100, whole numbers" in t.failed(t.resume(a, room=room))
    b = t.start("b", limits="turns=10:request_increase")
    (t >> t.used(b, turns=11)).skip()
    assert "is outside its range" in t.failed(t.approve(b, room="cost=inf"))
    assert t.run(b).held_by is not None


def test_max_time_raises_the_range_of_time() -> None:
    t = Transcript(max_time=7200.0)
    assert shown(t, t.start("a", limits="time=7200"), "time") == "time=7200:terminate"
    assert t.failed(t.spawn("b", limits="time=7200.5")).endswith(
        "1s to 2h. To allow more, raise limits.max_time in the config, then run: sfactl reload"
    )


def test_max_turns_and_max_cost_raise_their_ranges_and_say_where() -> None:
    t = Transcript(max_turns=500, max_cost=250.0, files={"limits.max_turns": "/etc/sfad/sfad.toml"})
    a = t.start("a", limits="turns=500 cost=250 planning_cost=250", reports=True)
    assert shown(t, a, "turns", "cost") == "turns=500:terminate cost=250:terminate"
    message = t.failed(t.spawn("b", limits="turns=501"))
    assert message.endswith(
        "1 to 500, whole numbers. To allow more, raise limits.max_turns in /etc/sfad/sfad.toml, "
        "then run: sfactl reload"
    )
    output = t.failed(t.spawn("b", limits=f"output={2**40}"))
    assert "64 KiB to 1 GiB, whole numbers. To allow more, raise limits.max_output in" in output
    assert "raise limits.max_cost in" in t.failed(t.spawn("b", limits="execution_cost=251"))
    assert "raise" not in t.failed(t.spawn("b", limits="turns=0")), "a larger range would not help"


@together(("kind", "action"), list(product(RANGES, Action)))
def test_which_kinds_take_an_action(kind: str, action: Action) -> None:
    least, _, _, acts = RANGES[kind]
    t = Transcript()
    event = t.spawn("a", limits=asking(kind, least, action), attempts=2, reports=True)
    if acts and action is Action.REFUSE and LimitKind(kind) not in METERED_KINDS:
        assert t.failed(event).startswith(f"the limit '{kind}' cannot refuse (--limit)")
    elif acts and action is Action.CONCLUDE and kind not in {"cost", "tokens", "turns"}:
        assert t.failed(event).startswith(f"the limit '{kind}' cannot conclude (--limit)")
    elif acts and action is Action.CONTINUE and kind != "silence":
        assert t.failed(event).startswith(f"the limit '{kind}' cannot continue a session (--limit)")
    elif acts:
        (t >> event).skip()
        assert t.held("a1", kind).action is action
    else:
        assert (
            t.failed(event)
            == f"the limit '{kind}' takes no action, so '{action}' cannot be its action (--limit)"
        )


def test_scopes() -> None:
    of_runs = {kind.value for kind in KINDS if KINDS[kind].scope == "run"}
    assert of_runs == {"time", "turns", "messages", "output", "silence"}
    assert {"turns", "messages", "tokens", "cost", "planning_cost", "execution_cost"} == {
        kind.value for kind in METERED_KINDS
    }


# ---- defaults, profiles, precedence


def test_the_defaults() -> None:
    t = Transcript()
    a = t.start("a")
    assert shown(t, a) == (
        "time=120:terminate turns=25:terminate "
        "cost=1:terminate output=6.71089e+07:warn pids=1024:terminate"
    )
    # the tree has its processes, so a child has no number of its own
    assert (
        shown(t, t.start("b", inside(a)))
        == "time=120:terminate turns=25:terminate cost=1:terminate output=6.71089e+07:warn"
    )
    assert {held.limit.source for held in t.run(a).limits.values()} == {"default"}


def test_the_profiles() -> None:
    assert {
        name: (p.turns, p.time, p.cost, p.action.value) for name, p in PROFILES.items()
    } == OF_TYPES


@pytest.mark.parametrize("name", OF_TYPES)
def test_a_profile_sets_turns_time_and_cost_and_their_action(name: str) -> None:
    t = Transcript()
    turns, time, cost, action = OF_TYPES[name]
    a = t.start("a", run_type=name)
    assert (
        shown(t, a, "time", "turns", "cost")
        == f"time={time:g}:{action} turns={turns}:{action} cost={cost:g}:{action}"
    )
    assert {t.held(a, kind).limit.source for kind in ("time", "turns", "cost")} == {f"type {name}"}
    assert t.held(a, "pids").action is Action.TERMINATE


def test_a_known_program_has_the_profile_coding_agent_where_no_other_is_named() -> None:
    t = Transcript()
    profile = "time=1800:terminate turns=100:terminate cost=5:terminate"
    a = t.start("a", agent_program=True)
    assert shown(t, a, "time", "turns", "cost") == profile
    assert t.held(a, "turns").limit.source == "profile coding-agent"
    assert (
        shown(t, t.start("b", agent_program=True, run_type="poet"), "time", "turns", "cost")
        == profile
    ), "a poet has no profile"
    assert (
        t.held(t.start("c", agent_program=True, run_type="qa"), "turns").limit.source == "type qa"
    )
    assert (
        shown(t, t.start("d", agent_program=True, limits="turns=7"), "time", "turns")
        == "time=1800:terminate turns=7:terminate"
    )
    plain = Transcript(program_profile=False)
    assert shown(plain, plain.start("a", agent_program=True)) == shown(plain, plain.start("b"))
    narrow = Transcript(max_turns=60, max_cost=2.0)
    assert (
        shown(narrow, narrow.start("a", agent_program=True), "turns", "cost")
        == "turns=60:terminate cost=2:terminate"
    )


def test_an_unknown_type_is_a_label() -> None:
    t = Transcript()
    assert shown(t, t.start("a", run_type="poet")) == shown(t, t.start("b"))


def of_feature(**thresholds: float) -> list[Limit]:
    """Return limits as a feature has learnt them."""
    return [
        Limit(kind=LimitKind(kind), threshold=threshold, source="a feature")
        for kind, threshold in thresholds.items()
    ]


def test_asked_before_learnt_before_profile_before_config() -> None:
    """In each of the sixteen combinations of sources of a limit of turns, the first of the list
    wins."""
    said = {
        "asked": (40, "--limit"),
        "learnt": (41, "a feature"),
        "type": (50, "type architect"),
        "config": (43, "config"),
    }
    for speakers in product((False, True), repeat=4):
        speak = dict(zip(said, speakers, strict=True))
        defaults = (
            {LimitKind.TURNS: Limit(kind=LimitKind.TURNS, threshold=43, source="config")}
            if speak["config"]
            else {}
        )
        learnt: dict[str, Learnt] = (
            {"a": lambda _uid, _type, _name: of_feature(turns=41)} if speak["learnt"] else {}
        )
        t = Transcript(defaults=defaults, learnt=learnt)
        a = t.start(
            "a",
            run_type="architect" if speak["type"] else None,
            limits="turns=40" if speak["asked"] else "",
        )
        held = t.run(a).limits.get(LimitKind.TURNS)
        loudest = next((who for who in said if speak[who]), None)
        if loudest == "learnt" and not speak["type"] and not speak["config"]:
            loudest = None  # it changes a number, it does not bound what nothing bounds
        if loudest is None:
            assert held is None
        else:
            assert held is not None
            assert (held.limit.threshold, held.limit.source) == said[loudest], speak


def test_what_a_feature_has_learnt_keeps_the_action_and_the_range() -> None:
    t = Transcript(learnt={"a": lambda _uid, _type, _name: of_feature(cost=7, time=3601, tokens=9)})
    # more than limits.max_time is not allowed, and no one bounds tokens
    assert (
        shown(t, t.start("a", run_type="architect"), "time", "cost", "tokens")
        == "time=1800:warn cost=7:warn"
    )


def test_a_feature_learns_until_the_config_is_read_again() -> None:
    t = Transcript()

    def learnt(uid: int, run_type: str | None, name: str | None) -> list[Limit]:
        return of_feature(turns=31) if (uid, run_type, name) == (1000, "qa", "a") else []

    t >> e.LimitsLearnt(t.at, "a", lambda _uid, _type, _name: of_feature(turns=30, cost=0.5))
    t >> e.LimitsLearnt(t.at, "a", learnt)
    t >> e.LimitsLearnt(t.at, "b", lambda _uid, _type, _name: of_feature(time=60))
    assert shown(t, t.start("a", run_type="qa"), "time", "turns", "cost") == (
        "time=60:terminate turns=31:terminate cost=0.5:terminate"
    )
    assert shown(t, t.start("b", run_type="qa"), "time", "turns") == (
        "time=60:terminate turns=10:terminate"
    )
    t >> e.Reconfigured(t.at, Policy())
    assert shown(t, t.start("a", run_type="qa"), "turns") == "turns=10:terminate"


def test_what_was_learnt_of_a_derived_name_is_found_again() -> None:
    t = Transcript()
    asked_of: list[str | None] = []

    def learnt(_uid: int, _type: str | None, name: str | None) -> list[Limit]:
        asked_of.append(name)
        return []

    t >> e.LimitsLearnt(t.at, "a", learnt)
    t >> t.spawn(None, argv=("python3", "review.py"))
    assert [run.name for run in t.machine.tree] == asked_of == ["review"]


WORDS = [None, *Action]


@together(
    ("written", "on_limit", "of_type"),
    list(product(WORDS, WORDS, (None, "developer", "architect"))),
)
def test_the_action_of_a_written_limit(
    written: Action | None, on_limit: Action | None, of_type: str | None
) -> None:
    """Its own, else `--on-limit`, else for turns, time and cost the profile's, else terminate."""
    t = Transcript()
    kernels = _possible(written)
    metered = written if written is not Action.CONTINUE else None
    asked = (
        *asking("turns", 9, metered),
        *asking("tokens", 9, metered),
        *asking("pids", 9, kernels),
    )
    a = t.start("a", limits=asked, on_limit=on_limit, run_type=of_type)
    profile = PROFILES[of_type].action if of_type is not None else None
    on_metered = on_limit if on_limit is not Action.CONTINUE else None
    assert t.held(a, "turns").action is (metered or on_metered or profile or Action.TERMINATE)
    assert t.held(a, "tokens").action is (metered or on_metered or Action.TERMINATE)
    assert t.held(a, "pids").action is (kernels or _possible(on_limit) or Action.TERMINATE)


def _possible(on_limit: Action | None) -> Action | None:
    """Return what `--on-limit` says of a kind that is not reserved before it is used, and not
    silence."""
    of_few = {Action.REFUSE, Action.CONCLUDE, Action.CONTINUE}
    return on_limit if on_limit not in of_few else None


@together(
    ("on_limit", "configured", "of_type"),
    list(product(WORDS, WORDS, (None, "developer", "architect"))),
)
def test_the_action_of_a_default_limit(
    on_limit: Action | None, configured: Action | None, of_type: str | None
) -> None:
    """`--on-limit` holds for time and metered kinds; for processes and memory the config does."""
    default = {
        kind: Limit(kind=kind, threshold=9, action=configured)
        for kind in (LimitKind.TURNS, LimitKind.TIME, LimitKind.PIDS)
    }
    t = Transcript(defaults=default)
    a = t.start("a", on_limit=on_limit, run_type=of_type)
    profile = PROFILES[of_type].action if of_type is not None else None
    on_metered = on_limit if on_limit is not Action.CONTINUE else None
    assert t.held(a, "turns").action is (on_metered or profile or configured or Action.TERMINATE)
    assert t.held(a, "time").action is (
        _possible(on_limit) or profile or configured or Action.TERMINATE
    )
    assert t.held(a, "pids").action is (configured or Action.TERMINATE)


def test_of_two_limits_of_one_kind_the_last_holds() -> None:
    t = Transcript()
    assert shown(t, t.start("a", limits="turns=9:warn turns=8"), "turns") == "turns=8:terminate"


def test_limits_are_shown_in_one_order() -> None:
    t = Transcript()
    a = t.start(
        "a",
        limits="cpu=1 pids=5 memory=2000000 output=65536 cost=1 tokens=5 messages=5 turns=5 time=5",
    )
    order = list(LimitKind)
    assert [order.index(kind) for kind in t.run(a).limits] == sorted(
        order.index(kind) for kind in t.run(a).limits
    )


# ---- narrowing


@pytest.mark.parametrize("kind", ["turns", "messages", "output"])
@pytest.mark.parametrize("action", [Action.TERMINATE, Action.PAUSE, Action.REQUEST_INCREASE])
def test_a_child_has_no_more_than_its_parent(kind: str, action: Action) -> None:
    least, _, _, acts = RANGES[kind]
    lower, own, higher = least, least * 2, least * 3
    t = Transcript()
    a = t.start("a", limits=asking(kind, own, action if acts else None))
    for name, asked, expected in (("low", lower, lower), ("same", own, own), ("high", higher, own)):
        b = t.start(name, inside(a), limits=asking(kind, asked))
        assert t.held(b, kind).limit.threshold == expected
        assert t.held(b, kind).limit.source == (
            "--limit" if asked == expected else f"run {a} (--limit)"
        )
    b = t.start("more", inside(a), limits=asking(kind, higher))
    d = t.start("deeper", inside(b), limits=asking(kind, higher))
    assert (t.held(d, kind).limit.threshold, t.held(d, kind).limit.source) == (
        own,
        f"run {a} (--limit)",
    ), "who set it is named"


def test_a_limit_of_a_tree_is_enforced_at_the_parent_and_not_copied_to_its_children() -> None:
    """A root that is to be paused at 0.5 must not see its child terminated by an inherited 0.5 at
    the same moment."""
    t = Transcript()
    a = t.start("a", limits="cost=0.5:pause")
    b = t.start("b", inside(a), limits="cost=50")
    assert shown(t, b, "cost") == "cost=50:terminate"
    (t >> t.report(b, cost=0.75)).skip()
    assert (t.run(a).status, t.run(b).status) == (Status.PAUSED, Status.PAUSED)
    assert [line for line in t.events if line.startswith("limit_exceeded")] == [
        f"limit_exceeded {a}"
    ]


def test_a_breach_during_a_pause_of_an_ancestor_is_answered_when_that_goes_on() -> None:
    t = Transcript()
    a = t.start("a", limits="cost=0.5:pause")
    b = t.start("b", inside(a), limits="cost=0.25")
    (t >> t.report(b, cost=0.75)).skip()
    assert t.run(b).status is Status.PAUSED
    (t >> t.resume(a, room="cost=5")).skip()
    assert (t.run(a).status, t.run(b).status) == (Status.RUNNING, Status.STOPPING)


@pytest.mark.parametrize("kind", ["messages", "tokens", "planning_cost", "memory", "cpu"])
def test_a_limit_that_a_child_does_not_request(kind: str) -> None:
    """Of a tree's limit the child's use counts against the parent's. Of a run's it counts nowhere,
    so the child gets the same."""
    t = Transcript()
    a = t.start("a", limits=asking(kind, 2_000_000 if kind == "memory" else 2), reports=True)
    b = t.start("b", inside(a))
    assert (LimitKind(kind) in t.run(b).limits) is (KINDS[LimitKind(kind)].scope == "run")


def test_what_no_one_named_has_no_time_and_money_of_its_own() -> None:
    t = Transcript()
    a = t.start("a")
    named, unnamed = t.start("b", inside(a)), t.start("c", inside(a), unnamed=True)
    assert shown(t, named, "time", "cost") == "time=120:terminate cost=1:terminate"
    assert not shown(t, unnamed, "time", "cost")


def test_a_limit_that_only_warns_bounds_no_child() -> None:
    t = Transcript()
    a = t.start("a", limits="turns=5:warn cost=0.5:warn")
    assert (
        shown(t, t.start("b", inside(a), limits="turns=50 cost=5"), "turns", "cost")
        == "turns=50:terminate cost=5:terminate"
    )


@pytest.mark.parametrize("own", ["turns=100:warn", "turns=5:warn"])
def test_a_child_that_only_warns_does_not_escape_its_parents_limit(own: str) -> None:
    """Its turns count in its own limit only. `--type architect` does not escape it either."""
    t = Transcript()
    a = t.start("a", limits="turns=10")
    assert shown(t, t.start("b", inside(a), limits=own), "turns") == "turns=10:terminate"
    assert shown(t, t.start("d", inside(a), run_type="architect"), "turns") == "turns=10:terminate"
    # what it uses of a tree's limit counts against the parent's too, so there it may be warned
    assert shown(t, t.start("f", inside(a), limits="cost=0.5:warn"), "cost") == "cost=0.5:warn"


def test_a_detached_run_is_bounded_like_a_root() -> None:
    t = Transcript(allow_detach=True)
    a = t.start("a", limits="turns=5 tokens=5")
    assert shown(t, t.start("b", inside(a), detach=True)) == shown(t, t.start("d"))


def test_only_a_time_limit_that_terminates_bounds_descendants() -> None:
    for action, capped in (
        (Action.TERMINATE, True),
        (Action.PAUSE, False),
        (Action.WARN, False),
        (Action.REQUEST_INCREASE, False),
    ):
        t = Transcript()
        a = t.start("a", limits=asking("time", 30, action))
        b = t.start("b", inside(a), limits="time=100")
        assert t.held(b, "time").limit.threshold == 100, (
            "its own limit is what it asked for; the deadline is the earlier one"
        )
        assert t.run(b).deadline == (30 if capped else 100)
        assert t.run(a).deadline == (30 if capped else 3600)


# ---- near and over, by themselves


@pytest.mark.parametrize("kind", [kind for kind in RANGES if RANGES[kind][3]])
def test_each_crossing_is_told_once_and_at_its_number(kind: str) -> None:
    """Near is at 80 %, over is above; for time at it."""
    at_it = kind in ("time", "silence")
    for amount, expected in (
        (0, []), (79.9, []), (80, [False]), (99.9, [False]),
        (100, [False, True] if at_it else [False]), (100.001, [False, True]), (1e18, [False, True]),
    ):  # fmt: skip
        used = to_core(LimitKind(kind), amount)
        held = ActiveLimit(Limit(kind=LimitKind(kind), threshold=100))
        assert [crossing.exceeded for crossing in crossings(held, used, 0.8)] == expected, used
        assert not list(crossings(held, used, 0.8))
    held = ActiveLimit(Limit(kind=LimitKind(kind), threshold=100))
    steps = [to_core(LimitKind(kind), used) for used in range(0, 300, 7)]
    assert [crossing.exceeded for used in steps for crossing in crossings(held, used, 0.8)] == [
        False,
        True,
    ]


def test_the_share_at_which_it_comes_near_is_configured() -> None:
    t = Transcript(nearing=0.5)
    a = t.start("a", limits="turns=10")
    assert not (t >> t.used(a, turns=4)).said
    assert (t >> t.used(a, turns=5)).said == ["near a1 turns 5/10"]


def test_runs_do_not_share_the_default_limits() -> None:
    """A change of one run's limits must not change another run's."""
    t = Transcript()
    a = t.start("a")
    (t >> t.used(a, turns=24)).skip()
    b = t.start("b")
    assert t.held(a, "turns").near
    assert not t.held(b, "turns").near
    assert Policy().defaults == DEFAULT_LIMITS
    assert limits("turns=3")[0].threshold == 3


def test_a_share_is_reached_exactly() -> None:
    """0.55 * 20 is above 11 in floats."""
    held = ActiveLimit(Limit(kind=LimitKind.TURNS, threshold=20))
    assert [crossing.exceeded for crossing in crossings(held, 11, 0.55)] == [False]

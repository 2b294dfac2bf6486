"""Texts for limits and usage: `info`, `why`, `list`, `tree`, and the lines of a foreground run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from sfactl import output
from sfactl.commands import info, tree, why
from sfactl.commands import list as list_
from sfactl.options import limits
from sfactl.options import spawn as spawn_options
from sfad.protocol.messages import Spawn
from sfad.protocol.types import Action, Event, Limit, LimitKind, LimitState, RunInfo, Status, Usage

from .samples import NOON, hold, reason, run, state

COST = LimitKind.COST
SOON = NOON + timedelta(minutes=2)
ASK = "sfactl approve a1 [--limit cost=N], or sfactl deny a1"
NOTHING: dict[str, Any] = {"enforced_by": "nothing"}


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (
            state(
                COST,
                2.5,
                Action.WARN,
                used=0.45,
                source="--limit cost",
                scope="tree",
                enforced_by="meter",
            ),
            (
                "cost 0.45 of 2.50 USD (18 %) → warn; from --limit cost; with its descendants'; "
                "kept by meters and reports"
            ),
        ),
        (
            state(LimitKind.TIME, 120, used=30),
            "time 30s of 2m (25 %) → terminate; from default; the run's own; kept by the clock",
        ),
        (
            state(LimitKind.MEMORY, 2**31, used=2**30, scope="tree", enforced_by="kernel"),
            (
                "memory 1 GiB of 2 GiB (50 %) → terminate; from default; with its descendants'; "
                "kept by the kernel"
            ),
        ),
        (
            state(LimitKind.TURNS, 25, **NOTHING),
            (
                "turns 25 → terminate; from default; the run's own; NOT ENFORCEABLE: "
                "nothing tells what is used"
            ),
        ),
        (
            state(LimitKind.OUTPUT, 2**20, Action.WARN, enforced_by="watching"),
            "output 1 MiB → the oldest is freed; from default; the run's own; kept by watching",
        ),
    ],
)
def test_a_limit_on_one_line(limit: LimitState, shown: str) -> None:
    assert limits.describe(limit) == shown


def facts(found: RunInfo) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, value in info.facts(found)
        if name in ("limit", "usage", "calls", "meter")
    ]


def test_info_shows_usage_with_its_source() -> None:
    usage = Usage(turns=12, messages=1, input_tokens=4650, cached_tokens=1200, output_tokens=180,
                  cost_usd=0.45, cost_from="prices", source="stream",
                  planning_cost_usd=0.1)  # fmt: skip
    said = (
        "12 turns, 1 message, 4650 tokens in (1200 from a cache), 180 tokens out, "
        "cost 0.45 USD (from prices), planning 0.10 USD"
    )
    found = facts(run(usage=usage, limits=[], meter="claude"))
    assert found == [("usage", f"{said} [stream]"), ("meter", "claude")]


def test_calls_through_the_gateway_are_counted_and_their_refusals_named() -> None:
    usage = Usage(cost_usd=0.31, source="gateway")
    found = run(
        usage=usage,
        usage_by_source={"gateway": usage},
        limits=[],
        meter="claude",
        calls=3,
        calls_refused=2,
    )
    assert facts(found)[-2:] == [
        ("calls", "3, 2 refused (sfactl calls a1 --refused)"),
        ("meter", "gateway, claude"),
    ]
    assert why.sentence(found).endswith(
        "; 2 calls of its model were refused (sfactl calls a1 --refused)"
    )
    last = why.sentence(structs.replace(found, last_refusal="0.30 of 0.31 USD are used."))
    assert (
        "; 2 calls of its model were refused, the last one: 0.30 of 0.31 USD are used (sfactl"
        in last
    )
    assert "1 agent program was started within it" in (one := why.sentence(run(unadmitted=1)))
    assert "and counts as a descendant; to have it ask: sfactl shim install PROGRAM" in one
    assert (
        "and count as descendants; to have them ask: sfactl shim install PROGRAM"
        in why.sentence(run(unadmitted=2))
    )
    assert [column.cell(found) for column in list_.COLUMNS if column.name == "METER"] == [
        "gateway, claude"
    ]
    assert ("calls", "3") in facts(run(limits=[], calls=3, calls_refused=0))


def test_a_figure_that_may_still_grow_is_shown_as_a_lower_bound() -> None:
    usage = Usage(
        turns=2, input_tokens=10, output_tokens=5, cost_usd=0.31, source="stream", partial=True
    )
    found = run(usage=usage, limits=[])
    assert facts(found) == [
        (
            "usage",
            (
                "2 turns, at least 10 tokens in, at least 5 tokens out, "
                "cost at least 0.31 USD [stream]"
            ),
        )
    ]
    assert why.sentence(found).endswith("; it used at least 0.31 USD")
    assert output.bounded_use(Usage(tokens=15, partial=True)) == "at least 15 tokens"
    assert [
        column.cell(found) for column in list_.COLUMNS if column.name in ("TURNS", "TOKENS", "USD")
    ] == ["2", "-", "≥0.31"]


def test_an_upper_bound_and_an_estimate_are_shown_as_such() -> None:
    usage = Usage(input_tokens=10, output_tokens=5, cost_usd=0.31, source="gateway", at_most=True)
    found = run(usage=usage, limits=[])
    assert facts(found) == [
        ("usage", "at most 10 tokens in, at most 5 tokens out, cost at most 0.31 USD [gateway]")
    ]
    assert why.sentence(found).endswith("; it used at most 0.31 USD")
    assert [column.cell(found) for column in list_.COLUMNS if column.name == "USD"] == ["≤0.31"]
    assert output.bounded_use(Usage(tokens=15, partial=True, at_most=True)) == "about 15 tokens"
    assert output.bounded("0.31", Usage(partial=True, at_most=True)) == "≈0.31"


def test_info_shows_every_source_where_there_are_several() -> None:
    told, read = (
        Usage(turns=3, cost_usd=1, cost_from="agent", source="report"),
        Usage(turns=4, source="stream"),
    )
    found = facts(run(usage=told, usage_by_source={"report": told, "stream": read}, limits=[]))
    assert found == [
        ("usage", "3 turns, cost 1.00 USD (from the agent) [report, shown elsewhere]"),
        ("usage", "4 turns [stream]"),
    ]


def test_info_shows_no_usage_that_is_not_known() -> None:
    assert facts(run(limits=[])) == []


# ---- why


def test_a_program_that_retries_in_silence_is_seen_to_wait_for_its_first_answer() -> None:
    silent: dict[str, Any] = {
        "status": Status.RUNNING,
        "meter": "opencode",
        "usage": Usage(elapsed_s=62),
    }
    waits = run(**silent)
    assert output.outcome(waits) == "running (no answer yet)"
    assert (
        "gets no answer: its model has not answered for 1m02s, "
        "and opencode does not tell whether it tries again"
    ) in why.sentence(waits)
    for changes in (
        {"meter": "claude"},
        {"usage": Usage(elapsed_s=62, messages=1)},
        {"usage": Usage(elapsed_s=20)},
    ):
        assert output.outcome(run(**silent | changes)) == "running"


def over(kind: str, used: float, threshold: float) -> Any:
    message = f"used {used}; its {kind} limit is {threshold}, set by --limit {kind}"
    return reason(
        "limit",
        message,
        limit_kind=kind,
        used=used,
        threshold=threshold,
        exceeded_by=round(used - threshold, 6),
    )


@pytest.mark.parametrize(
    ("status", "changes", "says"),
    [
        (
            Status.FAILED,
            {"reason": over("cost", 0.45, 0.3),
             "limits": [state(COST, 0.3, scope="tree", enforced_by="gateway")]},
            "ended as failed: used 0.45; its cost limit is 0.3, "
            "set by --limit cost (0.15 USD over; what its descendants used counts too)",
        ),
        (
            Status.FAILED,
            {"reason": over("cost", 0.45, 0.3), "limits": [state(COST, 0.3, enforced_by="meter")]},
            "(0.15 USD over)",
        ),
        (Status.FAILED, {"reason": over("turns", 26, 25)}, "set by --limit turns (1 over)"),
        (Status.TIMEOUT, {"reason": over("time", 60, 60)},
         "ended as timeout: used 60; its time limit is 60, set by --limit time"),
        (Status.FAILED, {"reason": reason("limit", "it called 'Bash'", limit_kind="tool")},
         "ended as failed: it called 'Bash'"),
        (Status.STOPPING, {"reason": over("turns", 26, 25)},
         "is stopping: used 26; its turns limit is 25, set by --limit turns ("),
        (
            Status.PAUSED,
            {"holds": (hold("limit", "used 26; its turns limit is 25, set by x (1 over)",
                            command="sfactl resume a1 [--limit turns=N]"),)},
            "is paused: used 26; its turns limit is 25, set by x (1 over); "
            "it continues with: sfactl resume a1 [--limit turns=N]",
        ),
        (
            Status.PAUSED,
            {"holds": (hold("approval", "used 0.45", command=ASK),)},
            f"used 0.45; it waits for approval: {ASK}. Unanswered for limits.approval_timeout, ",
        ),
        (
            Status.PAUSED,
            {"holds": (hold("approval", "used 0.45", command=ASK, until=SOON),)},
            f"it waits for approval until {output.clock(SOON, NOON)}, in 1m30s: {ASK}",
        ),
        (
            Status.PAUSED,
            {"holds": (hold("person", "by hand", command="x", until=SOON),)},
            f"by hand (if nothing resumes it, it is ended at {output.clock(SOON, NOON)}, "
            "in 1m30s); x continues it",
        ),
        (Status.RUNNING, {"limits": [state(LimitKind.TURNS, 25, **NOTHING)]},
         "25 → terminate (from default, NOT ENFORCEABLE)"),
    ],
)  # fmt: skip
def test_why_a_limit(status: Status, changes: dict[str, Any], says: str) -> None:
    assert says in why.sentence(run(status, **changes), NOON + timedelta(seconds=30))


# ---- list, tree


def test_a_tree_shows_what_is_known() -> None:
    assert "3 turns  120 tokens  0.002 USD" in tree.describe(
        run(usage=Usage(turns=3, tokens=120, cost_usd=0.002))
    )
    assert "USD" not in tree.describe(run())


# ---- at a run's start and in the foreground


ASKED = [
    Limit(kind=LimitKind.TURNS, threshold=50),
    Limit(kind=COST, threshold=2),
    Limit(kind=LimitKind.TIME, threshold=9),
]


@pytest.mark.parametrize(
    ("states", "asked", "named"),
    [
        (
            [state(LimitKind.TURNS, 50, **NOTHING), state(COST, 2, **NOTHING)],
            ASKED,
            "turns 50, cost 2.00 USD.",
        ),
        (
            [state(LimitKind.TURNS, 50, enforced_by="meter"), state(COST, 2, **NOTHING)],
            ASKED,
            "cost 2.00 USD.",
        ),
        ([state(LimitKind.TURNS, 50, enforced_by="meter")], ASKED, None),
        ([state(LimitKind.TURNS, 25, **NOTHING), state(COST, 1, **NOTHING)], [], None),
    ],
)
def test_limits_that_cannot_be_enforced_are_named(
    states: Sequence[LimitState], asked: list[Limit], named: str | None
) -> None:
    spawn = Spawn(id=1, argv=[], cwd=b"/", env=[], limits=asked)
    words = spawn_options.unenforceable(run(limits=states), spawn)
    assert (words is None) is (named is None)
    if words is not None:
        assert words.startswith(f"sfactl: a1: NOT ENFORCEABLE: {named}")
        assert "--meter" in words
        assert "sfactl report" in words
    quiet = structs.replace(spawn, quiet=True)
    assert spawn_options.unenforceable(run(limits=states), quiet) is None


def event(
    type_: str = "limit_exceeded",
    kind: str = "cost",
    used: float = 0.45,
    threshold: float = 0.3,
    **more: Any,
) -> Event:
    return Event(type=type_, run_id="a1", limit_kind=kind, used=used, threshold=threshold, **more)


def of(found: Event, *states: LimitState) -> str | None:
    actions = [state.action for state in states if state.kind == found.limit_kind]
    told = structs.replace(found, action=actions[0]) if actions else found
    return limits.Notices().of(told, run(limits=list(states)))


@pytest.mark.parametrize(
    ("action", "follows"),
    [
        (Action.TERMINATE, "terminating"),
        (Action.WARN, "continuing"),
        (Action.PAUSE, "paused; more room: sfactl resume a1 --limit cost=N"),
        (
            Action.REQUEST_INCREASE,
            "waiting for approval: sfactl approve a1 [--limit cost=N], or sfactl deny a1",
        ),
    ],
)
def test_a_breach_says_what_follows(action: Action, follows: str) -> None:
    assert of(event(), state(COST, 0.3, action)) == f"limit cost: used 0.45 of 0.30 USD, {follows}"


def test_a_nearing_limit_says_how_near() -> None:
    assert (
        of(event("limit_nearing", used=0.25), state(COST, 0.3))
        == "limit cost: used 0.25 of 0.30 USD, 83 %"
    )


def test_each_is_told_once() -> None:
    notices, worker = limits.Notices(), run(limits=[state(COST, 0.3, Action.WARN)])
    breach = event(action=Action.WARN)
    assert notices.of(breach, worker)
    assert notices.of(breach, worker) is None
    assert notices.of(structs.replace(breach, threshold=0.4), worker), (
        "it was given more room and has used that too"
    )


def test_what_has_no_numbers_has_the_daemons_words() -> None:
    tool = event(
        kind="tool",
        used=1,
        threshold=0,
        message="its agent called the tool 'Bash', which --block-tool forbids",
    )
    assert of(tool) == "limit tool: its agent called the tool 'Bash', which --block-tool forbids"
    budget = event(scope="user", message="user ann has used 5.1 of 5 USD a day")
    assert of(budget, state(COST, 1)) == "budget: user ann has used 5.1 of 5 USD a day"
    cut = event(message="its last reply was cut at 4 100 tokens; the next call ends the run")
    assert of(cut) == f"limit cost: {cut.message}"
    refused = event(
        refused=True,
        message="asked for 0.2 USD on top of 0.25 that it has used; its cost limit is 0.3 USD",
    )
    assert of(refused, state(COST, 0.3)) == f"limit cost: {refused.message}, terminating"


def test_the_clock_that_nothing_overrules_terminates() -> None:
    longest = event(kind="time", used=3600, threshold=3600, action=Action.TERMINATE)
    worker = run(limits=[state(LimitKind.TIME, 120, Action.WARN)])
    assert limits.Notices().of(longest, worker) == "limit time: used 1h00m of 1h, terminating"


def test_other_events_say_nothing() -> None:
    assert of(Event(type="run_started")) is None
    assert of(event("increase_requested"), state(COST, 0.3)) is None

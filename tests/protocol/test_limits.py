"""Limits as people and programs write them, and as they are shown."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.protocol import limits as written
from sfad.protocol.limits import format_amount, format_limit, parse_limit
from sfad.protocol.limits_object import LimitsObject, WrittenLimits, parse_limits, schema
from sfad.protocol.types import Action, Limit, LimitKind, LimitState
from tests.tiers import examples
from tests.together import together

TICK = settings(max_examples=examples(40), deadline=None, database=None)


@pytest.mark.parametrize(
    ("text", "kind", "threshold", "action"),
    [
        ("turns=50", LimitKind.TURNS, 50, None),
        ("time=90s", LimitKind.TIME, 90, None),
        ("time=1.5m", LimitKind.TIME, 90, None),
        ("cost=2.50:warn", LimitKind.COST, 2.5, Action.WARN),
        ("cost=$2", LimitKind.COST, 2, None),
        ("cost=.5", LimitKind.COST, 0.5, None),
        ("tokens=200k:pause", LimitKind.TOKENS, 200_000, Action.PAUSE),
        ("memory=2G", LimitKind.MEMORY, 2 * 2**30, None),
        ("output=1M", LimitKind.OUTPUT, 2**20, None),
        ("cpu=1.5", LimitKind.CPU, 1.5, None),
        ("pids=100", LimitKind.PIDS, 100, None),
        ("messages=7:request_increase", LimitKind.MESSAGES, 7, Action.REQUEST_INCREASE),
        ("planning_cost=1:terminate", LimitKind.PLANNING_COST, 1, Action.TERMINATE),
        ("max_iter=5", LimitKind.TURNS, 5, None),
        ("message_limit=5", LimitKind.MESSAGES, 5, None),
        ("maxTurns=5", LimitKind.TURNS, 5, None),
        (" Turns = 5 : Warn ", LimitKind.TURNS, 5, Action.WARN),
        ("turns=5:request-increase", LimitKind.TURNS, 5, Action.REQUEST_INCREASE),
    ],
)
def test_what_a_flag_says(
    text: str, kind: LimitKind, threshold: float, action: Action | None
) -> None:
    assert parse_limit(text) == Limit(
        kind=kind, threshold=threshold, action=action, source=f"--limit {kind}"
    )


@together(
    ("word", "kind"),
    [
        *written.ALIASES.items(),
        *((kind.value, kind) for kind in LimitKind),
        ("TOOL-CALL", LimitKind.TURNS),
        ("max_turns", LimitKind.TURNS),
        ("max-tokens", LimitKind.TOKENS),
        ("execution-cost", LimitKind.EXECUTION_COST),
    ],
)
def test_other_words_for_a_kind(word: str, kind: LimitKind) -> None:
    assert written.parse_kind(word) is kind


def test_the_documented_words_are_known() -> None:
    assert {"turn", "tool_call", "message", "token", "wall"} <= set(written.ALIASES)
    assert not set(written.ALIASES) & set(LimitKind)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("turns", ["'turns'", "KIND=N"]),
        ("=5", ["'=5'", "KIND=N"]),
        ("turns=", ["'turns='", "KIND=N"]),
        ("", ["''", "KIND=N"]),
        ("luck=3", ["luck=3", "'luck'", "turns", "memory"]),
        ("turns=many", ["turns=many", "'many'", "tool calls"]),
        ("turns=1.5", ["'1.5'", "count"]),
        ("turns=-1", ["'-1'"]),
        ("cost=-1", ["'-1'", "USD"]),
        ("cost=nan", ["'nan'", "2.50"]),
        ("cost=1e3", ["'1e3'"]),
        ("cost=1_000", ["'1_000'"]),
        ("cost=٣", ["USD"]),
        ("time=soon", ["'soon'", "duration", "90s"]),
        ("memory=lots", ["'lots'", "size", "2G"]),
        ("cpu=all", ["'all'", "cores"]),
        ("cost=1:explode", ["'explode'", "terminate", "request_increase"]),
        ("cost=1:", ["''", "terminate"]),
    ],
)
def test_an_error_names_what_is_wrong_and_what_is_allowed(text: str, says: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^--limit") as raised:
        parse_limit(text)
    for words in says:
        assert words in str(raised.value)


def test_the_source_of_a_limit() -> None:
    assert parse_limit("turn=5", "agent reviewer").source == "agent reviewer turns"
    with pytest.raises(ValueError, match=r"^agent reviewer turns=x: 'x'"):
        parse_limit("turns=x", "agent reviewer")


@given(st.text(max_size=30))
@TICK
def test_any_text_is_a_limit_or_a_value_error(text: str) -> None:
    try:
        found = parse_limit(text)
    except ValueError:
        return
    assert math.isfinite(found.threshold)
    assert found.threshold >= 0


# ---- one object


def test_every_field_of_the_object() -> None:
    found = parse_limits(
        '{"max_turns": 5, "max_duration_ms": 1500, "max_cost_usd": 2, "max_planning_cost_usd": '
        "0.5, "
        '"max_execution_cost_usd": 1.5, "max_total_cost_usd": 2.0, "max_tokens": 9, '
        '"max_messages": 3, "timeout_action": "pause"}'
    ).limits
    limits = {limit.kind: limit for limit in found}
    assert {kind.value: limit.threshold for kind, limit in limits.items()} == {
        "time": 1.5, "turns": 5, "messages": 3, "tokens": 9, "cost": 2, "planning_cost": 0.5,
        "execution_cost": 1.5,
    }  # fmt: skip
    assert {limit.action for limit in limits.values()} == {Action.PAUSE}
    assert limits[LimitKind.TURNS].source == "--limits max_turns"


def test_absent_and_null_fields_set_no_limit() -> None:
    assert parse_limits("{}") == WrittenLimits([])
    assert parse_limits('{"max_turns": null}') == WrittenLimits([])
    (only,) = parse_limits('{"max_total_cost_usd": 3}', "session").limits
    assert (only.kind, only.threshold, only.action, only.source) == (
        LimitKind.COST,
        3,
        None,
        "session max_total_cost_usd",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "object"),
        ("{", "--limits"),
        ("\ud800", "--limits"),
        ('{"max_trns": 5}', "max_trns.*max_turns"),
        ('{"max_turns": "5"}', "max_turns"),
        ('{"max_turns": true}', "max_turns"),
        ('{"max_turns": 0}', "max_turns"),
        ('{"max_cost_usd": -1}', "max_cost_usd"),
        ('{"max_turns": 1, "timeout_action": "explode"}', "explode.*request_increase"),
        ('{"max_cost_usd": 1, "max_total_cost_usd": 2}', "are the same limit and differ"),
        ('{"timeout_action": 5}', "timeout_action.*request_increase"),
        ('{"max_iter": "5"}', r"int.*\$\.max_iter`"),
        ('{"max_iter": 5, "max_turns": 6}', "max_iter.*max_turns.*differ"),
        ('{"execution_limits": [5]}', "object"),
        ('{"execution_limits": {"max_trns": 5}}', "max_trns.*max_turns"),
        ('{"turns": 5}', "unknown field `turns`.*choose from"),
        ('{"memory_limit": 5}', "memory_limit.*choose from"),
        ("[" * 100_000, "--limits"),
    ],
)
def test_an_invalid_object(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_limits(text)


@pytest.mark.parametrize(
    ("text", "kind", "threshold"),
    [
        ('{"max_iter": 5}', LimitKind.TURNS, 5),
        ('{"maxTurns": 5}', LimitKind.TURNS, 5),
        ('{"max_tool_calls": 5}', LimitKind.TURNS, 5),
        ('{"message_limit": 7}', LimitKind.MESSAGES, 7),
        ('{"token_limit": 9}', LimitKind.TOKENS, 9),
        ('{"maxTotalCostUSD": 0.5}', LimitKind.COST, 0.5),
        ('{"max_budget_usd": 0.5}', LimitKind.COST, 0.5),
        ('{"maxDurationMs": 1500}', LimitKind.TIME, 1.5),
        ('{"time_limit": 90}', LimitKind.TIME, 90),
        ('{"max_execution_time": 90}', LimitKind.TIME, 90),
        ('{"execution_limits": {"max_iter": 5}}', LimitKind.TURNS, 5),
        ('{"executionLimits": {"maxTurns": 5}}', LimitKind.TURNS, 5),
        ('{"limits": {"max_turns": 5}, "max_iter": 5}', LimitKind.TURNS, 5),
    ],
)
def test_the_names_of_other_frameworks(text: str, kind: LimitKind, threshold: float) -> None:
    (limit,) = {each.kind: each for each in parse_limits(text).limits}.values()
    assert (limit.kind, limit.threshold) == (kind, threshold)


def test_a_wrapper_may_stand_beside_the_action() -> None:
    text = '{"execution_limits": {"max_iter": 5}, "timeoutAction": "pause"}'
    (limit,) = parse_limits(text).limits
    assert (limit.threshold, limit.action, limit.source) == (5, Action.PAUSE, "--limits max_iter")
    assert parse_limits('{"execution_limits": null}') == WrittenLimits([])


def test_an_action_alone_is_that_of_all_limits() -> None:
    assert parse_limits('{"timeout_action": "warn"}') == WrittenLimits([], Action.WARN)
    assert parse_limits('{"execution_limits": {"timeout_action": "pause"}}').on_limit == "pause"


def test_the_schema_has_every_field_with_a_description_and_no_other() -> None:
    described = msgspec.json.decode(schema())
    found = described["$defs"]["LimitsObject"]
    assert set(found["properties"]) == set(LimitsObject.__struct_fields__)
    assert all(field["description"] for field in found["properties"].values())
    assert found["additionalProperties"] is False
    assert set(described["$defs"]["Action"]["enum"]) == set(Action)


# ---- as they are shown


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (Limit(kind=LimitKind.COST, threshold=2.5, action=Action.WARN), "cost 2.50 USD → warn"),
        (Limit(kind=LimitKind.TIME, threshold=120), "time 2m"),
        (Limit(kind=LimitKind.TIME, threshold=0.25), "time 250ms"),
        (Limit(kind=LimitKind.MEMORY, threshold=2 * 2**30), "memory 2 GiB"),
        (Limit(kind=LimitKind.CPU, threshold=1), "cpu 1 core → throttled"),
        (Limit(kind=LimitKind.CPU, threshold=1.5), "cpu 1.5 cores → throttled"),
        (
            LimitState(kind=LimitKind.TOKENS, threshold=200_000, action=Action.PAUSE, source="x"),
            "tokens 200000 → pause",
        ),
    ],
)
def test_how_a_limit_is_shown(limit: Limit | LimitState, shown: str) -> None:
    assert format_limit(limit) == shown


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0, "0.00"),
        (0.45, "0.45"),
        (0.4512, "0.4512"),
        (0.3004, "0.3004"),
        (0.000031, "0.000031"),
        (12, "12.00"),
    ],
)
def test_money_is_shown_so_that_a_breach_can_be_seen(amount: float, shown: str) -> None:
    assert format_amount(LimitKind.COST, amount, unit=False) == shown


@pytest.mark.parametrize(
    ("amount", "shown"), [(61.2345, "61.2s"), (1.0449, "1s"), (0.99949, "999ms"), (0.0004, "0s")]
)
def test_a_time_is_shown_as_exactly_as_people_need_it(amount: float, shown: str) -> None:
    assert format_amount(LimitKind.TIME, amount) == shown


@pytest.mark.parametrize("kind", list(LimitKind))
@given(amount=st.floats(0, 1e15))
@TICK
def test_every_amount_can_be_shown(kind: LimitKind, amount: float) -> None:
    assert format_amount(kind, amount).isprintable()


@pytest.mark.parametrize("action", [None, *Action])
@pytest.mark.parametrize("kind", [LimitKind.TIME, LimitKind.TURNS, LimitKind.TOKENS])
@given(threshold=st.integers(1, 10**6))
@TICK
def test_a_shown_limit_can_be_parsed(
    kind: LimitKind, action: Action | None, threshold: int
) -> None:
    shown = format_limit(Limit(kind=kind, threshold=threshold, action=action))
    again = parse_limit(shown.replace(" → ", ":").replace(" ", "="))
    assert (again.kind, again.threshold, again.action) == (kind, threshold, action)

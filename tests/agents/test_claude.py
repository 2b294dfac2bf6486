"""Claude Code: cases that were not recorded."""

from __future__ import annotations

from typing import Any

import pytest

from sfad.agents.counters import MAX_IDS
from sfad.protocol.types import ApiTrouble, Tokens
from tests.agents.recordings import COMMANDS, STREAMS, in_all, lines, read

MORE = [*COMMANDS["claude"], "--input-format", "stream-json"]


def says(
    key: str, *, tools: tuple[str, ...] = (), model: str = "opus", **usage: int
) -> dict[str, Any]:
    """A part of a message."""
    content = [
        {"type": "text", "text": "…"},
        *({"type": "tool_use", "id": tool, "name": "Bash"} for tool in tools),
    ]
    return {
        "type": "assistant",
        "message": {"id": key, "model": model, "content": content, "usage": usage},
    }


def concludes(
    cost: float | None, models: dict[str, tuple[int, int]] | None = None, session: str = "s"
) -> dict[str, Any]:
    """A result, with input and output by model."""
    usage = {
        name: {"inputTokens": given, "outputTokens": written}
        for name, (given, written) in (models or {}).items()
    }
    return {
        "type": "result",
        "is_error": False,
        "session_id": session,
        "total_cost_usd": cost,
        "modelUsage": usage,
    }


def test_figures_are_unknown_before_the_stream_begins_and_zero_after() -> None:
    before = read(
        "claude", b"npm warn something\n", b'{"type":"user","message":{"content":"hi"}}\n'
    )
    assert (before.turns, before.messages, before.models, before.cost_usd) == (None, None, {}, None)
    begun = read("claude", lines({"type": "system", "subtype": "init", "model": "opus"}))
    assert (begun.turns, begun.messages, begun.models, begun.cost_usd) == (0, 0, {}, None)


def test_each_message_counts_once_while_the_agent_runs() -> None:
    recording = (STREAMS / "claude-success.jsonl").read_bytes().splitlines(keepends=True)
    reading = read("claude", *recording[:-1])
    assert reading.models == {
        "claude-opus-4-8": Tokens(input=4650, output=27, cached=900, cache_write=150)
    }, "estimated from the text"
    assert (reading.turns, reading.messages, reading.cost_usd, reading.finished) == (
        2,
        3,
        None,
        False,
    )


def test_a_detail_of_another_type_loses_only_itself() -> None:
    usage: dict[str, Any] = {"input_tokens": 30_000, "output_tokens": 500}
    usage |= {"cache_creation": [], "cache_read_input_tokens": None, "server_tool_use": []}
    message = {"id": "a", "model": "opus", "content": 5, "usage": usage}
    reading = read("claude", lines({"type": "assistant", "message": message}))
    assert reading.models == {"opus": Tokens(input=30_000, output=500)}


def test_a_later_usage_of_a_message_replaces_the_earlier_one() -> None:
    reading = read(
        "claude",
        lines(
            says("a", input_tokens=10, output_tokens=1), says("a", input_tokens=12, output_tokens=1)
        ),
    )
    assert reading.models == {"opus": Tokens(input=12, output=1)}
    assert reading.messages == 1


def test_a_tool_call_that_is_printed_twice_is_one_turn() -> None:
    reading = read(
        "claude",
        lines(says("a", tools=("t1",)), says("a", tools=("t1", "t2")), says("b", tools=("t3",))),
    )
    assert (reading.turns, reading.tools) == (3, ["Bash"] * 3)


def test_subagents_count() -> None:
    inner = says("b", tools=("t2",), model="haiku", input_tokens=5) | {"parent_tool_use_id": "t1"}
    reading = read(
        "claude",
        lines(says("a", tools=("t1",), input_tokens=10), inner, says("a", input_tokens=10)),
    )
    assert reading.models == {"opus": Tokens(input=10, output=1), "haiku": Tokens(input=5)}
    assert (reading.turns, reading.messages) == (2, 2)


def streamed(event: dict[str, Any], parent: str | None = None) -> dict[str, Any]:
    return {"type": "stream_event", "event": event, "parent_tool_use_id": parent}


def test_output_is_estimated_from_what_is_streamed_until_it_is_told() -> None:
    begin = streamed(
        {
            "type": "message_start",
            "message": {"id": "a", "model": "opus", "usage": {"input_tokens": 10}},
        }
    )
    pieces = [
        {"text": "x" * 40},
        {"thinking": "y" * 40},
        {"partial_json": '{"a":"' + "z" * 32 + '"}'},
        {"signature": "s" * 99},
    ]
    deltas = [streamed({"type": "content_block_delta", "delta": piece}) for piece in pieces]
    blocks = [
        {"type": "text", "text": "x" * 40},
        {"type": "thinking", "thinking": "y" * 40, "signature": "s" * 99},
        {"type": "tool_use", "id": "t", "name": "Write", "input": {"a": "z" * 32}},
    ]
    whole = [
        {
            "type": "assistant",
            "message": {"id": "a", "model": "opus", "content": [b], "usage": {"input_tokens": 10}},
        }
        for b in blocks
    ]
    end = streamed({"type": "message_delta", "usage": {"output_tokens": 17}})
    stream = [begin, *deltas, *whole, end]
    readings = [read("claude", lines(*stream[: at + 1])) for at in range(len(stream))]
    outputs = [in_all(reading).output for reading in readings]
    assert outputs == [0, 10, 20, 30, 30, 30, 30, 30, 17]
    assert [sum(each.guessed.values()) for each in readings] == [*outputs[:-1], 0]
    assert in_all(read("claude", lines(*whole))).output == 30, "without --include-partial-messages"
    told = read("claude", lines(*stream))
    assert (told.partial, told.turns, told.messages) == (True, 1, 1), (
        "what it calls for itself is only in the result"
    )
    ended = read("claude", lines(*whole, concludes(0.1, {"opus": (10, 20)})))
    assert (ended.partial, ended.guessed) == (False, {})


def test_a_message_after_a_result_adds_to_its_totals() -> None:
    stream = lines(
        says("a", input_tokens=10),
        concludes(0.1, {"opus": (10, 5)}),
        says("b", input_tokens=20, output_tokens=2),
    )
    reading = read("claude", stream)
    assert (reading.cost_usd, reading.to_price, reading.partial) == (
        0.1,
        {"opus": Tokens(input=20, output=2)},
        True,
    )
    reading = read("claude", stream, lines(concludes(0.4, {"opus": (30, 9)})))
    assert (reading.cost_usd, reading.to_price, reading.partial) == (0.4, {}, False)


def test_failed_calls_are_counted_until_the_model_answers() -> None:
    def retry(attempt: int) -> dict[str, Any]:
        return {
            "type": "system",
            "subtype": "api_retry",
            "attempt": attempt,
            "error_status": 529,
            "error": "overloaded",
        }

    failing = lines(*(retry(attempt) for attempt in range(1, 7)))
    assert read("claude", failing).trouble == ApiTrouble(count=6, status=529, error="overloaded")
    assert read("claude", failing, lines(says("a"))).trouble is None
    unreachable = {
        "type": "system",
        "subtype": "api_retry",
        "attempt": 1,
        "error_status": None,
        "error": "unknown",
    }
    assert read("claude", lines(unreachable)).trouble == ApiTrouble(count=1, error="unknown")


def test_the_last_delta_of_a_partial_message_has_the_true_output() -> None:
    def delta(output: int, parent: str | None = None) -> dict[str, Any]:
        event = {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": output},
        }
        return {"type": "stream_event", "event": event, "parent_tool_use_id": parent}

    inner = says("b", input_tokens=5, output_tokens=1) | {"parent_tool_use_id": "t1"}
    stream = lines(
        says("a", input_tokens=10, output_tokens=1),
        inner,
        delta(70, "t1"),
        delta(60),
        says("a", input_tokens=10),
    )
    assert read("claude", stream).models == {"opus": Tokens(input=15, output=130)}
    assert in_all(read("claude", lines(delta(60)))).output == 0, "of which message?"


@pytest.mark.parametrize("word", ["--resume", "--continue", "-c", "-r"])
def test_totals_that_a_resumed_session_brings_are_not_used(word: str) -> None:
    """2.1.330 goes on from what it saved when the process before has ended."""
    said = lines(says("b", input_tokens=20, output_tokens=7))
    result = lines(concludes(0.3, {"opus": (120, 907)}))
    resumed = read("claude", said, result, argv=[*COMMANDS["claude"], word, "s"])
    assert (resumed.models, resumed.cost_usd) == ({"opus": Tokens(input=20, output=7)}, None)
    fresh = read("claude", said, result)
    assert (fresh.models, fresh.cost_usd) == ({"opus": Tokens(input=120, output=907)}, 0.3)


def test_results_are_totals_of_the_process() -> None:
    first = lines(says("a", input_tokens=10, output_tokens=1), concludes(0.1, {"opus": (10, 50)}))
    assert read("claude", first, argv=MORE).models == {"opus": Tokens(input=10, output=50)}
    more = lines(
        says("a", input_tokens=10, output_tokens=1), says("b", input_tokens=20, output_tokens=1)
    )
    between = read("claude", first, more, argv=MORE)
    assert between.models == {"opus": Tokens(input=30, output=51)}, (
        "what the result contains is not counted again"
    )
    second = read("claude", first, more, lines(concludes(0.3, {"opus": (30, 90)})), argv=MORE)
    assert (second.models, second.cost_usd) == ({"opus": Tokens(input=30, output=90)}, 0.3)


@pytest.mark.parametrize(
    "session", ["s", "t"], ids=["the same session, resumed", "another session"]
)
def test_a_second_process_adds_to_the_first(session: str) -> None:
    """A script runs it twice: totals that fall, or are of another session, are those of another
    process."""
    used = (5, 5) if session == "s" else (500, 5)
    reading = read(
        "claude",
        lines(concludes(0.25, {"opus": (10, 50)}), concludes(0.5, {"opus": used}, session)),
    )
    assert reading.models == {"opus": Tokens(input=10 + used[0], output=55)}
    assert reading.cost_usd == 0.75


def test_a_message_that_continues_after_a_result_does_not_count_again() -> None:
    stream = lines(
        says("a", input_tokens=10),
        concludes(0.1, {"haiku": (10, 50)}),
        says("a", tools=("t",), input_tokens=12),
    )
    reading = read("claude", stream)
    assert (reading.models, reading.messages, reading.turns) == (
        {"haiku": Tokens(input=10, output=50)},
        1,
        1,
    )


def test_models_are_named_as_in_messages_and_price_lists() -> None:
    reading = read(
        "claude", lines(concludes(1.0, {"opus[1m]": (1, 2), "opus": (3, 4), "haiku": (5, 6)}))
    )
    assert reading.models == {"opus": Tokens(input=4, output=6), "haiku": Tokens(input=5, output=6)}


def test_without_model_usage_the_usage_of_the_result_counts_if_it_is_higher() -> None:
    usage = {"input_tokens": 10, "output_tokens": 70, "cache_read_input_tokens": None}
    result = {"type": "result", "is_error": False, "total_cost_usd": 0.5, "usage": usage}
    reading = read("claude", lines(says("a", input_tokens=10, output_tokens=1), result))
    assert (reading.models, reading.cost_usd) == ({"opus": Tokens(input=10, output=70)}, 0.5)
    reading = read("claude", lines(says("a", input_tokens=500, output_tokens=1), result))
    assert (reading.models, reading.cost_usd) == ({"opus": Tokens(input=500, output=1)}, 0.5)


def test_is_error_of_the_last_result_decides() -> None:
    failure = {
        "type": "result",
        "subtype": "success",
        "is_error": True,
        "result": "boom\n\x1b[31m now",
    }
    assert read("claude", lines(failure)).failed == "boom ?[31m now"
    assert read("claude", lines(failure, concludes(0.1))).failed is None
    assert (
        read("claude", lines(failure | {"result": None, "errors": ["one", "two"]})).failed
        == "one; two"
    )
    assert (
        read(
            "claude", lines(failure | {"result": None, "subtype": "error_during_execution"})
        ).failed
        == "it ended with error_during_execution"
    )
    assert read("claude", lines({"type": "result", "is_error": True})).failed


def test_a_call_whose_answer_was_interrupted_before_it_came_makes_the_result_partial() -> None:
    interrupted = concludes(0.1, {"opus": (10, 2)}) | {
        "subtype": "error_during_execution",
        "is_error": True,
    }
    in_call, in_tool = (
        interrupted | {"terminal_reason": "aborted_streaming"},
        interrupted | {"terminal_reason": "aborted_tools"},
    )
    said = says("a", input_tokens=10)
    assert read("claude", lines(said, in_call)).partial
    assert not read("claude", lines(said, said | {"aborted": True}, in_call)).partial, (
        "the result contains what had arrived"
    )
    assert not read("claude", lines(said, in_tool)).partial


def test_it_is_finished_after_its_result_unless_it_reads_more_messages() -> None:
    assert read("claude", lines(concludes(0.1))).finished
    assert not read("claude", lines(concludes(0.1)), argv=MORE).finished
    assert not read("claude", lines(concludes(0.1), says("b"))).finished, (
        "it went on, as for a task in the background"
    )


def test_numbers_beside_a_lone_surrogate_count() -> None:
    """JavaScript prints half of an emoji as a lone surrogate."""
    event = lines(says("a", tools=("t",), input_tokens=7)).replace(b"\\u2026", b"cut \\ud83d")
    assert b"\\ud83d" in event
    assert read("claude", event).models == {"opus": Tokens(input=7, output=1)}
    assert read("claude", event.replace(b"\\ud83d", b"\xf0\x9f")).turns == 1


def test_an_id_is_forgotten_after_many_others_and_counts_again() -> None:
    many = [says(f"m{n}", tools=(f"t{n}",), input_tokens=1) for n in range(MAX_IDS)]
    reading = read("claude", lines(*many, *many))
    assert (reading.messages, reading.turns, in_all(reading).input) == (MAX_IDS, MAX_IDS, MAX_IDS)
    reading = read("claude", lines(*many, says("new", input_tokens=1), many[0]))
    assert (reading.messages, in_all(reading).input) == (MAX_IDS + 2, MAX_IDS + 2)


def test_a_message_without_a_usable_id_counts_each_time() -> None:
    for key in ("", "x" * 1000):
        reading = read(
            "claude",
            lines(says(key, tools=(key,), input_tokens=1), says(key, tools=(key,), input_tokens=1)),
        )
        assert (reading.messages, reading.turns, in_all(reading).input) == (2, 2, 2)

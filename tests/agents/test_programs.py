"""Codex, Gemini, Qwen Code, opencode and the generic form: cases that were not recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sfad.protocol.types import ApiTrouble, Tokens
from tests.agents.recordings import JSONL, OPENCODE, in_all, lines, read

DOCS = Path(__file__).parents[2] / "docs" / "metering.md"


def codex_turn(given: int, output: int, cached: int = 0) -> dict[str, Any]:
    """Return the end of a turn with the totals of its thread."""
    return {
        "type": "turn.completed",
        "usage": {"input_tokens": given, "cached_input_tokens": cached, "output_tokens": output},
    }


def codex_thread(key: str) -> dict[str, Any]:
    """Return the beginning of a thread."""
    return {"type": "thread.started", "thread_id": key}


def codex_item(kind: str, **fields: object) -> dict[str, Any]:
    """Return the end of an item."""
    return {"type": "item.completed", "item": {"id": "item_0", "type": kind, **fields}}


def test_codex_tells_nothing_of_tokens_before_its_end() -> None:
    reading = read("codex", lines(codex_thread("a"), codex_item("command_execution")))
    assert (reading.turns, reading.messages, reading.models, reading.finished) == (1, 0, {}, False)


def test_codex_output_is_estimated_from_its_items_until_its_end() -> None:
    call = {
        "id": "item_1",
        "type": "command_execution",
        "command": "x" * 40,
        "aggregated_output": "z" * 400,
    }
    stream = [
        codex_thread("a"),
        codex_item("reasoning", text="y" * 80),
        {"type": "item.started", "item": call},
        {"type": "item.completed", "item": call},
        codex_item("agent_message", text="t" * 8),
    ]
    reading = read("codex", lines(*stream))
    assert (reading.models, reading.partial) == ({"gpt-5-codex": Tokens(output=32)}, True)
    assert reading.guessed == {"gpt-5-codex": 32}
    ended = read("codex", lines(*stream, codex_turn(100, 7)))
    assert (ended.models, ended.partial) == ({"gpt-5-codex": Tokens(input=100, output=7)}, False)
    assert not ended.guessed
    failed = read("codex", lines(*stream, {"type": "turn.failed", "error": {"message": "no"}}))
    assert (failed.models, failed.partial) == (reading.models, True)


def test_codex_reconnecting_is_trouble_until_it_continues() -> None:
    def error(message: str) -> dict[str, Any]:
        return {"type": "error", "message": message}

    failing = [
        error("Reconnecting... 2/5 (unexpected status 503 Service Unavailable: x)"),
        error("Reconnecting... 3/5 (timeout)"),
    ]
    assert read("codex", lines(failing[0])).trouble == ApiTrouble(
        count=2, status=503, error=failing[0]["message"]
    )
    assert read("codex", lines(*failing)).trouble == ApiTrouble(
        count=3, error=failing[1]["message"]
    )
    assert read("codex", lines(*failing, codex_item("agent_message", text="OK"))).trouble is None


def test_codex_usage_is_that_of_the_thread() -> None:
    reading = read(
        "codex", lines(codex_thread("a"), codex_turn(100, 10, 50), codex_turn(250, 30, 150))
    )
    assert reading.models == {"gpt-5-codex": Tokens(input=250, output=30, cached=150)}


@pytest.mark.parametrize("thread", ["a", "b"])
def test_codex_run_twice_by_a_script_adds_up(thread: str) -> None:
    used = (50, 5) if thread == "a" else (500, 5)
    reading = read(
        "codex",
        lines(codex_thread("a"), codex_turn(100, 10), codex_thread(thread), codex_turn(*used)),
    )
    assert reading.models == {"gpt-5-codex": Tokens(input=100 + used[0], output=15)}


def test_codex_resumed_cannot_tell_its_own_part_of_the_first_totals() -> None:
    argv = ["codex", "exec", "resume", "--last", "--json", "-m", "m", "go on"]
    first = lines(codex_thread("a"), codex_turn(22_000_000, 1000))
    reading = read("codex", first, argv=argv)
    assert (reading.models, reading.turns, reading.finished) == ({}, 0, True)
    assert read("codex", first, lines(codex_turn(22_000_100, 1007)), argv=argv).models == {
        "m": Tokens(input=100, output=7)
    }


def test_codex_turns_are_tool_calls_of_each_kind() -> None:
    others = ("agent_message", "reasoning", "todo_list", "error", "plan")
    tools = ("file_change", "web_search", "collab_tool_call", "something_new")
    reading = read(
        "codex",
        lines(
            *map(codex_item, others + tools), codex_item("mcp_tool_call", server="s", tool="look")
        ),
    )
    assert (reading.turns, reading.messages, reading.tools) == (5, 1, [*tools, "look"])


def test_codex_the_last_event_decides_about_failure() -> None:
    failed = {"type": "turn.failed", "error": {"message": "no"}}
    assert read("codex", lines(codex_turn(1, 1), failed)).failed == "no"
    assert read("codex", lines(failed, codex_turn(1, 1))).failed is None
    assert read("codex", lines({"type": "turn.failed"})).failed


@pytest.mark.parametrize(
    ("options", "model"),
    [
        (["-m", "x"], "x"),
        (["--model=x"], "x"),
        (["--model", "x"], "x"),
        (["-c", 'model="x"'], "x"),
        (["--config", "model=x"], "x"),
        (["-c", "model_reasoning_effort=high"], ""),
        (["-c", "model=y", "-m", "x"], "x"),
        ([], ""),
    ],
)
def test_codex_model_is_in_the_command(options: list[str], model: str) -> None:
    for argv in (
        ["codex", *options, "exec", "--json"],
        ["npx", "@openai/codex", "exec", "--json", *options],
    ):
        assert list(read("codex", lines(codex_turn(1, 1)), argv=argv).models) == [model]


def qwen_says(
    *content: object, given: int = 0, output: int = 0, parent: str | None = None
) -> dict[str, Any]:
    """Return a piece of an answer of Qwen Code's model; the last one has the usage."""
    message = {
        "model": "m",
        "content": content,
        "usage": {"input_tokens": given, "output_tokens": output},
    }
    return {"type": "assistant", "parent_tool_use_id": parent, "message": message}


QWEN_BEGINS = {"type": "system", "subtype": "init", "model": "m", "session_id": "s"}


def test_qwen_pieces_of_an_answer_are_one_message() -> None:
    text = {"type": "text", "text": "x" * 40}
    call = {"type": "tool_use", "id": "c1", "name": "ls", "input": {}}
    reading = read("qwen", lines(QWEN_BEGINS, qwen_says(text)))
    assert (reading.messages, reading.models, reading.partial) == (
        1,
        {"m": Tokens(output=10)},
        True,
    )
    stream = [
        QWEN_BEGINS,
        qwen_says(text),
        qwen_says(call, given=100, output=7),
        {"type": "user"},
        qwen_says(text, given=9, output=2),
    ]
    reading = read("qwen", lines(*stream))
    assert (reading.messages, reading.turns, reading.models) == (
        2,
        1,
        {"m": Tokens(input=109, output=9)},
    )


def test_qwen_result_has_what_its_helpers_used_too() -> None:
    result = {
        "type": "result",
        "subtype": "success",
        "result": "x",
        "usage": {"input_tokens": 150, "output_tokens": 7},
    }
    once = [QWEN_BEGINS, qwen_says({"type": "text", "text": "x"}, given=100, output=7), result]
    reading = read("qwen", lines(*once))
    assert (reading.models, reading.partial, reading.failed) == (
        {"m": Tokens(input=150, output=7)},
        False,
        None,
    )
    assert read("qwen", lines(*once, *once)).models == {"m": Tokens(input=300, output=14)}


def test_qwen_thoughts_that_are_no_output_count_as_output() -> None:
    usage = {"input_tokens": 100, "output_tokens": 5, "total_tokens": 125}
    reading = read("qwen", lines(QWEN_BEGINS, {"type": "result", "result": "x", "usage": usage}))
    assert reading.models == {"m": Tokens(input=100, output=25)}


def test_qwen_says_why_it_failed() -> None:
    error = {
        "type": "result",
        "subtype": "error_during_execution",
        "is_error": True,
        "error": {"message": "no"},
    }
    assert read("qwen", lines(QWEN_BEGINS, error)).failed == "no"


def test_gemini_deltas_are_one_message() -> None:
    said = {"type": "message", "role": "assistant", "content": "x", "delta": True}
    asked = {"type": "message", "role": "user", "content": "y"}
    called = {"type": "tool_use", "tool_name": "ls", "tool_id": "1"}
    reading = read(
        "gemini",
        lines({"type": "init", "model": "m"}, asked, said, said, said, called, called, said, said),
    )
    assert (reading.messages, reading.turns, reading.tools) == (2, 1, ["ls"])
    assert read("gemini", lines(said | {"delta": False}, said | {"delta": False})).messages == 2


def test_gemini_use_by_model_with_thoughts_as_output() -> None:
    pro = {"total_tokens": 150, "input_tokens": 100, "output_tokens": 20, "cached": 30}
    flash = {"total_tokens": 12, "input_tokens": 10, "output_tokens": 2, "cached": 0}
    result = {
        "type": "result",
        "status": "success",
        "stats": {**pro, "models": {"pro": pro, "flash": flash}},
    }
    used = {"pro": Tokens(input=100, output=50, cached=30), "flash": Tokens(input=10, output=2)}
    assert read("gemini", lines(result)).models == used
    older = {"type": "result", "status": "success", "stats": pro}
    assert read("gemini", lines({"type": "init", "model": "auto"}, older)).models == {
        "": used["pro"]
    }


def test_gemini_output_is_estimated_until_its_result() -> None:
    stream = [
        {"type": "init", "model": "pro"},
        {"type": "message", "role": "user", "content": "x" * 400},
        {"type": "message", "role": "assistant", "content": "y" * 40, "delta": True},
        {"type": "tool_use", "tool_name": "ls", "tool_id": "1", "parameters": {"path": "z" * 31}},
    ]
    reading = read("gemini", lines(*stream))
    assert (reading.models, reading.partial) == ({"pro": Tokens(output=20)}, True)
    stats = {"total_tokens": 12, "input_tokens": 10, "output_tokens": 2, "cached": 0}
    ended = read("gemini", lines(*stream, {"type": "result", "status": "success", "stats": stats}))
    assert (ended.models, ended.partial) == ({"pro": Tokens(input=10, output=2)}, False)


def test_gemini_errors_are_trouble() -> None:
    error = {"type": "error", "severity": "error", "message": "got status: 429 Too Many Requests"}
    assert read("gemini", lines(error, error)).trouble == ApiTrouble(
        count=2, status=429, error=error["message"]
    )
    assert read("gemini", lines(error | {"severity": "warning"})).trouble is None


def test_gemini_failure() -> None:
    result = {
        "type": "result",
        "status": "error",
        "error": {"type": "FatalTurnLimitedError", "message": "too many"},
    }
    assert read("gemini", lines(result)).failed == "too many"
    assert (
        read("gemini", lines({"type": "result", "status": "cancelled"})).failed
        == "it ended with cancelled"
    )


def test_opencode_counts_while_it_runs() -> None:
    model = "anthropic/claude-sonnet-4-5"
    reading = read("opencode", lines(*OPENCODE[:3]))
    assert reading.models == {model: Tokens(input=150, output=25, cached=40, cache_write=10)}
    assert (reading.turns, reading.messages, reading.cost_usd, reading.finished) == (
        1,
        1,
        0.25,
        False,
    )
    reading = read("opencode", lines(*OPENCODE))
    assert reading.models == {model: Tokens(input=157, output=28, cached=40, cache_write=10)}
    assert (reading.turns, reading.messages, reading.cost_usd, reading.finished) == (
        1,
        2,
        0.75,
        True,
    )
    assert reading.tools == ["bash"]


def test_opencode_the_output_of_a_step_is_estimated_until_it_has_ended() -> None:
    text = {"type": "text", "part": {"id": "prt_7", "type": "text", "text": "x" * 40}}
    call = {
        "type": "tool_use",
        "part": {"id": "prt_8", "tool": "bash", "state": {"input": {"command": "z" * 26}}},
    }
    before, after = (
        read("opencode", lines(*OPENCODE[:3])),
        read("opencode", lines(*OPENCODE[:3], text, call)),
    )
    assert in_all(after).output == in_all(before).output + 20
    assert (before.partial, after.partial, after.to_price) == (
        True,
        True,
        {"anthropic/claude-sonnet-4-5": Tokens(output=20)},
    )
    ended = read("opencode", lines(*OPENCODE[:3], text, call, OPENCODE[5]))
    assert (in_all(ended), ended.to_price, ended.partial) == (
        in_all(read("opencode", lines(*OPENCODE[:3], OPENCODE[5]))),
        {},
        True,
    )


def test_opencode_an_error_of_the_api_is_trouble() -> None:
    error = {
        "type": "error",
        "error": {"name": "APIError", "data": {"message": "Overloaded", "statusCode": 529}},
    }
    assert read("opencode", lines(error)).trouble == ApiTrouble(
        count=1, status=529, error="Overloaded"
    )


def test_opencode_a_part_that_is_printed_again_counts_once() -> None:
    assert read("opencode", lines(*OPENCODE, *OPENCODE)) == read("opencode", lines(*OPENCODE))


def test_opencode_a_cost_of_zero_is_a_price_it_does_not_know() -> None:
    step = {
        "type": "step_finish",
        "part": {"id": "p", "cost": 0, "tokens": {"input": 10, "output": 1}},
    }
    assert read("opencode", lines(step)).cost_usd is None


def test_opencode_failure_stays() -> None:
    error = {"type": "error", "error": {"name": "APIError", "data": {"message": "overloaded"}}}
    assert read("opencode", lines(error, *OPENCODE)).failed == "overloaded"
    assert (
        read("opencode", lines({"type": "error", "error": {"name": "Aborted"}})).failed == "Aborted"
    )


def test_generic_lines_add_up_and_untold_figures_stay_unknown() -> None:
    reading = read("jsonl", lines(*JSONL, *JSONL))
    assert reading.models == {"m": Tokens(input=20, output=4, cached=8)}
    assert (reading.turns, reading.messages, reading.cost_usd, reading.finished) == (
        2,
        2,
        1.0,
        True,
    )
    reading = read("jsonl", lines({"type": "usage", "cost_usd": 0}))
    assert (reading.turns, reading.messages, reading.models, reading.cost_usd) == (
        None,
        None,
        {},
        0.0,
    )
    assert read("jsonl", lines({"type": "usage", "turns": 0})).turns == 0


def test_a_generic_cost_covers_only_the_tokens_of_its_line() -> None:
    dear = {"type": "usage", "model": "m", "input_tokens": 1_000_000}
    cheap = {"type": "usage", "model": "m", "input_tokens": 5, "cost_usd": 0.01}
    reading = read("jsonl", lines(dear))
    assert reading.to_price == {"m": Tokens(input=1_000_000)}
    reading = read(
        "jsonl", lines(dear, cheap, {"type": "usage", "model": "n", "output_tokens": 2}, cheap)
    )
    assert reading.models == {"m": Tokens(input=1_000_010), "n": Tokens(output=2)}
    assert (reading.cost_usd, reading.to_price) == (
        0.02,
        {"m": Tokens(input=1_000_000), "n": Tokens(output=2)},
    )
    wrong = {"type": "usage", "input_tokens": 1, "cost_usd": -1}
    assert read("jsonl", lines(cheap, wrong)).to_price == {"": Tokens(input=1)}


def test_the_cost_of_a_known_program_covers_all_its_tokens() -> None:
    recorded = (Path(__file__).parent / "streams" / "claude-success.jsonl").read_bytes()
    for name, stream in (("claude", recorded), ("opencode", lines(*OPENCODE))):
        reading = read(name, stream)
        assert reading.cost_usd is not None
        assert reading.to_price == {}


def test_generic_lines_may_have_any_spacing_and_order() -> None:
    assert read("jsonl", b'{ "input_tokens" : 3 , "type" : "usage" }\n').models == {
        "": Tokens(input=3)
    }


def test_generic_result() -> None:
    assert (
        read("jsonl", lines({"type": "result", "failed": True, "message": "no luck"})).failed
        == "no luck"
    )
    assert (
        read("jsonl", lines({"type": "result", "failed": True}, {"type": "result"})).failed is None
    )


@pytest.mark.parametrize("absurd", [-1, 1e13, 10**40, "5", True, [1], {"a": 1}])
def test_absurd_numbers_are_ignored(absurd: object) -> None:
    fields = ("input_tokens", "output_tokens", "cached_tokens", "turns", "messages", "cost_usd")
    good = {"type": "usage", "input_tokens": 3, "turns": 1}
    for field in fields:
        reading = read("jsonl", lines({"type": "usage", field: absurd}, good))
        assert (
            sum(used.input + used.output + used.cached for used in reading.models.values()),
            reading.turns,
        ) == (3, 1)
        assert reading.cost_usd is None


def test_cached_tokens_are_part_of_the_input() -> None:
    event = {"type": "usage", "input_tokens": 10, "cached_tokens": 50, "cache_write_tokens": 50}
    assert read("jsonl", lines(event)).models == {"": Tokens(input=10, cached=10)}


def test_the_documented_lines_mean_what_the_page_says() -> None:
    example = re.search(r"```json\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert example is not None
    for line in example[1].splitlines():
        json.loads(line)
    reading = read("jsonl", example[1].encode())
    assert reading.models == {"my-model": Tokens(input=1200, output=80, cached=1000)}
    assert (reading.turns, reading.messages, reading.cost_usd) == (2, 1, 0.004)
    assert (reading.tools, reading.finished, reading.failed) == (
        ["search"],
        True,
        "the index is gone",
    )


def test_gemini_that_broke_off_a_reply_because_it_loops_tells_a_part() -> None:
    events = [
        {"type": "init", "model": "gemini-2.5-pro", "session_id": "s"},
        {"type": "message", "role": "assistant", "content": "again " * 100, "delta": True},
        {"type": "error", "severity": "warning", "message": "Loop detected, stopping execution"},
        {
            "type": "result",
            "status": "success",
            "stats": {"total_tokens": 1, "input_tokens": 1, "output_tokens": 0},
        },
    ]
    data = [json.dumps(event) + "\n" for event in events]
    assert read("gemini", "".join(data).encode()).partial
    assert not read("gemini", "".join([*data[:2], data[3]]).encode()).partial


@pytest.mark.parametrize(
    ("message", "broken"),
    [("Reconnecting... 1/5 (stream disconnected)", True), ("unexpected status 503", False)],
)
def test_a_call_that_failed_without_an_answer_may_be_billed(message: str, broken: bool) -> None:
    events = [
        {"type": "error", "message": message},
        {"type": "turn.completed", "usage": {"input_tokens": 9, "output_tokens": 1}},
    ]
    reading = read("codex", "".join(json.dumps(event) + "\n" for event in events).encode())
    assert (reading.broken, reading.trouble) == (broken, None)

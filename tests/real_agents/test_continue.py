"""However an agent has ended, `sfactl continue` resumes its session: the model sees what was said
before, and both runs together cost what it bills.

SFAD_TEST_AGENTS=1 takes the cases of `SAMPLE`, SFAD_TEST_AGENTS=all each program, end, form and
mode.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from sfad.agents.program import program_called
from tests.harness import alive, wait_until
from tests.real_agents.clis import CLIS, QWEN, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk, in_a_terminal
from tests.real_agents.script import Reply, Say, Shell, Stall
from tests.real_agents.test_bill import CONFIG as PRICES

CONFIG = (
    PRICES + '"gemini-3-flash-preview" = {input_mtok = 3, cached_mtok = 0.3, output_mtok = 15}\n'
)
"""Gemini CLI asks it whether it repeats itself."""
ENDS = ("limit", "stop", "killed", "all killed")
STATUS = {
    "limit": ["failed"],
    "stop": ["cancelled"],
    "killed": ["failed"],
    "all killed": ["lost", "failed"],
}
"""The next daemon may learn how the program ended, as long as no process has reaped it."""
FORMS = ("by_name", "as_text", "in_terminal")
MODES = ("cgroup", "tags")
SAMPLE = {
    ("copilot", "killed", "by_name", "cgroup"),
    ("copilot", "limit", "as_text", "tags"),
    ("copilot", "stop", "in_terminal", "cgroup"),
    ("claude", "limit", "by_name", "cgroup"),
    ("claude", "killed", "in_terminal", "tags"),
    ("claude", "all killed", "as_text", "cgroup"),
    ("codex", "stop", "by_name", "tags"),
    ("codex", "killed", "in_terminal", "cgroup"),
    ("codex", "all killed", "as_text", "cgroup"),
    ("gemini", "killed", "by_name", "cgroup"),
    ("gemini", "limit", "as_text", "tags"),
    ("gemini", "stop", "by_name", "cgroup"),
    ("opencode", "limit", "by_name", "tags"),
    ("opencode", "killed", "as_text", "cgroup"),
    ("opencode", "all killed", "by_name", "cgroup"),
    ("qwen", "all killed", "by_name", "cgroup"),
    ("qwen", "stop", "as_text", "tags"),
    ("qwen", "killed", "by_name", "cgroup"),
}
FIRST, TASK = "echo first-of-all", "Go on with the second part."
ANSWER = " ".join(f"Chapter {number}: {number**9}." for number in range(20))
BROKEN = 0.01
"""USD by which the bill of a reply that was broken off may differ: its input is estimated, and of
its output only what was streamed counts."""


def cases() -> Iterator[Any]:
    for program, cli in CLIS.items():
        for end in ENDS:
            for form in FORMS:
                if (
                    form == "in_terminal"
                    and not program_called(program).resumes_with_task_in_terminal
                ):
                    continue
                for mode in MODES:
                    if (
                        os.environ.get("SFAD_TEST_AGENTS") == "all"
                        or (program, end, form, mode) in SAMPLE
                    ):
                        yield pytest.param(
                            cli, end, form, mode, id=f"{program}-{end}-{form}-{mode}"
                        )


@pytest.mark.parametrize(("cli", "end", "form", "mode"), [*cases()])
def test_an_ended_agent_continues_where_it_was(
    desk: MakeDesk, cli: Cli, end: str, form: str, mode: str
) -> None:
    at = desk(config=CONFIG, mode=mode, **{cli.name: script(end)})
    talk = at.talk(cli)
    # Qwen Code asks for so much output that a call reserves 0.16 USD
    cost = 5.0 if end != "limit" else 0.25 if cli is QWEN else 0.15
    words = [
        "--name",
        "planner",
        "--timeout",
        "10m",
        "--limit",
        f"cost={cost}",
        "--limit",
        "turns=100",
    ]
    with ExitStack() as stack:
        if form == "in_terminal":
            stack.enter_context(
                in_a_terminal(at, "run", *words, "--stdio", "inherit", "--", *cli.in_terminal)
            )
        elif form == "by_name":
            stack.enter_context(at.client("run", *words, *cli.by_name))
        else:
            stack.enter_context(at.client("run", *words, "--", *cli.as_text))
        ended(at, cli, end)
    (first,) = at.listed()
    assert first["status"] in STATUS[end], first["reason"]
    asked, billed = len(talk.requests), len(talk.bills)
    at.model.released.set()
    if form == "in_terminal":
        with in_a_terminal(at, "continue", first["id"], TASK, "--limit", "cost=5"):
            wait_until(lambda: said_all(at, cli, asked, end), "the agent is done", seconds=90)
            assert at.sfactl("stop", at.listed()[-1]["id"]).returncode == 0
    else:
        done = at.sfactl("continue", first["id"], TASK, "--wait", "--limit", "cost=5")
        assert done.returncode == 0, done.stderr
    before, after = at.listed()
    assert (before["continued_by"], after["continues"]) == (after["id"], before["id"])
    assert after["status"] == ("cancelled" if form == "in_terminal" else "completed"), after[
        "reason"
    ]
    seen = json.dumps(talk.requests[asked:])
    assert FIRST in seen, "the model sees the tool call of the run before"
    assert TASK in seen
    if cli.name != "opencode" or form == "by_name":
        assert after["session_id"] == before["session_id"] is not None
    calls = at.sfactl("calls", before["id"]).stdout + at.sfactl("calls", after["id"]).stdout
    allowed = 0.01 * sum(talk.bills) + (0 if end == "limit" else BROKEN)
    both = before["total_cost_usd"] + after["total_cost_usd"]
    assert after["total_cost_usd"] == pytest.approx(sum(talk.bills[billed:]), rel=0.01), calls
    # a broken reply may cost what was reserved for it, or what it may have thought
    if before["total_at_most"] and end != "limit":
        assert both >= sum(talk.bills) - allowed, calls
    else:
        assert both == pytest.approx(sum(talk.bills), abs=allowed), calls
    again = at.sfactl("continue", first["id"])
    assert (again.returncode, after["id"] in again.stderr) == (1, True), again.stderr


def script(end: str) -> list[Reply]:
    if end == "limit":  # it is reached in the middle
        return [Shell(FIRST), *(Shell(f"echo {number}") for number in range(60)), Say("Done.")]
    return [Shell(FIRST), Stall(ANSWER), Say("Done."), Say("Done.")]


def ended(at: Desk, cli: Cli, end: str) -> None:
    """End the agent, or wait until its limit has done so."""
    if end == "limit":
        wait_until(
            lambda: at.listed() and at.listed()[0]["ended_at"],
            "the limit has ended it",
            seconds=200,
        )
        return
    wait_until(lambda: at.talk(cli).stalled, "the reply waits in its middle", seconds=200)
    run = at.listed()[0]
    if end == "stop":
        assert at.sfactl("stop", run["id"]).returncode == 0
        return
    if end == "all killed":
        at.daemon.kill()
    os.kill(run["pid"], signal.SIGKILL)
    wait_until(lambda: not alive(run["pid"]), "the agent is gone")
    if end == "all killed":
        at.daemon.restart()
    wait_until(lambda: at.listed()[0]["ended_at"], "its end is on record")


def said_all(at: Desk, cli: Cli, asked: int, end: str) -> bool:
    talk = at.talk(cli)
    return len(talk.requests) > asked and talk.answered >= len(talk.requests) - (end != "limit")

"""However a run ends, its usage is what the model has counted, or a part of that which is shown as
partial.

SFAD_TEST_AGENTS=1 takes each road with the programs that its row names, SFAD_TEST_AGENTS=all with
each program.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness import alive, wait_until
from tests.real_agents.clis import CLIS, GEMINI_CLI, OPENCODE, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk, gate_of, in_a_terminal
from tests.real_agents.script import Reply, Say, Shell, Stall

PRICES = """
[prices]
"gpt-6.1-sol" = {input_mtok = 3, cached_mtok = 0.3, output_mtok = 15}
"gemini-2.5-pro" = {input_mtok = 3, cached_mtok = 0.3, output_mtok = 15}
"qwen3-coder-plus" = {input_mtok = 3, cached_mtok = 0.3, output_mtok = 15}
"gpt-5.1" = {input_mtok = 3, cached_mtok = 0.3, output_mtok = 15}
"""
"""Of the models of the other programs, as much as Claude Sonnet 4.5 costs."""

ANSWER = " ".join(f"Chapter {number}: {number**9}." for number in range(20))
"""Gemini CLI breaks off a reply that repeats itself."""
GATE = "gate"
TOOLS = (Shell("echo one"), Shell("echo two"), Say("Done."))
IN_TOOL = (Shell("echo one"), Shell(GATE), Say("Done."))
IN_REPLY = (Shell("echo one"), Stall(ANSWER), Say("Done."))


@dataclass(frozen=True)
class Road:
    """How a run goes and ends."""

    programs: str
    """Those that take it if not all do."""
    script: tuple[Reply, ...]
    then: str = ""
    """Letters: what is done once the run has come to the gate or into the middle of the long
    answer, or after all calls."""
    form: str = "argv"
    """Which of the program's command lines."""
    words: tuple[str, ...] = ()
    """For sfactl."""


DAEMON_KILLED, DAEMON_BACK, LET_GO, GONE, STOP, KILL = "kbogsK"
ROADS = {
    "finished": Road("claude codex qwen copilot", TOOLS),
    "limited": Road("claude gemini", (Shell("echo one"),) * 20, words=("--limit", "turns=2")),
    "stopped in a tool": Road("claude opencode qwen copilot", IN_TOOL, STOP),
    "stopped in a reply": Road("claude codex", IN_REPLY, STOP),
    "killed in a tool": Road("claude", IN_TOOL, KILL),
    "killed in a reply": Road("codex opencode qwen copilot", IN_REPLY, KILL),
    "ended without a daemon": Road(
        "claude gemini", IN_TOOL, DAEMON_KILLED + LET_GO + GONE + DAEMON_BACK
    ),
    "killed without a daemon": Road("codex", IN_REPLY, DAEMON_KILLED + KILL + GONE + DAEMON_BACK),
    "outlived a daemon": Road("codex", IN_TOOL, DAEMON_KILLED + DAEMON_BACK + LET_GO),
    "text": Road("claude codex", TOOLS, form="as_text"),
    "text, killed in a tool": Road("claude gemini qwen copilot", IN_TOOL, KILL, "as_text"),
    "text, killed in a reply": Road("codex", IN_REPLY, KILL, "as_text"),
    "terminal": Road("claude codex", TOOLS, STOP, "in_terminal"),
    "terminal, killed in a reply": Road("claude", IN_REPLY, KILL, "in_terminal"),
    "by name, killed in a reply": Road("claude", IN_REPLY, KILL, "by_name"),
}


def cases() -> Iterator[Any]:
    for name, road in ROADS.items():
        for program, cli in CLIS.items():
            if os.environ.get("SFAD_TEST_AGENTS") == "all" or program in road.programs.split():
                yield pytest.param(cli, road, id=f"{name}-{program}")


@pytest.mark.parametrize(("cli", "road"), list(cases()))
def test_the_usage_shown_is_what_the_model_has_counted(
    desk: MakeDesk, cli: Cli, road: Road, tmp_path: Path
) -> None:
    with gate_of(tmp_path / GATE) as gate:
        script = [Shell(gate.command) if reply == Shell(GATE) else reply for reply in road.script]
        at = desk(config=PRICES, **{cli.name: script})
        talk = at.talk(cli)
        argv = [
            *getattr(cli, road.form),
            *(("--model", "claude-sonnet-4-5") if cli.name == "claude" else ()),
        ]
        with ExitStack() as stack:
            if road.form == "in_terminal":
                stack.enter_context(
                    in_a_terminal(at, "run", "--stdio", "inherit", "--name", "planner", "--", *argv)
                )
                run = wait_until(at.listed, "it is listed")[0]["id"]
            else:
                run = at.sfactl(
                    "spawn",
                    "--name",
                    "planner",
                    *road.words,
                    *(["--"] * (road.form != "by_name")),
                    *argv,
                ).stdout.strip()
            if road.then:
                wait_until(
                    lambda: (
                        gate.reached or talk.stalled or saved(at, talk.answered == len(script), cli)
                    ),
                    "it is there",
                )
            pid = at.json("info", run)["pid"]
            for deed in road.then:
                do(at, deed, run, pid, gate.open)
            at.sfactl("wait", run)
        # its events come before the tool, but its session file is written some 100 ms late
        lost = KILL in road.then and road.form != "argv"
        compare(at, cli, at.json("info", run), waited=bool(road.then) and not lost)


def saved(at: Desk, answered: bool, cli: Cli) -> bool:
    """Whether the last answer has arrived in the session file, of a program that has one."""
    if not answered or cli is OPENCODE:
        return answered
    with suppress(FileNotFoundError):  # the program removes its locks meanwhile: look again
        files = Path(at.env["HOME"]).rglob("*.jsonl")
        return any('"Done.' in file.read_text() for file in files)
    return False


def do(at: Desk, deed: str, run: str, pid: int, let_go: Any) -> None:
    if deed == STOP:
        assert at.sfactl("stop", run).returncode == 0
    elif deed == KILL:
        os.kill(pid, signal.SIGKILL)
    elif deed == DAEMON_KILLED:
        at.daemon.kill()
    elif deed == DAEMON_BACK:
        at.daemon.restart()
    elif deed == LET_GO:
        let_go()
    elif deed == GONE:
        wait_until(lambda: not alive(pid), "the agent is gone")


def compare(at: Desk, cli: Cli, info: dict[str, Any], *, waited: bool) -> None:
    """A call that was broken off has cost what was asked and what was streamed; of that a part may
    be missing, if that is said. Unless the agent was waited for, the model may have answered a call
    whose answer it has not read or written down."""
    talk, price, usage = at.talk(cli), cli.price, info["usage"]
    broken = len(talk.requests) - talk.answered
    output = talk.answered * price.output + broken * len(ANSWER) // 4
    counted = {
        "turns": talk.turns,
        "messages": len(talk.requests),
        "input_tokens": len(talk.requests) * price.input,
        "cached_tokens": len(talk.requests) * price.cached,
        "output_tokens": output,
        "cost_usd": len(talk.requests) * price.input_usd + 15e-6 * output,
    }
    shown = {key: usage[key] for key in counted}
    if not usage["partial"]:
        assert shown == pytest.approx(counted)
        assert broken == 0 or usage["cost_from"] == "agent"
        return
    assert [key for key in counted if (shown[key] or 0) > 1.000001 * counted[key]] == []
    least = 0 if broken or not waited or cli in (OPENCODE, GEMINI_CLI) else len(talk.requests)
    assert shown["input_tokens"] >= max(least, talk.answered - 1) * price.input
    assert shown["cost_usd"] > 0

"""Programs that a run starts with a cleared environment, as cron wrappers do: they call their model
around the gateway. The run ends before their second call."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from tests.harness import wait_until
from tests.real_agents.clis import (
    CLAUDE,
    CODEX,
    COPILOT,
    GEMINI_CLI,
    OPENCODE,
    QWEN,
    Cli,
    packages,
)
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk, in_a_terminal
from tests.real_agents.script import Say, Shell, Stall, Write
from tests.real_agents.test_bill import CONFIG

LIMIT = 0.5
CALL = 20_000
"""Tokens of output that the model wants to write in each reply: 0.30 USD."""
HOW = {
    "below": "{}; true",
    "exec": "exec {}",
    "timeout": "exec timeout 300 {}",
    "orphan": "setsid --fork {}; sleep 300",
}
PROGRAMS = pytest.mark.parametrize(
    "program", [CLAUDE, CODEX, GEMINI_CLI, OPENCODE, QWEN, COPILOT], ids=lambda each: each.name
)


def writing() -> Iterator[Write]:
    """Yield replies that take a while: of a model, these would take minutes. Claude Code has sent
    its next call when its file tells of the one before, and a busy machine ends the run late."""
    for seconds in chain([1], repeat(5)):
        time.sleep(seconds)
        yield Write(CALL)


def cleared(at: Desk, words: tuple[str, ...]) -> str:
    """Return a shell command that executes another with its own address and key alone."""
    kept = {name: value for name, value in at.env.items() if not name.startswith("SFAD_")}
    return shlex.join(["env", "-i", *(f"{name}={value}" for name, value in kept.items()), *words])


def script(at: Desk, text: str) -> list[str]:
    """Return a command that executes a script."""
    file = Path(at.env["HOME"], "cron.sh")
    file.write_text(f"{text}\n")
    return ["--", "sh", str(file)]


def assert_ended(
    run: dict[str, Any], bills: list[float], program: Cli, *, unknown: bool = False
) -> None:
    """The run was ended before its second call, and tells what its files say, as a lower bound.
    opencode calls its model for a title, too, and tells the tokens of a reply when its tools have
    ended, so what it has used is estimated; or `unknown`, if it was ended before it had written
    anything of the reply."""
    bill = 0.0
    if program is OPENCODE:
        assert len(bills) <= 2, "the first call and that for its title"
    else:
        (bill,) = bills
    assert run["status"] == "failed"
    assert "it calls its model around the gateway" in run["reason"]["message"]
    assert run["usage"]["partial"]
    (cost,) = [limit for limit in run["limits"] if limit["kind"] == "cost"]
    assert cost["enforced_by"] == "meter"
    assert run["usage"]["cost_usd"] == run["total_cost_usd"] == cost["used"]
    if not unknown or cost["used"] is not None:
        assert cost["used"] >= bill * 0.99
        assert cost["used"]


@pytest.mark.parametrize("how", HOW)
@PROGRAMS
def test_a_run_ends_before_the_second_call_around_the_gateway(
    desk: MakeDesk, program: Cli, how: str, containment: str
) -> None:
    at = desk(config=CONFIG, mode=containment, **{program.name: writing()})
    command = script(at, HOW[how].format(cleared(at, program.as_text)))
    at.sfactl("run", "--limit", f"cost={LIMIT}", "--timeout", "5m", *command)
    (run,) = at.listed()
    assert_ended(run, at.talk(program).bills, program)


@PROGRAMS
def test_so_does_a_run_that_calls_the_program_by_another_name(
    desk: MakeDesk, program: Cli, containment: str
) -> None:
    at = desk(config=CONFIG, mode=containment, **{program.name: writing()})
    name, *words = program.as_text
    real = (packages() / "node_modules/.bin" / name).resolve()
    link = f'cd "$HOME" && ln -s {shlex.quote(str(real))} ed'
    command = script(at, f"{link}; {cleared(at, ('./ed', *words))}; true")
    at.sfactl("run", "--limit", f"cost={LIMIT}", "--timeout", "5m", *command)
    (run,) = at.listed()
    assert_ended(run, at.talk(program).bills, program)


@pytest.mark.parametrize("program", [CLAUDE, GEMINI_CLI], ids=lambda each: each.name)
def test_so_does_a_run_whose_command_clears_the_environment_itself(
    desk: MakeDesk, program: Cli
) -> None:
    """Codex is led by its command, which the run has."""
    at = desk(config=CONFIG, **{program.name: writing()})
    command = shlex.split(cleared(at, program.argv))
    at.sfactl("run", "--limit", f"cost={LIMIT}", "--timeout", "5m", "--", *command)
    (run,) = at.listed()
    assert_ended(run, at.talk(program).bills, program)


def test_what_an_agents_shell_spends_around_the_gateway_adds_to_what_came_through_it(
    desk: MakeDesk,
) -> None:
    """Every place tells the same figure."""
    scripts: dict[str, Any] = {"codex": writing()}
    at = desk(config=CONFIG + "[budgets.users]\nroot = {daily_usd = 9}\n", claude=[], **scripts)
    command = Shell(cleared(at, CODEX.as_text))
    at.talk(CLAUDE).script = iter([command, Say("Done.")])
    at.sfactl("run", "--limit", f"cost={LIMIT}", "--timeout", "5m", "--", *CLAUDE.argv)
    (run,) = at.listed()
    (inner,) = at.talk(CODEX).bills
    assert_ended(run, [inner + sum(at.talk(CLAUDE).bills)], CODEX)
    (budget,) = at.json("status")["budgets"]
    assert budget["used_usd"] == pytest.approx(run["total_cost_usd"])
    assert at.json("info", run["id"])["total_cost_usd"] == run["total_cost_usd"]
    assert at.json("summary")["cost_usd"] == pytest.approx(run["total_cost_usd"])


@PROGRAMS
def test_a_program_that_makes_no_call_is_not_ended(
    desk: MakeDesk, program: Cli, containment: str
) -> None:
    at = desk(config=CONFIG, mode=containment, **{program.name: []})
    idle = cleared(at, (program.name,))
    done = Path(at.env["HOME"], "done")
    version = cleared(at, (program.name, "--version"))
    asks = f"{version}; timeout --foreground -k 9 15 {idle}; echo >> {done}"
    options = ["--limit", f"cost={LIMIT}", "--stdio", "inherit"]
    with in_a_terminal(at, "run", *options, *script(at, asks)):
        wait_until(done.exists, "it has been idle for a while")
    (run,) = at.listed()
    assert run["status"] == "completed"
    assert "gateway_bypassed" not in at.daemon.log.read_text()


def test_a_reply_that_has_begun_is_seen(desk: MakeDesk, containment: str) -> None:
    at = desk(config=CONFIG, mode=containment, opencode=[Stall("word " * 400)])
    command = script(at, HOW["exec"].format(cleared(at, OPENCODE.as_text)))
    at.sfactl("run", "--limit", f"cost={LIMIT}", "--timeout", "2m", *command)
    (run,) = at.listed()
    assert run["status"] == "failed"
    assert "it calls its model around the gateway" in run["reason"]["message"]
    assert len(at.talk(OPENCODE).bills) <= 2, "the first call and that for its title"


def test_so_is_one_whose_reply_is_over_at_once(
    desk: MakeDesk, containment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Providers keep a connection for the next call, and the command that the model wants to have
    executed takes a while."""
    monkeypatch.setattr("tests.real_agents.model.Handler.protocol_version", "HTTP/1.1")
    at = desk(config=CONFIG, mode=containment, opencode=repeat(Shell("sleep 20")))
    command = script(at, HOW["exec"].format(cleared(at, OPENCODE.as_text)))
    at.sfactl("run", "--limit", f"cost={LIMIT}", "--timeout", "2m", *command)
    (run,) = at.listed()
    assert run["status"] == "failed"
    assert "it calls its model around the gateway" in run["reason"]["message"], run["reason"]
    assert len(at.talk(OPENCODE).requests) == 1

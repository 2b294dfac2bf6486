"""What agents keep of their sessions tells what they use where their output does not: as text, in a terminal, after a kill."""

from __future__ import annotations

import os
import pty
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any
from uuid import uuid4

import pytest

from tests.agents.clis import CLAUDE, CODEX, GEMINI_CLI, Cli
from tests.agents.conftest import MakeDesk
from tests.agents.desk import Desk
from tests.agents.script import Say, Shell
from tests.harness import PATIENCE, wait_until

PRICED = """
[prices."gpt-6.1-sol"]
input_mtok = 10
cached_mtok = 1
output_mtok = 100
"""
"""The model that Codex asks if it is not told."""


@pytest.fixture(params=[CLAUDE, CODEX, GEMINI_CLI], ids=lambda cli: cli.name)
def cli(request: pytest.FixtureRequest) -> Cli:
    """Each agent that keeps session files."""
    found: Cli = request.param
    return found


def told(at: Desk, cli: Cli) -> dict[str, Any]:
    """What the model's side has counted."""
    talk = at.talk(cli)
    calls = len(talk.requests)
    return {
        "turns": talk.turns,
        "messages": calls,
        "input_tokens": calls * cli.price.input,
        "cached_tokens": calls * cli.price.cached,
        "output_tokens": calls * cli.price.output,
    }


def used(at: Desk, run: str, source: str = "session") -> dict[str, Any]:
    """What `info` tells, by a source."""
    found: dict[str, Any] = at.json("info", run)["usage_by_source"].get(source, {})
    return found


def figures(usage: dict[str, Any]) -> dict[str, Any]:
    """Those of `told`."""
    return {key: usage.get(key) for key in ("turns", "messages", "input_tokens", "cached_tokens", "output_tokens")}


def saved(at: Desk, text: str) -> bool:
    """Whether an agent has saved the text in a session file."""
    return any(text in file.read_text() for file in Path(at.env["HOME"]).rglob("*.jsonl"))


@contextmanager
def in_a_terminal(at: Desk, *words: str) -> Iterator[Popen[bytes]]:
    """A client with a terminal of its own, whose output nobody wants."""
    ours, theirs = pty.openpty()
    reader = Popen(["cat"], stdin=ours, stdout=DEVNULL, stderr=DEVNULL)  # it fails when the terminal is gone
    os.close(ours)
    client = Popen(
        [sys.executable, "-m", "sfactl", *words],
        stdin=theirs, stdout=theirs, stderr=theirs, env=at.env, cwd=at.env["HOME"], start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield client
        client.wait(PATIENCE)
    finally:
        for each in (client, reader):
            each.kill()
            each.wait()


def test_an_agent_that_prints_text_is_metered_by_its_session(desk: MakeDesk, cli: Cli) -> None:
    at = desk(config=PRICED, **{cli.name: [Shell("echo one"), Shell("echo two"), Say("Done.")]})
    done = at.sfactl("run", "--name", "planner", "--", *cli.as_text)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = at.listed()
    usage = run["usage"]
    assert figures(usage) == told(at, cli)
    assert (usage["source"], usage["partial"]) == ("session", False)
    assert usage["cost_usd"] > 0
    assert usage["cost_from"] == ("agent" if cli is CLAUDE else "prices")


def test_a_limit_binds_an_agent_that_prints_text(desk: MakeDesk) -> None:
    at = desk(claude=repeat(Shell("sleep 0.3")))
    named = ("--session-id", str(uuid4()))  # so that its file is known from the start
    done = at.sfactl("run", "--name", "planner", "--limit", "turns=3", "--", *CLAUDE.as_text, *named)
    assert done.returncode == 4, done.stdout + done.stderr
    (run,) = at.listed()
    assert (run["status"], run["reason"]["limit_kind"]) == ("failed", "turns")
    assert [limit["enforced_by"] for limit in run["limits"] if limit["kind"] == "turns"] == ["meter"]
    assert len(at.talk(CLAUDE).requests) <= 12


def test_what_a_killed_agent_has_used_is_known(desk: MakeDesk, cli: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    at = desk(config=PRICED, **{cli.name: [Shell("echo one"), Shell(f"cat {tmp_path}/gate"), Say("Done.")]})
    run = at.spawn("planner", *cli.argv)
    wait_until(lambda: used(at, run).get("input_tokens") == 2 * cli.price.input, "the second call is in the session")
    os.kill(at.running(run)["pid"], signal.SIGKILL)
    assert at.sfactl("wait", run).returncode == 128 + signal.SIGKILL
    usage = at.json("info", run)["usage"]
    counted = told(at, cli)
    assert (usage["input_tokens"], usage["output_tokens"]) == (counted["input_tokens"], counted["output_tokens"])
    assert usage["cost_usd"] > 0


def test_an_agent_in_a_terminal_is_metered_by_its_session(desk: MakeDesk, cli: Cli) -> None:
    at = desk(config=PRICED, **{cli.name: [Shell("echo one"), Say("Finished!")]})
    with in_a_terminal(at, "run", "--stdio", "inherit", "--name", "planner", "--", *cli.in_terminal):
        (run,) = wait_until(at.listed, "it is listed")
        wait_until(lambda: saved(at, "Finished!"), "the last word is in the session file")
        at.sfactl("stop", run["id"])
    usage = at.json("info", run["id"])["usage"]
    assert figures(usage) == told(at, cli)
    assert usage["cost_usd"] > 0

"""What real agents use is seen while they run, and is exact when they have ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE, CODEX, OPENCODE, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk, held_up
from tests.real_agents.script import Say, Shell, Stall


def use_after(at: Desk, run: str, *, turns: int, input_tokens: int = 0) -> dict[str, Any] | None:
    """What a run that goes on is known to have used, if it is known to have taken so many turns and
    read so many tokens: Copilot's events tell its turns, and its session file the tokens, a moment
    later."""
    usage: dict[str, Any] = at.running(run)["usage"]
    return (
        usage
        if (usage["turns"] or 0) >= turns and (usage["input_tokens"] or 0) >= input_tokens
        else None
    )


def test_usage_is_seen_while_the_agent_runs_and_is_exact_at_its_end(
    desk: MakeDesk, any_cli: Cli, tmp_path: Path
) -> None:
    with held_up(tmp_path / "gate") as command:
        at = desk(**{any_cli.name: [Shell("echo one"), Shell(command), Say("Done.")]})
        run = at.spawn("planner", *any_cli.argv)
        least = 2 * any_cli.price.input if any_cli.tells_early else 0
        early = wait_until(
            lambda: use_after(at, run, turns=any_cli.turns_seen(2), input_tokens=least),
            "turns are seen while the second goes on",
        )
        # the session file may tell more at that moment
        assert early["source"] in ("stream", "session")
        assert early["partial"] or early["input_tokens"] is None or any_cli is OPENCODE
        assert (early["input_tokens"] or 0) in [
            count * any_cli.price.input for count in range(least and 2, 3)
        ]
    assert at.sfactl("wait", run).returncode == 0
    info = at.json("info", run)
    assert info["status"] == "completed"
    assert {
        key: info["usage"][key]
        for key in ("turns", "source", "input_tokens", "cached_tokens", "output_tokens", "tokens")
    } == {
        "turns": 2,
        "source": "stream",
        "input_tokens": 3 * any_cli.price.input,
        "cached_tokens": 3 * any_cli.price.cached,
        "output_tokens": 3 * any_cli.price.output,
        "tokens": 3 * (any_cli.price.input + any_cli.price.output),
    }
    assert info["usage"]["partial"] is (any_cli is OPENCODE)


def test_the_cost_of_claude_is_the_one_that_it_reports(desk: MakeDesk) -> None:
    at = desk(claude=[Shell("echo one"), Say("Done.")])
    assert at.sfactl("run", "--name", "planner", "--", *CLAUDE.argv).returncode == 0
    (run,) = at.listed()
    said = [event["total_cost_usd"] for event in at.events(run["id"]) if event["type"] == "result"]
    assert said == [pytest.approx(run["usage"]["cost_usd"])]
    assert said[0] > 0
    assert run["usage"]["cost_from"] == "agent"


PRICED = """
[prices."scripted-1"]
input_mtok = 10
cached_mtok = 1
output_mtok = 100
"""


@pytest.mark.parametrize("model", ["scripted-1", "scripted-2"])
def test_the_cost_of_codex_is_that_of_its_model_or_estimated(desk: MakeDesk, model: str) -> None:
    at = desk(config=PRICED, codex=[Shell("echo one"), Say("Done.")])
    done = at.sfactl("run", "--name", "planner", "--", *CODEX.argv, "--model", model)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = at.listed()
    fresh = CODEX.price.input - CODEX.price.cached
    known = 2 * (10 * fresh + 1 * CODEX.price.cached + 100 * CODEX.price.output) / 1e6
    assert run["usage"]["cost_from"] == "prices"
    assert (run["usage"]["cost_usd"] == pytest.approx(known), run["usage"]["estimated"]) == (
        (True, False) if model == "scripted-1" else (False, True)
    )


@pytest.mark.parametrize("form", ["argv", "as_text"])
@pytest.mark.parametrize("how", ["stop", "SIGKILL", "SIGINT"])
def test_what_an_agent_told_that_did_not_end_by_itself_is_a_lower_bound(
    desk: MakeDesk, any_cli: Cli, form: str, how: str
) -> None:
    """The reply in whose middle it was may be billed."""
    if any_cli is OPENCODE and form == "as_text":
        pytest.skip("nothing tells what it uses")
    at = desk(**{any_cli.name: [Shell("echo one"), Stall("Once upon a time")]})
    run = at.spawn("planner", *getattr(any_cli, form))
    wait_until(lambda: at.talk(any_cli).stalled, "a reply is in its middle")
    if how == "stop":
        assert at.sfactl("stop", run).returncode == 0
    else:
        os.kill(at.running(run)["pid"], signal.Signals[how])
    at.sfactl("wait", run)
    usage = at.json("info", run)["usage"]
    assert (usage["turns"], usage["partial"], usage["at_most"]) == (1, True, False)

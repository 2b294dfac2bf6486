"""In a sandbox with no network but the gateway, a bill stays below the limit of cost, also of what
clears its environment.

SFAD_TEST_AGENTS=1 takes some cases, SFAD_TEST_AGENTS=all each program in each way.
"""

from __future__ import annotations

import os
import shlex
from itertools import repeat
from pathlib import Path

import pytest

from tests.real_agents.clis import CLAUDE, CODEX, GEMINI_CLI, OPENCODE, Cli, packages
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk
from tests.real_agents.script import Write
from tests.real_agents.test_around import CALL, cleared
from tests.real_agents.test_bill import CONFIG, ERROR, LIMIT
from tests.real_agents.test_gateway import lead

LEADING = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL")
"""Variables that lead to the gateway in a run."""
OWN_FILES = {CODEX.name: ".codex", GEMINI_CLI.name: ".gemini"}
"""A tree whose first command is a script sees no program's own files by itself."""
CASES = [
    (cli, way)
    for cli in (CLAUDE, CODEX, GEMINI_CLI, OPENCODE)
    for way in ("named", "text", "script", "cleared")
    if os.environ.get("SFAD_TEST_AGENTS") == "all" or way == "cleared"
]

pytestmark = pytest.mark.needs("bwrap")


def isolated(desk: MakeDesk, cli: Cli) -> tuple[Desk, list[str]]:
    """Return a desk, and the words that start a run in a sandbox there."""
    at = desk(config=CONFIG, **{cli.name: repeat(Write(CALL))})
    lead(at, cli)
    if cli is CODEX:
        at.env["OPENAI_BASE_URL"] = f"{at.model.url}/codex/v1"
    del at.env["CLAUDE_CODE_TMPDIR"]  # only a TMPDIR that cannot be written is replaced there
    work = Path(at.env["HOME"], "work")
    work.mkdir()
    words = ["run", "--isolate=net", "--cwd", str(work), "--timeout", "5m"]
    words += ["--limit", f"cost={LIMIT}", "--limit", "turns=100"]
    if cli.name in OWN_FILES:
        words += ["--writable", str(Path(at.env["HOME"], OWN_FILES[cli.name]))]
    return at, words


def by_path(cli: Cli) -> tuple[str, ...]:
    """Return a command that finds no shim."""
    program, *words = cli.as_text
    return (str(packages() / "node_modules/.bin" / program), *words)


def command(at: Desk, cli: Cli, way: str) -> list[str]:
    """Return what a person types after `sfactl run` and its options."""
    if way == "named":
        return [*cli.by_name]
    if way == "text":
        return ["--", *cli.as_text]
    if way == "script":
        return ["--", "sh", "-c", f"{shlex.join(cli.as_text)}; true"]
    led = [f'{name}="${name}"' for name in LEADING]
    option = ' -c openai_base_url="$OPENAI_BASE_URL"' if cli is CODEX else ""
    line = cleared(at, ("env", *by_path(cli)))
    line = line.replace(" env ", f" env {' '.join(led)} ", 1)
    return ["--", "sh", "-c", f"{line}{option}; true"]


@pytest.mark.parametrize(("cli", "way"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_bill_in_a_sandbox_stays_below_the_limit(desk: MakeDesk, cli: Cli, way: str) -> None:
    """Cleared: of its environment, a program has only where the gateway is."""
    at, words = isolated(desk, cli)
    done = at.sfactl(*words, *command(at, cli, way))
    bills, root = at.talk(cli).bills, at.listed()[0]
    assert (root["status"], root["reason"]["limit_kind"]) == ("failed", "cost"), done
    assert 0.5 * LIMIT < sum(bills) <= LIMIT * (1 + ERROR)
    assert root["total_cost_usd"] == pytest.approx(sum(bills), rel=0.01)


def test_a_program_in_a_sandbox_reaches_no_address_of_its_own(desk: MakeDesk) -> None:
    """Claude Code, because the others try again for a minute."""
    at, words = isolated(desk, CLAUDE)
    at.env["CLAUDE_CODE_MAX_RETRIES"] = "0"
    done = at.sfactl(*words, "--", "sh", "-c", f"{cleared(at, by_path(CLAUDE))}; true")
    assert "Connection refused" in done.stdout, done
    assert at.talk(CLAUDE).bills == []

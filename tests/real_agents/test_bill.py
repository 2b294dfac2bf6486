"""The bill of a run never exceeds its limit of cost, however a person starts the program and
whatever it asks for.

SFAD_TEST_AGENTS=1 takes a case of each program, SFAD_TEST_AGENTS=all each program in each way, size
and action. The model bills for what it writes, and always wants to write more than the limit pays
for.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE, CLIS, CODEX, GEMINI_CLI, OPENCODE, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk, in_a_terminal
from tests.real_agents.script import OUTPUT_USD, Write

MODELS = (
    "claude-opus-5-5",
    "claude-haiku-4-5-20251001",
    "gpt-6.1-sol",
    "gemini-2.5-pro",
    "qwen3-coder-plus",
    "gpt-5.1",
)
CONFIG = "[gateway]\n[prices]\n" + "".join(
    f'"{model}" = {{input_mtok = 3, cached_mtok = 0.3, output_mtok = 15}}\n' for model in MODELS
)
"""The gateway as it is by default. The models that the programs choose cost as much as Claude
Sonnet 4.5."""
LIMIT = 1.0
ERROR = 0.02
"""The part of the limit that the error of one input estimate may exceed it by."""
WAYS = ("named", "text", "terminal", "script", "four at once")
SIZES = {"big": 20_000, "small": 400}
"""Tokens that the model wants to write in a reply."""
LOWERING, HOLDING = ("terminate", "refuse"), ("pause", "request_increase")
_SAMPLE = {
    (CLAUDE.name, "four at once", "big", "terminate"),
    (CODEX.name, "script", "big", "terminate"),
    (GEMINI_CLI.name, "text", "big", "refuse"),
    (OPENCODE.name, "script", "small", "pause"),
}


def cases() -> Iterator[Any]:
    for program, cli in CLIS.items():
        for way in WAYS:
            for size in SIZES:
                for action in LOWERING + HOLDING:
                    if (
                        os.environ.get("SFAD_TEST_AGENTS") == "all"
                        or (program, way, size, action) in _SAMPLE
                    ):
                        yield pytest.param(
                            cli, way, size, action, id=f"{program}-{way}-{size}-{action}"
                        )


@pytest.mark.parametrize(("cli", "way", "size", "action"), [*cases()])
def test_the_bill_stays_below_the_limit_and_most_of_it_can_be_used(
    desk: MakeDesk, cli: Cli, way: str, size: str, action: str
) -> None:
    at = desk(config=CONFIG, **{cli.name: repeat(Write(SIZES[size]))})
    words = ["run", "--limit", f"cost={LIMIT}:{action}", "--limit", "turns=100", "--timeout", "10m"]
    if way == "terminal":
        with in_a_terminal(at, *words, "--stdio", "inherit", "--", *cli.in_terminal) as client:
            until_bounded(at, client, action)
    else:
        with at.client(*words, *command(at, cli, way)) as client:
            until_bounded(at, client, action)
    bills, root = at.talk(cli).bills, at.listed()[0]
    made = at.sfactl("calls", "--tree", root["id"]).stdout
    assert sum(bills) <= LIMIT * (1 + ERROR), made
    # what is left is too little for another call: its input, and the least output that is worth one
    another = max(bills) * (1.2 if action in LOWERING else 1.7) + 4096 * OUTPUT_USD
    assert sum(bills) >= LIMIT - another, made
    assert root["total_cost_usd"] == pytest.approx(sum(bills), rel=0.01), made
    if action == "terminate":
        assert (root["status"], root["reason"]["limit_kind"]) == ("failed", "cost")


def command(at: Desk, cli: Cli, way: str) -> list[str]:
    """Return what a person types after `sfactl run` and its options."""
    if way == "named":
        return [*cli.by_name]
    if way == "text":
        return ["--", *cli.as_text]
    line = shlex.join(cli.as_text)
    script = Path(at.env["HOME"], "agent.sh")
    script.write_text(f"{line}\n" if way == "script" else f"{f'{line} & ' * 4}wait\n")
    return ["--", "sh", str(script)]


def until_bounded(at: Desk, client: Any, action: str) -> None:
    """Wait until the limit has ended the run, or holds it; then stop it."""

    def over() -> bool:
        if client.poll() is not None or (action in HOLDING and at.listed("--status", "paused")):
            return True
        # in a terminal, a program that is refused a call waits for a person
        return (
            action == "refuse"
            and "refused" in at.sfactl("calls", "--all", "--refused", "--json").stdout
        )

    wait_until(over, "the limit acts", seconds=180)
    if client.poll() is None:
        at.sfactl("stop", "--all")

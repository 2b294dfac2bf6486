"""A call under way when the daemon, the gateway and the run die costs what had passed, not what was
reserved for it."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.harness import alive, wait_until
from tests.real_agents.clis import CODEX, COPILOT, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.script import OUTPUT_USD, Stall
from tests.real_agents.test_bill import CONFIG
from tests.real_agents.test_matrix import ANSWER

STREAMED_USD = OUTPUT_USD * len(ANSWER) / 4


@pytest.mark.parametrize("gateway_dies", [False, True], ids=["gateway lives", "gateway dies"])
@pytest.mark.parametrize("program", [CODEX, COPILOT], ids=lambda each: each.name)
def test_a_call_that_outlives_its_run_and_the_daemon(
    desk: MakeDesk, program: Cli, gateway_dies: bool
) -> None:
    at = desk(config=CONFIG, **{program.name: [Stall(ANSWER)]})
    talk = at.talk(program)
    run = at.sfactl("spawn", "--limit", "cost=5", "--", *program.argv).stdout.strip()
    wait_until(lambda: talk.stalled, "it is in the middle of its answer")
    reserved = at.json("info", run)["limits"]
    (cost,) = [limit for limit in reserved if limit["kind"] == "cost"]
    assert cost["reserved"] > 10 * STREAMED_USD
    pid = at.json("info", run)["pid"]
    gateway = json.loads((at.daemon.state_dir / "gateway.json").read_text())["pid"]
    at.daemon.kill()
    dying = [pid, gateway] if gateway_dies else [pid]
    for each in dying:
        os.kill(each, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, dying)), "they are gone")
    at.daemon.restart()
    at.sfactl("wait", run)
    (info,) = at.listed()
    call = at.json("calls", "--all")
    assert info["total_cost_usd"] == info["usage"]["cost_usd"] == call["cost_usd"]
    input_usd = call["input_tokens"] * 3e-6
    assert input_usd + STREAMED_USD * 0.5 <= call["cost_usd"] <= input_usd + STREAMED_USD * 2
    assert info["usage"]["partial"]

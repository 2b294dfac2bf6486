"""Real programs that call their model past the gateway, and what the kernel tells of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sfactl.connection import Client
from sfactl.exits import ExitCode
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, ended, spawn, stopped, wait_until

from .agents import info, limit, state, until_event
from .provider import Provider
from .test_gateway import config

PROGRAM = """#!{python} -S
import os, socket, sys, time
host, _, port = sys.argv[-1].rpartition(":")
connection = socket.create_connection((host, int(port)))
time.sleep(60)
"""


SESSION = """#!{python} -S
import json, os, re, sys, time, uuid
name, number = str(uuid.uuid4()), int(sys.argv[1])
place = os.environ["HOME"] + "/.claude/projects/" + re.sub("[^a-zA-Z0-9]", "-", os.getcwd())
os.makedirs(place, exist_ok=True)
now = time.time()
at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{{int(now % 1 * 1000):03}}Z"
usage = {{"input_tokens": 1000 * number, "output_tokens": number}}
said = {{
    "id": name, "model": "claude-sonnet-4-5", "stop_reason": "end_turn", "usage": usage,
    "content": [],
}}
line = {{
    "type": "assistant", "timestamp": at, "sessionId": name, "cwd": os.getcwd(), "message": said
}}
with open(place + "/" + name + ".jsonl", "a") as file:
    print(json.dumps(line), file=file)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
"""
"""A Claude Code that saves one call in its session file, and ends when it may: when the file in its
last word is there."""


@pytest.fixture
def gated(share: Start, provider: Provider) -> Daemon:
    return share(config=config(provider), mode="cgroup")


def program(directory: Path, name: str) -> Path:
    """Make a program that connects to the address in its last word, and waits."""
    file = directory / name
    file.write_text(PROGRAM.format(python=sys.executable))
    file.chmod(0o755)
    return file


def connecting(client: Client, file: Path, address: str, *words: str, **options: Any) -> RunInfo:
    """Start a script that calls the program by its path, as a shell tool may: no shim sees it."""
    script = f"{file} {' '.join(words)} {address} & wait"
    reply = spawn(client, ["sh", "-c", script], watch=True, **options)
    assert isinstance(reply, m.RunReply), reply
    return reply.run


def test_a_connection_of_an_agent_to_its_model_is_told_and_ends_a_run_that_a_person_has_bounded(
    gated: Daemon, provider: Provider, tmp_path: Path
) -> None:
    address, agent = provider.url.removeprefix("http://"), program(tmp_path, "opencode")
    with gated.client() as client:
        bounded = connecting(client, agent, address, limits=[limit("cost", 0.5)])
        assert state(bounded, "cost")[2] == "ready"
        event = until_event(client, "gateway_bypassed")
        assert (event.run_id, event.severity) == (bounded.id, "high")
        assert f"'opencode' runs in it, it has a connection to {address}" in event.message
        found = ended(client, bounded.id)
        assert found.status is Status.FAILED
        assert found.reason is not None
        assert found.reason.message.startswith(event.message)


def test_an_unbounded_run_goes_on_and_nothing_enforces_its_limits(
    gated: Daemon, provider: Provider, tmp_path: Path
) -> None:
    address, agent = provider.url.removeprefix("http://"), program(tmp_path, "opencode")
    with gated.client() as client:
        # these were looked at as often when the other one is told
        elsewhere = connecting(client, agent, f"localhost:{gated_port(gated)}")
        no_agent = connecting(client, program(tmp_path, "something"), address)
        asked = connecting(client, agent, address, gateway=False)
        found = connecting(client, agent, address)
        assert until_event(client, "gateway_bypassed").run_id == found.id
        assert state(info(client, found.id), "cost")[2] == "nothing"
        assert state(info(client, asked.id), "cost")[2] == "nothing"
        assert [state(info(client, each.id), "cost")[2] for each in (elsewhere, no_agent)] == [
            "ready",
            "ready",
        ]
        stopped(client, found.id, asked.id, elsewhere.id, no_agent.id)


def gated_port(daemon: Daemon) -> int:
    """Return the gateway's port."""
    return int(
        (daemon.state_dir / "gateway.json").read_text().partition('"port": ')[2].partition(",")[0]
    )


OWN = """
import json, sys
usage = {"type": "usage", "model": "claude-sonnet-4-5", "output_tokens": 10}
for tokens in map(int, sys.argv[1:]):
    print(json.dumps(usage | {"input_tokens": tokens}), flush=True)
"""
"""An agent of one's own, which tells its use for `--meter jsonl`."""
REPORTS = ["report", "--model", "claude-sonnet-4-5", "--input-tokens", "60k"]


@pytest.mark.parametrize("action", ["terminate", "pause"])
@pytest.mark.parametrize("meter", ["jsonl", "report"])
def test_an_agent_that_meters_itself_is_not_around_the_gateway(
    gated: Daemon, meter: str, action: str
) -> None:
    agent = [sys.executable, "-c", OWN, "60000", "60000"]
    if meter == "report":
        agent = [sys.executable, "-m", "sfactl", *REPORTS]
    words = ["run", "--meter", meter, "--limit", f"cost=0.50:{action}"]
    done = gated.sfactl(*words, "--", *agent)
    assert (done.returncode, "around the gateway" in done.stderr) == (0, False), done.stderr
    # below a script that a person has bounded
    below = [sys.executable, "-m", "sfactl", "run", "--name", "b", "--meter", meter]
    below += ["--", *agent]
    done = gated.sfactl("run", "--limit", f"cost=0.50:{action}", "--", *below)
    assert (done.returncode, "around the gateway" in done.stderr) == (0, False), done.stderr


def test_the_gateway_keeps_no_limit_of_a_role(gated: Daemon) -> None:
    refused = gated.sfactl("run", "--limit", "planning_cost=0.10", "--", "true")
    assert refused.returncode == ExitCode.REFUSED
    assert "nothing would enforce its planning_cost limit of 0.10 USD" in refused.stderr
    with gated.client() as client:
        for meter, action, enforced in (("report", None, "meter"), (None, "warn", "nothing")):
            found = spawn(
                client, ["sleep", "60"], limits=[limit("planning_cost", 1, action)], meter=meter
            )
            assert isinstance(found, m.RunReply), found
            assert state(found.run, "planning_cost")[2] == enforced
            changed = gated.sfactl("limit", found.run.id, "execution_cost=0.50")
            assert (changed.returncode == 0) is (meter == "report"), changed.stderr
            assert meter == "report" or "nothing would enforce the execution_cost" in changed.stderr
            warned = gated.sfactl("limit", found.run.id, "execution_cost=0.60:warn")
            assert warned.returncode == 0, warned.stderr
            stopped(client, found.run.id)
    report = [sys.executable, "-m", "sfactl", *REPORTS, "--role", "planning"]
    kept = gated.sfactl(
        "run", "--meter", "report", "--limit", "planning_cost=0.10", "--",
        "sh", "-c", '"$@"; sleep 60', "sh", *report,
    )  # fmt: skip
    assert kept.returncode == ExitCode.LIMIT
    assert "its planning_cost limit is 0.10 USD" in kept.stderr


def test_the_limit_of_an_agent_that_meters_itself_is_kept(gated: Daemon) -> None:
    agent = [sys.executable, "-c", OWN + "import time; time.sleep(60)", "60000", "120000"]
    done = gated.sfactl("run", "--meter", "jsonl", "--limit", "cost=0.50", "--", *agent)
    assert done.returncode == 4
    assert "used 0.5403 USD; its cost limit is 0.50" in done.stderr
    assert "around the gateway" not in done.stderr


@pytest.mark.parametrize("action", ["terminate", "warn"])
def test_session_files_of_agent_programs_that_a_script_calls_past_the_gateway_count_for_its_run(
    gated: Daemon, tmp_path: Path, action: str
) -> None:
    agent, go, again = (tmp_path / name for name in ("claude", "go", "again"))
    agent.write_text(SESSION.format(python=sys.executable))
    agent.chmod(0o755)
    own = [
        key + b"=" + value
        for key, value in os.environb.items()
        if key not in {b"HOME", b"CLAUDE_CONFIG_DIR"}
    ]
    env = [*own, b"HOME=" + bytes(tmp_path)]
    work = bytes(tmp_path / "work")
    os.mkdir(work)
    script = f"{agent} 1 {go} & {agent} 2 {go} & wait; {agent} 4 {again}; sleep 60"
    with gated.client() as client:
        reply = spawn(
            client, ["sh", "-c", script], watch=True, env=env, cwd=work,
            limits=[limit("cost", 5, action)], meter=None
        )  # fmt: skip
        assert isinstance(reply, m.RunReply), reply
        run = reply.run.id
        wait_until(lambda: info(client, run).unadmitted == 2, "both are noticed")
        go.touch()
        event = until_event(client, "gateway_bypassed")
        assert "its session file tells of" in event.message
        if action == "terminate":
            assert ended(client, run).status is Status.FAILED
            return
        # an unnoticed program would leave a third session, which may belong to another run
        wait_until(lambda: info(client, run).unadmitted == 3, "the third is noticed")
        again.touch()
        wait_until(lambda: session_tokens(client, run) == 7007, "all three are added, each once")
        found = info(client, run)
        assert (state(found, "cost")[2], found.usage.source) == ("meter", "session")
        assert found.usage.cost_usd == pytest.approx(7 * (1000 * 3e-6 + 15e-6))
        stopped(client, run)
        assert session_tokens(client, run) == 7007


def session_tokens(client: Client, run: str) -> int | None:
    """Return the tokens that session files tell of a run."""
    told = info(client, run).usage_by_source.get("session")
    return told.tokens if told is not None else None

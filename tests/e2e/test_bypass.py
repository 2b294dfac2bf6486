"""Real programs that call their model past the gateway, and what the kernel tells of them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfactl.exits import ExitCode
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, ended, serve_in_thread, spawn, stopped, wait_until
from tests.tiers import first

from .agents import info, limit, state, until_event
from .provider import Provider
from .test_gateway import config

PROGRAM = """#!{python} -S
import os, socket, sys, time
host, _, port = sys.argv[-1].rpartition(":")
connection = socket.create_connection((host, int(port)))
for size in map(int, sys.argv[1:-1]):
    connection.sendall(b"%12d" % size + b"x" * size)
    connection.recv(1 << 16)
time.sleep(60)
"""
"""Connects to the address in its last word, and sends requests of the sizes in the others."""


class Api(StreamRequestHandler):
    """Answers each request at once, and keeps the connection."""

    def handle(self) -> None:
        while size := self.rfile.read(12):
            self.rfile.read(int(size))
            self.wfile.write(b"." * 300)


@pytest.fixture
def api() -> Iterator[str]:
    """Yield the address of a model's API, which has other things, too."""
    server = ThreadingTCPServer(("127.0.0.1", 0), Api)
    with serve_in_thread(server):
        yield f"127.0.0.1:{server.server_address[1]}"


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
    """Make a program of this name."""
    file = directory / name
    file.write_text(PROGRAM.format(python=sys.executable))
    file.chmod(0o755)
    return file


CALL, PACKAGES, TELEMETRY = ["30000"], ["400"] * 30, ["30000", "200", "9000"]


def connecting(
    client: Client, file: Path, address: str, requests: list[str], **options: Any
) -> RunInfo:
    """Start a script that calls the program by its path, as a shell tool may: no shim sees it."""
    script = f"{shlex.join([str(file), *requests, address])} & wait"
    reply = spawn(client, ["sh", "-c", script], watch=True, **options)
    assert isinstance(reply, m.RunReply), reply
    return reply.run


@pytest.fixture
def shared_host(share: Start, api: str, containment: str) -> Daemon:
    """A daemon whose gateway leads to the API."""
    upstream = f'[gateway.upstreams.openai]\nurl = "http://{api}"\napi = "openai-chat"\n'
    return share(config=upstream, mode=containment)


@first(1)
@pytest.mark.parametrize("name", ["opencode", "something"])
def test_a_call_to_a_models_api_is_told_and_ends_a_run_that_a_person_has_bounded(
    shared_host: Daemon, api: str, tmp_path: Path, name: str
) -> None:
    with shared_host.client() as client:
        bounded = connecting(
            client, program(tmp_path, name), api, CALL, limits=[limit("cost", 0.5)]
        )
        assert state(bounded, "cost")[2] == "ready"
        event = until_event(client, "gateway_bypassed")
        assert (event.run_id, event.severity) == (bounded.id, "high")
        assert f"it has a connection to {api}, on which 29.3 KiB were sent" in event.message
        assert event.message.count("'opencode' runs in it") == (name == "opencode")
        found = ended(client, bounded.id)
        assert found.status is Status.FAILED
        assert found.reason is not None
        assert found.reason.message.startswith(event.message)


def test_other_traffic_to_the_host_of_a_model_is_no_call(
    shared_host: Daemon, api: str, tmp_path: Path
) -> None:
    bounded = {"limits": [limit("cost", 0.5)]}
    with shared_host.client() as client:
        # these were looked at as often when the last one is told
        opencode = program(tmp_path, "opencode")
        idle = connecting(client, opencode, api, [], **bounded)
        packages = connecting(client, opencode, api, PACKAGES, **bounded)
        telemetry = connecting(client, program(tmp_path, "claude"), api, TELEMETRY, **bounded)
        elsewhere = connecting(client, opencode, f"localhost:{gated_port(shared_host)}", [])
        asked = connecting(client, opencode, api, CALL, gateway=False)
        quiet = [idle.id, packages.id, telemetry.id, elsewhere.id]
        found = connecting(client, opencode, api, CALL)
        assert until_event(client, "gateway_bypassed").run_id == found.id
        assert state(info(client, found.id), "cost")[2] == "nothing", "it goes on"
        assert state(info(client, asked.id), "cost")[2] == "nothing"
        assert {state(info(client, each), "cost")[2] for each in quiet} == {"ready"}
        stopped(client, found.id, asked.id, *quiet)


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


@first(1)
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


@first(1)
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


@pytest.fixture
def own_home(tmp_path: Path) -> Path:
    """Return a home directory with a Claude Code in it, in which sessions are saved."""
    agent = tmp_path / "claude"
    agent.write_text(SESSION.format(python=sys.executable))
    agent.chmod(0o755)
    (tmp_path / "work").mkdir()
    return tmp_path


@first(1)
@pytest.mark.parametrize("how", ["exec {}", "exec timeout 300 {}", "{}; true"])
@pytest.mark.parametrize("address", ["", "ANTHROPIC_BASE_URL=https://api.anthropic.com"])
def test_a_program_with_another_address_than_the_gateways_is_seen_by_its_first_call(
    share: Start, provider: Provider, own_home: Path, how: str, address: str, containment: str
) -> None:
    """The main process, too; the gateway sees other calls of the run, or none."""
    daemon = share(config=config(provider), mode=containment)
    go, rest = own_home / "go", own_home / "rest"
    kept = ["env", "-i", f"HOME={own_home}", "PATH=/usr/bin:/bin", *address.split()]
    command = shlex.join([*kept, str(own_home / "claude"), "1", str(rest)])
    script = f"until test -e {go}; do sleep 0.05; done; {how.format(command)}"
    with daemon.client() as client:
        reply = spawn(
            client, ["sh", "-c", script], watch=True, cwd=bytes(own_home / "work"),
            limits=[limit("cost", 5)], meter=None,
        )  # fmt: skip
        assert isinstance(reply, m.RunReply), reply
        go.touch()
        event = until_event(client, "gateway_bypassed")
        assert "its session file tells of 1001 tokens, and the gateway saw none" in event.message
        found = ended(client, reply.run.id)
    assert found.status is Status.FAILED
    assert (found.usage.tokens, found.usage.partial) == (1001, True)
    assert found.usage_by_source["around"].tokens == 1001
    assert state(found, "cost")[2] == "meter"


def session_tokens(client: Client, run: str) -> int | None:
    """Return the tokens that session files tell of a run."""
    told = info(client, run).usage_by_source.get("session")
    return told.tokens if told is not None else None

"""What a run gets without asking: the gateway, and shims of the agent programs that it finds in its
PATH."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import LimitKind, RunInfo, Status
from tests.conftest import Start
from tests.harness import PYTHON, Daemon, alive, ended, spawn
from tests.template import run_forked
from tests.tiers import first, variant

from .provider import Provider
from .test_gateway import CALLER, calling, config, gateway, results

FAKE = """#!{python} -S
import json, os, subprocess, sys
own = {{key: os.environ.get(key) for key in (
    "SFA_NAME", "SFA_DEPTH", "SFA_CALL_CHAIN", "OPENAI_BASE_URL", "BASH_ENV", "THEIRS")}}
print(json.dumps(own | {{"argv": sys.argv[1:], "first": sys.argv[0]}}), flush=True)
if sys.argv[1:2] == ["again"]:
    again = ["again"] if len(sys.argv) > 2 else []
    words = [os.path.basename(sys.argv[0]), *again, *sys.argv[3:]]
    sys.exit(subprocess.run(words).returncode)
if sys.argv[-1:] == ["call"]:
    os.execv({python!r}, [{python!r}, {caller!r}, json.dumps({{"output": 100}})])
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with programs called claude and codex."""
    directory = tmp_path / "programs"
    directory.mkdir()
    for name in ("claude", "codex"):
        file = directory / name
        file.write_text(FAKE.format(python=sys.executable, caller=CALLER))
        file.chmod(0o755)
    return directory


@pytest.fixture
def daemon(share: Start, provider: Provider, containment: str) -> Daemon:
    return share(config=auto(provider), mode=containment)


@pytest.fixture
def fresh(start: Start, provider: Provider, containment: str) -> Daemon:
    """A daemon that has started neither a gateway nor a run."""
    return start(config=auto(provider), mode=containment)


def auto(provider: Provider) -> str:
    """Return a config that says nothing of whether the gateway is enabled."""
    return config(provider).replace("enabled = true\n", "")


def run(
    daemon: Daemon, programs: Path, *words: str, **env: str
) -> subprocess.CompletedProcess[str]:
    path = f"{programs}:/usr/local/bin:/usr/bin:/bin"
    environment = daemon.env | {"PATH": path, "PYTHONPATH": str(Path.cwd()), **env}
    return run_forked("sfactl", ["run", "-q", *words], environment, timeout=60)


def said(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return what the programs have printed."""
    assert done.returncode == 0, (done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if "first" in line]


def test_a_shimmed_program_gives_the_script_the_profile(daemon: Daemon, programs: Path) -> None:
    """The script and the child run have the room of the profile, though the script's command is no
    agent program."""
    assert (
        len(said(run(daemon, programs, "--name", "night", "--", "sh", "-c", "claude; true"))) == 1
    )
    with daemon.client() as client:
        root, child = (
            client.call(m.Info(id=client.next_id(), run=name), m.RunReply).run
            for name in ("night", "claude")
        )
    assert child.parent_id == root.id
    limits = {limit.kind: limit.threshold for limit in root.limits}
    assert [limits[LimitKind(kind)] for kind in ("time", "turns", "cost")] == [1800, 100, 5]
    assert {limit.kind: limit.threshold for limit in child.limits}[LimitKind.TURNS] == 100


def spawned(client: Client, *words: str) -> str:
    reply = spawn(client, list(words))
    assert isinstance(reply, m.RunReply), reply
    return reply.run.id


def children(daemon: Daemon) -> list[RunInfo]:
    with daemon.client() as client:
        found = json.loads(daemon.sfactl("list", "--json").stdout)["runs"]
        return [ended(client, each["id"]) for each in found if each["parent_id"] is not None]


# ---- the gateway


def test_the_gateway_starts_with_the_first_call_and_not_before(
    fresh: Daemon, provider: Provider
) -> None:
    with fresh.client() as client:
        assert ended(client, spawned(client, "true")).status is Status.COMPLETED
        status = json.loads(fresh.sfactl("status", "--json").stdout)
        assert status["gateway_pid"] is None
        found = ended(client, calling(client, output=100).id)
        assert (found.status, found.usage.source) == (Status.COMPLETED, "gateway")
        assert found.total_cost_usd == pytest.approx(provider.usd)
        pid, _ = gateway(fresh)
        assert alive(pid)


@variant
def test_a_run_keeps_its_way_to_the_gateway_over_a_crash_of_the_daemon_that_had_started_none(
    fresh: Daemon, provider: Provider, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = (
        f"until [ -e {go} ]; do sleep 0.05; done; "
        f"exec {PYTHON} '{CALLER}' {shlex.quote(json.dumps({'output': 100}))}"
    )
    with fresh.client() as client:
        found = spawned(client, "sh", "-c", script)
    fresh.kill()
    fresh.restart()
    go.touch()
    with fresh.client() as client:
        assert ended(client, found).status is Status.COMPLETED
    assert len(provider.bills) == 1


# ---- shims


def test_what_a_script_starts_by_name_is_a_child_run(
    fresh: Daemon, programs: Path, provider: Provider
) -> None:
    (first,) = said(run(fresh, programs, "--limit", "cost=1", "--", "sh", "-c", "claude -p call"))
    assert (first["SFA_NAME"], first["SFA_DEPTH"], first["argv"]) == ("claude", "1", ["-p", "call"])
    (child,) = children(fresh)
    assert child.usage.cost_usd == pytest.approx(provider.usd)
    kinds = {state.kind.value for state in child.limits}
    assert "cost" not in kinds, "the limit of the run above is enough"
    assert "time" not in kinds


def test_a_program_that_starts_itself_by_an_automatic_shim_is_no_loop_but_bounded(
    daemon: Daemon, programs: Path
) -> None:
    found = said(run(daemon, programs, "--", "sh", "-c", "claude again"))
    assert [each["SFA_CALL_CHAIN"].split(",")[1:] for each in found] == [[], ["claude"]]
    deep = run(
        daemon, programs, "--", "sh", "-c", "claude again 1 again 1 again 1 again 1 again 1 again"
    )
    assert deep.returncode == 1
    assert "already 5 deep" in deep.stderr, deep.stderr
    named = run(
        daemon, programs, "--name", "claude", "--", "sh", "-c", "SFA_CHILD_NAME=claude claude"
    )
    assert (named.returncode, "call itself in a circle" in named.stderr) == (1, True)


@variant
def test_a_strict_guard_takes_automatic_children_for_loops(
    start: Start, provider: Provider, programs: Path
) -> None:
    daemon = start(config=auto(provider) + '[guard]\nunnamed = "loop"\n')
    refused = run(daemon, programs, "--", "sh", "-c", "claude again")
    assert (refused.returncode, "call itself in a circle (claude → claude)" in refused.stderr) == (
        1,
        True,
    ), refused.stderr


@first(1)
@pytest.mark.parametrize(
    "command", [["codex", "exec"], ["timeout", "9", "codex", "exec"], ["sh", "-c", "codex exec"]]
)
def test_codex_is_led_to_the_gateway_however_it_is_started(
    daemon: Daemon, programs: Path, command: list[str]
) -> None:
    (found,) = said(run(daemon, programs, "--", *command))
    assert found["argv"] == ["-c", f'openai_base_url="{found["OPENAI_BASE_URL"]}"', "exec"]
    assert found["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")


@variant
def test_a_login_shell_that_sets_path_again_still_finds_the_shims(
    fresh: Daemon, programs: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "their bash env"
    theirs.write_text("export THEIRS=seen\n")
    (tmp_path / ".bash_profile").write_text(f'export PATH="{programs}:/usr/bin:/bin"\n')
    home = {"HOME": str(tmp_path), "BASH_ENV": "$HOME/their bash env"}
    (found,) = said(run(fresh, programs, "--", "bash", "-lc", "claude", **home))
    assert (found["SFA_DEPTH"], found["THEIRS"]) == ("1", "seen")
    assert len(children(fresh)) == 1


def test_programs_that_are_not_installed_have_no_shims(daemon: Daemon, programs: Path) -> None:
    done = run(
        daemon,
        programs,
        "--",
        "sh",
        "-c",
        "command -v claude; command -v gemini; command -v aider; echo $PATH",
    )
    shim, path = done.stdout.splitlines()
    assert shim.endswith("/claude,codex/shims/claude")
    assert path.startswith(os.path.dirname(shim) + ":" + str(programs))
    without = run(
        daemon,
        programs,
        "--no-gateway",
        "--",
        "sh",
        "-c",
        "command -v claude; echo ${OPENAI_BASE_URL-none}",
    )
    assert without.stdout.splitlines() == [str(programs / "claude"), "none"]


def test_an_argument_that_names_a_descriptor_of_the_caller_reaches_the_program(
    daemon: Daemon, programs: Path
) -> None:
    (found,) = said(run(daemon, programs, "--", "bash", "-c", "claude --mcp-config <(echo)"))
    assert found["SFA_DEPTH"] == "0"


def test_results_of_calls_are_seen(daemon: Daemon) -> None:
    with daemon.client() as client:
        found = calling(client, output=10)
        ended(client, found.id)
        assert [each["status"] for each in results(daemon, found.id)] == [200]


# ---- Gemini CLI whose settings do not choose its key


@pytest.fixture
def gemini(programs: Path) -> Path:
    """Put a gemini beside the programs, which prints its variables."""
    file = programs / "gemini"
    file.write_text("#!/bin/sh\nenv\n")
    file.chmod(0o755)
    return programs


@first(1)
@pytest.mark.parametrize("own", ["", "--max-old-space-size=999"])
@pytest.mark.parametrize("command", [["gemini", "-p", "hi"], ["sh", "-c", "gemini -p hi"]])
def test_nodejs_executes_what_leads_gemini_after_a_persons_own_options(
    daemon: Daemon, gemini: Path, tmp_path: Path, own: str, command: list[str]
) -> None:
    person = {"HOME": str(tmp_path), "NODE_OPTIONS": own, "GEMINI_API_KEY": "k"}
    done = run(daemon, gemini, "--limit", "cost=1", "--", *command, **person)
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    before, _, module = found["NODE_OPTIONS"].rpartition("--import=")
    assert (done.returncode, before.strip()) == (0, own), done.stderr
    assert module.startswith("data:text/javascript,")
    assert found["GOOGLE_GEMINI_BASE_URL"] in module


@first(1)
@pytest.mark.parametrize(
    "command", [["gemini", "hi"], ["--", "gemini", "-p", "hi"], ["--", "sh", "-c", "gemini -p hi"]]
)
def test_gemini_that_cannot_be_led_is_refused_below_a_typed_limit_and_told_of_elsewhere(
    daemon: Daemon, gemini: Path, tmp_path: Path, command: list[str]
) -> None:
    person = {"HOME": str(tmp_path), "GEMINI_API_KEY": "k", "GOOGLE_GENAI_USE_GCA": "true"}
    refused = run(daemon, gemini, "--limit", "cost=1", *command, **person)
    assert refused.returncode == 1
    assert "nothing would enforce" in refused.stderr
    assert (
        "set security.auth.selectedType to gemini-api-key in ~/.gemini/settings.json"
        in refused.stderr
    )
    assert "Start it with --gateway" not in refused.stderr, "it cannot"
    person["SFA_QUIET"] = "0"
    env = daemon.env | {"PATH": f"{gemini}:/usr/bin:/bin", "PYTHONPATH": str(Path.cwd()), **person}
    told = run_forked("sfactl", ["run", *command], env, timeout=60)
    assert told.returncode == 0, told.stderr
    assert told.stderr.count("goes without the gateway") == 1, told.stderr

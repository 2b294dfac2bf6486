"""Verbs that agents call in a loop start fast, because they import little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from sfad.protocol import shim_files

from .conftest import PATIENCE, World

SLOW = {"trio", "typer", "rich", "argparse", "subprocess", "asyncio", "json", "sfad.core", "sfad.daemon.server"}
SCRIPT = Path(__file__).parents[2] / "bin" / "sfactl"

CLIENT = """
_datetime _socket _struct errno select struct __future__
sfad sfad.protocol sfad.protocol.framing sfad.protocol.inherited sfad.protocol.light sfad.protocol.light_msgpack
sfad.protocol.places sfad.protocol.requests sfad.protocol.requests.base sfad.protocol.structs sfad.protocol.types
sfad.protocol.units sfad.protocol.wire
sfactl sfactl.connection sfactl.entry sfactl.exits sfactl.inside sfactl.options sfactl.output sfactl.trust
"""
"""What each verb needs that speaks to the daemon."""
VERB = f"{CLIENT} sfactl.__main__ sfactl.commands sfactl.verbs"
USE = f"{VERB} sfad.protocol.requests.use sfactl.usage_options"
SPAWN = "sfad.protocol.known sfad.protocol.requests.starting sfactl.environment sfactl.spawn_options"
WATCHING = {"_ctypes", "ctypes", "ctypes._endian", "types"}
"""What a run needs in addition if it takes longer than `follower.SOON`."""
FOREGROUND = """
sfad.protocol.requests.following sfad.protocol.requests.listing sfad.protocol.requests.steering
sfactl.foreground sfactl.in_flight sfactl.progress
"""
RUN = f"{VERB} {SPAWN} sfactl.autostart sfactl.commands.spawn sfactl.commands.run {FOREGROUND} sfactl.follower"
JSON = "sfad.protocol.light_json"

MODULES = {
    "spawn -- true": f"{VERB} {SPAWN} sfactl.autostart sfactl.commands.spawn",
    "spawn --json -- true": f"{VERB} {SPAWN} sfactl.autostart sfactl.commands.spawn {JSON}",
    "run -q -- true": RUN,
    # and its limits, for people, while it starts
    "run -- true": f"{RUN} sfad.protocol.kinds sfad.protocol.limits sfactl.limits itertools math",
    "report RUN --turns 1": f"{USE} sfactl.commands.report",
    "report RUN --turns 1 --json": f"{USE} sfactl.commands.report {JSON}",
    "reserve --model m --input-tokens 1 --max-output-tokens 1 RUN": f"{USE} sfactl.commands.reserve",
    "list": f"{VERB} sfad.protocol.requests.listing sfad.protocol.requests.steering sfad.protocol.known sfactl.history "
    "sfactl.selection sfactl.table sfactl.commands.list pwd",
    "list --json": f"{VERB} sfad.protocol.requests.listing sfad.protocol.requests.steering sfactl.history sfactl.selection "
    f"sfactl.table sfactl.commands.list {JSON}",
}
"""All modules that a verb imports, beyond those of a bare interpreter. One more costs 2 to 100 percent of Python's own start."""

SERVER = f"""
{VERB} _json sfad.protocol.kinds sfad.protocol.requests.daemon sfad.protocol.requests.plans
sfad.protocol.requests.sessions sfactl.commands.mcp
sfactl.mcp sfactl.mcp.eras sfactl.mcp.json_rpc sfactl.mcp.server sfactl.mcp.tools
"""
"""What the MCP server imports until it has told its client the tools."""

SHIM_OUTSIDE = """
_datetime _struct errno struct __future__
sfad sfad.protocol sfad.protocol.framing sfad.protocol.inherited sfad.protocol.light sfad.protocol.light_msgpack
sfactl sfactl.entry sfactl.exits sfactl.inside sfactl.real_program sfactl.shim sfad.protocol.shim_files resource
"""
SHIM_INSIDE = f"{CLIENT} {SPAWN} {FOREGROUND} {SHIM_OUTSIDE} sfactl.shimmed_run"


def modules(stderr: str) -> set[str]:
    """Return the modules that `-X importtime` has printed."""
    return {line.rpartition("|")[2].strip() for line in stderr.splitlines() if line.startswith("import time:")} - {
        "imported package"
    }


@cache
def of_a_bare_interpreter(*flags: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, *flags, "-X", "importtime", "-c", "import os"], capture_output=True, text=True, check=True
    )
    return modules(done.stderr)


@pytest.fixture(scope="module")
def live(shared: World) -> str:
    """A live run of the daemon that the tests of this module share."""
    return shared.spawn("--", "sleep", "1000")


@pytest.mark.parametrize("line", MODULES)
def test_a_hot_verb_imports_these_modules_and_no_other(shared: World, live: str, line: str) -> None:
    words = [live if word == "RUN" else word for word in line.split()]
    command = [sys.executable, "-X", "importtime", str(SCRIPT), *words]
    done = subprocess.run(command, env=shared.env, capture_output=True, text=True, timeout=PATIENCE, check=True)
    found = modules(done.stderr) - of_a_bare_interpreter()
    assert found - (WATCHING if words[0] == "run" else set()) == set(MODULES[line].split())


def test_a_shim_imports_these_modules_and_no_other(shared: World, tmp_path: Path) -> None:
    shim, real = tmp_path / "shims" / "claude", tmp_path / "bin" / "claude"
    for file, text in ((shim, shim_files.text("claude")), (real, b"#!/bin/sh\n")):
        file.parent.mkdir()
        file.write_bytes(text)
        file.chmod(0o755)
    path = f"{shim.parent}:{real.parent}:{os.environ['PATH']}"
    command = [sys.executable, "-IS", "-X", "importtime", str(shim), "x"]
    bare = of_a_bare_interpreter("-IS")
    outside = subprocess.run(command, env=shared.env | {"PATH": path}, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert modules(outside.stderr) - bare == set(SHIM_OUTSIDE.split())
    inside = shared.sfactl("run", "-q", "--env", f"PATH={path}", "--", *command).stderr
    assert modules(inside) - bare == set(SHIM_INSIDE.split())


def test_the_mcp_server_imports_these_modules_and_no_other(shared: World) -> None:
    """Each agent program starts one, and asks for the tools at once."""
    command = [sys.executable, "-X", "importtime", str(SCRIPT), "mcp"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=shared.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for method, params in (
            ("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}),
            ("tools/list", {}),
        ):
            print(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}), file=server.stdin)
            assert "result" in json.loads(server.stdout.readline())
        _, stderr = server.communicate(timeout=PATIENCE)
    assert modules(stderr) - of_a_bare_interpreter() == set(SERVER.split()) - {"sfactl.output"}


COMPLETION = f"{CLIENT} sfactl.__main__ sfactl.commands sfactl.verbs sfactl.completing itertools"
COMPLETED = {
    "sfactl st": "__future__ _datetime _struct errno itertools struct sfactl sfactl.__main__ sfactl.completing sfactl.entry "
    "sfactl.exits sfactl.options sfactl.verbs sfad sfad.protocol sfad.protocol.framing sfad.protocol.inherited "
    "sfad.protocol.light sfad.protocol.light_msgpack sfad.protocol.structs sfad.protocol.units",
    "sfactl stop a": f"{COMPLETION} sfad.protocol.known sfad.protocol.requests.daemon sfad.protocol.requests.listing "
    "sfad.protocol.requests.plans sfad.protocol.requests.steering sfactl.commands.stop sfactl.selection sfactl.shell_completion",
}


@pytest.mark.parametrize("line", COMPLETED)
def test_completion_imports_these_modules_and_no_other(shared: World, live: str, line: str) -> None:
    typed = {"_SFACTL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    command = [sys.executable, "-X", "importtime", str(SCRIPT)]
    done = subprocess.run(command, env=shared.env | typed, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert live in done.stdout or "stop" in done.stdout
    assert modules(done.stderr) - of_a_bare_interpreter() == set(COMPLETED[line].split())


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(SCRIPT), *arguments],
        env={**os.environ, "SFAD_AUTOSTART": "0", "PYTHONPATH": str(SCRIPT.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    return modules(done.stderr)


@pytest.mark.parametrize(
    "line",
    [
        ["wait", "a1", "--socket", "/nonexistent"],
        ["stop", "a1", "--socket", "/nonexistent"],
        ["info", "a1", "--socket", "/nonexistent"],
        ["logs", "a1", "--socket", "/nonexistent"],
        ["settle", "a1-1", "--input-tokens", "2", "--output-tokens", "3", "--socket", "/nonexistent"],
    ],
)
def test_other_verbs_import_nothing_slow(line: list[str]) -> None:
    found = imported(*line)
    assert "sfactl.connection" in found, "the line must have been carried out as far as the connection"
    assert not found & {*SLOW, "msgspec", "sfactl.client", "sfad.protocol.messages"}


def test_the_public_client_is_light() -> None:
    script = "import sys, sfactl.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {*SLOW, "sfactl.limits", "sfactl.typer_app", "sfad.protocol.limits"}


def test_the_client_imports_nothing_of_the_daemon_but_the_protocol() -> None:
    script = (
        "import sys, pkgutil, importlib, sfactl\n"
        "for found in pkgutil.walk_packages(sfactl.__path__, 'sfactl.'):\n"
        "    found.name.startswith('sfactl.web.') or found.name.endswith('__main__') or importlib.import_module(found.name)\n"
        "print(*(name for name in sys.modules if name.startswith(('sfad.', 'trio'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    isolation = ("sfad.processes.isolation.sandbox", "sfad.processes.isolation.kernel")
    allowed = ("sfad.protocol", "sfad.host.probe", "sfad.host.process_events", "sfad.shipping", "sfad.worktrees", *isolation)
    packages = ["sfad.host", "sfad.processes", "sfad.processes.isolation"]
    assert [name for name in done.stdout.split() if not name.startswith(allowed)] == packages

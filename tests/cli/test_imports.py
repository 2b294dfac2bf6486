"""Verbs import nothing slow before they speak to the daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sfad.features.listed import NAMES
from sfad.features.shims import files
from tests.tiers import sampled

from .conftest import PATIENCE, World

SLOW = {
    "asyncio", "genai_prices", "h11", "http", "httpx2", "psutil", "pydantic", "requests", "rich",
    "ssl", "textual", "trio",
    # of sfad: what is the daemon's, and every message, where a verb needs two
    "sfad.agents", "sfad.core", "sfad.daemon", "sfad.features.gateway.program", "sfad.storage",
    "sfad.protocol.messages",
}  # fmt: skip
SCRIPT = Path(sys.prefix, "bin", "sfactl")
PIPE = subprocess.PIPE


def modules(stderr: str) -> set[str]:
    """Return the modules that `-X importtime` has printed."""
    return {
        line.rpartition("|")[2].strip()
        for line in stderr.splitlines()
        if line.startswith("import time:")
    } - {"imported package"}


@pytest.fixture(scope="module")
def live(shared: World) -> str:
    """A live run of the daemon that the tests of this module share."""
    return shared.spawn("--", "sleep", "1000")


def imported(
    *arguments: str, env: Mapping[str, str], python: Sequence[str] = (), script: Path = SCRIPT
) -> set[str]:
    """Return the modules that a command imports."""
    command = [sys.executable, *python, "-X", "importtime", str(script), *arguments]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return modules(done.stderr)


LINES = (
    "run -- true", "list --json", "report RUN --turns 1", "spawn -- true", "spawn --json -- true",
    "run -q -- true", "report RUN --turns 1 --json",
    "reserve --model m --input-tokens 1 --max-output-tokens 1 RUN", "list", "info RUN",
    "logs RUN", "status",
)  # fmt: skip


@pytest.mark.parametrize("line", sampled(LINES, keep=3))
def test_a_verb_imports_nothing_slow(shared: World, live: str, line: str) -> None:
    found = imported(*(live if word == "RUN" else word for word in line.split()), env=shared.env)
    assert "sfactl.connecting.connection" in found, (
        "the line must have been carried out as far as the connection"
    )
    assert not found & SLOW
    verb = line.split()[0]
    others = {"sfactl.commands.spawn"} if verb == "run" else set()
    assert {each for each in found if each.startswith("sfactl.commands.")} - {
        f"sfactl.commands.{verb}"
    } == others


@pytest.mark.parametrize(
    "line", sampled(["wait a1", "stop a1", "settle a1-1 --input-tokens 2 --output-tokens 3"])
)
def test_a_verb_imports_nothing_slow_where_no_daemon_is(line: str) -> None:
    found = imported(
        *line.split(), "--socket", "/nonexistent", env=os.environ | {"SFAD_AUTOSTART": "0"}
    )
    assert "sfactl.connecting.connection" in found
    assert not found & SLOW


COLLECTIONS = """
import atexit, gc, sys
from sfactl.__main__ import main
seen = []
def note(phase, _info):
    if phase == "start":
        seen.append("sfactl.commands.config" in sys.modules)
gc.callbacks.append(note)
atexit.register(lambda: print(seen, gc.isenabled(), file=sys.stderr))
sys.argv = ["sfactl", "config", "schema"]
main()
"""


def test_a_call_collects_no_garbage_until_its_verb_begins() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECTIONS],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    # a verb may run for days, as `top` does, and needs them
    assert done.stderr == "[] True\n"


def test_a_shim_imports_nothing_slow(shared: World, tmp_path: Path) -> None:
    """Neither where it becomes the program, nor where it starts the program as a child run."""
    shim, real = tmp_path / "shims" / "claude", tmp_path / "bin" / "claude"
    for file, text in ((shim, files.text("claude")), (real, b"#!/bin/sh\n")):
        file.parent.mkdir()
        file.write_bytes(text)
        file.chmod(0o755)
    path = f"{shim.parent}:{real.parent}:{os.environ['PATH']}"
    outside = imported("x", env=shared.env | {"PATH": path}, python=["-IS"], script=shim)
    assert "sfactl.shims.real_program" in outside
    assert not outside & {*SLOW, "sfactl.connecting.connection"}
    command = [sys.executable, "-IS", "-X", "importtime", str(shim), "x"]
    inside = modules(shared.sfactl("run", "-q", "--env", f"PATH={path}", "--", *command).stderr)
    assert "sfactl.connecting.connection" in inside
    assert not inside & SLOW


def test_the_mcp_server_imports_nothing_slow(shared: World) -> None:
    """Each agent program starts one, and asks for the tools at once."""
    command = [sys.executable, "-X", "importtime", str(SCRIPT), "mcp"]
    with subprocess.Popen(
        command, env=shared.env, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, bufsize=1
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for method, params in (
            (
                "initialize",
                {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {},
                    "clientInfo": {"name": "test", "version": "1"},
                },
            ),
            ("tools/list", {}),
        ):
            print(
                json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}),
                file=server.stdin,
            )
            assert "result" in json.loads(server.stdout.readline())
        _, stderr = server.communicate(timeout=PATIENCE)
    assert "sfactl.mcp.tools" in modules(stderr)
    assert not modules(stderr) & SLOW


@pytest.mark.parametrize("shell", sampled(["bash", "zsh", "fish"]))
@pytest.mark.parametrize("line", ["sfactl st", "sfactl stop a"])
def test_completion_imports_nothing_slow(shared: World, live: str, line: str, shell: str) -> None:
    typed = {
        "_SFACTL_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    command = [sys.executable, "-X", "importtime", str(SCRIPT)]
    done = subprocess.run(
        command,
        env=shared.env | typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert live in done.stdout or "stop" in done.stdout
    assert not modules(done.stderr) & SLOW


def test_the_public_client_imports_nothing_slow() -> None:
    script = "import sys, sfactl.client; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & (SLOW | {"typer"}) - {"sfad.protocol.messages"}


def test_the_client_imports_nothing_of_the_daemon_but_the_protocol() -> None:
    script = (
        "import sys, pkgutil, importlib, "
        "sfactl\nfor found in pkgutil.walk_packages(sfactl.__path__, 'sfactl.'):\n "
        "   if not found.name.startswith(('sfactl.web.', 'sfactl.otel.', 'sfactl.api.awaited', "
        "'sfactl.api.streaming', 'sfactl.api.trio_agents')) and not "
        "found.name.endswith('__main__'):\n "
        "       importlib.import_module(found.name)\nprint(*(name for name in sys.modules "
        "if name.startswith(('sfad.', 'trio'))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    allowed = (
        "sfad.protocol",
        "sfad.host.probe",
        "sfad.host.linux.process_events",
        "sfad.features.fleet.files",
        "sfad.features.shims.files",
        "sfad.git",
        "sfad.features.worktrees",
    )
    packages = ["sfad.host", "sfad.host.linux", "sfad.features"]
    packages += [f"sfad.features.{name}{part}" for name in NAMES for part in ("", ".messages")]
    packages += ["sfad.features.terminals.screen", "sfad.features.terminals.recorded"]
    loaded = {name for name in done.stdout.split() if not name.startswith(allowed)}
    assert loaded <= set(packages)

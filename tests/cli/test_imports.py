"""Verbs that agents call in a loop start fast, because they import little."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SLOW = {"trio", "typer", "rich", "argparse", "subprocess", "asyncio", "json", "sfad.core", "sfad.server"}


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sfactl", *arguments],
        env={**os.environ, "SFAD_AUTOSTART": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize(
    "line",
    [
        ["spawn", "--socket", "/nonexistent", "--name", "a", "--", "true"],
        ["run", "--socket", "/nonexistent", "--", "true"],
        ["list", "--socket", "/nonexistent", "--json"],
        ["wait", "a1", "--socket", "/nonexistent"],
        ["stop", "a1", "--socket", "/nonexistent"],
        ["report", "--turns", "1", "--model", "m", "--input-tokens", "2k", "--socket", "/nonexistent"],
        ["reserve", "--model", "m", "--input-tokens", "2", "--max-output-tokens", "3", "--socket", "/nonexistent"],
        ["settle", "a1-1", "--input-tokens", "2", "--output-tokens", "3", "--socket", "/nonexistent"],
    ],
)
def test_hot_verbs_import_nothing_slow(line: list[str]) -> None:
    found = imported(*line)
    assert "sfactl.connection" in found, "the line must have been carried out as far as the connection"
    others = {name for name in found if name.startswith("sfactl.commands.")} - {"sfactl.commands.spawn"}
    assert others <= {f"sfactl.commands.{line[0]}"}
    assert not found & SLOW
    assert not found & {"sfactl.limits", "sfad.protocol.limits", "sfactl.client"}, "only for who needs it"


def test_the_public_client_is_light() -> None:
    script = "import sys, sfactl.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {*SLOW, "sfactl.limits", "sfactl.typer_app", "sfad.protocol.limits"}


def test_the_client_imports_nothing_of_the_daemon_but_the_protocol() -> None:
    script = (
        "import sys, pkgutil, importlib, sfactl\n"
        "for found in pkgutil.walk_packages(sfactl.__path__, 'sfactl.'):\n"
        "    found.name.endswith('__main__') or importlib.import_module(found.name)\n"
        "print(*(name for name in sys.modules if name.startswith(('sfad.', 'trio'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    allowed = ("sfad.protocol", "sfad.host.bubblewrap", "sfad.host.probe", "sfad.host.process_events")
    packages = ["sfad.host"]
    assert [name for name in done.stdout.split() if not name.startswith(allowed)] == packages

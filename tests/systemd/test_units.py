"""Unit files say only what `sfad` and systemd understand. How they behave is tried by hand in a booted systemd: start,
kill -9 of the daemon, reload and stop leave no process and no cgroup (docs/containment.md)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[2] / "systemd").rglob("*.service"))


def directives(unit: Path) -> dict[str, str]:
    """KEY=VALUE of every section; no key stands twice."""
    pairs = [line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")]
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: "-".join(unit.parts[-2:]))
def test_its_commands_are_sfads(unit: Path) -> None:
    lines = directives(unit)
    for key in ("ExecStart", "ExecStopPost"):
        env, program, *words = lines[key].split()
        assert (env, program) == ("/usr/bin/env", "sfad")
        done = subprocess.run([sys.executable, "-m", "sfad", *words, "--help"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    assert lines["Delegate"] == "yes"
    assert lines["Type"] == "notify"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: "-".join(unit.parts[-2:]))
def test_systemd_understands_it(unit: Path) -> None:
    scope = "--user" if unit.parent.name == "user" else "--system"
    done = subprocess.run(["systemd-analyze", scope, "verify", unit], capture_output=True, text=True, timeout=60)
    # it exits 0 on unknown keys, and complains about units of the machine that are not ours
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []

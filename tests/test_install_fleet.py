"""`sfad install --fleet`: what it writes, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sfad.features.fleet.ray import command

SFAD = [sys.executable, "-P", "-m", "sfad"]


def install(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    line = [*SFAD, "install", "--user", "--dry-run", *words]
    return subprocess.run(line, env=env, capture_output=True, text=True, check=False)


def test_the_command_of_a_head_and_of_a_node() -> None:
    head, other = command.arguments("head:7000", "n1"), command.arguments("n1:7000", "n2")
    assert {"--block", "--head", "--port=7000", "--labels=sfad-node=n1"} <= set(head)
    assert {"--block", "--address=n1:7000", "--labels=sfad-node=n2"} <= set(other)
    assert "/etc/sfad/fleet-token" in command.environment(Path("/etc/sfad/fleet-token")).values()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--node", "n1"], "--node needs --fleet"),
        (["--fleet", "n1", "--fleet", "elsewhere"], "HOST:PORT"),
        (["--fleet", ":6379"], "HOST:PORT"),
    ],
)
def test_what_is_no_place_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    done = install(tmp_path, *words)
    assert (done.returncode, said in done.stderr) == (2, True), done
    assert list(tmp_path.iterdir()) == []

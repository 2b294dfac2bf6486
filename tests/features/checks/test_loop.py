"""An agent goes on until its check passes: its session is continued with what the check has said,
within one limit of cost, across a SIGKILL of the daemon in the second check."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import World
from tests.cli.test_continue import COST, program, sessions
from tests.harness import PYTHON, wait_until

CONFIG = """
[gateway]
enabled = false
[attempts]
delay = 0.1
"""

CHECK = """
count=$(cat count 2>/dev/null || echo 0); count=$((count + 1)); echo $count > count
echo "test_$count of the parser"
test $count = 2 && read -r go < gate
test $count = 3
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    bin_, home = tmp_path / "bin", tmp_path / "home"
    bin_.mkdir()
    home.mkdir()
    stand_in = Path(__file__).parents[2] / "cli" / "fake_claude.py"
    program(bin_ / "claude", f'exec {PYTHON} "{stand_in}" "$@"')
    world = World(tmp_path, CONFIG)
    world.env |= {"HOME": str(home), "PATH": f"{bin_}{os.pathsep}{world.env['PATH']}"}
    world.begin()
    yield world
    world.stop_all()
    world.end()


def test_a_loop_of_an_agent_converges(world: World, tmp_path: Path) -> None:
    check, place = tmp_path / "check.sh", tmp_path / "place"
    check.write_text(CHECK)
    place.mkdir()
    os.mkfifo(place / "gate")
    words = ["--cwd", str(place), "--check", f"sh {check}", "--attempts", "5", "--resume"]
    run = world.spawn(*words, "--limit", "cost=1", "claude", "fix the parser")
    second = place / "count"
    wait_until(
        lambda: second.exists() and second.read_text() == "2\n", "the second check has begun"
    )
    wait_until(lambda: world.json("info", run)["activity"] == "check", "it is known")
    world.kill()
    world.begin()
    assert world.json("info", run)["activity"] == "check"
    (place / "gate").write_text("go\n")
    assert world.sfactl("wait", run).returncode == 0
    found = world.json("info", run)
    assert (found["status"], found["attempts"], found["exit_code"]) == ("completed", 3, 0)
    assert [(each["state"], each["exit_code"]) for each in found["checks"]] == [("passed", 0)]
    assert found["usage"]["cost_usd"] == pytest.approx(3 * COST), "the limit spans all attempts"
    assert len([*sessions(world)]) == 1, "one session is continued"
    said = world.sfactl("logs", run).stdout
    for number in (1, 2):
        told = next(line for line in said.splitlines() if f"test_{number} of the parser" in line)
        text = json.loads(told)["message"]["content"][0]["text"]
        assert text.startswith(f"heard: You ended, and then the check 'sh {check}' failed after ")
        assert "(exit code 1)" in text
        assert f"\ntest_{number} of the parser\n" in text
    assert "test_3" not in said
    assert f"checked: sh {check}, " in world.sfactl("why", run).stdout


def test_continue_tells_the_agent_what_failed(world: World) -> None:
    first = world.spawn("--check", "echo red; exit 1", "claude", "fix the parser")
    world.sfactl("wait", first, code=6)
    second = world.sfactl("continue", first, "--check", "true").stdout.strip()
    world.sfactl("wait", second)
    found = world.json("info", second)
    assert (found["status"], found["continues"]) == ("completed", first)
    assert [each["command"] for each in found["checks"]] == ["true"]
    assert "failed after" in found["task"]
    assert "\nred\n" in found["task"]

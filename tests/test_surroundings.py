"""No setting of the person who runs the tests changes a result, and a test that leaves its
directories is red."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import outside, straying, surroundings
from tests.outside import ROOT

SAMPLE = (
    "tests/cli/test_terminal.py::test_the_program_has_a_terminal_and_job_control",
    "tests/e2e/test_gateway.py::test_a_run_and_its_children_call_no_other_model",
    "tests/e2e/test_worktrees.py::test_six_at_once_change_nothing_of_the_checkout_and_each_diff_is_its_own",
    "tests/agents/test_setup_reader.py",
    "tests/processes/test_adoption.py::test_runs_that_tags_contained_get_a_cgroup",
)
"""What a shell, git, a network, settings of agents, and the variables of a run in which the tests
are have a part in."""


def ran(place: Path, *words: str, beside: str = "") -> subprocess.CompletedProcess[str]:
    """Run tests as a person with settings and variables of everything. `beside`: `outside.BESIDE`,
    if it is set."""
    script = 'eval "$(tests/nasty_home.sh "$1")"; shift; unset PYTHONOPTIMIZE; exec "$@"'
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "--color=no",
        "-p",
        "no:xdist",
        f"--basetemp={place}/t",
    ]
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    return subprocess.run(
        ["sh", "-c", script, "sh", place, *pytest, *words],
        cwd=ROOT,
        env=env | {outside.BESIDE: beside},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.rest("runs tests in a session of its own")
def test_settings_of_a_person_change_nothing_and_are_not_read(tmp_path: Path) -> None:
    done = ran(tmp_path, *SAMPLE, beside="1")
    assert done.returncode == 0, done.stdout
    assert "nothing: no process, no cgroup, no file" in done.stdout


@pytest.mark.rest("runs tests in a session of its own")
def test_what_is_read_or_written_outside_is_told(tmp_path: Path) -> None:
    done = ran(tmp_path, str(Path(straying.__file__).relative_to(ROOT)))
    home = tmp_path / "home"
    told = {line.removeprefix("E").strip() for line in done.stdout.splitlines()}
    assert {
        "open /nonexistent/opened",
        "os.mkdir /nonexistent/made",
        f"open {home}/.claude.json",
        f"left {tmp_path}/t/surroundings/home/in_home",
        f"touched {home}/.claude.json",
        f"touched {home}/.gitconfig",
    } <= told, done.stdout
    left = [line for line in told if line.startswith("file ")]
    assert [
        name in line for line, name in zip(sorted(left), ["sfad-left", "left_in_tmp"], strict=True)
    ] == [True, True]
    assert "4 errors" in done.stdout
    assert done.returncode == 1
    for line in left:
        Path(line.removeprefix("file ")).unlink(missing_ok=True)


def test_the_environment_is_built() -> None:
    assert {name for name in os.environ if not surroundings.PASSED_ON.fullmatch(name)} == {
        *surroundings.OWN,
        "TMPDIR",
        "GIT_CONFIG_NOSYSTEM",
    }

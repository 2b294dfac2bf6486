"""A suite that has to be complete fails where a program is missing that could be installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import COMPLETE

NEEDS_A_PROGRAM = "tests/systemd/test_units.py::test_systemd_accepts_the_units"


@pytest.mark.rest("runs tests in a session of its own")
def test_a_missing_program(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:hypothesispytest",
        NEEDS_A_PROGRAM,
    ]
    environ = {**os.environ, "PATH": str(tmp_path), COMPLETE: "1"}
    # it would wait for the processes of this session, as if they were left behind
    environ.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        words,
        env=environ,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "not installed: systemd-analyze (Debian: systemd); with" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED

"""Runs tests on several processes: `python -m tests.suite OPTION …`, of pytest.

A test that fails is red. Only where `SFAD_TEST_AGAIN` is set, as in CI, what failed runs once more,
alone, so that a busy machine does not hold up a change that is otherwise right. What passes then is
printed under a heading that cannot be overlooked: the test is flaky, so it has a fault or shows one
of the product, and CONTRIBUTING.md names it with its cause until that is repaired.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

AGAIN = "SFAD_TEST_AGAIN"
MANY = 20
"""More failures than this are no coincidence."""


def workers(cores: int) -> int:
    """Return how many processes keep this many cores busy. Each takes 4 s to find the tests."""
    return min(2 * cores, cores + 8)


def main(words: list[str]) -> int:
    """Run pytest with `words`. Returns its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it was ignored, that exit code would be 0
    parallel = [
        "--numprocesses",
        str(workers(len(os.sched_getaffinity(0)))),
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    ]
    with tempfile.TemporaryDirectory() as directory:
        failures = Path(directory) / "failed"
        code = _pytest(f"--failures={failures}", *parallel, *words)
        failed = failures.read_text().splitlines() if failures.exists() else []
        if (
            AGAIN not in os.environ
            or code != pytest.ExitCode.TESTS_FAILED
            or not 0 < len(failed) <= MANY
        ):
            return code
        print(f"\n{len(failed)} failed; once more, alone:", flush=True)
        if code := _pytest(f"@{failures}"):
            return code
        print(_HEADING, *failed, sep="\n  ", flush=True)
        return 0


_HEADING = f"""
{"#" * 100}
##  FLAKY: these tests failed beside others and passed alone.
##  Find out why, or name them in CONTRIBUTING.md.
{"#" * 100}"""


def _pytest(*words: str) -> int:
    # pytest's own interpreter obeys these before tests/conftest.py can do without: it would assert
    # nothing, or compile all again
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") or name == "PYTHONPATH"
    }
    process = subprocess.Popen([sys.executable, "-m", "pytest", *words], env=env)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # pytest has got it too, and ends its tests
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

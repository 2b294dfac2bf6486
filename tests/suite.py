"""Runs tests on several processes, and then once more, alone, what failed there: `python -m tests.suite OPTION …`, of pytest.

A test that fails beside others and passes alone has a fault, or shows one of the product: it is named at the end, to be found. It
does not fail the suite, because a change that is otherwise right must not be held up by a race on a busy machine. A test that
fails twice does, and so does everything else that pytest finds wrong, such as a process that was left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

MANY = 20
"""More failures than this are no coincidence."""


def main(words: list[str]) -> int:
    """Run pytest with `words`. Returns its exit code."""
    with tempfile.TemporaryDirectory() as directory:
        failures = Path(directory) / "failed"
        code = _pytest(f"--failures={failures}", *words)
        failed = failures.read_text().splitlines() if failures.exists() else []
        if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MANY:
            return code
        print(f"\n{len(failed)} failed; once more, alone:", flush=True)
        if code := _pytest(f"@{failures}"):
            return code
        print("\nThese failed beside other tests and passed alone. Find out why:", *failed, sep="\n  ", flush=True)
        return 0


def _pytest(*words: str) -> int:
    # pytest's own interpreter obeys these before tests/conftest.py can do without: it would assert nothing, or compile all again
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") or name == "PYTHONPATH"}
    process = subprocess.Popen([sys.executable, "-m", "pytest", *words], env=env)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # pytest has got it too, and ends its tests
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

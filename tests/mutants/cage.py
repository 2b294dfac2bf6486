"""Runs tests with one module replaced, in namespaces of their own.

A defect in what stops runs could end any process of the machine, so the tests see only processes
and cgroups of their own. The kernel ends all of them with the first one. The mutant is mounted over
its module, so the checkout stays as it is, and several mutants can be tried at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]

_ENTER = r"""
echo $$ >"$GROUP/cgroup.procs" || exit 99
exec unshare --cgroup --mount --pid --fork --mount-proc --kill-child sh -c '
  mount --bind "$GROUP" "$CGROUPS" || exit 99
  [ -z "$MODULE" ] || mount --bind "$MUTANT" "$MODULE" || exit 99
  unset GROUP CGROUPS MUTANT MODULE
  exec "$@"' sh "$@"
"""


class CageError(Exception):
    """The tests could not be run at all."""


def outcome(tests: str, seconds: float, module: str = "", code: str = "") -> str:
    """Run tests until the first one fails, with `code` in place of `module`. Return what ended
    them: a line of pytest about a failure, `timeout` after so many seconds, or `""` if all have
    passed."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory, _cgroup() as (cgroups, group):
        mutant = Path(directory) / "mutant.py"
        mutant.write_text(code)
        # the cache of compiled code knows a version by size and time: each has a time of its own
        os.utime(mutant, (stamp := zlib.crc32(code.encode()) & 0x7FFFFFFF, stamp))
        pytest = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--tb=no",
            "-p",
            "no:warnings",
            "--hypothesis-profile=first",
        ]
        paths = [
            f"tests/{word}" if (ROOT / "tests" / word).is_dir() else f"tests/{word}.py"
            for word in tests.split()
        ]
        where = {"GROUP": str(group), "CGROUPS": cgroups, "MUTANT": str(mutant), "MODULE": module}
        try:
            ended = subprocess.run(
                ["sh", "-c", _ENTER, "sh", *pytest, f"--basetemp={directory}/t", *paths], cwd=ROOT,
                env=os.environ | where, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "timeout"
    if ended.returncode == 99:
        raise CageError(
            f"no namespaces here (this needs root and cgroup v2): {ended.stderr.strip()}"
        )
    if ended.returncode == 5:
        raise CageError(f"no test in {tests}")
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (
        "" if ended.returncode == 0 else (failed or [f"pytest exited with {ended.returncode}"])[0]
    )


@contextmanager
def _cgroup() -> Iterator[tuple[str, Path]]:
    """Make a cgroup for the tests. Yields where cgroups are mounted, and the new one."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    roots = [fields[1] for fields in mounts if fields[2] == "cgroup2"]
    if os.geteuid() != 0 or not roots:
        raise CageError(
            "mutants need root and cgroup v2, because they are tried in namespaces of their own"
        )
    group = Path(tempfile.mkdtemp(prefix="mutant-", dir=roots[0]))
    group.chmod(0o755)  # users of runs may read it, as any cgroup
    try:
        yield roots[0], group
    finally:
        (group / "cgroup.kill").write_text("1")
        while "populated 1" in (group / "cgroup.events").read_text():
            time.sleep(0.05)
        for directory, _, _ in os.walk(group, topdown=False):
            os.rmdir(directory)

"""A daemon that re-executes itself keeps its children."""

from __future__ import annotations

import errno
import json
import secrets
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from sfad.core.events import LaunchFailed, LaunchSucceeded, MainExited
from sfad.processes.launcher import Adopted
from tests.processes.reexecuted import EXPECTED
from tests.processes.rig import PATIENCE, Rig


def spoken(kind: str) -> dict[str, dict[str, Any]]:
    """Return what the second daemon printed, by run."""
    command = [sys.executable, "-m", "tests.processes.reexecuted", kind, secrets.token_hex(6)]
    done = subprocess.run(
        command,
        capture_output=True,
        cwd=Path(__file__).parents[2],
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for run, what, value in map(json.loads, done.stdout.splitlines()):
        assert what not in found[run], "said twice"
        found[run][what] = value
    return found


def test_no_run_notices_a_re_exec(containment: str) -> None:
    found = spoken(containment)
    assert set(found) - {""} == EXPECTED
    codes = {
        run: (end["code"], end["signal"])
        for run, told in found.items()
        if (end := told.get("MainExited"))
    }
    assert codes == {
        "a1": (7, None),
        "a2": (7, None),
        "a3": (None, signal.SIGUSR1),
        "a4": (5, None),
        "a7": (7, None),
    }
    failures = {
        run: told["LaunchFailed"]["errno"] for run, told in found.items() if "LaunchFailed" in told
    }
    assert failures == {"a5": errno.ENOENT, "a6": errno.EINVAL}
    assert {run for run, told in found.items() if "LaunchSucceeded" in told} == {"a4", "a7"}
    assert {run for run, told in found.items() if told.get("adopted", {}).get("starting")} == {
        "a4",
        "a5",
        "a6",
        "a7",
    }
    assert {run for run, told in found.items() if told.get("adopted", {}).get("pid") is None} == {
        "a6",
        "a8",
        "",
    }
    assert {run for run, told in found.items() if told.get("adopted", {}).get("empty")} == {"a6"}
    assert found[""] == {"inherited": 4, "inheritable": 0, "left": 0}


async def test_a_handover_that_is_taken_back(rig: Rig) -> None:
    rig.launch("a1", "sleep", "1000")
    rig.launch("a2", "no\0such")
    record = rig.launcher.hand_over()
    assert record["a1"].report is not None
    assert record["a2"].report is not None
    rig.launcher.take_back()
    await rig.wait(LaunchSucceeded, "a1")
    await rig.wait(LaunchFailed, "a2")
    assert {run: one.report for run, one in rig.launcher.hand_over().items()} == {
        "a1": None,
        "a2": None,
    }
    rig.launcher.take_back()
    await rig.stop("a1", "a2")
    assert (await rig.wait(MainExited, "a1")).signal == signal.SIGKILL


async def test_nothing_is_handed_over_without_runs(rig: Rig) -> None:
    assert rig.launcher.hand_over() == {}
    assert Adopted(None, empty=True).starting is False

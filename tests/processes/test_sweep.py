"""A daemon that died leaves processes; a sweep ends them, and no others."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sfad.processes import observed
from sfad.processes.contain.cgroup import cgroupfs
from sfad.processes.contain.cgroup.cgroupfs import locate
from sfad.processes.sweep import SweepReport, sweep
from tests import needs
from tests.leaks import no_leaks
from tests.processes.earlier_daemon import dead
from tests.processes.rig import PATIENCE

DAEMON = """
import sys, trio
from tests.processes.rig import Rig
async def main(kind, instance):
    rig = Rig(kind, instance=instance)
    async with trio.open_nursery() as nursery:
        await nursery.start(rig.launcher.serve)
        rig.launch("a1", "sleep", "1000")
        # Only its cgroup tells the instance of a process that cleared its environment and lost its
        # parent.
        bare = "env -i" if kind == "cgroup" else ""
        script = f"setsid --fork {bare} sleep 1000; trap '' TERM; sleep 1000; true"
        rig.launch("a2", "sh", "-c", script, parent="a1")
        await rig.running("a1", "a2")
        print("ready", flush=True)
        await trio.sleep_forever()
trio.run(main, *sys.argv[1:])
"""

SLEEPS = ["sh", "-c", "sleep 1000 & exec sleep 1000"]


def dead_daemon(kind: str, instance: str) -> None:
    """Kill a daemon of that instance that has two live runs."""
    needs.containment(kind)
    command = [sys.executable, "-c", DAEMON, kind, instance]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as daemon:
        assert daemon.stdout is not None
        line = daemon.stdout.readline()
        daemon.kill()
        daemon.wait(PATIENCE)
    assert line == b"ready\n"


def test_a_sweep_kills_what_a_dead_daemon_left(containment: str) -> None:
    instance = secrets.token_hex(6)
    dead_daemon(containment, instance)
    bystander = subprocess.Popen(
        ["sleep", "1000"], env={"SFA_COOKIE": f"{secrets.token_hex(6)}:a1:00"}
    )
    try:
        report = sweep(instance)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait(PATIENCE)
    assert len(report.pids) >= 3
    assert report.left == ()
    assert not any(observed.why_alive(pid) for pid in report.pids)
    assert sweep(instance) == SweepReport()


def test_a_sweep_spares_runs_that_will_be_adopted(containment: str) -> None:
    instance = secrets.token_hex(6)
    runs = [
        ("a1", None, SLEEPS),
        ("a2", "a1", SLEEPS),
        ("a3", None, SLEEPS),
        ("a4", "a3", SLEEPS),
        ("a5", "a4", SLEEPS),
    ]
    record = dead(containment, instance, *runs)
    spared = {one.pid for run, one in record.items() if run in {"a1", "a3", "a4"}}
    try:
        report = sweep(instance, spare={"a1", "a3", "a4"})
        assert len(report.pids) >= 2
        assert report.left == ()
        assert {
            pid for one in record.values() if (pid := one.pid) and observed.why_alive(pid)
        } == spared
        assert sweep(instance, spare={"a1", "a3", "a4"}) == SweepReport()
    finally:
        report = sweep(instance)
    assert spared <= set(report.pids)


def test_a_sweep_spares_cgroups_of_an_agent_and_removes_empty_ones_of_other_runs() -> None:
    instance = secrets.token_hex(6)
    record = dead("cgroup", instance, ("a1", None, ["sleep", "1000"]))
    base = locate(instance).directory
    made = [f"{base}/a1/a7", f"{base}/a1/mine", f"{base}/a1/self", f"{base}/a1/self/a8"]
    others = [
        f"{base}/a2",
        f"{base}/a2/self",
        f"{base}/a1/a3",
        f"{base}/a1/a3/self",
        f"{base}/probe",
    ]
    for path in (*made, *others):
        os.mkdir(path)
    cgroupfs.write(f"{made[0]}/cgroup.procs", str(record["a1"].pid).encode())
    try:
        assert not sweep(instance, spare={"a1"}).pids
        assert all(map(os.path.isdir, made))
        assert not any(map(os.path.exists, others))
    finally:
        assert sweep(instance).pids == (record["a1"].pid,)
    assert not os.path.exists(base)


def test_a_sweep_removes_the_cgroups() -> None:
    instance = secrets.token_hex(6)
    dead_daemon("cgroup", instance)
    base = locate(instance).directory
    assert os.path.isdir(base)
    sweep(instance)
    assert not os.path.exists(base)


def test_a_sweep_spares_its_caller() -> None:
    instance = secrets.token_hex(6)
    code = f"from sfad.processes.sweep import sweep; print(sweep({instance!r}).pids)"
    env = dict(os.environ, SFA_COOKIE=f"{instance}:a1:00")
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (0, "()\n")


def test_leaks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.leaks.PATIENCE", 0.1)
    leaked: list[Any] = []

    def leak() -> None:
        with no_leaks():
            leaked.extend([subprocess.Popen(["sleep", "1000"]), os.open(tmp_path, os.O_RDONLY)])

    with pytest.raises(AssertionError, match=r"(?s)child \d+: sleep 1000.*descriptor \d+: /"):
        leak()
    child, descriptor = leaked
    os.close(descriptor)
    child.kill()
    child.wait(PATIENCE)
    with no_leaks():
        pass

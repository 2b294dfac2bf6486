"""Bounds that the kernel enforces. These tests need controllers that are delegated to this
process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sfad.core.events import LaunchSucceeded, MainExited
from sfad.processes import kernel
from sfad.processes.contain.cgroup import cgroupfs, controllers
from sfad.processes.contain.cgroup.containment import CgroupContainment
from sfad.processes.launcher import Bounds
from sfad.processes.sweep import sweep
from tests import needs
from tests.harness import until
from tests.processes import programs
from tests.processes.rig import Rig, make, rigged

MIB = 1 << 20


@pytest.fixture
async def held() -> AsyncIterator[Rig]:
    """Yield a rig whose bounds the kernel enforces."""
    async with rigged("cgroup") as rig:
        missing = [kind for kind in controllers.KINDS if rig.launcher.enforced_by(kind) != "kernel"]
        if missing:
            pytest.skip(
                f"not delegated to this process: the cgroup v2 controllers {', '.join(missing)}"
            )
        yield rig


def base(rig: Rig) -> str:
    return rig.launcher.detail


def said(path: str) -> str:
    return cgroupfs.read(path).decode().strip()


async def spoken(
    rig: Rig, run: str, program: str, *argv: str, word: bytes, tmp_path: Path, **spec: object
) -> bytes:
    """Start a program and wait until it has printed a word; return all that it printed."""
    out = tmp_path / run
    with out.open("wb") as file:
        rig.python(run, program, *argv, stdout=file.fileno(), stderr=file.fileno(), **spec)
    await until(lambda: word in out.read_bytes(), word.decode())
    return out.read_bytes()


async def test_a_bomb_meets_its_bound(held: Rig, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        held.python("a1", programs.BOMB, "400", "3", bounds=Bounds(pids=50), stdout=out.fileno())
    await until(lambda: held.launcher.breaches("a1"), "the kernel has said no")
    assert held.launcher.breaches("a1") == {"pids"}
    assert held.launcher.amounts("pids", {"a1": 1.0}) == {"a1": 50}
    assert held.launcher.footprints(["a1"])["a1"].processes == 50
    await until(lambda: b"failed True" in (tmp_path / "out").read_bytes(), "it gave up")
    await held.stop("a1")


async def test_a_breach_is_counted_for_the_run_whose_bound_it_was(
    held: Rig, tmp_path: Path
) -> None:
    """A child run meets its own bound, and another child run meets its parent's."""
    held.launch("a1", "sleep", "1000", bounds=Bounds(pids=60))
    held.launch("a2", "sleep", "1000", parent="a1", bounds=Bounds(pids=400))
    await held.running("a1", "a2")
    failed: dict[str, Any] = {"word": b"failed True", "tmp_path": tmp_path, "parent": "a2"}
    await spoken(held, "a3", programs.BOMB, "400", "1", bounds=Bounds(pids=20), **failed)
    assert [held.launcher.breaches(run) for run in ("a1", "a2", "a3")] == [set(), set(), {"pids"}]
    await held.stop("a3")
    await spoken(held, "a4", programs.BOMB, "400", "1", bounds=Bounds(pids=300), **failed)
    assert [held.launcher.breaches(run) for run in ("a1", "a2", "a4")] == [{"pids"}, set(), set()]
    await held.stop("a4", "a2", "a1")


async def test_a_run_that_needs_too_much_memory_is_ended_and_it_is_known_why(
    held: Rig, tmp_path: Path
) -> None:
    held.launch("a2", "sleep", "1000")
    with (tmp_path / "out").open("wb") as out:
        held.python(
            "a1", programs.HOG, "400", "20", bounds=Bounds(memory=64 * MIB), stdout=out.fileno()
        )
    known: list[frozenset[str]] = []
    held.listener = lambda _event: known.append(held.launcher.breaches("a1"))
    assert (await held.wait(MainExited, "a1")).signal == signal.SIGKILL
    assert known[-1] == {"memory"}
    assert b"had" not in (tmp_path / "out").read_bytes()
    assert held.launcher.breaches("a2") == frozenset()
    assert held.launcher.footprints(["a2"])["a2"].processes == 1
    held.launcher.release("a1")
    await held.stop("a2")


async def test_memory_is_what_the_kernel_charges(held: Rig, tmp_path: Path) -> None:
    await spoken(
        held, "a1", programs.SHARERS, "5", "40", word=b"ready", tmp_path=tmp_path,
        bounds=Bounds(memory=400 * MIB)
    )  # fmt: skip
    charged = held.launcher.footprints(["a1"])["a1"].memory_bytes
    assert 40 * MIB < charged < 80 * MIB
    assert held.launcher.amounts("memory", {"a1": 1.0})["a1"] == pytest.approx(charged, rel=0.1)
    await held.stop("a1")


async def test_the_oom_of_a_child_is_not_its_parents(held: Rig) -> None:
    held.launch("a1", "sleep", "1000", bounds=Bounds(memory=300 * MIB))
    await held.running("a1")
    held.python("a2", programs.HOG, "400", "20", parent="a1", bounds=Bounds(memory=64 * MIB))
    assert (await held.wait(MainExited, "a2")).signal == signal.SIGKILL
    assert held.launcher.breaches("a2") == {"memory"}
    assert held.launcher.breaches("a1") == frozenset()
    held.launcher.release("a2")
    await held.stop("a1")


async def test_controllers_are_enabled_only_where_a_limit_needs_them(held: Rig) -> None:
    assert said(f"{base(held)}/cgroup.subtree_control") == "pids"
    held.launch("a1", "sleep", "1000", bounds=Bounds(pids=1024))
    held.launch("a2", "sleep", "1000", parent="a1")
    await held.running("a1", "a2")
    assert said(f"{base(held)}/a1/memory.max") == ""
    assert said(f"{base(held)}/a1/pids.max") == "1024"
    assert said(f"{base(held)}/a1/a2/pids.max") == ""
    held.launch("a3", "sleep", "1000", parent="a2", bounds=Bounds(memory=MIB * 200, cpu=0.5))
    await held.running("a3")
    assert said(f"{base(held)}/a1/a2/a3/memory.max") == str(200 * MIB)
    assert said(f"{base(held)}/a1/a2/a3/memory.swap.max") in ("0", "")
    assert said(f"{base(held)}/a1/a2/a3/cpu.max") == "50000 100000"
    assert said(f"{base(held)}/a1/memory.max") == "max"
    await held.stop("a3", "a2", "a1")


async def test_a_live_run_gets_higher_bounds(held: Rig, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        held.python("a1", programs.BOMB, "100", "20", bounds=Bounds(pids=20), stdout=out.fileno())
    await until(lambda: held.launcher.breaches("a1"), "the kernel has said no")
    held.launcher.bound("a1", Bounds(pids=200, memory=300 * MIB))
    assert b"made" not in (tmp_path / "out").read_bytes()
    await until(lambda: b"made 100" in (tmp_path / "out").read_bytes(), "it had room")
    assert held.launcher.breaches("a1") == frozenset()
    assert said(f"{base(held)}/a1/memory.max") == str(300 * MIB)
    held.launcher.bound("a1", Bounds())
    assert [said(f"{base(held)}/a1/{name}.max") for name in ("pids", "memory")] == ["max", "max"]
    await held.stop("a1")


async def test_cpu_is_throttled(held: Rig) -> None:
    held.launch("a1", "sh", "-c", "while :; do :; done", bounds=Bounds(cpu=0.2))
    pid = (await held.wait(LaunchSucceeded, "a1")).pid
    assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)
    began, before = time.monotonic(), sum(psutil.Process(pid).cpu_times())
    await until(lambda: time.monotonic() - began > 2, "two seconds")
    used = (sum(psutil.Process(pid).cpu_times()) - before) / (time.monotonic() - began)
    assert used < 0.35
    await held.stop("a1")


def test_closing_leaves_the_cgroups_as_they_were() -> None:
    needs.containment("cgroup")
    own = kernel.cgroup(os.getpid())
    launcher = make("cgroup", lambda _event: None).launcher
    parent = os.path.dirname(launcher.detail)
    if launcher.enforced_by("pids") != "kernel":
        launcher.close()
        pytest.skip("not delegated to this process: the cgroup v2 controller pids")
    assert own is not None
    assert (kernel.cgroup(os.getpid()) or "").endswith("/supervisor") or not os.path.exists(
        f"{parent}/cgroup.type"
    )
    # also from within the leaf
    assert cgroupfs.locate(launcher.instance).directory == launcher.detail
    launcher.close()
    assert kernel.cgroup(os.getpid()) == own
    assert not os.path.exists(f"{parent}/supervisor") or own.endswith("/supervisor")
    assert "memory" not in said(f"{parent}/cgroup.subtree_control") or not os.path.exists(
        f"{parent}/cgroup.type"
    )


def test_a_sweep_disables_the_controllers_of_a_dead_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    needs.containment("cgroup")
    made = make("cgroup", lambda _event: None)
    launcher, contained = made.launcher, made.containment
    assert isinstance(contained, CgroupContainment)
    parent = os.path.dirname(launcher.detail)
    vacated = contained.controllers.vacated
    monkeypatch.setattr(contained, "close", lambda: None)
    launcher.close()  # descriptors only
    try:
        if not vacated:
            pytest.skip("nothing was moved away for the sake of a controller")
        assert said(f"{parent}/cgroup.subtree_control") == "pids"
        sweep(launcher.instance)
        assert not os.path.exists(launcher.detail)
        assert said(f"{parent}/cgroup.subtree_control") == ""
        assert os.path.exists(f"{parent}/supervisor")  # because this process is in it
    finally:
        cgroupfs.remove_tree(launcher.detail)
        controllers.undo(parent, move_back=True)
    assert not os.path.exists(f"{parent}/supervisor")

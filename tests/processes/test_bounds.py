"""What runs use, from one pass over the machine, and bounds that the kernel does not enforce."""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from sfad.core.events import Frozen, LaunchSucceeded, MainExited
from sfad.core.state.run import run_id
from sfad.processes import kernel
from sfad.processes.contain.cgroup import cgroupfs, controllers
from sfad.processes.contain.cgroup.containment import CgroupContainment
from sfad.processes.contain.cgroup.making import settings
from sfad.processes.contain.membership import Affinity, bind
from sfad.processes.launcher import Bounds, Launcher
from tests.harness import until
from tests.processes import programs
from tests.processes.rig import Rig
from tests.processes.test_containment import processes, ready

MIB = 1 << 20
several_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")


def watched_cpus(rig: Rig) -> None:
    if rig.launcher.enforced_by("cpu") == "kernel":
        pytest.skip("the kernel throttles here: nothing is bound to CPUs")


def below(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def close(launcher: Launcher, run: str, counted: list[psutil.Process]) -> bool:
    """Return whether the run uses as much memory as psutil counts, within a twentieth."""
    load = launcher.footprints([run]).get(run)
    return load is not None and load.memory_bytes == pytest.approx(
        sum(one.memory_info().rss for one in counted), rel=0.05
    )


async def test_loads_are_what_psutil_counts(rig: Rig, tmp_path: Path) -> None:
    pids = {
        "a1": await ready(rig, "a1", programs.SHARERS, "5", "1", tmp_path=tmp_path),
        "a2": await ready(rig, "a2", programs.SHARERS, "3", "1", parent="a1", tmp_path=tmp_path),
        "a3": await ready(rig, "a3", programs.SHARERS, "2", "1", parent="a2", tmp_path=tmp_path),
        "a4": await ready(rig, "a4", programs.SHARERS, "4", "1", tmp_path=tmp_path),
    }
    trees = {"a1": ("a1", "a2", "a3"), "a2": ("a2", "a3"), "a3": ("a3",), "a4": ("a4",)}
    footprints = rig.launcher.footprints([*pids, "nobody"])
    assert set(footprints) == set(pids)
    for run, tree in trees.items():
        counted = [process for member in tree for process in below(pids[member])]
        assert footprints[run].processes == len(counted)
        # a process that was just forked copies pages for a moment, between our look and psutil's
        await until(partial(close, rig.launcher, run, counted), f"{run} weighs what psutil says")
    await rig.stop("a3", "a2", "a1", "a4")


async def test_many_runs_take_one_scan(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run_id(number + 1) for number in range(20)]
    for run in runs:
        rig.launch(run, "sleep", "1000")
    await rig.running(*runs)
    scans: list[dict[int, kernel.Stat]] = []
    scan = kernel.scan

    def noted() -> dict[int, kernel.Stat]:
        scans.append(scan())
        return scans[-1]

    monkeypatch.setattr(kernel, "scan", noted)
    assert {
        run: load.processes for run, load in rig.launcher.footprints(runs).items()
    } == dict.fromkeys(runs, 1)
    assert len(scans) == (rig.launcher.containment == "tags")
    monkeypatch.undo()
    await rig.stop(*runs)


async def test_paused_processes_are_counted(rig: Rig, tmp_path: Path) -> None:
    await ready(rig, "a1", programs.SHARERS, "5", "1", tmp_path=tmp_path)
    rig.launcher.freeze("a1")
    await rig.wait(Frozen, "a1")
    assert processes(rig, "a1") == 6
    assert rig.launcher.amounts("pids", {"a1": 1.0}) == {"a1": 6}
    await rig.stop("a1")


async def test_shared_memory_counts_once_where_it_matters(rig: Rig, tmp_path: Path) -> None:
    await ready(rig, "a1", programs.SHARERS, "5", "40", tmp_path=tmp_path)
    estimate = rig.launcher.amounts("memory", {"a1": math.inf})["a1"]
    exact = rig.launcher.amounts("memory", {"a1": 1.0})["a1"]
    assert estimate > 6 * 40 * MIB
    assert 40 * MIB < exact < 80 * MIB
    await rig.stop("a1")


async def test_questions_about_a_run_that_is_not_held(rig: Rig) -> None:
    assert (
        rig.launcher.amounts("pids", {"nobody": 1.0})
        == rig.launcher.amounts("memory", {"nobody": 1.0})
        == {}
    )
    assert rig.launcher.breaches("nobody") == frozenset()
    rig.launcher.bound("nobody", Bounds(pids=1))


# CPUs.


def test_cpus_are_spread() -> None:
    affinity = Affinity(frozenset(range(8)))
    chosen = [affinity.choose(1.5, affinity.all) for _ in range(4)]
    assert [len(cpus) for cpus in chosen] == [2] * 4
    assert frozenset().union(*chosen) == affinity.all
    assert affinity.choose(1, chosen[0]) < chosen[0]
    assert affinity.choose(64, chosen[0]) == chosen[0]


@several_cpus
async def test_a_run_is_bound_to_its_cpus_from_the_start(rig: Rig) -> None:
    watched_cpus(rig)
    mine = os.sched_getaffinity(0)
    for run in ("a1", "a2"):
        rig.launch(run, "sleep", "1000", bounds=Bounds(cpu=0.5))
    rig.launch("a3", "sleep", "1000", parent="a1")
    rig.launch("a4", "sleep", "1000", bounds=Bounds(cpu=len(mine)))
    pids = {run: (await rig.wait(LaunchSucceeded, run)).pid for run in ("a1", "a2", "a3", "a4")}
    cpus = {run: os.sched_getaffinity(pid) for run, pid in pids.items()}
    assert [len(cpus[run]) for run in pids] == [1, 1, 1, len(mine)]
    assert cpus["a1"] == cpus["a3"] != cpus["a2"]
    assert os.sched_getaffinity(0) == mine
    assert rig.launcher.enforced_by("cpu") == "watching"
    await rig.stop("a3", "a1", "a2", "a4")


@several_cpus
async def test_a_live_run_gets_other_cpus(rig: Rig, tmp_path: Path) -> None:
    watched_cpus(rig)
    await ready(rig, "a1", programs.SHARERS, "4", "1", tmp_path=tmp_path)
    await ready(rig, "a2", programs.SHARERS, "1", "1", parent="a1", tmp_path=tmp_path)
    pids = [process.pid for process in psutil.Process().children(recursive=True)]
    assert len(pids) == 7
    for bounds, count in ((Bounds(cpu=1), 1), (Bounds(), len(os.sched_getaffinity(0)))):
        rig.launcher.bound("a1", bounds)
        assert {len(os.sched_getaffinity(pid)) for pid in pids} == {count}
    await rig.stop("a2", "a1")


def test_every_thread_is_bound() -> None:
    mine, done = frozenset(os.sched_getaffinity(0)), threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        bind(os.getpid(), frozenset({min(mine)}))
        assert os.sched_getaffinity(thread.native_id or 0) == {min(mine)}
    finally:
        bind(os.getpid(), mine)
        done.set()
        thread.join()
    bind(1 << 22, mine)  # gone


# Bounds that the kernel refuses.


def refusing(suffix: str, written: list[str]) -> Callable[[str, bytes], None]:
    write = cgroupfs.write

    def pretend(path: str, content: bytes) -> None:
        if path.endswith(suffix):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        if path.endswith(("subtree_control", ".max")):
            written.append(os.path.basename(path))
        else:
            write(path, content)

    return pretend


@pytest.mark.parametrize("suffix", ["memory.max", "subtree_control"])
async def test_a_bound_that_cannot_be_set_is_logged_and_the_run_starts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    launcher = rig.launcher
    contained = rig.containment
    if not isinstance(contained, CgroupContainment) or launcher.enforced_by("memory") == "kernel":
        pytest.skip("for a pretended controller")
    said = rig.complaints
    contained.controllers.available = {"memory"}
    monkeypatch.setattr(cgroupfs, "write", refusing(suffix, []))
    rig.launch("a1", "true", bounds=Bounds(memory=MIB))
    assert (await rig.wait(MainExited, "a1")).code == 0
    assert len(said) == 1
    assert "watched, " in said[0] or "that limits are watched" in said[0]
    assert launcher.breaches("a1") == frozenset()
    assert launcher.enforced_by("memory") == (
        "watching" if suffix == "subtree_control" else "kernel"
    )
    monkeypatch.undo()
    contained.controllers.available = set()
    launcher.release("a1")


def test_the_settings_of_each_kind() -> None:
    assert settings("cpu", 1.5) == [("cpu.max", b"150000 100000")]
    assert settings("cpu", 0.001) == [("cpu.max", b"1000 100000")]
    assert settings("cpu", None) == [("cpu.max", b"max 100000")]
    assert settings("pids", 1024) == [("pids.max", b"1024")]
    assert settings("memory", 1 << 30) == [("memory.swap.max", b"0"), ("memory.max", b"1073741824")]
    assert settings("memory", None) == [("memory.swap.max", b"max"), ("memory.max", b"max")]


def hierarchy(own: Path, *foreign: int) -> str:
    """Files like those of a delegated cgroup, with foreign processes in it."""
    own.mkdir(parents=True)
    (own / "cgroup.type").write_text("domain\n")
    (own / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    (own / "cgroup.subtree_control").write_text("")
    (own / "cgroup.procs").write_text("\n".join(map(str, foreign)))
    (own / "sfad-x").mkdir()
    (own / "sfad-x" / "cgroup.subtree_control").write_text("")
    return str(own / "sfad-x")


def test_access_that_an_agent_took_away_is_regained(tmp_path: Path) -> None:
    """On the whole way from the base to the file, and nowhere else."""
    file = tmp_path / "base" / "run" / "inner" / "cgroup.procs"
    file.parent.mkdir(parents=True)
    file.touch()
    way = [file, *list(file.parents)[:3]]
    aside = tmp_path / "base" / "other"
    aside.mkdir()
    for path in (aside, *way):
        path.chmod(0)
    cgroupfs.regain(str(file), str(tmp_path / "base"))
    assert [path.stat().st_mode & 0o777 for path in (*way, aside)] == [
        0o600,
        0o700,
        0o700,
        0o700,
        0,
    ]


def test_foreign_processes_are_not_moved(tmp_path: Path) -> None:
    directory = hierarchy(tmp_path / "cg", os.getpid(), 1)
    said: list[str] = []
    made = controllers.Controllers(cgroupfs.BaseCgroup(directory, "/x"), said.append)
    assert made.available == {"cpu", "memory", "pids"}
    made.set_up()
    assert made.available == set()
    assert "not the daemon's (1)" in said[0]
    assert not (tmp_path / "cg" / "supervisor").exists()
    assert (tmp_path / "cg" / "cgroup.subtree_control").read_text() == ""


def test_pids_is_enabled_at_once_and_the_other_controllers_on_demand(tmp_path: Path) -> None:
    directory = hierarchy(tmp_path / "cg")
    run = Path(directory, "a1")
    run.mkdir()
    (run / "cgroup.subtree_control").write_text("")
    made = controllers.Controllers(cgroupfs.BaseCgroup(directory, "/x"))
    made.set_up()
    # each write(2) to a control file is a command; in these files it overwrites the one before
    written = [
        Path(path, "cgroup.subtree_control").read_text()
        for path in (tmp_path / "cg", directory, run)
    ]
    assert written == ["+pids", "+pids", ""]
    assert made.enabled("pids", directory)
    assert not made.enabled("memory", directory)
    assert made.enable("memory", str(run))
    assert made.enabled("memory", directory)
    assert (run / "cgroup.subtree_control").read_text() == "+memory"

"""Stopping, pausing and counting the processes of a run, whatever they do to get away."""

from __future__ import annotations

import os
import re
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path

import psutil
import pytest
import trio

from sfad.core.events import Emptied, Frozen, LaunchSucceeded, MainExited, Surveyed
from sfad.core.state.run import run_id
from sfad.processes import kernel
from sfad.processes.contain.cgroup import cgroupfs, making
from sfad.processes.contain.cgroup.cgroupfs import RunCgroups
from sfad.processes.contain.cgroup.controllers import move
from sfad.processes.contain.tags import Census, TagsMembership
from sfad.processes.launcher import CgroupImpossible
from sfad.processes.local_launcher import choose_launcher
from tests import surroundings
from tests.harness import until
from tests.processes import programs
from tests.processes.rig import Rig, rigged
from tests.template import close_templates


async def ready(
    rig: Rig, run: str, program: str, *argv: str, tmp_path: Path, parent: str | None = None
) -> int:
    """Start a program that prints when it is ready; return its pid."""
    with (tmp_path / run).open("wb") as file:
        rig.python(run, program, *argv, stdout=file.fileno(), stderr=file.fileno(), parent=parent)
    await until(lambda: b"ready" in (tmp_path / run).read_bytes(), "ready")
    return (await rig.wait(LaunchSucceeded, run)).pid


def processes(rig: Rig, run: str) -> int:
    load = rig.launcher.footprints([run]).get(run)
    return load.processes if load else 0


def stands_still(pid: int) -> bool:
    process = kernel.stat(pid)
    return process is not None and process.state == "T"


def survivors_by_kernel(instance: str) -> list[int]:
    """Return the processes with the cookie, by looking without the launcher."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if (
                process.environ().get("SFA_COOKIE", "").startswith(f"{instance}:")
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process.pid)
    return found


async def test_terminate_reaches_everything(rig: Rig, tmp_path: Path) -> None:
    await ready(rig, "a1", programs.ORPHANS, "30", tmp_path=tmp_path)
    await until(lambda: processes(rig, "a1") == 31, "everything is there")
    rig.launcher.terminate("a1", signal.SIGTERM)
    emptied = await rig.wait(Emptied, "a1")
    ended = await rig.wait(MainExited, "a1")
    assert ended.signal == signal.SIGTERM
    assert rig.events.index(ended) < rig.events.index(emptied)
    assert processes(rig, "a1") == 0
    assert survivors_by_kernel(rig.launcher.instance) == []
    rig.launcher.release("a1")


@contextmanager
def counted_children() -> Iterator[list[int]]:
    """Count the children of this process, zombies included, from a thread, because trio's may be
    busy."""
    counts: list[int] = []
    enough = threading.Event()

    def look() -> None:
        counts.append(len(kernel.children()))
        while not enough.wait(0.05):
            counts.append(len(kernel.children()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield counts
    finally:
        enough.set()
        thread.join()


async def test_processes_that_stand_still_handle_the_signal_too(rig: Rig, tmp_path: Path) -> None:
    said = tmp_path / "said"
    rig.python("a1", programs.STOPS_ITSELF, str(said))
    pid = (await rig.wait(LaunchSucceeded, "a1")).pid
    await until(lambda: len(kernel.children(pid)) == 1, "the child")
    for each in (pid, *kernel.children(pid)):
        await until(partial(stands_still, each), "both stand still")
    rig.launcher.terminate("a1", signal.SIGTERM)
    assert (await rig.wait(MainExited, "a1")).code == 3
    await rig.wait(Emptied, "a1")
    assert sorted(said.read_text().split()) == ["child", "main"]
    rig.launcher.release("a1")


@pytest.mark.rest("at scale")
async def test_hundreds_and_relentless_lineages(rig: Rig, tmp_path: Path) -> None:
    await ready(rig, "a1", programs.ORPHANS, "300", "ignore", tmp_path=tmp_path)
    # this process has no better priority, as a daemon has
    hoppers = "20" if rig.launcher.containment == "cgroup" else "4"
    await ready(rig, "a2", programs.HOPPERS, hoppers, parent="a1", tmp_path=tmp_path)
    with counted_children() as counts:
        rig.launcher.terminate("a1", signal.SIGTERM)
        await rig.wait(MainExited, "a2")
        rig.launcher.kill("a1")
        await rig.wait(Emptied, "a1")
    assert 0 < max(counts) < 16_384, "zombies take half of the machine's pids"
    assert processes(rig, "a1") == 0
    assert survivors_by_kernel(rig.launcher.instance) == []
    rig.launcher.release("a2")
    rig.launcher.release("a1")


async def test_children_that_come_and_go_between_looks_are_taken_for_live_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rigged("tags") as rig:
        rig.launch("a1", "sleep", "100")
        await rig.wait(LaunchSucceeded, "a1")
        adopted = rig.tags.adopted
        census = Census(
            rig.parts.orphans, adopted, TagsMembership(rig.parts.runs, rig.parts.orphans, adopted)
        )
        # there is no such pid: a process that was listed is gone when it is looked at
        beyond = count(1 << 22)
        with monkeypatch.context() as patched:
            patched.setattr(kernel, "children", lambda *_: {next(beyond)})
            assert census.live_children({"a1"}) == [next(beyond) - 1]
        await rig.stop("a1")


async def test_processes_that_the_main_process_leaves(rig: Rig, tmp_path: Path) -> None:
    await ready(rig, "a1", programs.ORPHANS, "10", "leave", tmp_path=tmp_path)
    ended = await rig.wait(MainExited, "a1")
    assert (ended.code, ended.empty) == (0, False)
    await until(lambda: processes(rig, "a1") == 10, "what it left")
    await rig.stop("a1", number=signal.SIGTERM)
    assert survivors_by_kernel(rig.launcher.instance) == []


async def test_emptied_is_not_reported_before_a_stop(rig: Rig) -> None:
    rig.launch("a1", "sh", "-c", "sleep 0.2 & exit 0")
    assert not (await rig.wait(MainExited, "a1")).empty
    await until(lambda: processes(rig, "a1") == 0, "the rest has ended")
    rig.launch("a2", "true")
    await rig.wait(MainExited, "a2")
    assert not any(isinstance(event, Emptied) for event in rig.events)
    await rig.stop("a1", "a2", number=signal.SIGTERM)


async def test_processes_that_ignore_sigterm_need_the_kill(rig: Rig, tmp_path: Path) -> None:
    for number in range(1, 10):
        await ready(
            rig,
            f"a{number}",
            programs.STUBBORN,
            parent=f"a{number - 1}" if number > 1 else None,
            tmp_path=tmp_path,
        )
    rig.launcher.terminate("a1", signal.SIGTERM)
    rig.launcher.survey("a1")
    surveyed = await rig.wait(Surveyed, "a1")
    assert {survivor.run_id for survivor in surveyed.survivors} == {
        f"a{number}" for number in range(1, 10)
    }
    assert all(
        re.fullmatch(r"(sleeping|running) \([SR]\).*", survivor.why)
        for survivor in surveyed.survivors
    )
    rig.launcher.kill("a1")
    emptied = await rig.wait(Emptied, "a1")
    ends = [event for event in rig.events if isinstance(event, MainExited)]
    assert {event.signal for event in ends} == {signal.SIGKILL}
    assert len(ends) == 9
    assert rig.events[-1] == emptied
    for number in reversed(range(1, 10)):
        rig.launcher.release(f"a{number}")


async def test_a_child_run_empties_alone(rig: Rig) -> None:
    rig.launch("a1", "sleep", "1000")
    rig.launch("a2", "sleep", "1000", parent="a1")
    await rig.running("a1", "a2")
    await rig.stop("a2", number=signal.SIGTERM)
    assert processes(rig, "a1") == 1
    await rig.stop("a1")


async def test_a_frozen_run_stands_still_until_it_is_thawed(rig: Rig, tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    rig.python("a1", programs.COUNTER, str(counted))
    await until(lambda: counted.exists() and counted.stat().st_size, "counting")
    rig.launcher.freeze("a1")
    await rig.wait(Frozen, "a1")
    size = counted.stat().st_size
    await trio.sleep(0.1)
    assert counted.stat().st_size == size
    rig.launcher.thaw("a1")
    await until(lambda: counted.stat().st_size > size, "counting again")
    await rig.stop("a1")


async def test_a_process_in_the_middle_of_a_vfork_stands_still_too(
    rig: Rig, tmp_path: Path
) -> None:
    """The parent of the vforked child waits in a state in which it cannot be stopped. dash does so
    for every command."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    rig.python("a1", programs.IN_VFORK, str(fifo))
    await rig.running("a1")
    await until(lambda: processes(rig, "a1") == 2, "the child before its exec")
    rig.launcher.freeze("a1")
    await rig.wait(Frozen, "a1")
    rig.launcher.thaw("a1")
    await rig.stop("a1")


async def test_a_signal_reaches_child_runs_that_are_frozen(rig: Rig) -> None:
    rig.launch("a1", "sleep", "1000")
    rig.launch("a2", "sleep", "1000", parent="a1")
    await rig.running("a1", "a2")
    for run in ("a2", "a1"):
        rig.launcher.freeze(run)
        await rig.wait(Frozen, run)
    rig.launcher.terminate("a1", signal.SIGTERM)
    await rig.wait(Emptied, "a1")
    assert {event.signal for event in rig.events if isinstance(event, MainExited)} == {
        signal.SIGTERM
    }
    rig.launcher.release("a2")
    rig.launcher.release("a1")


async def test_a_pid_that_is_another_process_by_now_is_not_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that was listed ends, as by SIGKILL of its user, and its pid is used again before
    the signal is sent."""
    stranger = await trio.lowlevel.open_process(["env", "--block-signal=TERM", "sleep", "1000"])
    listed = RunCgroups.members
    monkeypatch.setattr(
        RunCgroups, "members", lambda self, *runs: [*listed(self, *runs), (stranger.pid, "a1")]
    )
    try:
        async with rigged("cgroup") as rig:
            rig.launch("a1", "sleep", "1000")
            await rig.running("a1")
            rig.launcher.terminate("a1", signal.SIGTERM)
            await rig.wait(Emptied, "a1")
            status = kernel.status(stranger.pid)
            assert [int(status[name], 16) for name in (b"SigPnd", b"ShdPnd")] == [0, 0]
            rig.launcher.release("a1")
    finally:
        stranger.kill()
        await stranger.wait()


async def test_thaw_leaves_a_child_that_was_frozen_by_itself(rig: Rig, tmp_path: Path) -> None:
    counts = {run: tmp_path / f"{run}.count" for run in ("a1", "a2")}
    rig.python("a1", programs.COUNTER, str(counts["a1"]))
    rig.python("a2", programs.COUNTER, str(counts["a2"]), parent="a1")
    await until(lambda: all(count.exists() for count in counts.values()), "counting")
    for run in ("a2", "a1"):
        rig.launcher.freeze(run)
        await rig.wait(Frozen, run)
    sizes = {run: count.stat().st_size for run, count in counts.items()}
    rig.launcher.thaw("a1")
    await until(lambda: counts["a1"].stat().st_size > sizes["a1"], "the parent counts again")
    assert counts["a2"].stat().st_size == sizes["a2"]
    await rig.stop("a1")
    rig.launcher.release("a2")


async def test_a_kill_that_is_repeated_goes_on_once(rig: Rig) -> None:
    """The core repeats it each second, all night for a process in an uninterruptible sleep."""
    rig.launch("a1", "sleep", "100")
    await rig.wait(LaunchSucceeded, "a1")
    before = trio.lowlevel.current_statistics().tasks_living
    for _ in range(20):
        rig.launcher.kill("a1")
    await rig.wait(Emptied, "a1")
    assert trio.lowlevel.current_statistics().tasks_living <= before + 2
    rig.launcher.release("a1")


async def test_a_frozen_run_is_killed(rig: Rig) -> None:
    rig.launch("a1", "sleep", "1000")
    await rig.running("a1")
    rig.launcher.freeze("a1")
    await rig.wait(Frozen, "a1")
    await rig.stop("a1")


@pytest.mark.parametrize("verb", ["kill", "terminate"])
async def test_stopping_runs_that_are_still_being_launched(rig: Rig, verb: str) -> None:
    for number in range(20):
        rig.launch(run_id(number + 1), "sleep", "1000")
        if verb == "kill":
            rig.launcher.kill(run_id(number + 1))
        else:
            rig.launcher.terminate(run_id(number + 1), signal.SIGTERM)
    for number in range(20):
        await rig.wait(Emptied, run_id(number + 1))
        assert (await rig.wait(MainExited, run_id(number + 1))).code is None
        rig.launcher.release(run_id(number + 1))
    assert survivors_by_kernel(rig.launcher.instance) == []


async def test_interrupt_of_the_main_process_alone(rig: Rig) -> None:
    rig.launch("a1", "sh", "-c", "sleep 1000 & trap 'exit 7' INT; while :; do sleep 0.01; done")
    await rig.running("a1")
    await until(lambda: processes(rig, "a1") >= 3, "its children")
    assert rig.launcher.signal_main("a1", signal.SIGINT)
    ended = await rig.wait(MainExited, "a1")
    assert (ended.code, ended.empty) == (7, False)
    assert not rig.launcher.signal_main("a1", signal.SIGINT)
    await rig.stop("a1")


async def test_load_counts_child_runs(rig: Rig) -> None:
    rig.launch("a1", "sleep", "1000")
    rig.launch("a2", "sh", "-c", "sleep 1000 & wait", parent="a1")
    await rig.running("a1", "a2")
    await until(lambda: processes(rig, "a1") == 3, "three processes")
    load = rig.launcher.footprints(["a1"]).get("a1")
    assert load is not None
    assert 100_000 < load.memory_bytes < 100_000_000
    assert rig.launcher.footprints(["nobody"]).get("nobody") is None
    await rig.stop("a2", "a1")


async def test_orphans_are_reaped(rig: Rig, tmp_path: Path) -> None:
    await ready(rig, "a1", programs.ORPHANS, "40", tmp_path=tmp_path)
    await rig.stop("a1")
    await until(lambda: not kernel.children(), "no zombie is left")


async def test_another_attempt_in_the_same_containment(rig: Rig) -> None:
    for code in (1, 2, 0):
        mark = len(rig.events)
        rig.launch("a1", "sh", "-c", f"exit {code}")
        assert (await rig.wait(MainExited, "a1", after=mark)).code == code
    rig.launcher.release("a1")


async def test_each_attempt_is_known_by_its_cgroup_which_goes_with_the_run(rig: Rig) -> None:
    run = f"{rig.cgroups.detail}/a1"
    for home in (run, f"{run}/self", f"{run}/self"):
        mark = len(rig.events)
        rig.launch("a1", "sleep", "1000")
        pid = (await rig.wait(LaunchSucceeded, "a1", after=mark)).pid
        assert inside(home) == [pid]
        # as the kernel names the caller of the gateway
        assert rig.launcher.run_of_cgroup(cgroup_inode(home)) == "a1"
        assert rig.launcher.run_of_cgroup(1) is None
        rig.launcher.kill("a1")
        await rig.wait(Emptied, "a1", after=mark)
    rig.launcher.release("a1")
    await until(lambda: not os.path.exists(run), "its cgroups are gone")


def cgroup_inode(directory: str) -> int:
    return os.stat(directory).st_ino


async def test_place(rig: Rig) -> None:
    rig.launch("a1", "sleep", "1001")
    rig.launch("a2", "env", "-i", "setsid", "--fork", "sleep", "1002", parent="a1")
    rig.launch(
        "a3", "sh", "-c", "ulimit -S -n 77; env -i /bin/sh -c 'sleep 1003; true'", parent="a1"
    )
    where = {"1001": "a1", "1002": "a2", "1003": "a3"}

    def sleepers() -> dict[str, int]:
        found = {}
        for process in psutil.Process().children(recursive=True):
            words = kernel.command(process.pid)
            if words[:1] == ["sleep"]:
                found[words[1]] = process.pid
        return found

    await until(lambda: set(where) <= set(sleepers()), "all asleep")
    for argument, pid in sleepers().items():
        assert rig.launcher.run_of(pid, None) == where[argument]
        pidfd = os.pidfd_open(pid)
        assert rig.launcher.run_of(pid, pidfd) == where[argument]
        os.close(pidfd)
    assert rig.launcher.run_of(os.getpid(), None) is None
    assert rig.launcher.run_of(os.getppid(), None) is None
    await rig.stop("a3", "a2", "a1")


async def test_cgroups_that_the_agent_made(rig: Rig) -> None:
    launcher = rig.launcher
    assert rig.cgroups
    rig.launch("a1", "sleep", "1000")
    pid = (await rig.wait(LaunchSucceeded, "a1")).pid
    inner = f"{launcher.detail}/a1/made/deeper"
    os.makedirs(inner)
    cgroupfs.write(f"{inner}/cgroup.procs", str(pid).encode())
    pidfd = os.pidfd_open(pid)
    assert launcher.run_of(pid, pidfd) == launcher.run_of(pid, None) == "a1"
    os.close(pidfd)
    assert processes(rig, "a1") == 1
    await rig.stop("a1", number=signal.SIGTERM)
    await until(lambda: not os.path.exists(f"{launcher.detail}/a1"), "its cgroups are gone")


def inside(directory: str) -> list[int]:
    return list(cgroupfs.pids(directory))


async def test_a_run_and_its_child_run_have_one_cgroup_each(rig: Rig) -> None:
    base = rig.cgroups.detail
    rig.launch("a1", "sleep", "1000")
    rig.launch("a2", "sleep", "1000", parent="a1")
    mains = [(await rig.wait(LaunchSucceeded, run)).pid for run in ("a1", "a2")]
    assert [inside(f"{base}/a1"), inside(f"{base}/a1/a2")] == [[mains[0]], [mains[1]]]
    assert cgroupfs.inner(f"{base}/a1") == [f"{base}/a1/a2"]
    await rig.stop("a2", "a1")


async def test_a_tree_that_forks_without_pause_is_moved_whole(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[bytes] = []

    def watched(source: str, target: str) -> None:
        frozen.append(cgroupfs.read(f"{source}/cgroup.freeze"))
        move(source, target)

    # most such trees would be caught unfrozen, too
    monkeypatch.setattr(making, "move", watched)
    run = f"{rig.cgroups.detail}/a1"
    main = await ready(rig, "a1", programs.HOPPERS, "8", tmp_path=tmp_path)
    for _ in range(2):  # nothing is left to be moved the second time
        rig.cgroups.maker.vacate(rig.launched("a1"))
        assert inside(run) == []
    moved = set(inside(f"{run}/self"))
    assert main in moved
    assert frozen == [b"1\n"]
    assert cgroupfs.read(f"{run}/cgroup.freeze") == b"0\n"
    await until(lambda: len(moved - set(inside(f"{run}/self"))) >= 8, "they fork on")
    assert inside(run) == []
    pidfd = os.pidfd_open(main)
    assert rig.launcher.run_of(main, pidfd) == rig.launcher.run_of(main, None) == "a1"
    os.close(pidfd)
    await rig.stop("a1")
    await until(lambda: not os.path.exists(run), "its cgroups are gone")


async def test_a_paused_tree_that_is_moved_stays_paused(rig: Rig, tmp_path: Path) -> None:
    run, output = f"{rig.cgroups.detail}/a1", tmp_path / "count"
    rig.python("a1", programs.COUNTER, str(output))
    await until(lambda: output.exists() and output.stat().st_size > 0, "it counts")
    rig.launcher.freeze("a1")
    await rig.wait(Frozen, "a1")
    size = output.stat().st_size
    rig.cgroups.maker.vacate(rig.launched("a1"))
    assert inside(run) == [] != inside(f"{run}/self")
    assert b"frozen 1" in cgroupfs.read(f"{run}/cgroup.events")
    assert output.stat().st_size == size
    rig.launcher.thaw("a1")
    await until(lambda: output.stat().st_size > size, "it counts on")
    await rig.stop("a1")


async def test_stopping_two_hundred_processes_is_quick(rig: Rig, tmp_path: Path) -> None:
    await ready(rig, "a1", programs.ORPHANS, "200", tmp_path=tmp_path)
    began = time.monotonic()
    rig.launcher.kill("a1")
    await rig.wait(Emptied, "a1")
    assert time.monotonic() - began < 30
    rig.launcher.release("a1")


async def test_the_limit_of_message_queues_is_the_daemons_own_again(rig: Rig) -> None:
    before = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    rig.launch("a1", "true")
    assert resource.getrlimit(resource.RLIMIT_MSGQUEUE) == before
    await rig.wait(MainExited, "a1")
    rig.launcher.release("a1")


@pytest.mark.parametrize("names", [[], ["self"], ["self", "self/mine", "b2", "b2/self", "b2/c3"]])
@pytest.mark.skipif(
    not Path("/dev/shm").is_dir(), reason="a file system whose links count directories"
)
def test_each_cgroup_is_found_but_those_of_other_runs(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir=surroundings.in_memory()) as top:
        for name in names:
            os.mkdir(f"{top}/{name}")
        assert sorted(cgroupfs.nested(top)) == sorted([top, *(f"{top}/{name}" for name in names)])
        own = [name for name in names if not name.startswith("b2")]
        assert sorted(cgroupfs.nested(top, {f"{top}/b2"})) == sorted(
            [top, *(f"{top}/{name}" for name in own)]
        )


def test_without_cgroups_only_a_daemon_that_may_choose_has_tags(tmp_path: Path) -> None:
    """`containment.mode = cgroup` is a promise: it does not silently become less."""
    with pytest.raises(CgroupImpossible):
        choose_launcher(instance="0" * 12, emit=print, mode="cgroup", cgroup_parent=str(tmp_path))
    close_templates()  # a launcher looks after every child of its process
    launcher = choose_launcher(
        instance="0" * 12, emit=print, mode="auto", cgroup_parent=str(tmp_path)
    )
    assert launcher.containment == "tags"
    launcher.close()

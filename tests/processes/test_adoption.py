"""A daemon that was killed leaves runs; the next daemon adopts them as if it had launched them."""

from __future__ import annotations

import os
import resource
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import trio
from msgspec.structs import replace

from sfad.core.events import Emptied, Frozen, LaunchSucceeded, MainExited, Surveyed
from sfad.processes import kernel, launched_runs, observed
from sfad.processes.contain import membership
from sfad.processes.contain.cgroup import cgroupfs
from sfad.processes.kernel import tells_exits
from sfad.processes.launcher import Adopted, Bounds, LaunchRecord
from sfad.processes.sweep import sweep
from sfad.processes.trampoline.executable import is_one
from sfad.processes.watch import Call, Reactor
from tests import needs
from tests.harness import until, wait_until
from tests.processes import programs
from tests.processes.earlier_daemon import Plan, daemon, dead
from tests.processes.rig import PATIENCE, Rig, rigged
from tests.template import close_templates
from tests.tiers import first

TICK = "trap 'exit 7' TERM; while :; do printf . >> \"$0\"; sleep 0.02; done"
PYTHON = (sys.executable, "-I", "-S", "-c")


@pytest.fixture
def instance() -> str:
    return secrets.token_hex(6)


def adopt(
    rig: Rig, records: dict[str, LaunchRecord], parents: dict[str, str] | None = None
) -> dict[str, Adopted]:
    return {
        run: rig.launcher.adopt(run, (parents or {}).get(run), one) for run, one in records.items()
    }


def members(rig: Rig, run: str) -> set[int]:
    return {pid for pid, _ in rig.containment.members(rig.launched(run))}


def gathered(rig: Rig, run: str, main: int | None, count: int) -> bool:
    """Return whether all of `programs.ORPHANS COUNT` are there: half are on their own, and their
    session leaders are gone."""
    found = members(rig, run) - {main}
    on_their_own = 0
    for pid in found:
        with suppress(ProcessLookupError):
            on_their_own += os.getsid(pid) not in (pid, main)
    return (len(found), on_their_own) == (count, count // 2)


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if observed.why_alive(pid)}


def grows(path: Path) -> Callable[[], bool]:
    """Return whether a file is larger than now, when it may not be there yet."""

    def size() -> int:
        return path.stat().st_size if path.exists() else 0

    before = size()
    return lambda: size() > before


async def test_an_adopted_run_continues_and_its_exit_code_is_known(
    containment: str, instance: str, tmp_path: Path
) -> None:
    records = dead(containment, instance, ("a1", None, ["sh", "-c", TICK, str(tmp_path / "ticks")]))
    pid = records["a1"].pid
    async with rigged(containment, instance=instance) as rig:
        assert adopt(rig, records) == {"a1": Adopted(pid, empty=False)}
        await until(grows(tmp_path / "ticks"), "ticking")
        assert rig.launched("a1").record() == records["a1"]
        assert pid is not None
        assert rig.launcher.run_of(pid, None) == "a1"
        assert (load := rig.launcher.footprints(["a1"]).get("a1"))
        assert load.processes in (1, 2)
        assert rig.launcher.signal_main("a1", signal.SIGTERM)
        exited = await rig.wait(MainExited, "a1")
        assert (exited.code, exited.signal) == ((7, None) if tells_exits() else (None, None))
        await rig.stop("a1")


async def test_the_signal_that_ended_an_adopted_run_is_known(
    containment: str, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[int, Call] = {}
    add = Reactor.add

    def noted(reactor: Reactor, fd: int, call: Call, events: int = select.EPOLLIN) -> None:
        calls[fd] = call
        add(reactor, fd, call, events)

    records = dead(containment, instance, ("a1", None, ["sleep", "1000"]))
    async with rigged(containment, instance=instance) as rig:
        monkeypatch.setattr(Reactor, "add", noted)
        adopt(rig, records)
        calls[rig.main("a1").pidfd]()  # a call may be spurious
        assert rig.main("a1").exit_seen is None
        rig.launcher.signal_main("a1", signal.SIGUSR1)
        exited = await rig.wait(MainExited, "a1")
        assert (exited.code, exited.signal, exited.empty) == (
            None,
            signal.SIGUSR1 if tells_exits() else None,
            True,
        )
        rig.launcher.release("a1")


async def test_an_exit_status_that_the_kernel_does_not_tell(
    containment: str, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = dead(containment, instance, ("a1", None, ["sleep", "1000"]))
    monkeypatch.setattr("sfad.processes.watch.exit_status", lambda _pidfd: None)
    monkeypatch.setattr("sfad.processes.watch.tells_exits", lambda: False)
    async with rigged(containment, instance=instance) as rig:
        adopt(rig, records)
        await rig.stop("a1")
        exited = await rig.wait(MainExited, "a1")
        assert (exited.code, exited.signal) == (None, None)


async def test_the_wait_for_a_pid_1_that_does_not_reap_ends(
    containment: str, instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = dead(containment, instance, ("a1", None, ["sleep", "1000"]))
    monkeypatch.setattr("sfad.processes.watch.exit_status", lambda _pidfd: None)
    monkeypatch.setattr("sfad.processes.watch.reaped", lambda _pidfd: False)
    monkeypatch.setattr("sfad.processes.watch.REAPED_WITHIN", 0.3)
    async with rigged(containment, instance=instance) as rig:
        adopt(rig, records)
        await rig.stop("a1")
        assert [type(event) for event in rig.events] == [MainExited, Emptied]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_stop_finds_processes_that_hide(
    containment: str, instance: str, number: int
) -> None:
    records = dead(containment, instance, ("a1", None, [*PYTHON, programs.ORPHANS, "12"]))
    async with rigged(containment, instance=instance) as rig:
        adopt(rig, records)
        await until(lambda: gathered(rig, "a1", records["a1"].pid, 12), "all are found")
        found = members(rig, "a1")
        await rig.stop("a1", number=number)
        assert not alive(found)
        assert [type(event) for event in rig.events] == [MainExited, Emptied]


async def test_processes_that_ignore_sigterm_are_listed_and_killed(
    containment: str, instance: str
) -> None:
    records = dead(containment, instance, ("a1", None, [*PYTHON, programs.ORPHANS, "4", "ignore"]))
    async with rigged(containment, instance=instance) as rig:
        adopt(rig, records)
        await until(lambda: gathered(rig, "a1", records["a1"].pid, 4), "all are found")
        rig.launcher.terminate("a1", signal.SIGTERM)
        rig.launcher.survey("a1")
        assert {one.pid for one in (await rig.wait(Surveyed, "a1")).survivors} == members(rig, "a1")
        assert len(members(rig, "a1")) == 5
        await rig.stop("a1")


async def test_processes_that_an_ended_main_process_left(containment: str, instance: str) -> None:
    plan = Plan([("a1", None, [*PYTHON, programs.ORPHANS, "6", "leave"])])
    with daemon(containment, instance, plan) as (_, records):
        pid = records["a1"].pid
        assert pid is not None
        await until(lambda: kernel.stat(pid) is None, "it has ended")
    async with rigged(containment, instance=instance) as rig:
        assert adopt(rig, records) == {"a1": Adopted(None, empty=False)}
        await until(lambda: gathered(rig, "a1", pid, 6), "all are found")
        found = members(rig, "a1")
        await rig.stop("a1", number=signal.SIGTERM)
        assert not alive(found)
        assert [type(event) for event in rig.events] == [Emptied]


async def test_an_adopted_run_freezes_and_thaws(
    containment: str, instance: str, tmp_path: Path
) -> None:
    ticks = tmp_path / "ticks"
    records = dead(containment, instance, ("a1", None, ["sh", "-c", TICK, str(ticks)]))
    async with rigged(containment, instance=instance) as rig:
        adopt(rig, records)
        await until(ticks.exists, "ticking")
        await rig.freeze("a1")
        moves = grows(ticks)
        await trio.sleep(0.2)
        assert not moves()
        rig.launcher.thaw("a1")
        await until(moves, "ticking again")
        await rig.stop("a1")


@pytest.mark.parametrize("end", ["thaw", "terminate", "kill"])
async def test_a_run_that_the_dead_daemon_had_frozen(
    containment: str, instance: str, end: str, tmp_path: Path
) -> None:
    ticks = tmp_path / "ticks"
    records = dead(
        containment, instance, ("a1", None, ["sh", "-c", TICK, str(ticks)]), frozen=["a1"]
    )
    async with rigged(containment, instance=instance) as rig:
        moves = grows(ticks) if ticks.exists() else ticks.exists
        assert adopt(rig, records)["a1"] == Adopted(records["a1"].pid, empty=False)
        rig.launcher.freeze("a1")  # as the loop does for a run that it knows as paused
        await rig.wait(Frozen, "a1")
        assert not moves()
        if end == "thaw":
            rig.launcher.thaw("a1")
            await until(moves, "ticking again")
        await rig.stop("a1", number=signal.SIGTERM if end == "terminate" else signal.SIGKILL)


async def test_another_process_with_the_pid_is_not_touched(containment: str, instance: str) -> None:
    stranger = secrets.token_hex(6)
    strangers = dead(containment, stranger, ("a1", None, ["sleep", "1000"]))
    pid = strangers["a1"].pid
    assert pid is not None
    try:
        async with rigged(containment, instance=instance) as rig:
            found = adopt(
                rig,
                {
                    "a1": strangers["a1"],
                    "a2": LaunchRecord("00", pid=pid),
                    "a3": LaunchRecord("00", pid=1),
                },
            )
            assert set(found.values()) == {Adopted(None, empty=True)}
            for run in found:
                assert not rig.launcher.signal_main(run, signal.SIGTERM)
                await rig.stop(run)
            assert alive({pid})
    finally:
        sweep(stranger)


async def test_a_recycled_pid_is_not_signalled(containment: str, instance: str) -> None:
    records = dead(containment, instance, ("a1", None, ["sleep", "1000"]))["a1"]
    assert records.started is not None
    async with rigged(containment, instance=instance) as rig:
        found = rig.launcher.adopt("a1", None, replace(records, started=records.started - 1))
        # what is alive in the containment is the run's, but it is not the main process
        assert found == Adopted(None, empty=False)
        assert not rig.launcher.signal_main("a1", signal.SIGTERM)
        await rig.stop("a1")


async def test_the_cookie_of_another_attempt_is_not_enough(instance: str) -> None:
    records = dead("tags", instance, ("a1", None, ["sleep", "1000"]))["a1"]
    async with rigged("tags", instance=instance) as rig:
        assert rig.launcher.adopt("a1", None, replace(records, nonce="0123")) == Adopted(
            None, empty=True
        )
        await rig.stop("a1")
        assert alive({records.pid})  # the sweep ends it


async def test_a_main_process_that_was_not_saved_is_stopped_with_the_run(
    containment: str, instance: str
) -> None:
    records = dead(containment, instance, ("a1", None, [*PYTHON, programs.ORPHANS, "6"]))["a1"]
    async with rigged(containment, instance=instance) as rig:
        assert rig.launcher.adopt("a1", None, LaunchRecord(records.nonce)) == Adopted(
            None, empty=False
        )
        assert rig.launched("a1").record() == LaunchRecord(records.nonce)
        await rig.stop("a1")
        assert not alive({records.pid})


async def test_a_run_of_which_nothing_is_alive(containment: str, instance: str) -> None:
    async with rigged(containment, instance=instance) as rig:
        assert adopt(
            rig, {"a1": LaunchRecord("00"), "a2": LaunchRecord("00", pid=999_999_999)}, {"a2": "a1"}
        ) == {
            "a1": Adopted(None, empty=True),
            "a2": Adopted(None, empty=True),
        }
        assert rig.launched("a1").record() == LaunchRecord("00", pid=0)
        rig.launch("a2", "true", parent="a1")  # another attempt
        assert (await rig.wait(MainExited, "a2")).code == 0
        await rig.stop("a2", "a1")


async def test_nested_runs(containment: str, instance: str) -> None:
    runs = [
        ("a1", None, ["sleep", "1000"]),
        ("a2", "a1", ["sleep", "1000"]),
        ("a3", "a2", ["sleep", "1000"]),
    ]
    records = dead(containment, instance, *runs)
    async with rigged(containment, instance=instance) as rig:
        found = adopt(rig, records, {"a2": "a1", "a3": "a2"})
        assert found == {run: Adopted(one.pid, empty=False) for run, one in records.items()}
        rig.launch("a4", "sh", "-c", "setsid --fork sleep 1000; sleep 1000", parent="a3")
        await rig.running("a4")
        await until(lambda: len(members(rig, "a1")) == 6, "all are found")
        pids = members(rig, "a1")
        for run, one in found.items():
            assert one.pid is not None
            assert rig.launcher.run_of(one.pid, None) == run
        await rig.freeze("a2")
        rig.launcher.thaw("a2")
        await rig.stop("a3")
        assert len(alive(pids)) == 2
        mark = len(rig.events)
        rig.launcher.terminate("a1", signal.SIGTERM)
        await rig.wait(Emptied, "a1", after=mark)
        assert not alive(pids)
        for run in ("a4", "a2", "a1"):
            rig.launcher.release(run)


async def test_another_attempt_after_an_adopted_one(containment: str, instance: str) -> None:
    records = dead(containment, instance, ("a1", None, ["sleep", "1000"]))
    async with rigged(containment, instance=instance) as rig:
        adopt(rig, records)
        rig.launcher.terminate("a1", signal.SIGTERM)
        await rig.wait(Emptied, "a1")
        mark = len(rig.events)
        rig.launch("a1", "sh", "-c", "exit 3", nonce=records["a1"].nonce)
        assert (await rig.wait(MainExited, "a1", after=mark)).code == 3
        rig.launcher.release("a1")


async def test_runs_that_tags_contained_get_a_cgroup(instance: str) -> None:
    needs.containment("cgroup")  # before there are processes
    runs = [("a1", None, [*PYTHON, programs.ORPHANS, "12"]), ("a2", "a1", ["sleep", "1000"])]
    records = dead("tags", instance, *runs)
    async with rigged("cgroup", instance=instance) as rig:
        found = adopt(rig, records, {"a2": "a1"})
        assert all(one.pid for one in found.values())
        await until(lambda: len(members(rig, "a1")) == 14, "all are found")
        pids = members(rig, "a1")
        assert len(members(rig, "a2")) == 1
        await rig.freeze("a1")
        rig.launcher.thaw("a1")
        await rig.stop("a2", "a1", number=signal.SIGTERM)
        assert not alive(pids)


async def test_runs_that_cgroups_contained_are_found_by_their_cookie(instance: str) -> None:
    records = dead(
        "cgroup", instance, ("a1", None, ["sh", "-c", "setsid --fork sleep 1000; exec sleep 1000"])
    )
    async with rigged("tags", instance=instance) as rig:
        assert adopt(rig, records) == {"a1": Adopted(records["a1"].pid, empty=False)}
        await until(lambda: len(members(rig, "a1")) == 2, "both are found")
        await rig.stop("a1", number=signal.SIGTERM)


async def test_a_main_process_that_ended_before_the_adoption(
    containment: str, instance: str
) -> None:
    records = dead(containment, instance, ("a1", None, ["sleep", "1000"]))
    async with rigged(containment, instance=instance) as rig:
        pid = records["a1"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not alive({pid}), "it has ended")
        assert adopt(rig, records) == {"a1": Adopted(None, empty=True)}
        rig.launcher.release("a1")


# A daemon that dies while it starts something.

DIES = """
import os, signal, sys, trio
from sfad.processes import kernel
from sfad.processes.launcher import LaunchSpec
from tests.processes.rig import Rig
def die(records):
    while halt and not kernel.executed(records.pid):
        pass  # it has our descriptors until then
    if halt:
        os.kill(records.pid, signal.SIGSTOP)
    os.write(1, str(records.pid).encode())
    os.kill(os.getpid(), signal.SIGKILL)
async def main(kind, instance, program, when):
    rig = Rig(kind, instance=instance, program=program)
    spec = LaunchSpec([b"/bin/sleep", b"1000"], b"/", [], nonce="abcd")
    rig.launcher.launch("a1", None, spec, die if when == "before" else lambda _record_of: True)
    die(rig.launched("a1").record())
*where, halt = sys.argv[1:]
trio.run(main, *where)
"""


def died_starting(kind: str, instance: str, program: str, when: str, halt: str) -> int:
    """Return the pid of a trampoline whose daemon was killed before or after it was saved."""
    command = [sys.executable, "-c", DIES, kind, instance, program, when, halt]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], timeout=PATIENCE
    )
    assert done.returncode == -signal.SIGKILL
    return int(done.stdout)


@first(1)
@pytest.mark.parametrize("halt", ["", "halt"], ids=["goes-on", "halted"])
async def test_a_launch_in_flight_does_not_escape(
    containment: str, instance: str, program: str, halt: str
) -> None:
    pid = died_starting(containment, instance, program, "after", halt)
    async with rigged(containment, instance=instance) as rig:
        if halt:
            await until(
                lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it is halted"
            )
        hung = halt and is_one(pid)  # as on a mount that does not answer; unless it was quicker
        found = rig.launcher.adopt("a1", None, LaunchRecord("abcd", pid=pid, executed=False))
        if hung:
            assert found.pid is None
        else:
            assert found == Adopted(pid, empty=False)
            assert rig.launcher.run_of(pid, None) == "a1"
            assert psutil.Process(pid).name() == "sleep"
            assert members(rig, "a1") == {pid}
        await rig.stop("a1")
        # at once, where it was in its containment
        await until(lambda: not alive({pid}), "it is gone")


@first(1)
@pytest.mark.parametrize("halt", ["", "halt"], ids=["goes-on", "halted"])
async def test_a_trampoline_that_was_not_saved_executes_nothing(
    containment: str, instance: str, program: str, halt: str
) -> None:
    pid = died_starting(containment, instance, program, "before", halt)
    seen = set()

    def gone() -> bool:
        seen.add(kernel.read(f"/proc/{pid}/comm"))
        return not alive({pid})

    async with rigged(containment, instance=instance) as rig:
        assert rig.launcher.adopt("a1", None, LaunchRecord("abcd")).pid is None
        if halt:
            gone()
            os.kill(pid, signal.SIGCONT)
        await until(gone, "it gives up")
        assert b"sleep\n" not in seen
        await rig.stop("a1")


async def test_a_cgroup_without_a_process_is_removed_on_release(instance: str) -> None:
    async with rigged("cgroup", instance=instance) as rig:
        cell = f"{rig.launcher.detail}/a1"
        os.makedirs(cell)
        # as a child has it before it executes its trampoline
        door = os.open(f"{cell}/cgroup.procs", os.O_WRONLY)
        assert rig.launcher.adopt("a1", None, LaunchRecord("abcd")) == Adopted(None, empty=True)
        rig.launcher.release("a1")
        await until(lambda: not os.path.exists(cell), "its cgroup is removed")
        with pytest.raises(OSError, match="No such device"):
            os.write(door, b"0")
        os.close(door)


# Where, how much, and under pressure.


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """Make a cgroup beside ours."""
    needs.containment("cgroup")
    own = cgroupfs.mounts()[0].directory(kernel.cgroup(os.getpid()) or "/")
    assert own is not None
    directory = f"{own}/test-{secrets.token_hex(6)}"
    os.mkdir(directory)
    yield directory

    def removed() -> bool:
        """The kernel counts a killed process in it until it has cleaned up."""
        with suppress(OSError):
            cgroupfs.remove_tree(directory)
        return not os.path.exists(directory)

    wait_until(removed, "it is empty")


async def test_runs_stay_where_the_first_daemon_put_them(instance: str, elsewhere: str) -> None:
    plan = Plan([("a1", None, ["sleep", "1000"])])
    mine = kernel.cgroup(os.getpid())
    # for the daemon to inherit, and the template that it is forked from
    close_templates(all_=True)
    cgroupfs.write(f"{elsewhere}/cgroup.procs", str(os.getpid()).encode())
    try:
        with daemon("cgroup", instance, plan) as (_, records):
            pass
    finally:
        close_templates(all_=True)
        (mount,) = cgroupfs.mounts()
        cgroupfs.write(f"{mount.directory(mine or '/')}/cgroup.procs", str(os.getpid()).encode())
    async with rigged("cgroup", instance=instance) as rig:
        assert rig.launcher.detail == f"{elsewhere}/sfad-{instance}"
        assert adopt(rig, records) == {"a1": Adopted(records["a1"].pid, empty=False)}
        rig.launch("a2", "true", parent="a1")
        await rig.wait(MainExited, "a2")
        await rig.stop("a2", "a1")


async def test_bounds_are_kept(containment: str, instance: str) -> None:
    records = dead(
        containment, instance, ("a1", None, ["sleep", "1000"]), bounds={"pids": 50, "cpu": 1}
    )
    assert records["a1"].bounds == Bounds(pids=50, cpu=1)
    pid = records["a1"].pid
    assert pid is not None
    async with rigged(containment, instance=instance) as rig:
        bound = os.sched_getaffinity(pid)
        adopt(rig, records)
        held = rig.launched("a1")
        assert held.bounds == records["a1"].bounds
        assert held.cpus == (bound if rig.launcher.enforced_by("cpu") == "watching" else None)
        assert rig.launcher.breaches("a1") == frozenset()
        assert rig.launcher.amounts("pids", {"a1": 50}) == {"a1": 1}
        await rig.stop("a1")


async def test_an_adoption_without_descriptors_holds_nothing(
    containment: str, instance: str
) -> None:
    from tests.processes.test_pressure import no_descriptors

    records = dead(
        containment, instance, ("a1", None, ["sleep", "1000"]), ("a2", None, ["sleep", "1000"])
    )
    async with rigged(containment, instance=instance) as rig:
        before = set(os.listdir("/proc/self/fd"))
        for run, one in records.items():
            with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
                rig.launcher.adopt(run, None, one)
        assert rig.parts.runs == {}
        assert set(os.listdir("/proc/self/fd")) == before
        assert [found.empty for found in adopt(rig, records).values()] == [False, False]
        await rig.stop("a1", "a2")


@pytest.mark.rest("at scale")
async def test_two_hundred_runs_are_adopted_at_once(containment: str, instance: str) -> None:
    runs = [
        (f"b{number // 32:x}{number % 32:x}", None, ["sleep", "1000"])
        for number in range(32, 32 + 16)
    ]
    records = dead(containment, instance, *runs)
    async with rigged(containment, instance=instance) as rig:
        found = adopt(rig, records)
        gone = adopt(
            rig,
            {f"c{number:03}": LaunchRecord("00", pid=999_999_999) for number in range(100, 300)},
        )
        assert found == {run: Adopted(one.pid, empty=False) for run, one in records.items()}
        assert set(gone.values()) == {Adopted(None, empty=True)}
        await rig.stop(*records)
        for run in gone:
            rig.launcher.release(run)


async def test_each_run_that_is_adopted_costs_a_few_files(containment: str, instance: str) -> None:
    """One look at all processes serves all runs. A thousand runs took ten thousand looks at
    processes, 27 files each."""
    opened = list[str]()

    def counted(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            opened.append(os.fsdecode(arguments[0]))

    sys.addaudithook(counted)  # for psutil's too; it cannot be removed
    runs = [(f"a{number}", None, ["sleep", "1000"]) for number in range(1, 10)]
    records = dead(containment, instance, *runs)
    pids = [[str(one.pid)] for one in records.values()]
    async with rigged(containment, instance=instance) as rig:
        opened.clear()
        adopt(rig, records)
        theirs = [path for path in opened if instance in path or path.split("/")[2:3] in pids]
        assert len(theirs) <= 10 * len(runs), theirs
        opened.clear()
        sweep(instance, spare=records.keys(), home=rig.launcher.detail)
        theirs = [path for path in opened if instance in path or path.split("/")[2:3] in pids]
        assert len(theirs) <= 4 * len(runs), theirs
        await rig.stop(*records)


async def test_the_tags_of_other_instances_are_not_ours(instance: str) -> None:
    """Another instance's run may have the same tag; its cookie, or that of an ancestor, says that
    it is not ours."""
    other = f"{int(instance, 16) ^ 1:012x}"
    number = launched_runs.tag(instance, "a1")
    script = f"(ulimit -S -q {number}; env -i sleep 1000 & exec sleep 1000) > /dev/null & echo $!"
    env = {"SFA_COOKIE": f"{other}:a1:00", "PATH": os.environ["PATH"]}
    pid = int(
        subprocess.run(  # noqa: ASYNC221
            ["bash", "-c", script], env=env, stdout=subprocess.PIPE, timeout=PATIENCE
        ).stdout
    )
    try:
        await until(lambda: len(sleepers_below(pid)) == 2, "both are there")
        theirs = sleepers_below(pid)
        records = dead("tags", instance, ("a1", None, ["sleep", "1000"]))
        async with rigged("tags", instance=instance) as rig:
            assert {psutil.Process(one).rlimit(resource.RLIMIT_MSGQUEUE)[0] for one in theirs} == {
                number
            }
            adopt(rig, records)
            assert members(rig, "a1") == {records["a1"].pid}
            await rig.stop("a1")
            assert alive(theirs) == theirs
    finally:
        for one in sleepers_below(pid):
            os.kill(one, signal.SIGKILL)


def sleepers_below(pid: int) -> set[int]:
    found = {
        one.process.pid
        for one, _ in membership.scan_marks().with_runs(lambda _one, _above: None, pid)
    }
    return {pid for pid in found if psutil.Process(pid).name() == "sleep"}


async def test_a_cgroup_that_was_removed(instance: str) -> None:
    async with rigged("cgroup", instance=instance) as rig:
        os.rmdir(rig.launcher.detail)
        rig.launch("a1", "true")
        assert (await rig.wait(MainExited, "a1")).code == 0
        await rig.wait(LaunchSucceeded, "a1")
        cgroupfs.remove_tree(rig.launcher.detail)  # the run is still held, for another attempt
        mark = len(rig.events)
        rig.launch("a2", "sleep", "1000", parent="a1")
        pid = (await rig.wait(LaunchSucceeded, "a2", after=mark)).pid
        assert rig.launcher.run_of(pid, None) == "a2"
        rig.launch("a1", "sleep", "1000")
        pid = (await rig.wait(LaunchSucceeded, "a1", after=mark)).pid
        assert rig.launcher.run_of(pid, None) == "a1"
        assert len(members(rig, "a1")) == 2
        await rig.stop("a2", "a1")

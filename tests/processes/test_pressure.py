"""A machine that is short of descriptors, and agents that lie about where they are."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import psutil
import pytest
import trio

from sfad.core.events import (
    Emptied,
    Event,
    Frozen,
    LaunchFailed,
    LaunchSucceeded,
    MainExited,
    Surveyed,
)
from sfad.processes import kernel
from sfad.processes.contain.cgroup import cgroupfs
from sfad.processes.contain.tags import Census
from sfad.processes.trampoline.creating import ProcessCreator
from sfad.processes.watch import ONCE, Reactor
from tests.harness import until
from tests.processes import programs
from tests.processes.rig import Rig

A_WHILE = 0.6
"""Seconds: more than two tries."""


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let every open(2) of this process fail with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/", os.O_RDONLY)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def stubborn(rig: Rig, run: str, tmp_path: Path) -> int:
    said = tmp_path / f"{run}.said"
    with said.open("wb") as file:
        rig.python(run, programs.STUBBORN, stdout=file.fileno())
    await until(lambda: b"ready" in said.read_bytes(), "ready")
    return (await rig.wait(LaunchSucceeded, run)).pid


def told(rig: Rig, kind: type[Event], after: int = 0) -> list[Event]:
    return [event for event in rig.events[after:] if isinstance(event, kind)]


@pytest.mark.parametrize("verb", ["terminate", "kill"])
async def test_a_stop_without_descriptors_is_tried_again(rig: Rig, verb: str) -> None:
    rig.launch("a1", "sh", "-c", "sleep 1000 & sleep 1000")
    await rig.running("a1")
    with no_descriptors():
        if verb == "kill":
            rig.launcher.kill("a1")
        else:
            rig.launcher.terminate("a1", signal.SIGTERM)
        await trio.sleep(A_WHILE)
        assert not told(rig, Emptied) or verb == "kill"
    await rig.wait(Emptied, "a1")
    rig.launcher.release("a1")


async def test_a_pause_without_descriptors_is_tried_again(rig: Rig) -> None:
    rig.launch("a1", "sleep", "1000")
    pid = (await rig.wait(LaunchSucceeded, "a1")).pid
    with no_descriptors():
        rig.launcher.freeze("a1")
        rig.launcher.survey("a1")
        assert rig.launcher.footprints(["a1"]).get("a1") is None
        await trio.sleep(A_WHILE)
        assert not told(rig, Frozen)
        assert not told(rig, Surveyed)
    await rig.wait(Frozen, "a1")
    assert [survivor.pid for survivor in (await rig.wait(Surveyed, "a1")).survivors] == [pid]
    with no_descriptors():
        rig.launcher.thaw("a1")
        await trio.sleep(A_WHILE)
    rig.launcher.signal_main("a1", signal.SIGTERM)
    await rig.wait(MainExited, "a1")  # so it was thawed
    await rig.stop("a1")


async def test_a_freeze_that_was_undone_is_not_tried_again(rig: Rig) -> None:
    rig.launch("a1", "sleep", "1000")
    await rig.running("a1")
    with no_descriptors():
        rig.launcher.freeze("a1")
        rig.launcher.thaw("a1")
    await trio.sleep(A_WHILE)
    assert not told(rig, Frozen)
    await rig.stop("a1", number=signal.SIGTERM)


async def test_a_run_that_cannot_be_looked_at_is_not_empty(rig: Rig, tmp_path: Path) -> None:
    rig.launch("a1", "sh", "-c", "sleep 1000 & exec sleep 0.3")
    await rig.running("a1")
    await stubborn(rig, "a2", tmp_path)
    with no_descriptors():
        rig.launcher.terminate("a2", signal.SIGTERM)
        assert not (await rig.wait(MainExited, "a1")).empty
        rig.launcher.terminate("a1", signal.SIGTERM)
        rig.launcher.child_signalled()
        await trio.sleep(A_WHILE)
        assert not told(rig, Emptied)
    await rig.wait(Emptied, "a1")
    assert not [event for event in rig.events if isinstance(event, Emptied) and event.run == "a2"]
    rig.launcher.release("a1")
    await rig.stop("a2")


async def test_idle_without_descriptors(rig: Rig) -> None:
    complaints = rig.complaints
    with no_descriptors():
        for _ in range(3):
            rig.launcher.child_signalled()
            await trio.sleep(A_WHILE / 2)
    assert len(complaints) == 1
    assert "Too many open files" in complaints[0]
    rig.launch("a1", "true")
    await rig.wait(MainExited, "a1")
    rig.launcher.release("a1")


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open so many descriptors."""
    taken = set(map(int, os.listdir("/proc/self/fd")))
    free = (number for number in range(1 << 16) if number not in taken)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, count, None)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def answered(rig: Rig, mark: int) -> list[Event]:
    return told(rig, LaunchFailed, mark) or told(rig, MainExited, mark)


async def test_launching_with_few_descriptors(rig: Rig) -> None:
    before = set(os.listdir("/proc/self/fd"))
    succeeded = 0
    for count in range(12):
        mark = len(rig.events)
        with descriptors_left(count):
            rig.launch("a1", "true")
        await until(partial(answered, rig, mark), "an answer")
        for event in told(rig, LaunchFailed, mark):
            assert isinstance(event, LaunchFailed)
            assert event.errno == errno.EMFILE
            assert "Too many open files" in event.error
            assert not succeeded, "it had more than when it was enough"
        succeeded += len(told(rig, MainExited, mark))
    assert 1 < succeeded < 12
    rig.launcher.release("a1")
    await until(lambda: set(os.listdir("/proc/self/fd")) == before, "nothing is left open")


async def test_a_machine_that_has_no_process_to_give(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(os.listdir("/proc/self/fd"))

    def spawn(*_arguments: object, **_options: object) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as patched:
        patched.setattr(ProcessCreator, "create", spawn)
        failed = await rig.failure("a1", "true")
    assert failed.errno == errno.EAGAIN
    assert failed.error.endswith(
        "Resource temporarily unavailable (no more processes or threads: "
        "RLIMIT_NPROC, pids.max, or kernel.pid_max)"
    )
    assert set(os.listdir("/proc/self/fd")) == before
    rig.launch("a1", "true")
    assert (await rig.wait(MainExited, "a1")).code == 0
    rig.launcher.release("a1")


FULL = """
import os, sys, trio
from sfad.core.events import LaunchFailed, MainExited
from tests.processes.rig import rigged
async def main(kind, directory):
    with open(f"{directory}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    def allow(count):
        with open(f"{directory}/pids.max", "w") as file:
            file.write(count)
    async with rigged(kind) as rig:
        allow("1")
        error = (await rig.failure("a1", "true")).error
        allow("max")
        rig.launch("a1", "true")
        assert (await rig.wait(MainExited, "a1")).code == 0
        rig.launcher.release("a1")
    print(error)
trio.run(main, *sys.argv[1:])
"""


def test_a_cgroup_that_has_no_process_to_give(containment: str) -> None:
    directory = f"/sys/fs/cgroup/pids/test-{os.getpid()}"
    try:
        os.mkdir(directory)
    except OSError as error:
        pytest.skip(f"no pids controller of cgroup v1: {error}")
    try:
        command = [sys.executable, "-c", FULL, containment, directory]
        done = subprocess.run(
            command, capture_output=True, cwd=Path(__file__).parents[2], timeout=60, check=False
        )
    finally:
        os.rmdir(directory)
    assert done.returncode == 0, done.stderr.decode()
    assert b"no more processes" in done.stdout


ZOMBIES = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.read(0, 1)
        os._exit(0)
"""


@pytest.mark.rest("at scale")
async def test_a_thousand_zombies_of_unknown_parentage(rig: Rig) -> None:
    before = set(os.listdir("/proc/self/fd"))
    near, far = os.pipe2(os.O_CLOEXEC)
    action = (os.POSIX_SPAWN_DUP2, near, 0)
    argv = [sys.executable, "-I", "-S", "-c", ZOMBIES, "1000"]
    stranger = os.posix_spawn(sys.executable, argv, {}, file_actions=[action])  # noqa: ASYNC221 - it does not block
    os.close(near)
    await until(
        lambda: stranger not in kernel.children() and len(kernel.children()) == 1000,
        "they have come to us",
    )
    os.close(far)  # all end at once
    rig.launch("a1", "sh", "-c", "exit 9")
    assert (await rig.wait(MainExited, "a1")).code == 9
    await until(lambda: not kernel.children(), "all are reaped")
    assert rig.parts.orphans.owned == {}
    assert set(os.listdir("/proc/self/fd")) == before
    rig.launcher.release("a1")


async def test_a_storm_of_child_signals(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def reap() -> int:
        nonlocal looks
        looks += 1
        return 0

    monkeypatch.setattr(rig.parts.orphans, "reap", reap)
    rig.launch("a1", "sh", "-c", "exit 9")
    begun = trio.current_time()
    for _ in range(200):
        for _ in range(100):
            os.kill(os.getpid(), signal.SIGCHLD)
        await trio.lowlevel.checkpoint()
    assert (await rig.wait(MainExited, "a1")).code == 9
    assert looks <= 2 + (trio.current_time() - begun) / 0.05
    rig.launcher.release("a1")


@pytest.mark.parametrize("events", [select.EPOLLIN, ONCE])
@pytest.mark.parametrize(
    ("number", "failed"),
    # without a descriptor it is made again at once, with those that are kept back
    [(errno.ENOMEM, 2), (errno.EMFILE, 1)],
)
async def test_a_call_that_fails_is_made_again_without_spinning(
    number: int, failed: int, events: int
) -> None:
    failures: list[Exception] = []
    calls = 0
    done = trio.Event()

    def fail_twice() -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise OSError(number, os.strerror(number))
        reactor.discard(near)
        done.set()

    reactor = Reactor(failures.append)
    near, far = os.pipe()
    os.close(far)  # it stays ready
    reactor.add(near, fail_twice, events)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reactor.run)
        with trio.fail_after(60):
            await done.wait()
        nursery.cancel_scope.cancel()
    assert (calls, len(failures)) == (3, failed)
    reactor.close()
    os.close(near)


async def test_a_call_is_made_until_it_discards_its_descriptor() -> None:
    """Also if the descriptor was to be reported once."""
    done, content = trio.Event(), b""

    def take() -> None:
        nonlocal content
        content += os.read(near, 1)
        if content == b"abc":
            reactor.discard(near)
            os.close(near)
            done.set()

    reactor = Reactor()
    near, far = os.pipe()
    os.write(far, b"abc")
    reactor.add(near, take, ONCE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reactor.run)
        with trio.fail_after(60):
            await done.wait()
        nursery.cancel_scope.cancel()
    assert content == b"abc"
    reactor.close()
    os.close(far)


async def test_a_stop_does_not_reach_the_next_attempt(rig: Rig, tmp_path: Path) -> None:
    rig.launch("a1", "sleep", "1000")
    await rig.running("a1")
    rig.launcher.terminate("a1", signal.SIGUSR1)
    rig.launcher.kill("a1")
    await rig.wait(Emptied, "a1")
    mark = len(rig.events)
    said = tmp_path / "said"
    with said.open("wb") as file:
        rig.python("a1", programs.STUBBORN, stdout=file.fileno())
    await rig.wait(LaunchSucceeded, "a1", after=mark)
    await until(lambda: b"ready" in said.read_bytes(), "ready: neither frozen nor killed")
    # a grace, in which the kill of the attempt before must not strike
    rig.launcher.terminate("a1", signal.SIGTERM)
    await trio.sleep(1.3)
    assert not told(rig, MainExited, mark)
    await rig.stop("a1")


async def sleeper(argument: str) -> int:
    found: list[int] = []

    def look() -> bool:
        pids = [process.pid for process in psutil.Process().children(recursive=True)]
        found.extend(pid for pid in pids if kernel.command(pid) == ["sleep", argument])
        return bool(found)

    await until(look, "asleep")
    return found[0]


async def test_a_process_that_moved_itself_out_is_in_the_run_of_its_parent(rig: Rig) -> None:
    launcher = rig.launcher
    assert rig.cgroups
    rig.launch("a1", "sh", "-c", "env -i sleep 4321; true")
    pid = await sleeper("4321")
    outside = os.fsdecode(os.fsencode(launcher.detail) + b"-out-\xff")
    inside = os.fsdecode(os.fsencode(f"{launcher.detail}/a1/") + b"\xff")
    unknown = os.fsdecode(os.fsencode(f"{launcher.detail}/") + b"\xff")
    pidfd = os.pidfd_open(pid)
    for directory in (outside, inside, outside):
        os.makedirs(directory, exist_ok=True)
        cgroupfs.write(f"{directory}/cgroup.procs", str(pid).encode())
        assert launcher.run_of(pid, pidfd) == launcher.run_of(pid, None) == "a1"
    os.mkdir(unknown)
    cgroupfs.write(f"{unknown}/cgroup.procs", str(pid).encode())
    with pytest.raises(Exception, match="belongs to no run") as refused:
        launcher.run_of(pid, None)
    assert str(refused.value).encode()
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    await rig.stop("a1")
    await until(
        lambda: cgroupfs.read(f"{outside}/cgroup.events").startswith(b"populated 0"),
        "no process is outside",
    )
    cgroupfs.remove_tree(outside)


async def test_the_tag_of_another_run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tag of another run does not count below a known process, and does not save a process from
    the stop of its run."""
    launcher, take, scanned = rig.launcher, Census.take, list[set[str]]()

    def noted(census: Census, runs: set[str]) -> Iterator[tuple[kernel.Stat, str]]:
        found = list(take(census, runs))
        scanned.append(runs)
        return iter(found)

    assert rig.tags
    monkeypatch.setattr(Census, "take", noted)
    rig.launch("a1", "sleep", "1000")
    await rig.running("a1")
    (number,) = rig.parts.runs.tags
    script = f"trap '' TERM; env -i /bin/bash -c 'ulimit -S -q {number}; exec sleep 4322'; true"
    rig.launch("a2", "sh", "-c", script)
    pid = await sleeper("4322")
    assert psutil.Process(pid).rlimit(resource.RLIMIT_MSGQUEUE)[0] == number
    assert launcher.run_of(pid, None) == "a2"
    # it scans, and so knows the run of the process when its parents are gone
    launcher.terminate("a2", signal.SIGTERM)
    await until(lambda: {"a2"} in scanned, "scanned")
    await rig.stop("a2")
    assert kernel.stat(pid) is None
    assert not told(rig, MainExited)[1:]
    assert (load := launcher.footprints(["a1"]).get("a1")) is not None
    assert load.processes == 1
    await rig.stop("a1")


async def test_a_process_that_another_process_continued_is_stopped_again(rig: Rig) -> None:
    assert rig.tags
    rig.launch("a1", "sh", "-c", "sleep 4323; true")
    pid = await sleeper("4323")
    rig.launcher.freeze("a1")
    await until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "stopped")
    os.kill(pid, signal.SIGCONT)
    if not told(rig, Frozen):
        await rig.wait(Frozen, "a1")
    await rig.stop("a1")

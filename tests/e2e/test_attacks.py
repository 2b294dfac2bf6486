"""What broke release 0.1.0 under attack, by real agents: as root and as nobody, with cgroups and
with tags."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from sfactl.connecting.connection import Client
from sfad.processes import kernel
from sfad.processes.contain.cgroup import cgroupfs
from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, RunInfo, Status
from tests import unprivileged
from tests.harness import (
    PATIENCE,
    Daemon,
    alive,
    argv,
    ended,
    running,
    spawn,
    started,
    stopped,
    unkillable,
    wait_until,
    with_fuse,
)
from tests.leaks import cgroups
from tests.tiers import first, variant

from .agents import limit

HERE = Path(__file__).with_name("attacks.py")


class Target:
    """A daemon that is attacked, and its agents."""

    def __init__(self, daemon: Daemon, nobody: unprivileged.Place | None) -> None:
        self.daemon = daemon
        self._nobody = nobody

    def agent(self, client: Client, *words: object, **options: Any) -> RunInfo:
        """A run of `attacks.py`."""
        program = (
            HERE
            if self._nobody is None
            else self._nobody.directory / "code" / "tests" / "e2e" / HERE.name
        )
        env = dict(os.environ) | (self._nobody.env if self._nobody else {})
        where = {"cwd": b"/", "env": [os.fsencode(f"{key}={value}") for key, value in env.items()]}
        return started(client, [self.daemon.python, program, *map(str, words)], **(where | options))

    def output(self, run: RunInfo) -> Path:
        return self.daemon.state_dir / "output" / f"{run.id}.out"

    def said(self, run: RunInfo) -> str:
        """Its output, once it is ready."""
        file = self.output(run)
        wait_until(
            lambda: re.search(rb"READY.*\n", file.read_bytes()),
            f"ready: {(file.with_suffix('.err')).read_text()}",
        )
        return file.read_text()

    def pid_said(self, run: RunInfo) -> int:
        """The pid that it is ready with."""
        return int(self.said(run).rsplit("READY", 1)[1].split()[0])


@contextmanager
def target(directory: Path, user: str, **options: Any) -> Iterator[Target]:
    with ExitStack() as stack:
        nobody = stack.enter_context(unprivileged.place()) if user == "nobody" else None
        if nobody is not None:
            stack.enter_context(pytest.MonkeyPatch.context()).setenv(
                "SFAD_SERVICE_USER", str(unprivileged.GONE)
            )
            directory = nobody.directory / "daemon"
            directory.mkdir()
            os.chown(directory, unprivileged.GONE, unprivileged.GONE)
            if options.get("mode") == "cgroup" and nobody.cgroup is None:
                pytest.skip("no cgroup can be delegated here")
        directory.mkdir(exist_ok=True)
        yield Target(stack.enter_context(running(directory, nobody=nobody, **options)), nobody)


@pytest.fixture(
    scope="module", params=["root", pytest.param("nobody", marks=pytest.mark.needs("root"))]
)
def user(request: pytest.FixtureRequest) -> str:
    """Whose the daemon and its agents are; `root` is the user who runs the tests."""
    return str(request.param)


@pytest.fixture(scope="module", params=["cgroup", "tags"])
def mode(request: pytest.FixtureRequest) -> str:
    """The containment of the daemon that several tests attack in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, user: str, mode: str) -> Iterator[Target]:
    """One target for all tests of this user and mode: each of them stops its runs."""
    with target(tmp_path_factory.mktemp("attacked"), user, mode=mode) as made:
        yield made


@pytest.fixture
def attacked(shared: Target) -> Iterator[Target]:
    """The shared target, without a run before the test and after it."""
    yield shared
    with shared.daemon.client() as client:
        stopped(client, everything=True, grace=0)


def sleeper(client: Client, **options: Any) -> RunInfo:
    return started(client, ["sleep", "100"], cwd=b"/", **options)


def test_a_descendant_that_cannot_be_placed_is_refused(attacked: Target) -> None:
    with attacked.daemon.client() as client:
        victim = sleeper(client)
        run = attacked.agent(client, "strip", "ask", victim.id, leaf=True)
        said = attacked.said(run)
        answers = dict(
            line.split(" ", 3)[1:3] for line in said.splitlines() if line.startswith("asked")
        )
        assert answers == dict.fromkeys(["info", "stop", "list", "spawn", "status"], "77"), said
        assert "has left its run's containment" in said
        assert (
            client.call(m.Info(id=client.next_id(), run=victim.id), m.RunReply).run.status
            is Status.RUNNING
        )
        escaped = attacked.pid_said(run)
        assert alive(escaped)
        stopped(client, victim.id, run.id, grace=0.5)
        assert not alive(escaped), "the last tree that it can be of has ended"


def test_a_connection_that_was_passed_into_a_run_is_refused(
    tmp_path: Path, containment: str
) -> None:
    with target(tmp_path, "root", mode=containment) as attacked, attacked.daemon.client() as client:
        victim = sleeper(client)
        with socket.socket(socket.AF_UNIX) as giver, attacked.daemon.client() as given:
            giver.bind(str(tmp_path / "giver"))
            giver.listen()
            run = attacked.agent(client, "use_connection", tmp_path / "giver", victim.id)
            taker = giver.accept()[0]
            with taker:
                socket.send_fds(taker, [b"x"], [given.fileno()])
            said = attacked.said(run)
        assert (
            "READY not_permitted this connection was made by a process in no run and "
            "used by process"
        ) in said
        assert alive(victim.pid)
        stopped(client, run.id, victim.id)


def test_an_orphan_that_left_its_cgroup_is_stopped_with_its_run(attacked: Target) -> None:
    with attacked.daemon.client() as client:
        other = sleeper(client)
        run = attacked.agent(client, "cookie_orphan")
        escaped = attacked.pid_said(run)
        reply = stopped(client, run.id, grace=0.2)
        assert reply.survivors == []
        assert not alive(escaped)
        assert alive(other.pid)
        stopped(client, other.id)


@variant
def test_an_orphan_that_left_its_cgroup_is_found_by_the_next_daemon(
    tmp_path: Path, user: str, mode: str
) -> None:
    with target(tmp_path, user, mode=mode) as attacked:
        with attacked.daemon.client() as client:
            run = attacked.agent(client, "cookie_orphan")
            escaped = attacked.pid_said(run)
        attacked.daemon.kill()
        attacked.daemon.restart()
        with attacked.daemon.client() as client:
            assert stopped(client, run.id, grace=0.2).survivors == []
            assert not alive(escaped)


def test_an_orphan_without_marks_is_stopped_with_the_only_tree(attacked: Target) -> None:
    with attacked.daemon.client() as client:
        run = attacked.agent(client, "unmarked_orphan")
        escaped = attacked.pid_said(run)
        assert stopped(client, run.id).survivors == []
        assert not alive(escaped)


def test_a_process_of_an_unknown_run_ends_with_the_daemon(
    tmp_path: Path, user: str, mode: str
) -> None:
    with target(tmp_path, user, mode=mode) as attacked:
        with attacked.daemon.client() as client:
            sleeper(client)
            run = attacked.agent(client, "unmarked_orphan")
            escaped = attacked.pid_said(run)
            stopped(client, run.id)
            assert alive(escaped), "it may be of the other tree"
        assert attacked.daemon.stop() == 0
        assert not alive(escaped)


def test_an_orphan_that_sheds_its_marks_after_it_was_seen_is_stopped_with_its_run(
    by_cgroup: Target,
) -> None:
    attacked, when = by_cgroup, by_cgroup.daemon.state_dir.parent / "when"
    with attacked.daemon.client() as client:
        other = sleeper(client)
        run = attacked.agent(client, "shed_marks", when)
        escaped = attacked.pid_said(run)
        # its end makes the daemon look at orphans
        ended(client, started(client, ["true"], cwd=b"/").id)
        when.touch()
        wait_until(lambda: "here" in argv(escaped), "it has shed them")
        assert stopped(client, run.id).survivors == []
        assert not alive(escaped)
        stopped(client, other.id)


@variant
def test_orphans_that_leave_and_shed_their_marks_in_the_grace_are_killed(by_cgroup: Target) -> None:
    with by_cgroup.daemon.client() as client:
        other = sleeper(client)
        runs = [by_cgroup.agent(client, "leave_when_told", grace=0.5) for _ in range(3)]
        escaped = [by_cgroup.pid_said(run) for run in runs]
        assert stopped(client, *(run.id for run in runs)).survivors == []
        assert not [pid for pid in escaped if alive(pid)]
        stopped(client, other.id)


@variant
def test_an_orphan_that_forks_and_exits_without_pause_ends_with_its_run(by_cgroup: Target) -> None:
    with by_cgroup.daemon.client() as client:
        for _ in range(20):
            assert (
                ended(client, by_cgroup.agent(client, "chain", 200).id).status is Status.COMPLETED
            )
            left = [
                pid
                for pid in kernel.children(by_cgroup.daemon.pid)
                if argv(pid)[-2:] == ["chain", "200"] and alive(pid)
            ]
            assert not left


@first(1)
@pytest.mark.parametrize("how", ["main_leaves", "main_leaves_and_removes"])
def test_a_main_process_that_left_its_cgroup_is_stopped(attacked: Target, how: str) -> None:
    with attacked.daemon.client() as client:
        run = attacked.agent(client, how)
        pid = attacked.pid_said(run)
        reply = stopped(client, run.id)
        assert reply.survivors == []
        assert not alive(pid)
        info = ended(client, run.id)
        assert (info.status, info.signal) == (Status.CANCELLED, signal.SIGTERM)


@variant
def test_a_main_process_that_left_its_cgroup_has_a_time_limit(attacked: Target) -> None:
    with attacked.daemon.client() as client:
        for seconds in (1, 5, 25):  # on a busy machine the agent may not get so far in less
            run = attacked.agent(
                client, "main_leaves", "ignore", limits=[limit("time", seconds)], grace=0.1
            )
            assert ended(client, run.id).status is Status.TIMEOUT
            if "READY" in attacked.output(run).read_text():
                break
        assert not alive(attacked.pid_said(run))


@variant
def test_a_main_process_that_left_its_cgroup_is_paused(attacked: Target) -> None:
    with attacked.daemon.client() as client:
        run = attacked.agent(client, "main_leaves")
        pid = attacked.pid_said(run)
        assert (
            client.call(m.Pause(id=client.next_id(), run=run.id), m.RunReply).run.status
            is Status.PAUSED
        )
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it stands still")
        client.call(m.Resume(id=client.next_id(), run=run.id), m.RunReply)
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_SLEEPING, "it goes on")
        stopped(client, run.id)


@pytest.fixture
def by_cgroup(attacked: Target, mode: str) -> Target:
    """The shared target, if its runs are held by cgroups."""
    if mode != "cgroup":
        pytest.skip("only with cgroups")
    return attacked


def test_cgroups_whose_paths_are_too_long(by_cgroup: Target) -> None:
    attacked = by_cgroup
    with attacked.daemon.client() as client:
        other = sleeper(client)
        run = attacked.agent(client, "nest", 40, "n" * 200)
        attacked.said(run)
        assert client.call(m.Info(id=client.next_id(), run=run.id), m.RunReply).run.processes == 1
        assert stopped(client, run.id).survivors == []
        assert alive(other.pid)
        base = next(path for path in cgroups() if path.endswith(attacked.daemon.instance))
        wait_until(lambda: not os.path.exists(f"{base}/{run.id}"), "its cgroups are gone")
        stopped(client, other.id)


@pytest.mark.rest("keeps a processor busy for seconds")
def test_cgroups_nested_deeper_than_the_recursion_limit(tmp_path: Path) -> None:
    depth = sys.getrecursionlimit() + 100
    with target(tmp_path / "one", "root", mode="cgroup") as attacked:
        with attacked.daemon.client() as client:
            other = sleeper(client)
            run = attacked.agent(client, "nest", depth, "n")
            attacked.said(run)
            assert (
                client.call(m.Info(id=client.next_id(), run=run.id), m.RunReply).run.processes == 1
            )
        (tmp_path / "two").mkdir()
        with running(tmp_path / "two", mode="cgroup") as unrelated:
            assert unrelated.stop() == 0
        attacked.daemon.kill()
        attacked.daemon.restart()
        with attacked.daemon.client() as client:
            assert stopped(client, run.id).survivors == []
            assert alive(other.pid)
            attacked.said(attacked.agent(client, "nest", 10, "n"))
        attacked.daemon.kill()
        swept = attacked.daemon.sfad("sweep")
        assert swept.returncode == 0, swept.stderr
        assert attacked.daemon.leftovers() == []
        attacked.daemon.restart()


def test_the_daemon_regains_access_rights_that_an_agent_removed(attacked: Target) -> None:
    with attacked.daemon.client() as client:
        run = attacked.agent(client, "lock_up")
        child = attacked.pid_said(run)
        assert ended(client, sleeper(client, limits=[limit("time", 1)]).id).status is Status.TIMEOUT
        assert stopped(client, run.id, grace=0.2).survivors == []
        assert not alive(child)


def cgroup_of(daemon: Daemon, run: str) -> str:
    base = next(path for path in cgroups() if path.endswith(daemon.instance))
    return f"{base}/{run}"


def test_a_process_in_the_cgroup_of_another_run_does_not_get_its_rights(by_cgroup: Target) -> None:
    attacked = by_cgroup
    with attacked.daemon.client() as client:
        victim = sleeper(client)
        run = attacked.agent(
            client, "join", cgroup_of(attacked.daemon, victim.id), victim.id, leaf=True
        )
        said = attacked.said(run)
        answers = dict(
            line.split(" ", 3)[1:3] for line in said.splitlines() if line.startswith("asked")
        )
        assert answers == dict.fromkeys(["info", "stop", "list", "spawn", "status"], "77"), said
        assert (
            f"was started in run {run.id} and has moved itself into the cgroup of run {victim.id}"
            in said
        )
        stopped(client, run.id, victim.id)


def test_a_daemon_that_was_moved_into_a_run_stops_it(tmp_path: Path, user: str) -> None:
    with target(tmp_path, user, mode="cgroup") as attacked, attacked.daemon.client() as client:
        run = attacked.agent(client, "take_daemon", attacked.daemon.pid)
        attacked.said(run)
        assert stopped(client, run.id).survivors == []
        assert ended(client, sleeper(client, limits=[limit("time", 1)]).id).status is Status.TIMEOUT


def test_the_next_run_starts_in_a_spoiled_base_cgroup(tmp_path: Path, user: str) -> None:
    with target(tmp_path, user, mode="cgroup") as attacked, attacked.daemon.client() as client:
        run = attacked.agent(client, "spoil", "a2")
        attacked.said(run)
        for _ in range(2):
            assert ended(client, started(client, ["true"], cwd=b"/").id).status is Status.COMPLETED
        stopped(client, run.id)


PRINTS = "import time\nwhile True: print('.', flush=True); time.sleep(0.05)"
"""A shell would wait in vfork(2) for a program that it starts, and stand still in another state."""


def test_a_paused_run_that_another_thaws_stands_still(attacked: Target, mode: str) -> None:
    with attacked.daemon.client() as client:
        run = started(client, [attacked.daemon.python, "-c", PRINTS], cwd=b"/")
        output = attacked.output(run)
        wait_until(lambda: output.stat().st_size > 0, "it prints")
        client.call(m.Pause(id=client.next_id(), run=run.id), m.RunReply)
        where = cgroup_of(attacked.daemon, run.id) if mode == "cgroup" else ""
        attacked.said(attacked.agent(client, "thaw", where, run.pid))
        stopped(client, everything=True)


def test_the_kernel_bounds_the_cgroups_of_a_run(tmp_path: Path) -> None:
    with target(tmp_path, "root", mode="cgroup") as attacked, attacked.daemon.client() as client:
        run = sleeper(client)
        base = next(path for path in cgroups() if path.endswith(attacked.daemon.instance))
        with pytest.raises(OSError, match="Resource temporarily unavailable"):
            os.makedirs(f"{base}/{run.id}" + "/x" * (cgroupfs.MAX_DEPTH + 1))
        stopped(client, run.id)


def test_a_main_process_whose_zombie_is_held_by_its_tracer(attacked: Target) -> None:
    with attacked.daemon.client() as client:
        run = attacked.agent(client, "traced_main")
        info = ended(client, run.id)
        assert (info.status, info.exit_code) == (Status.FAILED, 7)
        assert not alive(run.pid)


@variant
def test_a_tracer_outside_the_run(tmp_path: Path, containment: str) -> None:
    with target(tmp_path, "root", mode=containment) as attacked, attacked.daemon.client() as client:
        run = sleeper(client)
        with subprocess.Popen(
            [sys.executable, HERE, "trace", str(run.pid)], stdout=subprocess.PIPE
        ) as tracer:
            assert tracer.stdout is not None
            tracer.stdout.readline()
            assert stopped(client, run.id, grace=1.0).survivors == []
            cpu = sum(psutil.Process(attacked.daemon.pid).cpu_times()[:2])
            began = time.monotonic()
            wait_until(
                lambda: time.monotonic() - began > 1,
                "a second in which the daemon has nothing to do",
            )
            assert sum(psutil.Process(attacked.daemon.pid).cpu_times()[:2]) - cpu < 0.5
            # what a tracer holds takes a SIGTERM only when that lets it go
            assert ended(client, run.id).signal == signal.SIGKILL
            assert attacked.daemon.stop() == 0
            tracer.kill()


def test_a_process_without_its_main_thread(attacked: Target) -> None:
    with attacked.daemon.client() as client:
        run = attacked.agent(client, "headless")
        pid = attacked.pid_said(run)
        wait_until(
            lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE,
            "its main thread has ended",
        )
        assert client.call(m.Info(id=client.next_id(), run=run.id), m.RunReply).run.processes == 1
        paused = client.call(m.Pause(id=client.next_id(), run=run.id), m.RunReply).run
        assert paused.status is Status.PAUSED
        assert stopped(client, run.id).survivors == []
        assert not psutil.pid_exists(pid)


def test_stopping_many_runs_with_few_descriptors(tmp_path: Path, user: str) -> None:
    with (
        target(tmp_path, user, mode="cgroup", wrap=["prlimit", "--nofile=128:128"]) as attacked,
        attacked.daemon.client() as client,
    ):
        runs: list[str] = []
        while len(runs) < 30:
            reply = spawn(
                client,
                ["sh", "-c", "trap '' TERM; sleep 100 & wait; sleep 100"],
                cwd=b"/",
                name=f"stubborn{len(runs)}",
            )
            if isinstance(reply, m.Error):
                assert reply.code is ErrorCode.UNAVAILABLE, reply
                break
            assert isinstance(reply, m.RunReply), reply
            if reply.run.status is Status.FAILED:
                # it was admitted with the last descriptors, and had too few when it was launched
                break
            runs.append(reply.run.id)
        assert len(runs) > 5
        done = stopped(client, everything=True, grace=0.5)
        assert done.survivors == []
        assert sorted(done.stopped) == sorted(runs)


@with_fuse
def test_processes_that_cannot_be_killed_are_listed_and_do_not_hold_up_the_daemon(
    tmp_path: Path, containment: str
) -> None:
    config = "[stop]\ngrace = 0.2\nkill_wait = 0.5"
    daemon = Daemon(tmp_path, mode=containment, config=config)
    with unkillable(tmp_path / "mount") as asked, daemon.client() as client:
        other = sleeper(client)
        run = started(client, ["cat", tmp_path / "mount" / "file"], cwd=b"/")
        assert asked.wait(PATIENCE)
        stop = daemon.sfactl("stop", run.id)
        assert stop.returncode == 5
        assert f"{run.pid}" in stop.stderr
        assert "uninterruptible sleep (D)" in stop.stderr
        assert daemon.stop() == 5
        assert not alive(other.pid)
        assert f"left to the next daemon: {run.id}" in daemon.log.read_text()
    wait_until(lambda: not alive(run.pid), "the kernel lets it go")
    daemon.restart()
    with daemon.client() as client:
        assert ended(client, run.id).status is Status.CANCELLED
    assert daemon.stop() == 0
    assert daemon.leftovers() == []

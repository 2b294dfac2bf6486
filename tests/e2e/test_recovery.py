"""A daemon that is killed, or re-executes itself: no run is lost, and none runs unmanaged."""

from __future__ import annotations

import errno
import getpass
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from sfactl.connecting.connection import Client, Unreachable
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import (
    IMPATIENT,
    PATIENCE,
    PROGRAM,
    PYTHON,
    Daemon,
    alive,
    ended,
    other_boot,
    spawn,
    started,
    stopped,
    strays,
    wait_until,
)
from tests.tiers import first, variant
from tests.users import needs_root

from .agents import RECORDINGS, info, limit, reserve, turns, until_over, watched

TICK = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.02; done"


@pytest.fixture
def daemon(common: Daemon) -> Daemon:
    return common


MANY = (
    "[quotas]\nspawns_per_hour = 100000\ntrees_per_user = 1000\ntrees = "
    "1000\n[guard]\nmax_descendants = 1000\n"
)


def ticking(client: Client, **options: object) -> RunInfo:
    """Start a run that prints numbers in order until it is stopped."""
    return started(client, ["sh", "-c", TICK], **options)


def printed(daemon: Daemon, run: str) -> list[int]:
    """Return the numbers that the run has printed, without a line that is being written."""
    text = (daemon.state_dir / "output" / f"{run}.out").read_text()
    return [int(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def spooled(daemon: Daemon) -> list[str]:
    """Return the names of the saved environments of runs that may start."""
    return sorted(path.name for path in (daemon.state_dir / "spool").glob("*.spawn"))


def every(client: Client, root: str | None = None) -> list[RunInfo]:
    """Return all runs, or those of a tree."""
    return client.call(m.List(id=client.next_id(), rows=10_000, root=root), m.RunList).runs


def test_eight_ticking_runs_outlive_their_daemon(share: Start, containment: str) -> None:
    daemon = share(mode=containment)
    with daemon.client() as client:
        runs = [ticking(client, name=f"t{number}") for number in range(8)]
        wait_until(
            lambda: all(len(printed(daemon, run.id)) > 3 for run in runs), "all of them tick"
        )
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        now = [info(client, run.id) for run in runs]
        assert [(run.status, run.pid) for run in now] == [(Status.RUNNING, run.pid) for run in runs]
        assert client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).adopted == 8
        before = {run.id: len(printed(daemon, run.id)) for run in runs}
        wait_until(
            lambda: all(len(printed(daemon, run.id)) > before[run.id] + 3 for run in runs),
            "all of them tick on",
        )
        done = stopped(client, *(run.id for run in runs))
        assert (sorted(done.stopped), done.survivors) == ([run.id for run in runs], [])
        assert {ended(client, run.id).status for run in runs} == {Status.CANCELLED}
    for run in runs:
        numbers = printed(daemon, run.id)
        assert numbers == list(range(len(numbers)))


@variant
def test_unchanged_queued_runs_are_not_written_again(start: Start) -> None:
    daemon = start(config="[quotas]\ntrees = 1\nspawns_per_hour = 1000")
    with daemon.client() as client:
        runs = [started(client, ["sleep", "60"]) for _ in range(100)]
    daemon.kill()

    def remembered() -> int:
        """Return the length of the spool without the zeros at its end, which are room."""
        return len((daemon.state_dir / "spool" / "runs").read_bytes().rstrip(b"\0"))

    before = remembered()
    daemon.restart()
    assert abs(remembered() - before) < 4000  # 99 queued runs would be 30 000
    with daemon.client() as client:
        status = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
        assert (status.adopted, status.queued) == (1, 99)
        assert len(stopped(client, everything=True, grace=0).stopped) == len(runs)


@variant
def test_a_tree_is_the_same_tree_afterwards(share: Start, containment: str) -> None:
    daemon = share(mode=containment)
    child = f"{PYTHON} -m sfactl run --name child -- sh -c '{TICK}'"
    with daemon.client() as client:
        root = started(
            client,
            ["sh", "-c", f"{child} & {child.replace('name child', 'name other')} & wait"],
            name="top",
            max_depth=None,
        )
        wait_until(
            lambda: len([r for r in every(client, root.id) if r.status is Status.RUNNING]) == 3,
            "both children run",
        )
        before = {
            run.id: (run.name, run.parent_id, run.root_id, run.depth, run.chain, run.pid)
            for run in every(client, root.id)
        }
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        after = {
            run.id: (run.name, run.parent_id, run.root_id, run.depth, run.chain, run.pid)
            for run in every(client, root.id)
        }
        assert after == before
        assert info(client, root.id).descendants == 2
        assert len(stopped(client, root.id).stopped) == 1
        assert {run.status for run in every(client, root.id)} == {Status.CANCELLED}


def test_a_peer_in_an_adopted_run_is_identified_with_it(
    share: Start, containment: str, tmp_path: Path
) -> None:
    daemon = share(mode=containment)
    go, said = tmp_path / "go", tmp_path / "said"
    os.mkfifo(go)
    script = (
        f"read line < {go}; {PYTHON} -m sfactl run --name looper -- true 2> {said}; exec sleep 60"
    )
    with daemon.client() as client:
        started(client, ["sh", "-c", script], name="looper")
    daemon.kill()
    daemon.restart()
    go.write_text("now\n")
    wait_until(
        lambda: said.exists() and "looper → looper" in said.read_text(),
        "the loop rule knows the chain",
    )


def test_deadlines_are_enforced_that_pass_while_no_daemon_runs_and_afterwards(share: Start) -> None:
    daemon = share()
    with daemon.client() as client:
        first = started(client, ["sleep", "60"], limits=[limit("time", 1)])
        later = started(client, ["sleep", "60"], limits=[limit("time", 3)])
    daemon.kill()
    time.sleep(1.2)  # the deadline passes while no daemon runs
    daemon.restart()
    with daemon.client() as client:
        assert ended(client, first.id).status is Status.TIMEOUT
        run = ended(client, later.id)
        assert run.status is Status.TIMEOUT
        assert run.started_at is not None
        assert run.ended_at is not None
        assert 2.9 <= (run.ended_at - run.started_at).total_seconds() <= 20


def test_a_run_that_ended_while_no_daemon_ran_is_lost_or_has_its_exit_code(
    share: Start, tmp_path: Path
) -> None:
    daemon = share()
    go = tmp_path / "go"
    os.mkfifo(go)
    with daemon.client() as client:
        gone = started(client, ["sh", "-c", f"read line < {go}; exit 7"])
        done = ended(client, started(client, ["sh", "-c", "exit 3"]).id)
    daemon.kill()
    go.write_text("now\n")
    wait_until(lambda: not alive(gone.pid), "it ends while no daemon is there")
    daemon.restart()
    with daemon.client() as client:
        run = info(client, gone.id)
        assert (run.status, run.exit_code) in {(Status.LOST, None), (Status.FAILED, 7)}
        assert run.reason is not None
        assert "the daemon died while it ran" in run.reason.message
        assert info(client, done.id).exit_code == 3
    waited = daemon.sfactl("wait", gone.id)
    assert waited.returncode in {70, 7}


SCREENED = """
import os, sys
lines = open(sys.argv[1], "rb").read().splitlines(keepends=True)
told, last = int(sys.argv[2]), len(lines) - int(sys.argv[3])
os.write(1, b"".join(lines[:told]))
open(sys.argv[4]).read()
os.write(1, b"".join(lines[told:last]))
"""
"""Print the first lines of a recording, wait for a fifo, and print the rest without the last
lines."""


def _opened(fifo: Path) -> int:
    """Return a descriptor that writes to a fifo once another process reads it."""
    found: list[int] = []

    def opened() -> bool:
        try:
            found.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        return bool(found)

    wait_until(opened, f"{fifo.name} is read")
    return found[0]


@first(1)
@pytest.mark.parametrize(
    ("containment", "saved"), [("cgroup", True), ("tags", False)], ids=["saved", "not saved"]
)
def test_a_run_that_ended_while_no_daemon_ran_is_metered_to_its_end(
    start: Start, containment: str, tmp_path: Path, saved: bool
) -> None:
    """Three agents print the rest of what was recorded, one of them without its result, and end
    while no daemon is there."""
    daemon = start(mode=containment, config=f"[budgets.users.{getpass.getuser()}]\ndaily_usd = 9\n")
    recordings = {"claude": "claude-success", "codex": "codex-success", "killed": "claude-success"}
    go = {name: tmp_path / f"{name}.go" for name in recordings}
    with daemon.client() as client:
        runs: dict[str, RunInfo] = {}
        for name, recording in recordings.items():
            os.mkfifo(go[name])
            told, left_out = "3" if saved else "0", "1" if name == "killed" else "0"
            argv = [
                sys.executable,
                "-c",
                SCREENED,
                str(RECORDINGS / f"{recording}.jsonl"),
                told,
                left_out,
                str(go[name]),
            ]
            runs[name] = started(client, argv, name=name, meter=recording.partition("-")[0])
        if saved:
            wait_until(
                lambda: all(_saved(daemon, run.id) for run in runs.values()), "positions are saved"
            )
    # its reader is there, so the command is executed
    gates = {name: _opened(fifo) for name, fifo in go.items()}
    daemon.kill()
    for name, run in runs.items():
        os.write(gates[name], b"now\n")
        os.close(gates[name])
        wait_until(lambda run=run: not alive(run.pid), "it ends while no daemon is there")  # type: ignore[misc]
    daemon.restart()
    with daemon.client() as client:
        now = {name: ended(client, run.id) for name, run in runs.items()}
    claude, codex, killed = now["claude"], now["codex"], now["killed"]
    if claude.exit_code is None:  # else the kernel has told
        assert (claude.status, killed.status) == (Status.COMPLETED, Status.LOST)
        assert claude.reason is not None
        assert claude.reason.message.endswith("; before, the agent had printed its final result")
    assert (claude.usage.turns, claude.usage.input_tokens, claude.usage.output_tokens) == (
        2,
        4650,
        180,
    )
    assert (claude.usage.cost_usd, claude.usage.partial) == (0.0238875, False)
    assert (codex.usage.turns, codex.usage.tokens, codex.usage.partial) == (2, 4740, False)
    assert (killed.usage.turns, killed.usage.input_tokens, killed.usage.partial) == (2, 4650, True)
    assert killed.usage.cost_usd is not None
    assert killed.usage.cost_from == "prices", "the price list was waited for"
    told = daemon.sfactl("status").stdout
    assert f"user {getpass.getuser()}: at least " in told


def _saved(daemon: Daemon, run: str) -> bool:
    """Return whether the position of the run's meter is saved."""
    return f"meter/{run}".encode() in (daemon.state_dir / "spool" / "runs").read_bytes()


def test_the_descendants_of_a_dead_main_process_are_stopped(
    share: Start, containment: str, tmp_path: Path
) -> None:
    daemon = share(mode=containment)
    go = tmp_path / "go"
    os.mkfifo(go)
    with daemon.client() as client:
        run = started(
            client,
            ["sh", "-c", f"setsid sh -c 'setsid sleep 300 & sleep 300' & read line < {go}; exit 0"],
        )
        wait_until(lambda: len(strays(daemon.instance)) >= 4, "its processes are there")
    daemon.kill()
    go.write_text("now\n")
    wait_until(lambda: not alive(run.pid), "the main process ends")
    daemon.restart()
    with daemon.client() as client:
        assert ended(client, run.id).status in {Status.LOST, Status.COMPLETED}
    assert strays(daemon.instance) == []


@variant
def test_three_kills_in_the_middle_of_a_burst(start: Start) -> None:
    daemon = start(config=MANY)
    acknowledged: list[str] = []
    lock = threading.Lock()

    def burst(numbers: Iterable[int]) -> None:
        for number in numbers:
            run = patiently(daemon, ["sleep", "300"], name=f"n{number}", key=f"burst-{number}")
            with lock:
                acknowledged.append(run)

    workers = [threading.Thread(target=burst, args=(range(first, 36, 4),)) for first in range(4)]
    for worker in workers:
        worker.start()
    for enough in (6, 14, 22):
        wait_until(lambda enough=enough: len(acknowledged) >= enough, "some are acknowledged")  # type: ignore[misc]
        daemon.kill()
        daemon.restart()
    for worker in workers:
        worker.join(4 * PATIENCE)
    with daemon.client() as client:
        runs = {run.id: run for run in every(client)}
        assert len(set(acknowledged)) == 36
        assert set(acknowledged) <= set(runs)
        live = [run for run in runs.values() if not run.status.terminal]
        assert all(alive(run.pid) for run in live)
        assert {stray.pid for stray in strays(daemon.instance)} == {run.pid for run in live}
        assert len({run.name for run in live}) == len(live), "no request was carried out twice"
        stopped(client, everything=True)


def patiently(daemon: Daemon, argv: list[str], **options: object) -> str:
    """Request a run, again with the same key whenever the connection is lost before the answer.
    Return its id."""

    def asked() -> str | None:
        try:
            with daemon.client() as client:
                reply = spawn(client, argv, **options)
        except (Unreachable, OSError):
            return None
        assert isinstance(reply, m.RunReply), reply
        return reply.run.id

    found = wait_until(asked, "the daemon answers", seconds=2 * PATIENCE)
    assert isinstance(found, str)
    return found


def test_the_same_key_starts_nothing_twice(share: Start) -> None:
    daemon = share()
    with daemon.client() as client:
        first = ticking(client, key="k")
        assert ticking(client, key="k").id == first.id
        assert ticking(client, key="other").id != first.id
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert ticking(client, key="k").id == first.id
        stopped(client, everything=True)
        again = spawn(client, ["true"], key="k")
        assert isinstance(again, m.RunReply)
        assert again.run.id == first.id


def test_a_stop_under_way_ends(start: Start) -> None:
    daemon = start(config="[stop]\ngrace = 2")
    with daemon.client() as client:
        run = started(client, ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
        wait_until(
            lambda: (daemon.state_dir / "output" / f"{run.id}.out").read_text(), "the trap is set"
        )
        client.send(m.Stop(id=client.next_id(), runs=[run.id]))
        wait_until(lambda: info(client, run.id).status is Status.STOPPING, "it is being stopped")
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert ended(client, run.id).status is Status.CANCELLED


def test_a_paused_run_stays_paused(share: Start, containment: str) -> None:
    daemon = share(mode=containment)
    with daemon.client() as client:
        run = ticking(client, limits=[limit("time", 5)])
        wait_until(lambda: len(printed(daemon, run.id)) > 3, "it ticks")
        client.call(m.Pause(id=client.next_id(), run=run.id), m.RunReply)
        still = printed(daemon, run.id)
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert info(client, run.id).status is Status.PAUSED
        assert info(client, run.id).deadline is None
        assert printed(daemon, run.id)[:-1] == still[:-1] or printed(daemon, run.id) == still
        client.call(m.Resume(id=client.next_id(), run=run.id), m.RunReply)
        wait_until(lambda: len(printed(daemon, run.id)) > len(still) + 3, "it ticks on")
        assert ended(client, run.id).status is Status.TIMEOUT


def test_queued_runs_stay_queued_and_start_in_order(start: Start) -> None:
    daemon = start(config="[quotas]\ntrees_per_user = 1")
    with daemon.client() as client:
        first = ticking(client)
        waiting = [
            started(client, ["sh", "-c", 'echo "$SECRET"; sleep 0.1'], name=f"q{n}")
            for n in range(3)
        ]
        assert {run.status for run in waiting} == {Status.QUEUED}
    assert spooled(daemon) == [f"{run.id}.spawn" for run in waiting]
    assert {
        (daemon.state_dir / "spool" / name).stat().st_mode & 0o777 for name in spooled(daemon)
    } == {0o600}
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert [info(client, run.id).status for run in waiting] == [Status.QUEUED] * 3
        stopped(client, first.id)
        done = [ended(client, run.id) for run in waiting]
        assert [run.status for run in done] == [Status.COMPLETED] * 3
        begun = [run.started_at for run in done]
        assert begun == sorted(begun, key=str)
    assert spooled(daemon) == []


def test_an_environment_is_kept_only_until_the_last_start_and_only_in_the_spool(
    share: Start,
) -> None:
    daemon = share()
    with daemon.client() as client:
        env = [b"PATH=" + os.environb[b"PATH"], b"TOKEN=very-secret-indeed"]
        request = m.Spawn(
            id=client.next_id(),
            argv=[b"sh", b"-c", b"sleep 0.2; exit 1"],
            cwd=b"/",
            env=env,
            attempts=2,
            retry_delay=0.1,
        )
        run = client.call(request, m.RunReply).run
        assert spooled(daemon) == [f"{run.id}.spawn"]
        wait_until(lambda: info(client, run.id).attempts == 2, "its last attempt")
        wait_until(
            lambda: spooled(daemon) == [], "what it was started with is gone with its last start"
        )
        assert ended(client, run.id).status is Status.FAILED
    for path in daemon.state_dir.rglob("*"):
        if path.is_file():
            assert b"very-secret" not in path.read_bytes(), path


def test_a_run_between_two_attempts_is_tried_again(share: Start, tmp_path: Path) -> None:
    daemon = share()
    count = tmp_path / "count"
    with daemon.client() as client:
        run = started(
            client,
            ["sh", "-c", f"echo $SFA_ATTEMPT >> {count}; [ $SFA_ATTEMPT = 2 ]"],
            attempts=3,
            retry_delay=1.5,
        )
        wait_until(
            lambda: info(client, run.id).status is Status.RETRYING, "the first attempt failed"
        )
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        done = ended(client, run.id)
        assert (done.status, done.attempts) == (Status.COMPLETED, 2)
    assert count.read_text().split() == ["1", "2"]


def test_usage_is_saved_and_counted_once(share: Start) -> None:
    daemon = share()
    with daemon.client() as client:
        run, _ = watched(
            client, turns(8, then="sys.stdin.read() if 0 else time.sleep(60)"), limit("turns", 50)
        )
        wait_until(lambda: info(client, run.id).usage.turns == 8, "its turns are seen")
        held = reserve(client, run.id, 1000, 1000)
        cost = info(client, run.id).usage.cost_usd
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        now = info(client, run.id)
        assert (now.usage.turns, now.usage.cost_usd) == (8, cost)
        assert held.reservation is not None
        settled = m.Settle(
            id=client.next_id(), reservation=held.reservation, input_tokens=10, output_tokens=10
        )
        after = client.call(settled, m.RunReply).run
        assert after.usage_by_source["report"].tokens == 20
        assert reserve(client, run.id, 1, 1).reservation != held.reservation


@variant
def test_a_limit_on_turns_is_enforced_across_a_crash(share: Start) -> None:
    daemon = share()
    with daemon.client() as client:
        run, _ = watched(client, turns(40, then="time.sleep(60)"), limit("turns", 30))
        wait_until(lambda: (info(client, run.id).usage.turns or 0) >= 10, "a third of it")
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        done = ended(client, run.id)
        assert done.status is Status.FAILED
        assert done.reason is not None
        assert (done.reason.limit_kind, done.reason.threshold) == ("turns", 30)
        assert 31 <= (done.usage.turns or 0) <= 40


def test_a_request_for_approval_stays_open(share: Start) -> None:
    daemon = share()
    with daemon.client() as client:
        run, _ = watched(
            client, turns(4, then="time.sleep(60)"), limit("turns", 2, "request_increase")
        )
        wait_until(lambda: info(client, run.id).status is Status.PAUSED, "it waits for an approval")
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert info(client, run.id).status is Status.PAUSED
        assert (
            client.call(m.Approve(id=client.next_id(), run=run.id), m.RunReply).run.status
            is Status.RUNNING
        )


def test_a_foreground_client_reconnects_and_gets_the_whole_output_and_the_exit_code(
    daemon: Daemon, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    script = f"echo one; read line < {go}; echo two; exit 7"
    command = [sys.executable, "-m", "sfactl", "run", "--", "sh", "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=daemon.env, text=True
    ) as foreground:
        assert foreground.stdout is not None
        assert foreground.stdout.readline() == "one\n"
        daemon.kill()
        daemon.restart()
        with daemon.client() as client:
            wait_until(lambda: connections(client) >= 2, "it has come back")
        go.write_text("now\n")
        out, err = foreground.communicate(timeout=PATIENCE)
        assert (foreground.returncode, out) in {(7, "two\n"), (70, "two\n")}, err


def connections(client: Client) -> int:
    """Return how many connections the daemon has."""
    return client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).connections or 0


@variant
def test_a_run_without_a_foreground_client_outlives_the_daemon(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = ticking(client)
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert info(client, run.id).status is Status.RUNNING
        stopped(client, run.id)


def test_a_run_is_stopped_if_its_foreground_client_does_not_reconnect(start: Start) -> None:
    daemon = start(program=IMPATIENT)
    with daemon.client() as client:
        gone = ticking(client, tied=True)
    with daemon.client() as client:
        assert ended(client, gone.id).status is Status.CANCELLED
        run = ticking(client, tied=True)
        daemon.kill()
    began = time.monotonic()
    daemon.restart()
    with daemon.client() as client:
        done = ended(client, run.id)
    assert time.monotonic() - began > 1, "the client has a second to connect again"
    assert done.reason is not None
    assert "did not come back" in done.reason.message


def test_a_recycled_pid_is_never_signalled(share: Start) -> None:
    """Another process has the pid of a run's main process, and none of its marks."""
    daemon = share()
    with daemon.client() as client:
        run = started(client, ["sleep", "300"])
    daemon.kill()
    psutil.Process(run.pid).kill()
    wait_until(lambda: not psutil.pid_exists(run.pid or 0), "it is gone", seconds=60)
    try:
        stranger = process_with_pid(run.pid or 0)
    finally:
        daemon.restart()
    try:
        with daemon.client() as client:
            assert info(client, run.id).status is Status.LOST
            stopped(client, run.id)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def process_with_pid(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that has exactly this pid."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    for _ in range(200):
        try:
            last.write_text(str(pid - 1))
        except OSError:
            pytest.skip("pids cannot be chosen here (ns_last_pid)")
        process = subprocess.Popen(["sleep", "300"], env={})
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    pytest.skip("another process takes the pid each time")


def test_after_a_reboot_everything_is_closed_and_the_queue_goes_on(start: Start) -> None:
    """The spool is changed to one of another boot, and the processes are killed, as by a reboot."""
    daemon = start(config="[quotas]\ntrees_per_user = 1")
    with daemon.client() as client:
        run = started(client, ["sleep", "300"])
        waiting = started(client, ["true"])
    daemon.kill()
    for stray in strays(daemon.instance):
        stray.kill()
    wait_until(lambda: not alive(run.pid), "it is gone")
    other_boot(daemon.state_dir)
    daemon.restart()
    with daemon.client() as client:
        lost = info(client, run.id)
        assert lost.status is Status.LOST
        assert lost.reason is not None
        assert lost.reason.message.startswith("the machine was restarted while it ran")
        assert ended(client, waiting.id).status is Status.COMPLETED


def ruin_ledger(daemon: Daemon) -> None:
    """Overwrite the ledger and its log, from which SQLite could restore it."""
    for name in ("ledger.db", "ledger.db-wal"):
        (daemon.state_dir / name).write_bytes(
            b"this is not a database, whatever its name says" * 1000
        )


def test_a_corrupt_ledger_costs_no_live_run(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        run = ticking(client, limits=[limit("time", 300)])
    daemon.kill()
    ruin_ledger(daemon)
    daemon.restart()
    with daemon.client() as client:
        now = info(client, run.id)
        assert (now.status, now.pid) == (Status.RUNNING, run.pid)
        assert now.limits[0].threshold == 300
        assert ticking(client).id > run.id
        stopped(client, everything=True)
        ended(client, run.id)  # which is on record then
    assert list(daemon.state_dir.glob("ledger.db.corrupt-*"))
    with closing(sqlite3.connect(daemon.state_dir / "ledger.db")) as connection:
        assert connection.execute("SELECT status FROM runs WHERE id = ?", (run.id,)).fetchone() == (
            "cancelled",
        )


def test_money_that_was_charged_outlives_the_ledger(start: Start) -> None:
    user = psutil.Process().username()
    daemon = start(config=f"[budgets.users.{user}]\ndaily_usd = 10\n")
    with daemon.client() as client:
        run = ticking(client)
        client.call(m.Report(id=client.next_id(), run=run.id, cost_usd=0.5), m.RunReply)
    daemon.kill()
    ruin_ledger(daemon)
    daemon.restart()
    with daemon.client() as client:
        budget = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).budgets[0]
        assert budget.used_usd == 0.5
        stopped(client, everything=True)


@variant
def test_a_lost_ledger_and_a_damaged_spool_leave_no_money(start: Start) -> None:
    user = psutil.Process().username()
    daemon = start(config=f"[budgets.users.{user}]\ndaily_usd = 10\n")
    with daemon.client() as client:
        run = ticking(client)
        client.call(m.Report(id=client.next_id(), run=run.id, cost_usd=0.5), m.RunReply)
    daemon.kill()
    ruin_ledger(daemon)
    (daemon.state_dir / "spool" / "runs").write_bytes(b"rubbish" * 1000)
    daemon.restart()
    assert strays(daemon.instance) == [], "the daemon ends processes of runs that it does not know"
    with daemon.client() as client:
        budget = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).budgets[0]
        assert budget.used_usd == 10
        refused = spawn(client, ["true"])
        assert isinstance(refused, m.Refused)
        assert refused.refused.kind == "rejected_budget" or "budget" in refused.refused.message


def test_an_old_spool_does_not_make_an_ended_run_lost(share: Start) -> None:
    """A spool can be old after a power cut, or when a copy was put back."""
    daemon = share()
    with daemon.client() as client:
        run = started(client, ["sh", "-c", "sleep 0.3"])
        old = (daemon.state_dir / "spool" / "runs").read_bytes()
        assert ended(client, run.id).status is Status.COMPLETED
    daemon.kill()
    (daemon.state_dir / "spool" / "runs").write_bytes(old)
    daemon.restart()
    with daemon.client() as client:
        assert info(client, run.id).status is Status.COMPLETED


def test_two_events_never_have_the_same_number(daemon: Daemon) -> None:
    seen: list[int] = []
    for _ in range(3):
        with daemon.client() as client:
            run, watch = watched(client, ["sleep", "0.2"], meter=None)
            _, events = until_over(client, run.id)
            seen += [int(str(event.seq)) for event in events]
            assert watch
        daemon.kill()
        daemon.restart()
    assert len(seen) == len(set(seen)) >= 3
    assert seen == sorted(seen)


def listened(daemon: Daemon) -> int:
    """Return how many connections the daemon's socket has, those that were not accepted
    included."""
    table = Path("/proc/net/unix").read_text().splitlines()
    return sum(line.endswith(f" {daemon.socket}") for line in table) - 1


def client_of(daemon: Daemon, *words: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "sfactl", *words],
        env=daemon.env | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@first(1)
@pytest.mark.parametrize("words", [("spawn", "--", "true"), ("list", "--json"), ("status",)])
def test_a_client_whose_handshake_the_daemon_does_not_survive_waits_for_the_next_one(
    daemon: Daemon, words: tuple[str, ...]
) -> None:
    daemon.process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{daemon.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
    before = listened(daemon)
    client = client_of(daemon, *words)
    wait_until(lambda: listened(daemon) > before, "the client has connected")
    daemon.kill()
    daemon.restart()
    out, err = client.communicate(timeout=PATIENCE)
    assert (client.returncode, bool(out)) == (0, True), err


@first(1)
@pytest.mark.parametrize("inside", [True, False])
def test_a_client_that_may_start_no_daemon_waits_for_one_that_was_killed(
    daemon: Daemon, inside: bool
) -> None:
    """As that of an agent in the second in which systemd starts the daemon again."""
    daemon.kill()
    words = ["status"] if inside else ["spawn", "--", "true"]
    client = client_of(
        daemon, *words, **({"SFA_RUN_ID": "a1"} if inside else {"SFAD_AUTOSTART": "0"})
    )
    waits = Path(f"/proc/{client.pid}/wchan")
    wait_until(
        lambda: client.poll() is not None or "nanosleep" in waits.read_text(), "it waits or ends"
    )
    daemon.restart()
    out, err = client.communicate(timeout=PATIENCE)
    assert (client.returncode, bool(out)) == (0, True), err


@needs_root
def test_a_daemon_in_another_time_namespace_adopts_runs_and_their_times(
    start: Start, containment: str
) -> None:
    """As in a container that was moved to another machine, or got another offset."""
    daemon = start(mode=containment)
    with daemon.client() as client:
        run = started(client, ["sleep", "1000"], limits=[limit("time", 500)])
    daemon.kill()
    shifted = ["unshare", "--time", "--monotonic", "50000", "--boottime", "90000"]
    daemon.restart(command=[*shifted, sys.executable, *PROGRAM])
    assert os.stat(f"/proc/{daemon.pid}/ns/time").st_ino != os.stat("/proc/self/ns/time").st_ino
    with daemon.client() as client:
        found = info(client, run.id)
        assert found.status is Status.RUNNING
        assert 0 <= (found.usage.elapsed_s or 0) < 500
        began = started(client, ["sleep", "1000"])
        assert 0 <= (info(client, began.id).usage.elapsed_s or 0) < 500
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert info(client, run.id).status is info(client, began.id).status is Status.RUNNING

"""What was found by trying to break recovery, re-execution and keys. Each says which promise it
broke."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from sfactl.connecting.connection import Client
from sfad.core.state.run import run_number
from sfad.protocol import messages as m
from sfad.protocol.types import RunInfo, Status
from tests import needs
from tests.conftest import Start
from tests.harness import (
    PATIENCE,
    Daemon,
    alive,
    argv,
    ended,
    other_boot,
    spawn,
    started,
    stopped,
    strays,
    wait_until,
)
from tests.tiers import first, variant

from .agents import info, until_over, watched
from .test_recovery import spooled, ticking


@pytest.fixture
def daemon(common: Daemon) -> Daemon:
    return common


def survives_sigusr2(daemon: Daemon) -> bool:
    """Ask the daemon to re-execute itself. Return whether there is a daemon afterwards: the new
    program, or the old one, which says why it was not re-executed."""
    before = len(daemon.log.read_text())
    daemon.process.send_signal(signal.SIGUSR2)

    def decided() -> bool:
        said = daemon.log.read_text()[before:]
        return (
            daemon.process.poll() is not None
            or "was not re-executed" in said
            or '"message":"serving"' in said
        )

    wait_until(decided, "it has decided")
    return daemon.process.poll() is None


@variant
def test_sigusr2_while_another_process_holds_the_ledger(start: Start) -> None:
    """Promise: a daemon that would not come back is not re-executed; a locked ledger costs no run
    its supervision.

    The old daemon can work with a locked ledger as long as necessary. The new program would wait 15
    s and exit with 69: its runs would be unmanaged, and every connection lost."""
    daemon = start()
    with daemon.client() as client:
        ticking(client)
        with closing(
            sqlite3.connect(daemon.state_dir / "ledger.db", isolation_level=None)
        ) as outsider:
            outsider.execute("BEGIN IMMEDIATE")
            survived = survives_sigusr2(daemon)
            outsider.execute("ROLLBACK")
    if not survived:
        daemon.restart()
    assert survived, daemon.log.read_text()


@first(1)
@pytest.mark.parametrize(
    "setting",
    [
        '[log]\nfile = "/nonexistent/log"\n',
        '[containment]\nmode = "cgroup"\ncgroup_parent = "/nonexistent"\n',
    ],
)
def test_sigusr2_with_a_config_that_only_a_start_finds_wrong(daemon: Daemon, setting: str) -> None:
    """Promise: a daemon that would not come back is not re-executed.

    `log.*` and `containment.*` are used at a start only. `check-start` reads the config and tries
    none of it, so the daemon exits 69 after execve(2). (With runs in its cgroups it stays where
    they are, and the second config does no harm.)"""
    good = daemon.config.read_text()
    if "log" in setting:
        with daemon.client() as client:
            ticking(client)
    daemon.config.write_text(setting)
    survived = survives_sigusr2(daemon)
    daemon.config.write_text(good)
    if not survived:
        daemon.restart()
    assert survived, daemon.log.read_text()


@variant
def test_sigusr2_when_the_script_that_it_was_started_by_is_gone(
    start: Start, tmp_path: Path
) -> None:
    """Promise: a daemon that would not come back is not re-executed.

    Checked is `python -m sfad`, executed is `sys.orig_argv`: `bin/sfad` of the installation that an
    upgrade has replaced."""
    daemon = start()
    daemon.stop()
    script = tmp_path / "sfad-script"
    script.write_text("from sfad.__main__ import main\nmain()\n")
    daemon.restart(command=[sys.executable, str(script)])
    with daemon.client() as client:
        ticking(client)
    script.unlink()
    survived = survives_sigusr2(daemon)
    if not survived:
        daemon.restart()
    assert survived, daemon.log.read_text()


@variant
def test_runs_have_the_same_descriptor_limit_after_a_reexecution(start: Start) -> None:
    """Promise: runs have the soft RLIMIT_NOFILE that the daemon was started with; no run notices a
    re-execution.

    The daemon raises its own, which execve(2) keeps, and the new one takes that for what it was
    started with."""
    daemon = start()
    daemon.stop()
    limited = ["sh", "-c", 'ulimit -Sn 512; exec "$@"', "sh", sys.executable, "-m", "sfad"]
    daemon.restart(command=limited)
    with daemon.client() as client:

        def soft_limit() -> str:
            run = ended(client, started(client, ["sh", "-c", "ulimit -Sn"]).id)
            return daemon.output(run.id).strip()

        assert soft_limit() == "512"
        daemon.reexecute()
        assert soft_limit() == "512"


def test_a_spool_older_than_the_ledger_does_not_run_a_command_twice(
    start: Start, tmp_path: Path
) -> None:
    """Promise: what may have run is never run again.

    The spool is not synced. After a power cut it may say that a run is queued of which the ledger
    says that it was running."""
    daemon = start(config="[quotas]\ntrees_per_user = 1")
    spool, older, count = daemon.state_dir / "spool", tmp_path / "older", tmp_path / "count"
    with daemon.client() as client:
        first = ticking(client)
        run = started(client, ["sh", "-c", f"echo once >> {count}; sleep 300"])
        shutil.copytree(spool, older)
        stopped(client, first.id)
        wait_until(count.exists, "it has begun")
    with closing(sqlite3.connect(daemon.state_dir / "ledger.db")) as ledger:
        query = "SELECT status FROM runs WHERE id = ?"
        wait_until(
            lambda: ledger.execute(query, (run.id,)).fetchone() == ("running",), "that is on record"
        )
    daemon.kill()
    for stray in strays(daemon.instance):
        stray.kill()
    wait_until(lambda: strays(daemon.instance) == [], "the machine is down")
    shutil.rmtree(spool)
    shutil.copytree(older, spool)
    other_boot(daemon.state_dir)
    daemon.restart()
    with daemon.client() as client:
        now = info(client, run.id)
        stopped(client, run.id)
    assert now.status is Status.LOST


def test_a_changed_containment_leaves_no_process_unmanaged(start: Start) -> None:
    """Promise: no agent is left unmanaged; a stop says that nothing is alive only when nothing is.

    What a dead daemon held by cgroup is in that cgroup still, although the config says "tags" now.
    Its orphans that cleared their environment carry no tag, so they outlive the stop of their run,
    and the daemon."""
    daemon = start(mode="cgroup")
    with daemon.client() as client:
        base = Path(
            client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).containment_detail
        )
        run = started(client, ["sh", "-c", "(env -i setsid sleep 4242 &); sleep 300"])

        def escaped() -> list[int]:
            pids = [
                int(line)
                for path in base.rglob("cgroup.procs")
                for line in path.read_text().split()
            ]
            return [pid for pid in pids if argv(pid) == ["sleep", "4242"]]

        orphan = psutil.Process(wait_until(escaped, "the orphan is there")[0])
    daemon.kill()
    daemon.config.write_text('[containment]\nmode = "tags"\n')
    daemon.restart()
    try:
        with daemon.client() as client:
            assert info(client, run.id).status is Status.RUNNING
            assert stopped(client, run.id).survivors == []
        assert not alive(orphan.pid)
    finally:
        with suppress(psutil.Error):
            orphan.kill()
        daemon.stop()
        assert daemon.sfad("sweep").returncode == 0


def test_runs_of_a_state_directory_that_was_moved_are_not_given_up(
    start: Start, containment: str
) -> None:
    """Promise: no agent is left unmanaged; nothing that is alive is shown as ended.

    Cgroups and cookies are named after the directory's path, not after what is in it: under another
    path nobody would find them."""
    daemon = start(mode=containment)
    with daemon.client() as client:
        run = ticking(client)
    daemon.kill()
    here = daemon.state_dir
    moved = daemon.directory / "moved"
    here.rename(moved)
    refused = daemon.sfad("serve", "--state-dir", str(moved))
    assert refused.returncode == 69
    assert f"move it back, or end them with 'sfad sweep --state-dir {here}'" in refused.stderr
    swept = daemon.sfad("sweep", "--state-dir", str(moved))
    assert (swept.returncode, swept.stdout) == (69, "")
    assert alive(run.pid)
    here.symlink_to(moved)
    assert f"{moved} was {here} when" in daemon.sfad("serve", "--state-dir", str(here)).stderr
    here.unlink()
    assert daemon.sfad("sweep", "--state-dir", str(here)).returncode == 0
    assert daemon.sfad("sweep", "--state-dir", str(moved)).returncode == 0
    assert not alive(run.pid)
    daemon.state_dir = moved
    daemon.restart()
    with daemon.client() as client:
        assert info(client, run.id).status is Status.LOST


def test_the_id_of_a_refused_run_is_not_given_to_another_after_a_crash(start: Start) -> None:
    """Promise: run ids are never used twice. Nobody waits for the row of a refusal."""
    daemon = start(config="[quotas]\ntrees_per_user = 1")
    with daemon.client() as client:
        started(client, ["sleep", "60"])
        with closing(
            sqlite3.connect(daemon.state_dir / "ledger.db", isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            told = [spawn(client, ["true"], queue=False) for _ in range(3)]
            daemon.kill()
    assert all(isinstance(one, m.Refused) for one in told)
    daemon.restart()
    with daemon.client() as client:
        stopped(client, everything=True)
        assert run_number(started(client, ["true"]).id) > 4


@variant
def test_a_watcher_is_notified_of_an_end_during_the_execve(daemon: Daemon, tmp_path: Path) -> None:
    """Promise: connections and what they wait for outlive a re-execution.

    What the launcher has seen before the runs are taken over is published before the watchers are
    there again."""
    needs.insight()
    go = tmp_path / "go"
    os.mkfifo(go)
    with daemon.client() as client:
        run, _ = watched(client, ["sh", "-c", f"read line < {go}"], meter=None)
        daemon.process.send_signal(signal.SIGUSR2)
        environment = Path(f"/proc/{daemon.pid}/environ")
        wait_until(lambda: b"SFAD_HANDOVER=" in environment.read_bytes(), "it has executed itself")
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            go.write_text("now\n")
            wait_until(lambda: not alive(run.pid), "the run ends")
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        done, events = until_over(client, run.id)
        assert done.status is Status.COMPLETED
        assert "run_completed" in [event.type for event in events]


@variant
def test_a_run_stays_tied_to_the_last_client_across_a_reexecution(daemon: Daemon) -> None:
    """Promise: a re-execution changes nothing for clients.

    A `wait` with `tie` that is open is carried out once more, and takes the run from who has tied
    it since. When the earlier client goes, as it may, the run is stopped under the later one."""
    with daemon.client() as later, daemon.client() as earlier, daemon.client() as client:
        run = ticking(client)
        for one in (earlier, later):
            one.send(m.Wait(id=one.next_id(), run=run.id, tie=True))
            one.call(m.DaemonInfo(id=one.next_id()), m.DaemonStatus)  # it has been handled
        daemon.reexecute()
        before = connections(client)
        earlier.close()
        wait_until(lambda: connections(client) < before, "the daemon has noticed")
        status = info(client, run.id).status
        stopped(client, run.id)
        assert status is Status.RUNNING


def connections(client: Client) -> int:
    """How many the daemon has."""
    return int(client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).connections or 0)


def test_two_simultaneous_requests_with_one_key_are_both_answered(daemon: Daemon) -> None:
    """Promise: every request is answered; the same key gets the same run.

    While the run is not started yet, the second request once replaced the first, which was never
    answered."""
    with daemon.client() as client:
        client.be_patient(PATIENCE)

        def ask() -> int:
            request = m.Spawn(
                id=client.next_id(),
                argv=[b"sleep", b"60"],
                cwd=b"/",
                env=[b"PATH=/bin:/usr/bin"],
                key="k",
            )
            return client.send(request)

        asked = [ask(), ask()]
        runs = {client.answer(number, m.RunReply)[0].run.id for number in asked}
        assert len(runs) == 1


def test_a_spawn_that_could_not_be_recorded_may_be_repeated_with_its_key(daemon: Daemon) -> None:
    """Promise: "try again then" (75); a key stands for a run that was admitted.

    The key of an admission that was taken back once stayed with the run that never existed: each
    retry returned that run."""
    with daemon.client() as client:
        ended(client, started(client, ["true"]).id)
        with closing(
            sqlite3.connect(daemon.state_dir / "ledger.db", isolation_level=None)
        ) as outsider:
            outsider.execute("BEGIN IMMEDIATE")
            assert isinstance(spawn(client, ["true"], key="refused"), m.Error)
            outsider.execute("ROLLBACK")

        def admitted() -> RunInfo | None:
            reply = spawn(client, ["true"], key="refused")
            return reply.run if isinstance(reply, m.RunReply) else None

        run = wait_until(admitted, "it takes runs again")
        assert ended(client, run.id).status is Status.COMPLETED


@variant
def test_the_environment_of_a_run_that_was_never_recorded_is_removed(start: Start) -> None:
    """Promise: an environment lies in the spool no longer than until its run's last start.

    Killed between writing `ID.spawn` and the journal, the daemon leaves a file that nobody looks
    for. It stays until the same id is given to a run that is started, and permanently if a refusal
    gets the id."""
    daemon = start()
    daemon.stop()
    daemon.restart(SFAD_CRASH_AT="spawn kept+1")
    with daemon.client() as client, suppress(Exception):
        spawn(client, ["true"], attempts=2)
    daemon.process.wait()
    assert len(spooled(daemon)) == 1
    daemon.restart()
    assert spooled(daemon) == []

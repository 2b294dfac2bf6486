"""Promises of SPEC section 10 that are broken."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import PATIENCE, Daemon, ended, spawn, started, stopped, strays, wait_until

from .agents import info, limit, until_over, watched
from .test_recovery import MANY, alive, every, other_boot, printed, spooled, ticking


def goes_on(daemon: Daemon) -> None:
    """SIGUSR2, after which the daemon says why it was not executed anew, or has been."""
    before = daemon.log.read_text().count('"message":"serving"')
    daemon.process.send_signal(signal.SIGUSR2)

    def decided() -> bool:
        log = daemon.log.read_text()
        return daemon.process.poll() is not None or "was not executed anew" in log or log.count('"message":"serving"') > before

    wait_until(decided, "it has decided", seconds=60)


def test_runs_have_the_same_descriptor_limit_after_a_reexecution(start: Start) -> None:
    """A run's soft RLIMIT_NOFILE is what the daemon was started with; after SIGUSR2 it is the daemon's own, raised one."""
    daemon = start()
    daemon.stop()
    limited = ["sh", "-c", 'ulimit -Sn 512; exec "$@"', "sh", sys.executable, "-m", "sfad"]
    daemon.process = daemon._start(command=limited)
    with daemon.client() as client:

        def ask() -> str:
            run = ended(client, started(client, ["sh", "-c", "ulimit -Sn"]).id)
            return (daemon.state_dir / "output" / f"{run.id}.out").read_text().strip()

        assert ask() == "512"
        daemon.reexecute()
        assert ask() == "512"


@pytest.mark.parametrize("setting", ["[log]\nfile = '/nonexistent/log'\n", "[containment]\nmode = 'cgroup'\ncgroup_parent = '/nonexistent'\n"])
def test_a_config_that_only_a_start_finds_wrong(daemon: Daemon, setting: str) -> None:
    """SIGUSR2: a daemon that would not come back is not executed anew."""
    good = daemon.config.read_text()
    with daemon.client() as client:
        run = ticking(client)
    daemon.config.write_text(setting)
    try:
        goes_on(daemon)
        assert daemon.process.poll() is None, daemon.log.read_text()[-1000:]
    finally:
        daemon.config.write_text(good)
        if daemon.process.poll() is not None:
            daemon.restart()


def test_the_script_that_it_was_started_by_is_gone(start: Start, tmp_path: Path) -> None:
    """What is checked (python -m sfad) is not what is executed (sys.orig_argv)."""
    daemon = start()
    daemon.stop()
    script = tmp_path / "sfad-script"
    script.write_text("from sfad.__main__ import app\napp()\n")
    daemon.process = daemon._start(command=[sys.executable, str(script)])
    with daemon.client() as client:
        ticking(client)
    script.unlink()
    try:
        goes_on(daemon)
        assert daemon.process.poll() is None, daemon.log.read_text()[-1000:]
    finally:
        if daemon.process.poll() is not None:
            daemon.restart()


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_locked_ledger_at_sigusr2(daemon: Daemon, begin: str) -> None:
    """Somebody holds the ledger's lock: the daemon would go on, but the one that it becomes gives up after 15 s."""
    with daemon.client() as client:
        run = ticking(client)
        ended(client, started(client, ["true"]).id)
        with closing(sqlite3.connect(daemon.state_dir / "ledger.db", isolation_level=None)) as outsider:
            outsider.execute(begin)
            goes_on(daemon)
            code = daemon.process.poll()
            outsider.execute("ROLLBACK")
    if code is not None:
        daemon.restart()
    assert code is None, daemon.log.read_text()[-1000:]


def test_two_requests_with_the_same_key_in_flight_are_both_answered(daemon: Daemon) -> None:
    """The second takes the first one's answer away, for ever."""
    with daemon.client() as client, daemon.client() as other:
        def request(c):
            return m.Spawn(id=c.next_id(), argv=[b"sleep", b"60"], cwd=b"/", env=[b"PATH=/bin:/usr/bin"], key="k")
        ids = [client.send(request(client)) for _ in range(2)]
        client.be_patient(5)
        got = set()
        while got != set(ids):
            got |= {answer.reply.id for answer in client.arrived()}


def test_a_watcher_is_told_of_an_end_during_the_exec(daemon: Daemon, tmp_path: Path) -> None:
    """A run ends while the daemon is in execve(2): its watcher never gets run_completed."""
    go = tmp_path / "go"
    os.mkfifo(go)
    with daemon.client() as client:
        run, _ = watched(client, ["sh", "-c", f"read x < {go}"], meter=None)
        wait_until(lambda: info(client, run.id).status is Status.RUNNING, "runs")
        daemon.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: b"SFAD_HANDOVER" in Path(f"/proc/{daemon.pid}/environ").read_bytes(), "exec")
        daemon.process.send_signal(signal.SIGSTOP)
        go.write_text("now\n")
        wait_until(lambda: not alive(run.pid), "ended")
        daemon.process.send_signal(signal.SIGCONT)
        done, events = until_over(client, run.id)
        assert done.status is Status.COMPLETED
        assert "run_completed" in {event.type for event in events}, events


def test_a_spool_from_before_a_power_cut_starts_nothing_a_second_time(start: Start, tmp_path: Path) -> None:
    """The spool is not synced: after a power cut it may show a run as queued that the ledger shows as started."""
    daemon = start(config="[quotas]\ntrees_per_user = 1")
    count = tmp_path / "count"
    with daemon.client() as client:
        first = ticking(client)
        waiting = started(client, ["sh", "-c", f"echo once >> {count}; sleep 300"])
        spool = daemon.state_dir / "spool"
        shutil.copytree(spool, tmp_path / "older")
        stopped(client, first.id)
        ended(client, first.id)
        wait_until(lambda: info(client, waiting.id).status is Status.RUNNING, "it runs")
        wait_until(lambda: count.exists(), "it has begun")
        with closing(sqlite3.connect(daemon.state_dir / "ledger.db")) as ledger:
            wait_until(lambda: ledger.execute("SELECT status FROM runs WHERE id = ?", (waiting.id,)).fetchone() == ("running",), "recorded")
    daemon.kill()
    for stray in strays(daemon.instance):
        stray.kill()
    wait_until(lambda: not strays(daemon.instance), "gone")
    shutil.rmtree(spool)
    shutil.copytree(tmp_path / "older", spool)
    other_boot(spool / "runs", Path("/proc/sys/kernel/random/boot_id").read_text().strip().encode())
    daemon.restart()
    with daemon.client() as client:
        time.sleep(1)
        assert info(client, waiting.id).status is Status.LOST
    assert count.read_text() == "once\n"


def test_secrets_of_a_run_that_never_was_do_not_stay(start: Start) -> None:
    """Killed between the spawn file and the journal: nobody removes the environment."""
    daemon = start()
    daemon.stop()
    daemon.restart(SFAD_CRASH_AT="spawn kept+1")
    with daemon.client() as client, suppress(Exception):
        spawn(client, ["true"], attempts=2)
    daemon.process.wait()
    assert len(spooled(daemon)) == 1
    daemon.restart()
    assert spooled(daemon) == []


@pytest.mark.parametrize("change", ["mode = 'tags'", "cgroup_parent = '{}'"])
def test_a_changed_containment_leaves_nothing_unmanaged(start: Start, change: str) -> None:
    """A process of a run that cleared its environment is in its cgroup, whatever the config says at the next start."""
    daemon = start(mode="cgroup")
    with daemon.client() as client:
        status = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
        run = started(client, ["sh", "-c", "env -i setsid sleep 4242 & echo $!; sleep 300"])
        wait_until(lambda: [p for p in psutil.Process(run.pid).children() if "4242" in p.cmdline()], "child")
    child = next(p for p in psutil.Process(run.pid).children(recursive=True) if "4242" in p.cmdline())
    daemon.kill()
    parent = Path(status.containment_detail).parent / "broken-test"
    parent.mkdir()
    try:
        good = daemon.config.read_text()
        daemon.config.write_text("[containment]\n" + change.format(parent) + "\n")
        daemon.restart()
        with daemon.client() as client:
            status = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
            print(status.containment, status.containment_detail)
            stopped(client, run.id)
        assert not alive(child.pid)
        daemon.stop()
        daemon.config.write_text(good)
    finally:
        with suppress(psutil.Error):
            child.kill()
        with suppress(OSError):
            parent.rmdir()


def test_a_state_directory_that_was_moved(start: Start, containment: str, tmp_path: Path) -> None:
    """Runs are named after its path: those of a moved one are given up for lost and live on unmanaged."""
    daemon = start(mode=containment)
    with daemon.client() as client:
        run = ticking(client)
    daemon.kill()
    old = daemon.instance
    moved = daemon.directory / "moved"
    daemon.state_dir.rename(moved)
    daemon.state_dir = moved
    daemon.restart()
    try:
        with daemon.client() as client:
            now = info(client, run.id)
            assert not (now.status.terminal and alive(run.pid)), now
    finally:
        for stray in strays(old):
            stray.kill()


def test_the_last_who_ties_keeps_it_over_a_reexecution(daemon: Daemon) -> None:
    """A wait that ties is carried out again after SIGUSR2, and takes the run from who has tied it since."""
    with daemon.client() as late, daemon.client() as early, daemon.client() as client:
        run = ticking(client)
        early.send(m.Wait(id=early.next_id(), run=run.id, tie=True))
        early.call(m.DaemonInfo(id=early.next_id()), m.DaemonStatus)
        late.send(m.Wait(id=late.next_id(), run=run.id, tie=True))
        late.call(m.DaemonInfo(id=late.next_id()), m.DaemonStatus)
        daemon.reexecute()
        early.close()
        client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus)
        assert info(client, run.id).status is Status.RUNNING
        stopped(client, run.id)


def test_the_working_directory_is_gone(start: Start, tmp_path: Path) -> None:
    """SIGUSR2 in a removed directory."""
    daemon = start()
    daemon.stop()
    here = os.getcwd()
    there = tmp_path / "there"
    there.mkdir()
    os.chdir(there)
    try:
        daemon.restart()
    finally:
        os.chdir(here)
    with daemon.client() as client:
        run = ticking(client)
        there.rmdir()
        goes_on(daemon)
        assert info(client, run.id).pid == run.pid
        stopped(client, run.id)


# ---- probes


def test_probe_budget_exact(start: Start) -> None:
    """Costs of metered runs and reports over crashes."""
    user = psutil.Process().username()
    daemon = start(config=f"[budgets.users.{user}]\ndaily_usd = 1000\n")
    program = """
import sys, time
for number in range(150):
    print('{"type": "usage", "cost_usd": 0.01, "input_tokens": 10, "output_tokens": 1}', flush=True)
    time.sleep(0.03)
time.sleep(600)
"""
    with daemon.client() as client:
        runs = [watched(client, [sys.executable, "-c", program], name=f"r{n}")[0] for n in range(3)]
    reported = 0
    for n in range(6):
        time.sleep(0.3)
        with daemon.client() as client:
            client.call(m.Report(id=client.next_id(), run=runs[0].id, cost_usd=1), m.RunReply)
            reported += 1
        if n % 2:
            daemon.reexecute()
        else:
            daemon.kill()
            daemon.restart()
    with daemon.client() as client:
        time.sleep(6)
        infos = [info(client, run.id) for run in runs]
        print([one.usage_by_source for one in infos])
        budget = client.call(m.DaemonInfo(id=client.next_id()), m.DaemonStatus).budgets[0]
        print(budget)
        stopped(client, everything=True)
        for one in infos:
            assert abs(one.usage_by_source["stream"].cost_usd - 1.5) < 1e-6
        assert abs(budget.used_usd - 4.5 - reported) < 1e-6
    with closing(sqlite3.connect(daemon.state_dir / "ledger.db")) as ledger:
        wait_until(lambda: abs(ledger.execute("SELECT SUM(usd) FROM budgets").fetchone()[0] - 4.5 - reported) < 1e-6, str(ledger.execute("SELECT * FROM budgets").fetchall()))


def test_probe_two_thousand_connections(daemon: Daemon) -> None:
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients = [daemon.client() for _ in range(2000)]
    with daemon.client() as client:
        run = ticking(client)
    ids = [one.send(m.Wait(id=one.next_id(), run=run.id)) for one in clients]
    one = clients[0]
    # unread replies: megabytes
    many = clients[1]
    sent = [many.send(m.Config(id=many.next_id())) for _ in range(2000)]
    half = m.pack_message(m.Info(id=77, run=run.id))
    one._socket.sendall(half[:9])
    t = time.time()
    daemon.reexecute()
    print("reexec", time.time() - t)
    one._socket.sendall(half[9:])
    assert one.answer(77, m.RunReply)[0].run.id == run.id
    for number in sent:
        many.answer(number, m.ConfigReply)
    stopped(clients[5], run.id)
    for c, number in zip(clients, ids, strict=True):
        assert c.answer(number, m.RunReply)[0].run.status is Status.CANCELLED
    for c in clients:
        c.close()
    wait_until(lambda: daemon.descriptors() < 100, "descriptors are given back")


def test_probe_stress(start: Start, containment: str, tmp_path: Path) -> None:
    """Spawns with descriptors and pipes while it is executed anew again and again."""
    import threading
    daemon = start(mode=containment, config=MANY)
    over = threading.Event()
    errors = []
    def work(n: int) -> None:
        try:
            with daemon.client() as client:
                k = 0
                while not over.is_set():
                    k += 1
                    r, w = os.pipe()
                    request = m.Spawn(id=client.next_id(), argv=[b"sh", b"-c", b"cat; exit %d" % (k % 100)], cwd=b"/", env=[b"PATH=/bin:/usr/bin"], stdin="descriptor", descriptors=1, name=f"w{n}-{k}", tied=True)
                    client.send(request, [r])
                    os.close(r)
                    os.write(w, b"x" * 10)
                    os.close(w)
                    run = client.answer(request.id, m.RunReply)[0].run
                    done = ended(client, run.id)
                    assert done.exit_code == k % 100, done
                    text = (daemon.state_dir / "output" / f"{run.id}.out").read_text()
                    assert text == "x" * 10, text
        except BaseException as e:
            errors.append(repr(e))
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    base = None
    for n in range(12):
        daemon.reexecute()
        if n == 2:
            base = daemon.descriptors()
    over.set()
    for t in threads:
        t.join()
    assert errors == []
    print(base, daemon.descriptors())


@pytest.mark.parametrize("delay", [0, 0.05, 0.3, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4])
def test_probe_sigterm_around_exec(daemon: Daemon, delay: float) -> None:
    with daemon.client() as client:
        [ticking(client) for _ in range(3)]
    daemon.process.send_signal(signal.SIGUSR2)
    time.sleep(delay)
    assert daemon.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2])
def test_probe_signal_right_after_exec(daemon: Daemon, number: int) -> None:
    with daemon.client() as client:
        run = ticking(client)
        daemon.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: b"SFAD_HANDOVER" in Path(f"/proc/{daemon.pid}/environ").read_bytes(), "exec")
        daemon.process.send_signal(number)
        if number == signal.SIGTERM:
            assert daemon.process.wait(30) == 0
        else:
            assert info(client, run.id).pid == run.pid


def test_probe_crash_loop(start: Start, containment: str) -> None:
    """Killed while starting, again and again."""
    import random
    daemon = start(mode=containment)
    with daemon.client() as client:
        runs = [ticking(client) for _ in range(5)]
    daemon.kill()
    rnd = random.Random(1)
    for n in range(12):
        p = subprocess.Popen([sys.executable, "-m", "sfad", "serve"], env=daemon.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rnd.uniform(0.2, 1.5))
        p.kill()
        p.wait()
    daemon.restart()
    with daemon.client() as client:
        assert [(info(client, r.id).status, info(client, r.id).pid) for r in runs] == [(Status.RUNNING, r.pid) for r in runs]


@pytest.mark.parametrize("words", [["wait", "a1"], ["logs", "-f", "a1"], ["list"], ["stop", "a1"], ["run", "--", "sleep", "5"], ["info", "a1", "--json"]])
def test_probe_ctrl_c_in_absence(daemon: Daemon, words: list[str]) -> None:
    with daemon.client() as client:
        ticking(client)
    if words[0] in ("wait", "logs"):
        p = subprocess.Popen([sys.executable, "-m", "sfactl", *words], env=daemon.env | {"SFAD_AUTOSTART": "0"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(1)
        daemon.kill()
    else:
        daemon.kill()
        p = subprocess.Popen([sys.executable, "-m", "sfactl", *words], env=daemon.env | {"SFAD_AUTOSTART": "0"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    t = time.time()
    if p.poll() is None:
        p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=20)
    print(words, p.returncode, round(time.time() - t, 2), out[-200:], err[-500:])
    daemon.restart()
    assert "Traceback" not in err
    assert p.returncode in (130, 69)

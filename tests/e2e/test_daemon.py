"""The life of a daemon: one for each directory, killed, swept, reloaded, idle."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from sfad.features.advice.messages import Recommend
from sfad.host.linux.descriptors import LEAST
from sfad.protocol import messages as m
from sfad.protocol.types import Status
from tests.conftest import Start
from tests.harness import (
    IMPATIENT,
    PATIENCE,
    Daemon,
    alive,
    ended,
    instance_of,
    running,
    spawn,
    started,
    stopped,
    strays,
    wait_until,
)
from tests.leaks import cgroups
from tests.template import run_forked
from tests.tiers import first, sampled

from .agents import limit


def test_one_daemon_per_state_directory(daemon: Daemon, tmp_path: Path) -> None:
    second = daemon.sfad("serve", "--socket", str(tmp_path / "other"))
    assert second.returncode == 69
    assert f"held by pid {daemon.pid}: one daemon per state directory" in second.stderr
    third = daemon.sfad("serve", "--state-dir", str(tmp_path / "other-state"))
    assert third.returncode == 69
    assert "a daemon is already listening" in third.stderr
    swept = daemon.sfad("sweep")
    assert swept.returncode == 69
    assert "sfactl stop --all" in swept.stderr


def test_sweep_ends_what_a_killed_daemon_left_and_nothing_else(
    start: Start, containment: str
) -> None:
    daemon, other = start(mode=containment), start(mode=containment)
    with daemon.client() as client, other.client() as elsewhere:
        started(client, ["sh", "-c", "setsid sleep 300 & sleep 300"])
        kept = started(elsewhere, ["sleep", "300"])
        wait_until(lambda: len(strays(daemon.instance)) >= 3, "three processes")
        daemon.kill()
        swept = daemon.sfad("sweep")
        assert swept.returncode == 0, swept.stderr
        assert daemon.leftovers() == []
        assert (
            elsewhere.call(m.Info(id=elsewhere.next_id(), run=kept.id), m.RunReply).run.status
            is Status.RUNNING
        )
    daemon.restart()


def test_a_second_signal_skips_the_grace(start: Start) -> None:
    daemon = start(config="[stop]\ngrace = 60")
    with daemon.client() as client:
        run = started(client, ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
        wait_until(lambda: "ready" in daemon.sfactl("logs", run.id).stdout, "the trap is set")
        began = time.monotonic()
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(
            lambda: "stopping every tree" in daemon.log.read_text(),
            "the first signal is being obeyed",
        )
        refused = spawn(client, ["true"])
        assert isinstance(refused, m.Refused)
        assert refused.refused.detail == "the daemon is stopping"
        assert daemon.stop() == 0
        assert time.monotonic() - began < 50


def test_signals_until_the_end_change_nothing_of_it(start: Start) -> None:
    daemon = start()
    while daemon.process.poll() is None:
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.send_signal(signal.SIGHUP)
    assert daemon.stop() == 0
    assert '"message":"stopped"' in daemon.log.read_text()
    assert daemon.leftovers() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_ends_the_daemon_in_order(tmp_path: Path, number: int) -> None:
    state = tmp_path / "d"
    words = ["serve", "--socket", str(tmp_path / "s"), "--state-dir", str(state)]
    daemon = subprocess.Popen([sys.executable, "-m", "sfad", *words], stderr=subprocess.PIPE)
    with daemon as process:
        wait_until(state.exists, "it has begun")
        process.send_signal(number)
        _, told = process.communicate(timeout=PATIENCE)
    assert (process.returncode, b'"message":"stopped"' in told) == (0, True), told
    assert not any(instance_of(state) in path for path in cgroups())


def test_reload(start: Start) -> None:
    daemon = start()
    with daemon.client():
        text = daemon.config.read_text()
        daemon.config.write_text(text + "\n[guard]\nmax_depth = 0\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(
            lambda: "the config was not reloaded" in daemon.log.read_text(),
            "a bad config is said to be one",
        )
        daemon.config.write_text(text + "\n[guard]\nmax_depth = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "config reloaded" in daemon.log.read_text(), "the new one is in force")
        run = daemon.sfactl("run", "--", sys.executable, "-m", "sfactl", "run", "--", "true")
        assert run.returncode == 1
        assert (
            f"max_depth, set by guard.max_depth in {daemon.config}"
            in run.stderr + client_result(daemon)
        )


def client_result(daemon: Daemon) -> str:
    """Return what the run before the refused one wrote to stderr."""
    runs = json.loads(daemon.sfactl("list", "--json").stdout)["runs"]
    first = next(run["id"] for run in runs if run["status"] == "failed")
    return daemon.sfactl("logs", first).stderr


def test_a_bad_config_is_named(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[guard]\nmax_dept = 3\n")
    for verb in (
        ["check-config"],
        ["serve", "--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "d")],
    ):
        words = [*verb, "--config", str(config)]
        done = run_forked("sfad", words, os.environ, timeout=60)
        assert done.returncode == 2
        assert f"{config}" in done.stderr
        assert "guard.max_dept" in done.stderr
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("limit", sampled([LEAST - 1, 8, 24]))
def test_too_few_descriptors_are_refused_with_what_to_do(tmp_path: Path, limit: int) -> None:
    words = ["serve", "--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "d")]
    done = subprocess.run(
        ["prlimit", f"--nofile={limit}", sys.executable, "-m", "sfad", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    why = f"sfad: only {limit} descriptors may be open, and a daemon needs {LEAST}: "
    assert (done.returncode, done.stderr.startswith(why)) == (69, True), done.stderr
    assert done.stderr.count("\n") == 1


def test_the_fewest_descriptors_are_enough_for_a_run(tmp_path: Path) -> None:
    with running(tmp_path, wrap=["prlimit", f"--nofile={LEAST}"]) as daemon:
        assert daemon.sfactl("run", "-q", "--", "echo", "hello").stdout == "hello\n"


REFUSED = {
    "users": (
        '[access]\nusers = "all"\n[containment]\nmode = "tags"\n',
        'access.users = "all" needs',
    ),
    "log": ('[log]\nfile = "/proc/nowhere/log"\n', "log.file = /proc/nowhere/log cannot be opened"),
    "cgroup": (
        '[containment]\nmode = "cgroup"\ncgroup_parent = "/proc/nowhere"\n',
        "runs cannot be contained by cgroup: ",
    ),
}


@pytest.mark.parametrize(("text", "why"), REFUSED.values(), ids=REFUSED)
def test_what_serve_refuses_check_config_refuses(tmp_path: Path, text: str, why: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    for verb in ("check-config", "serve"):
        words = ["--state-dir", str(tmp_path / "d"), "--config", str(config), verb]
        done = run_forked("sfad", words, os.environ, timeout=60)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr


# runs stay in their cgroups whatever the config says of those
@first(1)
@pytest.mark.parametrize("key", ["users", "log"])
def test_a_config_that_no_daemon_can_use_does_not_end_runs(start: Start, key: str) -> None:
    daemon, text = start(), REFUSED[key][0]
    good = daemon.config.read_text()
    with daemon.client() as client:
        run = started(client, ["sleep", "600"])
    daemon.config.write_text(text)
    daemon.kill()
    daemon.restart()  # with the config that was kept
    with daemon.client() as client:
        assert client.call(m.Info(id=client.next_id(), run=run.id), m.RunReply).run.pid == run.pid
    daemon.kill()
    (daemon.state_dir / "config.kept").unlink()
    refused = daemon.sfad("sweep")
    assert (refused.returncode, alive(run.pid)) == (2, True)
    assert "nothing is killed while the config keeps a daemon from starting" in refused.stderr
    daemon.config.write_text(good)
    daemon.restart()
    with daemon.client() as client:
        assert client.call(m.Info(id=client.next_id(), run=run.id), m.RunReply).run.pid == run.pid
        stopped(client, run.id)


def test_a_daemon_that_died_comes_back_whatever_the_config_is_now(start: Start) -> None:
    daemon = start()
    good = daemon.config.read_text() + "\n[guard]\nmax_depth = 4\n"
    daemon.config.write_text(good)
    daemon.sfactl("reload")
    kept = daemon.state_dir / "config.kept"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    with daemon.client() as client:
        run = started(client, ["sleep", "600"])
    daemon.config.write_text("[guard]\nmax_dept = 3\n")
    refused = daemon.sfactl("reload")  # the old one stays, and every place says so
    assert "nothing was changed" in refused.stderr
    assert refused.returncode != 0
    assert_told(daemon)
    daemon.kill()
    daemon.restart()
    assert_told(daemon)
    assert "the config of the daemon before this one is in force" in daemon.log.read_text()
    settings = json.loads(daemon.sfactl("config", "--json").stdout)["settings"]
    assert (
        next(setting["value"] for setting in settings if setting["key"] == "guard.max_depth") == 4
    )
    with daemon.client() as client:
        stopped(client, run.id)
    daemon.config.write_text(good)
    daemon.sfactl("reload")
    assert json.loads(daemon.sfactl("status", "--json").stdout).get("rejected_config") is None
    assert daemon.stop() == 0
    daemon.config.write_text("[guard]\nmax_dept = 3\n")  # a daemon that stopped has left no runs
    assert not kept.exists()
    done = daemon.sfad("serve")
    assert done.returncode == 2
    assert "guard.max_dept: unknown key" in done.stderr


def assert_told(daemon: Daemon) -> None:
    status = daemon.sfactl("status").stdout
    assert re.search(r"^CONFIG +REJECTED, .*guard.max_dept: unknown key", status, re.MULTILINE), (
        status
    )
    assert re.search(
        r"^BAD +config: .*max_dept.*\n +→ .*sfactl reload",
        daemon.sfactl("doctor").stdout,
        re.MULTILINE,
    )


@pytest.mark.rest("at scale")
def test_many_runs_leave_nothing_behind(start: Start, containment: str) -> None:
    daemon = start(mode=containment, config="[quotas]\nspawns_per_hour = 10000")
    with daemon.client() as client:
        ended(client, started(client, ["true"]).id)
        before = daemon.descriptors()
        for _ in range(100):
            ended(client, started(client, ["sh", "-c", "true & setsid true &"], stdin="pipe").id)
        ids = [started(client, ["sleep", "300"], queue=False).id for _ in range(32)]
        assert stopped(client, *ids).survivors == []
        wait_until(lambda: daemon.descriptors() <= before, "descriptors are given back")
        children = psutil.Process(daemon.pid).children
        wait_until(lambda: not children(), "zombies are reaped")
    bases = [path for path in cgroups() if path.endswith(daemon.instance)]
    wait_until(
        lambda: not [entry for path in bases for entry in os.scandir(path) if entry.is_dir()],
        "cgroups are removed",
    )


IDLE = """
[quotas]
spawns_per_hour = 10000
trees = 500
trees_per_user = 500
[guard]
unadmitted = "off"
[defaults]
pids = 1000000
"""
"""So that no program and no fork of other tests concerns it."""


@first(1)
@pytest.mark.parametrize("runs", [0, 50])
def test_an_idle_daemon_does_not_wake_up(start: Start, runs: int) -> None:
    daemon = start(config=IDLE, program=IMPATIENT)
    with daemon.client() as client:
        for _ in range(runs):
            # one of them is an orphan
            started(client, ["sh", "-c", "(sleep 300 &); exec sleep 300"])
        wait_until(lambda: _sleeps(daemon, 2), "the daemon sleeps")
        stopped(client, everything=True)
    assert daemon.stop() == 0


def _sleeps(daemon: Daemon, seconds: float) -> bool:
    """Return whether no thread of the daemon is scheduled for that time."""
    before = _wake_ups(daemon)
    time.sleep(seconds)
    return _wake_ups(daemon) == before


def _wake_ups(daemon: Daemon) -> list[str]:
    statuses = sorted(Path(f"/proc/{daemon.pid}/task").glob("*/status"))
    return [
        line
        for status in statuses
        for line in status.read_text().splitlines()
        if "ctxt_switches" in line
    ]


PIDS = Path("/sys/fs/cgroup/pids")


@contextmanager
def no_more_threads(daemon: Daemon) -> Iterator[None]:
    """Forbid the daemon another thread, as TasksMax does when a fork bomb has taken the rest."""
    group = PIDS / f"sfad-test-{daemon.pid}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(daemon.pid))
        (group / "pids.max").write_text("1")
        yield
    finally:
        (group / "pids.max").write_text("max")
        if daemon.process.poll() is None:
            (PIDS / "cgroup.procs").write_text(str(daemon.pid))
        wait_until(lambda: not (group / "cgroup.procs").read_text().strip(), "empty")
        group.rmdir()


@first(1)
@pytest.mark.skipif(
    not os.access(PIDS / "cgroup.procs", os.W_OK), reason="needs the pids controller of cgroup v1"
)
@pytest.mark.parametrize("what", ["recommend", "output"])
def test_a_daemon_survives_a_shortage_of_threads(tmp_path: Path, what: str) -> None:
    """Work that needs a thread is delayed."""
    daemon = Daemon(tmp_path)
    talk = "import os, time\ntime.sleep(0.5)\nos.write(1, b'x' * (8 << 20))\ntime.sleep(60)"
    try:
        with daemon.client() as client:
            run = started(client, [sys.executable, "-c", talk], limits=[limit("output", 1 << 20)])
            with no_more_threads(daemon):
                if what == "recommend":
                    client.send(Recommend(id=client.next_id()))
                time.sleep(1.5)
                assert daemon.process.poll() is None, daemon.log.read_text()[-1000:]
            path = daemon.state_dir / "output" / f"{run.id}.out"
            wait_until(lambda: path.stat().st_blocks * 512 <= 2 << 20, "it is bounded")
            stopped(client, run.id)
    finally:
        daemon.stop()
        for stray in strays(daemon.instance):
            stray.kill()

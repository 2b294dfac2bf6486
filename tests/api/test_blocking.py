"""`Daemon` and `Run` (docs/python.md), against a daemon of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import sfactl
from sfactl import Daemon, Outcome, Refused, RequestFailed, RunFailed, SfadError
from sfad.protocol.types import LimitKind, Status
from tests import harness
from tests.conftest import Start
from tests.harness import PATIENCE


@pytest.fixture
def real(share: Start) -> harness.Daemon:
    return share()


@pytest.fixture
def daemon(real: harness.Daemon) -> Iterator[Daemon]:
    with Daemon(str(real.socket)) as daemon:
        yield daemon


def sh(text: str) -> list[str]:
    return ["sh", "-c", text]


def test_a_run_from_its_start_to_its_outcome(daemon: Daemon) -> None:
    run = daemon.spawn(
        sh("echo out; echo err >&2; exit 3"),
        name="first",
        limits={"time": "20m", "turns": "7:warn", "cost": 2},
        labels={"job": "night"},
        meter="report",
    )
    outcome = run.wait(PATIENCE)
    assert isinstance(outcome, Outcome)
    assert (outcome.ok, outcome.status, outcome.exit_code) == (False, Status.FAILED, 3)
    limits = {limit.kind: limit for limit in outcome.run.limits}
    assert limits[LimitKind.TIME].threshold == 1200
    assert (limits[LimitKind.TURNS].action, limits[LimitKind.COST].threshold) == ("warn", 2)
    assert limits[LimitKind.COST].source == "spawn() cost"
    assert b"".join(run.logs()) == b"out\n"
    assert b"".join(run.logs("stderr")) == b"err\n"
    assert run.result() == "out\n"
    assert run.info() == daemon.run("first").info()
    assert "approvals" not in repr(outcome), "what has its default is left out"
    assert [each.id for each in daemon.runs(labels={"job": "night"})] == [run.id]
    with pytest.raises(RunFailed, match="exited with code 3") as raised:
        outcome.check()
    assert (raised.value.kind, raised.value.detail) == ("exit", "failed")


def test_events_end_with_the_run(daemon: Daemon) -> None:
    run = daemon.spawn(sh("read line; echo $line"), stdin=True)
    events = run.events()
    types = [next(events).type]
    run.send("done\n", eof=True)
    types += [event.type for event in events]
    assert (types[0], types[-1]) == ("run_accepted", "run_completed")
    assert b"".join(run.logs(follow=True)) == b"done\n"
    assert [event.type for event in run.events(types=["run_st*"])] == ["run_started"]


def test_what_checks_print_is_read(daemon: Daemon) -> None:
    run = daemon.spawn(sh("read line; true"), stdin=True, check=["echo one", "echo two; false"])
    pieces = run.check_logs(follow=True)
    run.send("", eof=True)
    assert [(file.number, data) for file, data in pieces] == [(1, b"one\n"), (2, b"two\n")]
    assert [data for _, data in run.check_logs()] == [b"one\n", b"two\n"]
    (group,) = [each for each in daemon.summary(name=run.info().name).groups if each.failed]
    assert (group.checked, group.failed) == (0, 1)


def test_a_run_is_started_again(daemon: Daemon) -> None:
    first = daemon.spawn(sh("echo $A; exit 3"), env={"A": "one"}, name="again", check=["false"])
    assert first.wait(PATIENCE).exit_code == 3
    second = daemon.rerun(first.id, env={"A": "two"}, check=["true"])
    ended = second.wait(PATIENCE).run
    assert (ended.name, ended.exit_code) == ("again", 3)
    assert [each.command for each in ended.checks] == ["true"]
    assert (b"".join(first.logs()), b"".join(second.logs())) == (b"one\n", b"two\n")
    assert daemon.reload() == []


@pytest.mark.needs("git")
def test_work_is_brought_home(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "n")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "n@example.com")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", *words], check=True)
    run = daemon.spawn(sh("echo work > new"), worktree=True)
    assert run.wait(PATIENCE).ok
    assert "+work\n" in run.diff()
    assert (run.land(message="m").files, run.land().landed) == (["new"], "nothing")
    assert (tmp_path / "new").read_text() == "work\n"
    with pytest.raises(SfadError, match="has no worktree") as raised:
        daemon.spawn(["true"]).diff()
    assert raised.value.kind == "refused"


def test_output_is_followed_as_it_is_written(daemon: Daemon) -> None:
    run = daemon.spawn(sh("echo one; read line; echo two"), stdin=True)
    pieces = run.logs(follow=True)
    assert next(pieces) == b"one\n"
    run.send(b"", eof=True)
    assert list(pieces) == [b"two\n"]


def test_steering(daemon: Daemon) -> None:
    run = daemon.spawn(["sleep", "1000"], timeout="1h")
    assert run.pause().status is Status.PAUSED
    assert run.resume().status is Status.RUNNING
    changed = run.limit(turns=90, time="50m:warn")
    assert {each.threshold for each in changed.limits} >= {90, 3000}
    with pytest.raises(TimeoutError, match=r"has not ended within 0 s"):
        run.wait(0)
    assert run.stop(grace=0).stopped == [run.id]
    assert run.wait(PATIENCE).exit_code == 143
    with pytest.raises(RequestFailed) as raised:
        run.pause()
    assert raised.value.kind == "wrong_state"


def test_a_refusal(daemon: Daemon) -> None:
    with pytest.raises(Refused) as raised:
        daemon.spawn(["true"], name="x", limits={"cost": 1}, gateway=False)
    refused = raised.value
    assert (refused.kind, refused.refusal.kind.value) == ("unenforceable", "unenforceable")
    assert "nothing would enforce" in refused.detail
    assert refused.message == str(refused)


def test_what_is_written_wrongly_is_told_before_anything_is_asked() -> None:
    daemon = Daemon("/nonexistent/socket")
    with pytest.raises(ValueError, match="unknown limit 'money'"):
        daemon.spawn(["true"], limits={"money": 1})
    with pytest.raises(TypeError, match="no option 'nmae'"):
        daemon.spawn(["true"], nmae="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="not one text"):
        daemon.spawn(["true"], deny="stop")
    with pytest.raises(TypeError, match="each word by itself"):
        daemon.spawn("echo hi")
    with pytest.raises(ValueError, match="nothing to run"):
        daemon.spawn()
    with pytest.raises(sfactl.DaemonUnreachable) as raised:
        daemon.spawn(["true"])
    assert raised.value.kind == "missing"


def test_several_threads_at_once(daemon: Daemon) -> None:
    """One waits for minutes, and the others are not kept waiting."""
    sleeper = daemon.spawn(["sleep", "1000"])
    ended: list[Outcome] = []
    waiting = threading.Thread(target=lambda: ended.append(sleeper.wait(PATIENCE)))
    waiting.start()
    with ThreadPoolExecutor(8) as threads:
        runs = list(threads.map(lambda _: daemon.spawn(["true"]), range(24)))
        outcomes = list(threads.map(lambda run: run.wait(PATIENCE), runs))
    assert all(outcome.ok for outcome in outcomes)
    assert len({run.id for run in runs}) == 24
    sleeper.stop(grace=0)
    waiting.join(PATIENCE)
    assert ended[0].status is Status.CANCELLED


def test_a_daemon_that_restarts_is_waited_for(real: harness.Daemon, daemon: Daemon) -> None:
    run = daemon.spawn(sh("read line"), stdin=False, name="night", limits={"time": "1h"})
    run.wait(PATIENCE)
    sleeper = daemon.spawn(["sleep", "1000"])
    events = sleeper.events()
    assert next(events).type == "run_accepted"
    real.kill()
    real.restart()
    assert sleeper.info().status is Status.RUNNING
    sleeper.stop(grace=0)
    assert [event.type for event in events][-1] == "run_cancelled"


def test_a_child_of_fork_has_connections_of_its_own(daemon: Daemon) -> None:
    daemon.status()
    if (child := os.fork()) == 0:
        os._exit(0 if daemon.status().pid == daemon.status().pid else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: TID251
    assert daemon.status().live >= 0


def _stop_daemons(place: str) -> None:
    """End a daemon that was started too late for its client."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("SFAD_STATE_DIR", "").startswith(place):
                process.terminate()


def test_a_daemon_is_started_as_by_the_command(tmp_path: Path) -> None:
    env = os.environ | {
        "SFAD_STATE_DIR": str(tmp_path / "state"), "SFAD_SOCKET": str(tmp_path / "s"),
    }  # fmt: skip
    script = (
        "import os, signal\n"
        "from sfactl import Daemon\n"
        "with Daemon() as daemon:\n"
        "    assert daemon.run_id is None\n"
        "    run = daemon.spawn(['true'])\n"
        "    print(run.wait(60).status.value)\n"
        "    os.kill(daemon.status().pid, signal.SIGTERM)\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True,
            timeout=2 * PATIENCE, check=False,
        )  # fmt: skip
    finally:
        _stop_daemons(str(tmp_path))
    assert done.stdout == "completed\n", done.stderr
    assert "no daemon was running; started one" in done.stderr


def test_the_package_offers_what_it_says() -> None:
    assert all(hasattr(sfactl, name) for name in sfactl.__all__)
    with pytest.raises(AttributeError):
        sfactl.nothing  # noqa: B018

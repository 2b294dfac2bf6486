"""Runs that are completed when their checks pass."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sfad.features.checks.part import LOOK_EVERY
from sfad.protocol import messages as m
from sfad.protocol.types import Checks, Limit, LimitKind, RunInfo, Status, Worktree
from tests.conftest import Start
from tests.harness import (
    Daemon,
    alive,
    ended,
    environment,
    spawn,
    started,
    stopped,
    wait_until,
)
from tests.tiers import variant

CONFIG = """
[attempts]
delay = 0.1
[quotas]
spawns_per_hour = 100000
[agents.fixer]
command = ["sh", "-c", "true", "{task}"]
check = ["echo by the agent"]
[defaults.check.developer]
commands = ["echo by the profile"]
"""


@pytest.fixture
def daemon(start: Start) -> Daemon:
    return start(config=CONFIG)


def checked(*commands: str, **more: Any) -> Checks:
    return Checks(commands=list(commands), **more)


def found(daemon: Daemon, *words: str) -> Any:
    return json.loads(daemon.sfactl(*words, "--json").stdout)


def checking(daemon: Daemon, run: str) -> RunInfo:
    """Return the run while its check is executed."""
    with daemon.client() as client:

        def look() -> RunInfo | None:
            info = client.call(m.Info(id=client.next_id(), run=run), m.RunReply).run
            assert not info.status.terminal, info.reason
            running = info.activity == "check" and info.pid is not None
            return info if running and info.status is Status.RUNNING else None

        found = wait_until(look, "its check is executed")
    assert isinstance(found, RunInfo)
    return found


def test_a_run_is_completed_when_its_checks_pass_in_order(daemon: Daemon, tmp_path: Path) -> None:
    said = tmp_path / "said"
    tell = f'echo "$1 $SFA_CHECK $SFA_RUN_ID $PWD" >> {said}'
    words = ["--cwd", str(tmp_path), "--check", tell.replace("$1", "one")]
    words += ["--check", f"test ! -e alive; {tell.replace('$1', 'two')}"]
    agent = (
        f"touch alive; (trap 'rm alive; exit' TERM; while :; do sleep 0.1; done) & echo a >> {said}"
    )
    done = daemon.sfactl("run", *words, "--", "sh", "-c", agent)
    assert done.returncode == 0, done.stderr
    (run,) = listed(daemon)
    run_id = run.id
    here = str(tmp_path)
    assert said.read_text() == f"a\none 1 {run_id} {here}\ntwo 1 {run_id} {here}\n"
    assert "completed: checked: " in done.stderr
    assert "checked: " in daemon.sfactl("why", run_id).stdout
    assert "passed in" in daemon.sfactl("info", run_id).stdout
    assert "passed in" in daemon.sfactl("list", "--wide").stdout
    assert [each["state"] for each in found(daemon, "info", run_id)["checks"]] == ["passed"] * 2
    assert any("checked: " in line for line in daemon.sfactl("events").stdout.splitlines())


def test_what_fails_it_is_told_with_its_last_lines(daemon: Daemon) -> None:
    check = "seq 100; echo token sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789 >&2; exit 3"
    done = daemon.sfactl("run", "--name", "a", "--check", check, "--check", "true", "--", "true")
    assert done.returncode == 6
    (run,) = listed(daemon)
    reason = run.reason
    assert reason is not None
    assert (run.status, run.exit_code, reason.kind, reason.exit_code) == (
        Status.FAILED,
        0,
        "check",
        3,
    )
    assert (reason.command, len(reason.lines), reason.lines[:2]) == (check, 40, ["62", "63"])
    assert "abcdefghij" not in reason.lines[-1]
    assert [each.state for each in run.checks] == ["failed", "not_run"]
    printed = daemon.sfactl("logs", "--check", run.id).stdout
    assert printed.startswith("── attempt 1, check 1: seq 100;")
    assert "\n100\n" in printed
    assert daemon.sfactl("logs", run.id).stdout == ""
    assert daemon.sfactl("logs", "--check", run.id, "--tail", "2").stdout.count("\n") == 3
    assert daemon.sfactl("wait", run.id).returncode == 6


def listed(daemon: Daemon) -> list[RunInfo]:
    with daemon.client() as client:
        return client.call(m.List(id=client.next_id()), m.RunList).runs


def test_what_many_checks_have_printed_is_shown_in_order(daemon: Daemon) -> None:
    check = checked("echo one", "echo $SFA_ATTEMPT; false")
    with daemon.client() as client:
        run = started(client, ["true"], check=check, attempts=6, retry_delay=0.0)
        assert ended(client, run.id).attempts == 6
    printed = daemon.sfactl("logs", "--check", run.id).stdout.splitlines()
    assert [line for line in printed if not line.startswith("── ")] == [
        word for attempt in range(1, 7) for word in ("one", str(attempt))
    ]


def test_what_checks_print_is_followed(daemon: Daemon, tmp_path: Path) -> None:
    """From before the first one begins, over attempts, to the end of the run."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    check = checked(f"echo one $SFA_ATTEMPT; read x < {gate}; echo $x; test $x = go", "printf two")
    with daemon.client() as client:
        agent = f"test $SFA_ATTEMPT = 2 || read x < {gate}"
        run = started(client, ["sh", "-c", agent], check=check, attempts=2)
        words = [sys.executable, "-m", "sfactl", "logs", "--check", "-f", run.id]
        following = subprocess.Popen(words, env=daemon.env, stdout=subprocess.PIPE, text=True)
        assert following.stdout is not None
        lines = iter(following.stdout.readline, "")
        for word, heading, begins in (("a", 1, "one 1"), ("red", 2, "one 2"), ("go", 3, "")):
            gate.write_text(f"{word}\n")
            if not begins:
                break
            assert next(line for line in lines if line.startswith("── ")).startswith(
                f"── attempt {heading}, check 1: echo one"
            )
            assert next(lines) == f"{begins}\n"
        assert next(lines) == "go\n"
        assert [*lines] == ["── attempt 2, check 2: printf two\n", "two\n"]
        assert following.wait() == 0
        following.stdout.close()
        assert ended(client, run.id).status is Status.COMPLETED


@pytest.mark.parametrize("again", ["> /dev/stdout", "| tee /dev/stderr"])
def test_what_a_check_prints_before_it_truncates_its_output_is_kept(
    daemon: Daemon, tmp_path: Path, again: str
) -> None:
    """Without fanotify, which is root's, what was printed before the last look."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    check = f"echo first; read x < {gate}; echo second {again}; echo third; exit 1"
    with daemon.client() as client:
        run = started(client, ["true"], check=checked(check))
        wait_until(lambda: "first" in daemon.sfactl("logs", "--check", run.id).stdout, "it prints")
        time.sleep(2 * LOOK_EVERY)  # it is read by a look, of which no client is told
        gate.write_text("\n")
        reason = ended(client, run.id).reason
    assert reason is not None
    shown = list(dict.fromkeys(reason.lines))  # `tee` prints it twice
    assert shown == ["first", "second", "third"]
    printed = daemon.sfactl("logs", "--check", run.id).stdout.splitlines()[1:]
    assert list(dict.fromkeys(printed)) == ["first", "second", "third"]


def test_a_typo_starts_no_attempt(daemon: Daemon) -> None:
    with daemon.client() as client:
        run = ended(client, started(client, ["true"], check=checked("mak test"), attempts=3).id)
    assert run.reason is not None
    assert (run.attempts, run.reason.kind, run.reason.exit_code) == (1, "check", 127)
    assert "a command was not found" in run.reason.message


def test_an_agent_that_failed_is_not_checked(daemon: Daemon, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with daemon.client() as client:
        run = ended(client, started(client, ["false"], check=checked(f"touch {mark}")).id)
        assert run.reason is not None
        assert (run.status, run.reason.kind) == (Status.FAILED, "exit")
        assert [each.state for each in run.checks] == ["not_run"]
        run = started(client, ["sleep", "1000"], check=checked(f"touch {mark}"))
        stopped(client, run.id)
    assert not mark.exists()


def test_a_stop_a_limit_and_a_pause_take_a_check_for_a_process_of_the_run(
    daemon: Daemon,
) -> None:
    hang = checked("trap '' TERM; sleep 1000 & wait; wait")
    with daemon.client() as client:
        run = checking(daemon, started(client, ["true"], check=hang, attempts=3).id)
        stopped(client, run.id, grace=0.2)
        run = ended(client, run.id)
        assert (run.status, run.attempts) == (Status.CANCELLED, 1)
        run = checking(daemon, started(client, ["true"], check=hang).id)
        paused = client.call(m.Pause(id=client.next_id(), run=run.id), m.RunReply).run
        assert (paused.status, paused.activity) == (Status.PAUSED, "check")
        client.call(m.Resume(id=client.next_id(), run=run.id), m.RunReply)
        checking(daemon, run.id)
        stopped(client, run.id, grace=0)
        second = Limit(kind=LimitKind.TIME, threshold=1.0)
        run = ended(client, started(client, ["true"], check=hang, limits=[second], grace=0.1).id)
        assert run.status is Status.TIMEOUT
        late = checked("sleep 1000", timeout=0.5)
        run = ended(client, started(client, ["true"], check=late, grace=0.1).id)
        assert run.reason is not None
        assert (run.reason.kind, run.reason.exit_code) == ("check", None)
        assert "took longer than 500ms" in run.reason.message


def test_what_a_check_leaves_running_ends_with_it(daemon: Daemon, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    leaves = (
        f"setsid sh -c 'echo $$ > {pid}; exec sleep 1000' & "
        f"while ! test -s {pid}; do sleep 0.05; done"
    )
    with daemon.client() as client:
        ended(client, started(client, ["true"], check=checked(leaves, "true")).id)
    assert not alive(int(pid.read_text()))


def test_which_checks_a_run_gets(daemon: Daemon) -> None:
    def commands(*words: str) -> list[str]:
        done = daemon.sfactl("spawn", "--json", *words)
        assert done.returncode == 0, done.stderr
        return [each["command"] for each in json.loads(done.stdout)["checks"]]

    assert commands("--", "true") == []
    assert commands("fixer", "it") == ["echo by the agent"]
    assert commands("--check", "true", "fixer", "it") == ["true"]
    assert commands("--no-check", "fixer", "it") == []
    assert commands("--check-timeout", "5s", "fixer", "it") == ["echo by the agent"]
    assert commands("--type", "developer", "--", "true") == ["echo by the profile"]
    assert commands("--type", "developer", "fixer", "it") == ["echo by the agent"]
    run = daemon.sfactl("spawn", "--check", "true", "--", "true").stdout.strip()
    daemon.sfactl("wait", run)
    again = json.loads(daemon.sfactl("rerun", run, "--json").stdout)
    assert [each["command"] for each in again["checks"]] == ["true"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--check", " "], "the command is blank"),
        (["--no-check", "--check", "true"], "--no-check excludes --check"),
        (["--check-timeout", "5s"], "this run has none: add --check COMMAND"),
        (["--setup", "true"], "add --worktree, or leave --setup out"),
        (["--check", "x" * 5000], "5000 characters of --check; at most 4096"),
        ([*["--check", "true"] * 17], "17 checks of a run; at most 16"),
    ],
)
def test_what_is_refused(daemon: Daemon, words: list[str], said: str) -> None:
    done = daemon.sfactl("spawn", *words, "--", "true")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@variant
def test_a_check_outlives_a_re_execution_of_the_daemon(daemon: Daemon, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with daemon.client() as client:
        run = started(client, ["true"], check=checked(f"exit $(cat {gate})", "true"))
        pid = checking(daemon, run.id).pid
        daemon.reexecute()
        assert checking(daemon, run.id).pid == pid
    gate.write_text("0")
    with daemon.client() as client:
        assert ended(client, run.id).status is Status.COMPLETED


@pytest.mark.parametrize("killed", [True, False])
def test_a_check_outlives_the_daemon_or_is_executed_again(
    daemon: Daemon, tmp_path: Path, killed: bool
) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    os.mkfifo(gate)
    with daemon.client() as client:
        run = started(client, ["true"], check=checked(f"echo >> {begun}; exit $(cat {gate})"))
        pid = checking(daemon, run.id).pid
    wait_until(begun.exists, "it has begun")
    daemon.kill()
    assert pid is not None
    if killed:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), "it is gone")
    daemon.restart()
    checking(daemon, run.id)
    gate.write_text("0")
    with daemon.client() as client:
        assert ended(client, run.id).status is Status.COMPLETED
    assert begun.read_text().count("\n") == 1 + killed


def test_summary_counts_who_really_finishes(daemon: Daemon) -> None:
    for name, check in (("a", ["true"]), ("a", ["false"]), ("b", [])):
        with daemon.client() as client:
            ended(client, started(client, ["true"], name=name, check=checked(*check)).id)
    groups = {one["key"]: one for one in found(daemon, "summary")["groups"]}
    counts = {key: (one["checked"], one["unchecked"], one["failed"]) for key, one in groups.items()}
    assert counts == {"a": (1, 0, 1), "b": (0, 1, 0)}
    assert "CHECKED" in daemon.sfactl("summary").stdout


@pytest.mark.needs("git")
def test_a_setup_prepares_a_new_worktree_once(daemon: Daemon, tmp_path: Path) -> None:
    place = repository(tmp_path)
    prepare = 'echo prepared; test -z "$SFA_CHECK" && echo yes >> ready'
    options = {"cwd": os.fsencode(place), "env": home(tmp_path), "worktree": Worktree()}
    with daemon.client() as client:
        command = ["sh", "-c", "cat ready; exit $((2 - SFA_ATTEMPT))"]
        run = ended(client, started(client, command, attempts=2, setup=prepare, **options).id)
        assert (run.status, run.attempts) == (Status.COMPLETED, 2), run.reason
        assert daemon.output(run.id) == "yes\nyes\n"
        assert "── attempt 1, setup\nprepared\n" in daemon.sfactl("logs", "--check", run.id).stdout
        options["worktree"] = Worktree(of=run.id)
        run = ended(client, started(client, ["cat", "ready"], setup=prepare, **options).id)
        assert daemon.output(run.id) == "yes\n", "it is there from an earlier run"
        options["worktree"] = Worktree()
        bad = "echo no such thing; exit 5"
        run = ended(client, started(client, ["true"], attempts=3, setup=bad, **options).id)
    assert run.reason is not None
    assert (run.status, run.attempts, run.reason.kind, run.reason.exit_code) == (
        Status.FAILED,
        1,
        "setup",
        5,
    )
    assert "failed (setup)" in daemon.sfactl("list").stdout


def home(top: Path) -> list[bytes]:
    kept = [item for item in environment() if not item.startswith((b"HOME=", b"XDG_"))]
    return [*kept, os.fsencode(f"HOME={top}"), b"GIT_CONFIG_NOSYSTEM=1"]


def repository(top: Path) -> Path:
    place = top / "repository"
    place.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(top), "GIT_CONFIG_NOSYSTEM": "1"}
    author = ["-c", "user.name=n", "-c", "user.email=n@example.com"]
    for words in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", *words], cwd=place, env=env, check=True)
    return place


def test_a_run_below_another_one_is_told_that_it_was_checked(daemon: Daemon) -> None:
    with daemon.client() as client:
        sfactl = f"{sys.executable} -P -m sfactl"
        script = f"{sfactl} run --check true -- true; {sfactl} run --check false -- true; echo $?"
        env = [*environment(), os.fsencode(f"PYTHONPATH={Path(__file__).parents[3]}")]
        run = ended(client, started(client, ["sh", "-c", script], env=env).id)
        assert (run.status, daemon.output(run.id)) == (Status.COMPLETED, "6\n")
    assert "completed: checked: true, " in daemon.errors(run.id)


def test_a_request_that_names_no_command_leaves_checks_out(daemon: Daemon) -> None:
    with daemon.client() as client:
        reply = spawn(client, ["true"], run_type="developer", check=Checks())
        assert isinstance(reply, m.RunReply)
        assert ended(client, reply.run.id).checks == ()

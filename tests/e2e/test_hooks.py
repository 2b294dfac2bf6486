"""Hooks of a real daemon: what they are told, what becomes of bad ones, and what the next daemon
does."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sfactl.connecting.connection import Client, DaemonError
from sfad import config
from sfad.features.hooks.messages import TryHook
from sfad.features.metrics.messages import Metrics, MetricsText
from sfad.protocol import messages as m
from tests.conftest import Start
from tests.harness import alive, ended, environment, spawn, started, stopped, wait_until
from tests.tiers import first, variant

BUSY = "[quotas]\nspawns_per_hour = 100000\n"


def hook(name: str, script: str, *, on: str = "run_completed", timeout: str = "30s") -> str:
    return (
        f'[[hooks]]\nname = "{name}"\non = ["{on}"]\ncommand = ["sh", "-c", '
        f'{json.dumps(script)}]\ntimeout = "{timeout}"\n'
    )


def states(client: Client) -> Mapping[str, m.HookState]:
    return {state.name: state for state in client.call(m.DaemonInfo(id=0), m.DaemonStatus).hooks}


def completed(client: Client, **options: object) -> str:
    run = started(client, ["true"], name="worker", **options).id
    ended(client, run)
    return run


def pid_in(file: Path) -> int:
    return int(wait_until(lambda: file.exists() and file.read_text().strip(), f"{file} has a pid"))


def gone(pid: int) -> None:
    wait_until(lambda: not alive(pid), f"process {pid} has ended")


ESCAPING = (
    'setsid sh -c \'trap "" TERM HUP INT; (sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait) '
    "& wait' >/dev/null 2>&1 &\n"
)


def test_bad_hooks_leave_nothing_and_hold_up_nothing(
    start: Start, tmp_path: Path, containment: str
) -> None:
    left, told = tmp_path / "left", tmp_path / "told"
    forks = ESCAPING.format(left) + f"while [ ! -s {left} ]; do sleep 0.01; done; cat > {told}"
    config = BUSY + hook("forks", forks) + hook("hangs", "trap '' TERM; sleep 1000", timeout="1s")
    config += hook("fails", "echo API_KEY=sk-ant-secretsecretsecret >&2; exit 3")
    config += '[[hooks]]\non = ["run_completed"]\ncommand = ["/nonexistent/hook"]\n'
    daemon = start(config=config, mode=containment)
    with daemon.client() as client:
        run = completed(client)
        wait_until(
            lambda: all(state.ended == 1 for state in states(client).values()),
            "each hook has ended",
        )
        found = states(client)
        event = json.loads(told.read_text())
        assert (event["type"], event["run_id"], event["agent_name"]) == (
            "run_completed",
            run,
            "worker",
        )
        assert found["forks"].failing is None
        gone(pid_in(left))
        assert found["hangs"].failing == "not ended within 1 s, and killed"
        assert found["fails"].failing == "exit code 3"
        assert "does not exist" in (found["hooks-4"].failing or "")
        failures = client.call(m.Events(id=0, after=0, types=["hook_*"]), m.EventPage).events
        assert {each.severity for each in failures} == {"medium"}
        assert len(failures) == 3
        metrics = client.call(Metrics(id=0), MetricsText).text
        for outcome, count in {"completed": 1, "failed": 3, "dropped": 0}.items():
            assert f'sfad_hook_executions_total{{outcome="{outcome}"}} {count}.0\n' in metrics
    log = daemon.log.read_text()
    assert "hook 'fails' failed: exit code 3" in log
    assert "secretsecret" not in log


@variant
def test_the_next_daemon_ends_a_hook_and_starts_it_again(
    start: Start, tmp_path: Path, containment: str
) -> None:
    pid, again = tmp_path / "pid", tmp_path / "again"
    script = (
        f"[ -e {pid} ] && {{ cat > {again}.new; mv {again}.new {again}; exit; }}; echo $$ > {pid}; "
        "trap '' TERM; sleep 1000"
    )
    daemon = start(config=BUSY + hook("once", script), mode=containment)
    with daemon.client() as client:
        run = completed(client)
        first = pid_in(pid)
        wait_until(lambda: states(client)["once"].running == 1, "it runs")
    daemon.kill()
    daemon.restart()
    gone(first)
    wait_until(again.exists, "the hook was started again")
    assert json.loads(again.read_text())["run_id"] == run
    with daemon.client() as client:
        wait_until(lambda: states(client)["once"].running == 0, "it has ended")
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        completed(client)
        wait_until(lambda: states(client)["once"].ended == 1, "the next event")
        assert states(client)["once"].ended == 1  # what was done is not done again


def test_a_hook_gets_little_and_acts_for_the_operator_without_starting_itself(
    start: Start, tmp_path: Path
) -> None:
    env, out = tmp_path / "env", tmp_path / "out"
    sfactl = (
        f"PYTHONPATH={os.environ.get('PYTHONPATH', '')} {shlex.quote(sys.executable)} -m sfactl"
    )
    script = f"env > {env}; ls /proc/self/fd | wc -l >> {out}; {sfactl} run --name byhook -- true"
    os.environ["OPERATORS_SECRET"] = "confidential"  # noqa: S105
    try:
        daemon = start(config=BUSY + hook("spawns", script, on="run_*"))
    finally:
        del os.environ["OPERATORS_SECRET"]
    with daemon.client() as client:
        refused = spawn(client, ["true"], channel="hook")
        assert isinstance(refused, m.Error)
        run = completed(client)
        wait_until(lambda: states(client)["spawns"].ended == 3, "accepted, started and completed")
        assert states(client)["spawns"].failing is None
        runs = client.call(m.List(id=0, name=["byhook"]), m.RunList).runs
        assert {(each.channel, each.status.value) for each in runs} == {("hook", "completed")}
        assert len(runs) == 3
    variables = dict(line.split("=", 1) for line in env.read_text().splitlines() if "=" in line)
    assert variables["SFAD_EVENT_RUN_ID"] == run
    assert variables["SFAD_SOCKET"] == str(daemon.socket)
    assert "OPERATORS_SECRET" not in variables
    assert not [name for name in variables if name.startswith("SFA_") and name != "SFA_COOKIE"]
    assert out.read_text().split()[0] == "4"  # 0, 1, 2, and the directory that ls reads


def on_ends(client: Client) -> dict[str, str]:
    return {
        each.run_id: each.state for each in client.call(m.DaemonInfo(id=0), m.DaemonStatus).on_ends
    }


def test_the_command_of_on_end(start: Start, tmp_path: Path, containment: str) -> None:
    out, late, pid = tmp_path / "out", tmp_path / "late", tmp_path / "pid"
    daemon = start(config=BUSY, mode=containment)
    with daemon.client() as client:
        command = f"(cat; echo $SFAD_EVENT_TYPE; echo $SECRET) > {out}.new; mv {out}.new {out}"
        env = [*environment(), b"SECRET=confidential"]
        failed = started(client, ["sh", "-c", "exit 7"], on_end=command, env=env).id
        wait_until(out.exists, "the command was executed")
        event, kind, secret = out.read_text().split("\n")[:3]
        assert json.loads(event)["run_id"] == failed
        assert (kind, secret) == ("run_failed", "")
        wait_until(lambda: on_ends(client) == {}, "it is done")
        hangs = started(
            client,
            ["true"],
            on_end=f"trap '' TERM; echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 1000",
        ).id
        process = pid_in(pid)
        assert on_ends(client) == {hangs: "running"}
        assert "on end" in daemon.sfactl("status").stdout
        refused = daemon.sfactl("stop", "--grace", "100d", hangs)
        assert refused.returncode != 0
        assert on_ends(client) == {hangs: "running"}, refused.stderr
        with pytest.raises(DaemonError, match="grace of -1 s is outside"):
            stopped(client, hangs, grace=-1.0)
        assert on_ends(client) == {hangs: "running"}
        stopped(client, hangs)
        wait_until(lambda: on_ends(client) == {}, "it was cancelled")
        gone(process)
        go = tmp_path / "go"
        run = started(
            client,
            ["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done"],
            on_end=f"cat > {late}.new; mv {late}.new {late}",
        )
    daemon.kill()
    go.touch()
    gone(run.pid or 0)
    daemon.restart()
    wait_until(late.exists, "the command was executed by the next daemon")
    assert json.loads(late.read_text())["run_id"] == run.id


def test_a_run_cannot_leave_its_bounds_by_on_end(start: Start, tmp_path: Path) -> None:
    daemon, out = start(config=BUSY), tmp_path / "out"
    with daemon.client() as client:
        inner = [sys.executable, "-m", "sfactl", "spawn", "--on-end", f"touch {out}", "--", "true"]
        run = started(client, inner, limits=[]).id
        assert ended(client, run).exit_code == 2
    assert not out.exists()


def test_no_run_hides_from_the_hooks_of_a_later_config(start: Start) -> None:
    daemon = start(config=BUSY)
    with daemon.client() as client:
        refused = spawn(client, ["true"], channel="hook")
        assert isinstance(refused, m.Error)
        assert refused.message == (
            "the channel 'hook' is that of runs which a hook starts; choose another"
        )


@variant
def test_a_hook_that_comes_back_is_not_told_what_happened_without_it(
    start: Start, tmp_path: Path
) -> None:
    """A daemon without hooks forgets how far those of an earlier one had come."""
    out = tmp_path / "out"
    with_hook = BUSY + hook("log", f"echo $SFAD_EVENT_RUN_ID >> {out}")
    daemon = start(config=with_hook)
    with daemon.client() as client:
        first = completed(client)
        wait_until(lambda: states(client)["log"].ended == 1, "it was told")
    runs = [first]
    for text in (BUSY, with_hook):
        daemon.stop()
        daemon.config.write_text(text)
        daemon.restart()
        with daemon.client() as client:
            runs.append(completed(client))
    told = [first, runs[2]]
    wait_until(lambda: len(out.read_text().split()) == len(told), "it was told again")
    assert out.read_text().split() == told


def test_hooks_follow_the_config_and_can_be_tried(start: Start) -> None:
    daemon = start(config=BUSY + hook("mail", "cat; exit 9") + hook("late", "cat", on="alert_*"))
    tried = daemon.sfactl("hooks", "try", "late", "--event", "alert_cost", "--json")
    found = json.loads(json.loads(tried.stdout)["output"])
    assert tried.returncode == 0
    assert (found["type"], found["state"], found["agent_name"]) == ("alert_cost", "raised", "test")
    tried = daemon.sfactl("hooks", "try", "mail", "--json")
    assert tried.returncode == 1
    assert json.loads(tried.stdout)["how"] == "exit code 9"
    # the default, run_failed, would not start it
    assert json.loads(json.loads(tried.stdout)["output"])["type"] == "run_completed"
    never = daemon.sfactl("hooks", "try", "mail", "--event", "run_failed")
    assert (never.returncode, never.stdout) == (2, "")
    assert (
        "'run_failed' does not start hook 'mail'; its 'on' matches: run_completed" in never.stderr
    )
    assert daemon.sfactl("events", "--type", "nosuch_type").returncode == 2
    assert daemon.sfactl("hooks", "list").stdout.split()[:4] == [
        "NAME",
        "ENDED",
        "FAILED",
        "DROPPED",
    ]
    assert "in the config: mail" in daemon.sfactl("hooks", "try", "other").stderr
    inside = daemon.sfactl("run", "-q", "--", sys.executable, "-m", "sfactl", "hooks", "list")
    assert inside.returncode == 77
    assert "only the operator sees the hooks" in inside.stderr
    daemon.config.write_text(daemon.config.read_text().replace('"mail"', '"pager"'))
    assert daemon.sfactl("reload").returncode == 0
    with daemon.client() as client:
        assert list(states(client)) == ["pager", "late"]
        completed(client)
        wait_until(lambda: states(client)["pager"].failed == 1, "it was started")


@variant
def test_a_re_execution_loses_no_event(start: Start, tmp_path: Path) -> None:
    out, slow = tmp_path / "out", tmp_path / "slow"
    script = f"[ -e {slow} ] || {{ touch {slow}; sleep 1000; }}; echo $SFAD_EVENT_RUN_ID >> {out}"
    daemon = start(config=BUSY + hook("log", script))
    with daemon.client() as client:
        first = completed(client)
        wait_until(slow.exists, "the hook hangs")
    daemon.reexecute()
    with daemon.client() as client:
        second = completed(client)
        wait_until(
            lambda: out.exists() and set(out.read_text().split()) == {first, second},
            "both were told",
        )


@variant
def test_a_test_ends_with_the_daemon_that_started_it(start: Start, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    daemon = start(
        config=BUSY
        + hook(
            "slow",
            f"trap '' TERM; echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000",
            timeout="10m",
        )
    )
    for leave in (daemon.stop, daemon.reexecute):
        with daemon.client() as client:
            client.send(TryHook(id=1, name="slow", event="run_completed"))
            process = pid_in(pid)
            leave()
        assert not alive(process)
        pid.unlink()
        if leave == daemon.stop:
            daemon.restart()


@first(2)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[hooks]\na = 1", "hooks: an array of tables is expected, each written [[hooks]]"),
        ('[[hooks]]\nname = "a b"\non = ["x"]\ncommand = ["x"]', "hooks.name = 'a b': allowed are"),
        ('[[hooks]]\ncommand = ["x"]', "hooks.hooks-1.on is missing"),
        ('[[hooks]]\non = []\ncommand = ["x"]', "hooks.hooks-1.on = []: allowed is"),
        (2 * '[[hooks]]\nname = "a"\non = ["x"]\ncommand = ["x"]\n', "two have the name 'a'"),
    ],
)
def test_a_wrong_hook_is_an_error_of_the_config(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "sfad.toml"
    file.write_text(text)
    with pytest.raises(config.ConfigError, match=r"sfad\.toml") as error:
        config.load([file])
    assert message in str(error.value)

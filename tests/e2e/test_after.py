"""Runs that start when others have ended, and groups with slots, with real processes."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import After, RunInfo, Status
from tests.conftest import GENEROUS, Start
from tests.harness import Daemon, ended, environment, spawn, started, stopped, wait_until
from tests.tiers import first

from .agents import info

GROUPS = f"{GENEROUS}\n[groups.gpu]\nslots = 1\n[groups.wide]\nslots = 2\n"


@pytest.fixture
def daemon(common: Daemon) -> Daemon:
    return common


def after(*words: str) -> list[After]:
    """`a1`, `a2:ok` as the option has it."""
    return [After(run=word.removesuffix(":ok"), ok=word.endswith(":ok")) for word in words]


def held(path: Path) -> list[str]:
    """Return a command that ends when `path` is written, with the exit code that is in it."""
    os.mkfifo(path)
    return ["sh", "-c", f"exit $(cat '{path}')"]


def refusal(client: Client, **options: object) -> str:
    """Return the error with which a request for a run is answered."""
    reply = spawn(client, ["true"], **options)
    assert isinstance(reply, m.Error), reply
    return reply.message


# ---- after


def test_a_chain_runs_one_after_the_other(daemon: Daemon, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with daemon.client() as client:
        first = started(client, held(tmp_path / "gate"), name="first")
        second = started(client, ["sh", "-c", f"echo second >> {said}"], after=after("first:ok"))
        third = started(
            client, ["sh", "-c", f"echo third >> {said}"], after=after(second.id, first.id)
        )
        assert [run.status for run in (second, third)] == [Status.QUEUED] * 2
        assert [*second.after] == after(f"{first.id}:ok"), "the name is resolved"
        assert not said.exists()
        (tmp_path / "gate").write_text("0")
        assert [ended(client, run.id).status for run in (second, third)] == [Status.COMPLETED] * 2
        assert ended(client, third.id).after == ()
    assert said.read_text() == "second\nthird\n"


def test_a_failure_cancels_what_waits_for_success(daemon: Daemon, tmp_path: Path) -> None:
    with daemon.client() as client:
        first = started(client, held(tmp_path / "gate"))
        needs = started(client, ["true"], after=after(f"{first.id}:ok"))
        anyway = started(client, ["true"], after=after(first.id))
        (tmp_path / "gate").write_text("3")
        over = ended(client, needs.id)
        assert over.status is Status.CANCELLED
        assert over.reason is not None
        assert (over.reason.kind, over.reason.by) == ("after", first.id)
        assert f"run {first.id} ended as failed" in over.reason.message
        assert over.started_at is None
        assert ended(client, anyway.id).status is Status.COMPLETED
        assert f"run {first.id} ended as failed" in refusal(client, after=after(f"{first.id}:ok"))
        assert started(client, ["true"], after=after(first.id)).status is not Status.QUEUED, (
            "it has ended"
        )


def test_a_stopped_run_is_no_success_and_unknown_ones_are_refused(daemon: Daemon) -> None:
    with daemon.client() as client:
        first = started(client, ["sleep", "60"])
        needs = started(client, ["true"], after=after(f"{first.id}:ok"))
        stopped(client, first.id)
        assert ended(client, needs.id).status is Status.CANCELLED
        assert "no run has the id or the name 'nobody'" in refusal(client, after=after("nobody"))
        assert "65 runs to wait for; at most 64" in refusal(client, after=after(*[first.id] * 65))


def test_a_run_that_waits_can_be_stopped(daemon: Daemon) -> None:
    with daemon.client() as client:
        first = started(client, ["sleep", "60"])
        waits = started(client, ["true"], after=after(first.id))
        assert stopped(client, waits.id).stopped == [waits.id]
        assert info(client, waits.id).status is Status.CANCELLED


def test_pausing_the_awaited_run_holds(daemon: Daemon, tmp_path: Path) -> None:
    with daemon.client() as client:
        first = started(client, held(tmp_path / "gate"))
        waits = started(client, ["true"], after=after(first.id))
        client.call(m.Pause(id=client.next_id(), run=first.id), m.RunReply)
        assert info(client, waits.id).status is Status.QUEUED
        client.call(m.Resume(id=client.next_id(), run=first.id), m.RunReply)
        (tmp_path / "gate").write_text("0")
        assert ended(client, waits.id).status is Status.COMPLETED


@first(1)
@pytest.mark.parametrize("how", ["killed", "re-executed"])
def test_it_survives_the_daemon(share: Start, tmp_path: Path, how: str) -> None:
    daemon = share()
    with daemon.client() as client:
        first = started(client, held(tmp_path / "gate"))
        waits = started(client, ["sh", "-c", "sleep 0.1"], after=after(first.id))
        last = started(client, ["true"], after=after(f"{waits.id}:ok"))
    if how == "killed":
        daemon.kill()
        daemon.restart()
    else:
        daemon.reexecute()
    with daemon.client() as client:
        assert [*info(client, waits.id).after] == after(first.id)
        (tmp_path / "gate").write_text("0")
        assert [ended(client, run.id).status for run in (waits, last)] == [Status.COMPLETED] * 2


@first(1)
@pytest.mark.parametrize(("word", "status"), [("", Status.COMPLETED), (":ok", Status.CANCELLED)])
def test_an_end_without_a_daemon_is_noticed(
    share: Start, tmp_path: Path, word: str, status: Status
) -> None:
    daemon = share()
    with daemon.client() as client:
        first = started(client, held(tmp_path / "gate"))
        waits = started(client, ["true"], after=after(first.id + word))
    daemon.kill()
    (tmp_path / "gate").write_text("1")
    wait_until(lambda: not Path(f"/proc/{first.pid}").exists(), "it has ended")
    daemon.restart()
    with daemon.client() as client:
        assert ended(client, waits.id).status is status


def test_views_say_what_it_waits_for(daemon: Daemon) -> None:
    with daemon.client() as client:
        first = started(client, ["sleep", "60"], name="build").id
    spawned = daemon.sfactl(
        "spawn", "--after", first, "--after", "build:ok", "--name", "deploy", "--", "true"
    )
    run = spawned.stdout.strip()
    words = f"it starts when {first} has ended and {first} has completed"
    assert f"sfactl: {run} is queued: {words}" in spawned.stderr
    assert f"{run} (deploy) is queued: {words}; " in daemon.sfactl("why", run).stdout
    assert words in daemon.sfactl("info", run).stdout
    shown = msgspec.json.decode(daemon.sfactl("info", run, "--json").stdout)
    assert [(each["run"], each["ok"]) for each in shown["after"]] == [(first, False), (first, True)]
    listed = daemon.sfactl("list").stdout
    assert "AFTER" in listed.splitlines()[0]
    assert f"{first},{first}:ok" in listed
    assert f"queued after {first}, {first}:ok" in daemon.sfactl("tree").stdout
    waits = msgspec.json.decode(daemon.sfactl("summary", "--json").stdout)["waiting"]
    assert [(one["what"], one["runs"]) for one in waits] == [("after", [run])]
    assert (
        f"1 run waits for others: {run} (deploy) after {first}, {first}:ok"
        in daemon.sfactl("summary").stdout
    )
    daemon.sfactl("stop", first)
    assert "it was to start only if that completed" in daemon.sfactl("why", run).stdout


def test_the_command_line_refuses_what_makes_no_sense(daemon: Daemon) -> None:
    for words, said in (
        (["--after", "x:fail"], "--after: 'x:fail' is not of the form RUN or RUN:ok"),
        (["--after", "x", "--no-queue"], "--after and --no-queue exclude each other"),
    ):
        done = daemon.sfactl("spawn", *words, "--", "true")
        assert done.returncode == 2
        assert said in done.stderr


def test_a_foreground_run_waits_too(daemon: Daemon, tmp_path: Path) -> None:
    with daemon.client() as client:
        first = started(client, held(tmp_path / "gate")).id
    command = [
        daemon.python,
        "-m",
        "sfactl",
        "run",
        "--name",
        "then",
        "--after",
        f"{first}:ok",
        "--",
        "true",
    ]
    with subprocess.Popen(command, env=daemon.env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert (
            process.stderr.readline()
            == f"[agent:then] queued: it starts when {first} has completed\n"
        )
        (tmp_path / "gate").write_text("1")
        assert process.wait() == 143
        assert "and it was to start only if that completed" in process.stderr.read()


def test_a_run_waits_for_its_own_children_and_never_for_itself(
    daemon: Daemon, tmp_path: Path
) -> None:
    script = f"""
        a=$($SFACTL spawn -q --name one -- sh -c 'sleep 0.1; echo one >> {tmp_path}/said')
        b=$($SFACTL spawn -q --after $a:ok --name two -- sh -c 'echo two >> {tmp_path}/said')
        $SFACTL wait $b
        $SFACTL spawn --after $SFA_RUN_ID --name three -- true 2> {tmp_path}/refused
        $SFACTL spawn --after stranger --name four -- true 2>> {tmp_path}/refused
        true"""
    env = environment()
    env.append(f"SFACTL={daemon.python} -m sfactl".encode())
    with daemon.client() as client:
        started(client, ["sleep", "60"], name="stranger")
        root = started(client, ["sh", "-c", script], env=env)
        assert ended(client, root.id).status is Status.COMPLETED
    assert (tmp_path / "said").read_text() == "one\ntwo\n"
    itself, stranger = (tmp_path / "refused").read_text().splitlines()
    assert f"it would wait for itself: run {root.id} is above it" in itself
    assert "no run has the id or the name 'stranger'" in stranger


# ---- groups


def grouped(client: Client, group: str, path: Path, **options: object) -> RunInfo:
    """Start a tree in a group that ends when `path` is written."""
    return started(client, held(path), group=group, **options)


def test_a_group_lets_so_many_run_at_once(share: Start, tmp_path: Path) -> None:
    daemon = share(config=GROUPS)
    with daemon.client() as client:
        first = grouped(client, "gpu", tmp_path / "1")
        low = grouped(client, "gpu", tmp_path / "2")
        high = grouped(client, "gpu", tmp_path / "3", priority=5)
        other, wide = started(client, ["sleep", "60"]), grouped(client, "wide", tmp_path / "4")
        assert [run.status for run in (first, low, high)] == [
            Status.RUNNING,
            Status.QUEUED,
            Status.QUEUED,
        ]
        assert [run.status for run in (other, wide)] == [Status.RUNNING] * 2
        [hold] = info(client, low.id).holds
        assert (hold.kind, hold.until is not None) == ("group", True)
        why = daemon.sfactl("why", low.id).stdout
        assert (
            "of its group, you have 1 live tree, and groups.gpu.slots is 1; "
            "it is number 2 of 2 that wait"
        ) in why
        assert "1 of 1 trees in the group gpu" in daemon.sfactl("status").stdout
        (tmp_path / "1").write_text("0")
        wait_until(
            lambda: info(client, high.id).status is Status.RUNNING,
            "the higher priority comes first",
        )
        assert info(client, low.id).status is Status.QUEUED
        (tmp_path / "3").write_text("0")
        (tmp_path / "2").write_text("0")
        assert ended(client, low.id).group == "gpu"
        refused = spawn(client, ["true"], group="gpu", queue=False)
        assert isinstance(refused, m.RunReply), "the group has room again"


def test_unknown_groups_are_refused_by_name(share: Start) -> None:
    daemon = share(config=GROUPS)
    done = daemon.sfactl("spawn", "--group", "cpu", "--", "true")
    assert done.returncode == 2
    assert "there is no group 'cpu'; choose from: gpu, wide" in done.stderr


def test_a_group_outlives_the_daemon_and_a_reload_changes_it(start: Start, tmp_path: Path) -> None:
    daemon = start(config=GROUPS)
    with daemon.client() as client:
        grouped(client, "gpu", tmp_path / "1")
        waits = [grouped(client, "gpu", tmp_path / str(number)) for number in (2, 3)]
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        assert [info(client, run.id).status for run in waits] == [Status.QUEUED] * 2
        config = daemon.config.read_text()
        daemon.config.write_text(config.replace("slots = 1", "slots = 2"))
        client.call(m.Reload(id=client.next_id()), m.Reloaded)
        wait_until(
            lambda: info(client, waits[0].id).status is Status.RUNNING, "there is a slot more"
        )
        assert info(client, waits[1].id).status is Status.QUEUED
        daemon.config.write_text(config.replace(GROUPS, GENEROUS))
        client.call(m.Reload(id=client.next_id()), m.Reloaded)
        wait_until(
            lambda: info(client, waits[1].id).status is Status.RUNNING,
            "the group has no bound any more",
        )
        stopped(client, everything=True, grace=0)


def test_the_config_names_groups_well(tmp_path: Path) -> None:
    from sfad.config import ConfigError, load

    for text, said in (
        ('[groups."a b"]\nslots = 1', "a group's name has 1 to 64 of A-Z a-z 0-9 _ -"),
        ("[groups.gpu]\nslots = 0", "groups.gpu.slots = 0: allowed is"),
        ("[groups.gpu]", "groups.gpu.slots is missing"),
    ):
        (tmp_path / "sfad.toml").write_text(text)
        with pytest.raises(ConfigError, match=said):
            load([tmp_path / "sfad.toml"])


# ---- at a time


def test_a_run_starts_at_its_time_also_if_the_daemon_died_meanwhile(start: Start) -> None:
    daemon, soon = start(), datetime.now(UTC) + timedelta(seconds=2)
    with daemon.client() as client:
        run = started(client, ["true"], after=[After(run="", at=soon)])
        assert run.status is Status.QUEUED
        (hold,) = info(client, run.id).holds
        assert (hold.kind, hold.until) == ("at", soon)
        later = started(client, ["true"], after=[After(run="", at=soon + timedelta(days=1))])
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        over = ended(client, run.id)
        assert over.status is Status.COMPLETED
        assert over.started_at is not None
        assert over.started_at >= soon
        assert info(client, later.id).status is Status.QUEUED
        stopped(client, later.id)
        assert refusal(client, after=[After(run="", at=soon)], queue=False)

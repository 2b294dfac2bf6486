"""Each verb that tells of the end of a run tells which children that has stopped."""

from __future__ import annotations

import msgspec
import pytest

from sfactl.connecting.connection import Client
from tests.harness import ended, stopped, wait_until

from .conftest import World

WORDS = "stopped 1 child that was still running: writer; wait for it"
PARENT = "$SFACTL spawn -q --name writer -- sleep 100"


def test_a_parent_that_ends_at_once_says_so_everywhere(daemon: World) -> None:
    done = daemon.sfactl("run", "--name", "planner", "--", "sh", "-c", PARENT)
    assert f"[agent:planner] completed: {WORDS}" in done.stderr
    child = done.stdout.strip()
    assert daemon.status(child) == "cancelled"
    parent = daemon.json("info", child)["parent_id"]
    assert daemon.sfactl("wait", parent).stdout == f"{parent}  planner  completed: {WORDS}\n"
    assert f"; the daemon {WORDS}" in daemon.sfactl("why", parent).stdout
    assert f"children     {WORDS}" in daemon.sfactl("info", parent).stdout
    told = {"count": 1, "names": ["writer"], "message": WORDS}
    assert daemon.json("info", parent)["stopped_children"] == told
    assert daemon.json("info", child)["stopped_children"] is None
    events = daemon.sfactl("events", "--run", parent, "--json", "--type", "run_completed").stdout
    assert msgspec.json.decode(events.splitlines()[0])["message"] == WORDS
    assert WORDS in daemon.sfactl("events", "--run", parent).stdout


def test_quiet_hides_no_lost_work(daemon: World) -> None:
    done = daemon.sfactl("run", "-q", "--", "sh", "-c", PARENT)
    (line,) = done.stderr.splitlines()
    assert line.endswith(f" {WORDS}")
    assert line.startswith("sfactl: ")
    waits = "$SFACTL wait $($SFACTL spawn -q -- true)"
    assert daemon.sfactl("run", "-q", "--", "sh", "-c", waits).stderr == ""


def test_a_failure_keeps_its_reason_and_gives_no_advice(daemon: World) -> None:
    done = daemon.sfactl("run", "--name", "p", "--", "sh", "-c", f"{PARENT}; exit 3", code=None)
    assert "[agent:p] failed: exited with code 3" in done.stderr
    assert "; stopped 1 child that was still running: writer\n" in done.stderr


def test_a_stop_says_what_went_with_it(daemon: World) -> None:
    script = f"{PARENT}; sleep 100"
    run = daemon.spawn("--name", "p", "--", "sh", "-c", script)
    with Client(daemon.socket) as client:
        wait_until(lambda: daemon.json("info", run)["descendants"] == 1, "its child started")
        stopped(client, run)
        ended(client, run)
    assert "; stopped 1 child with it: writer" in daemon.sfactl("wait", run, code=None).stdout


@pytest.mark.alone
def test_the_ledger_keeps_it(daemon: World) -> None:
    daemon.sfactl("run", "-q", "--name", "planner", "--", "sh", "-c", PARENT)
    daemon.end()
    try:
        assert daemon.json("info", "planner")["stopped_children"]["message"] == WORDS
    finally:
        daemon.begin()

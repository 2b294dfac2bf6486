"""Nodes that are killed or stand still, of the three on one machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from sfad.protocol import messages as m
from sfad.protocol.types import Placing, Status
from tests.harness import PATIENCE, ended, started, wait_until
from tests.leaks import stays
from tests.top.terminal import top

from .asking import CHANGE, Daemons, live_named, nothing_left, on, there, time_limit
from .cluster import LEASE, Cluster, actor_pid, connected, kill

pytest.importorskip("ray", reason="the extra `fleet` is not installed")


def test_top_shows_the_runs_of_a_node_that_answers_later(fleet: Daemons) -> None:
    with fleet["n3"].client() as third:
        late = started(third, ["sleep", "300"], name="late", limits=time_limit())
        os.kill(fleet["n3"].pid, signal.SIGSTOP)
        try:
            with top(fleet["n1"].env, "--fleet", columns=140, lines=30) as terminal:
                terminal.until("node n3: .*waiting for it")
                os.kill(fleet["n3"].pid, signal.SIGCONT)
                terminal.until(rf"n3/{late.id} late +running +n3")
                terminal.until(lambda: "waiting for it" not in terminal.text)
        finally:
            os.kill(fleet["n3"].pid, signal.SIGCONT)
        third.call(m.Stop(id=0, runs=[late.id]), m.Stopped)


@pytest.mark.parametrize("who", ["actor of n1", "actor of n2", "daemon n1", "daemon n2"])
def test_a_kill_loses_doubles_and_leaves_nothing(fleet: Daemons, who: str) -> None:
    with fleet["n1"].client() as client:
        runs = [started(client, ["sleep", "300"], **on("n2")) for _ in range(50)]
    before = {there(fleet, run).pid for run in runs}
    assert len(before) == 50
    what, node = who.split()[0], who.split()[-1]
    if what == "daemon":
        fleet[node].kill()
        fleet[node].restart()
        stays(fleet[node].pid)
    else:
        kill(actor_pid(fleet[node]))
        wait_until(
            lambda: connected(fleet[node]), "another actor is connected", seconds=2 * PATIENCE
        )
    wait_until(
        lambda: all(connected(daemon) for daemon in fleet.values()),
        "all nodes are connected",
        seconds=4 * PATIENCE,
    )
    with fleet["n1"].client() as client:
        assert {there(fleet, run).pid for run in runs} == before
        again = started(client, ["sleep", "300"], **on("n2"))
        stopped = client.call(m.Stop(id=0, runs=[*(run.id for run in runs), again.id]), m.Stopped)
        assert stopped.survivors == []
    assert not any(psutil.pid_exists(pid or -1) for pid in before)
    nothing_left(fleet)


def test_a_killed_raylet_loses_no_run(ray: Cluster, fleet: Daemons) -> None:
    with fleet["n1"].client() as client:
        runs = [started(client, ["sleep", "300"], **on("n3")) for _ in range(50)]
        pids = {there(fleet, run).pid for run in runs}
        actor = actor_pid(fleet["n3"])
        kill(psutil.Process(actor).ppid())
        wait_until(lambda: not psutil.pid_exists(actor), "its actor has ended with it", seconds=120)
        assert all(psutil.pid_exists(pid or -1) for pid in pids)
        ray.join("n3")
        wait_until(
            lambda: connected(fleet["n3"]), "the actor is back on the new raylet", seconds=240
        )
        assert {there(fleet, run).pid for run in runs} == pids
        stopped = client.call(m.Stop(id=0, runs=[run.id for run in runs]), m.Stopped)
        assert stopped.survivors == []
    nothing_left(fleet)


def test_a_node_that_stands_still_for_less_and_for_more_than_the_lease(fleet: Daemons) -> None:
    with fleet["n1"].client() as client:
        starts = (
            f"{Path(sys.executable).with_name('sfactl')} spawn --on n2 --name far --timeout 200 -- "
            "sleep 300; sleep 300"
        )
        top = started(client, ["sh", "-c", starts], name="near", limits=time_limit())
        far = wait_until(lambda: live_named(fleet, "n1", "far"), "the child was granted")
        pid = there(fleet, far).pid
        assert pid is not None
        os.kill(fleet["n2"].pid, signal.SIGSTOP)
        time.sleep(LEASE / 2)  # the length is what is tested
        os.kill(fleet["n2"].pid, signal.SIGCONT)
        time.sleep(LEASE / 2)
        assert live_named(fleet, "n1", "far") is not None
        assert psutil.pid_exists(pid)
        os.kill(fleet["n2"].pid, signal.SIGSTOP)
        try:
            lost = ended(client, far.id)
        finally:
            os.kill(fleet["n2"].pid, signal.SIGCONT)
        assert lost.status is Status.LOST
        assert "node n2 was not heard of" in (
            lost.reason.message if lost.reason is not None else ""
        )
        wait_until(lambda: not psutil.pid_exists(pid), "the node has stopped it")
        client.call(m.Stop(id=0, runs=[top.id]), m.Stopped)
    nothing_left(fleet)


def test_a_run_restarts_elsewhere_though_only_the_daemon_of_its_node_stands_still(
    fleet: Daemons,
) -> None:
    with fleet["n1"].client() as client:
        full = started(
            client, ["sleep", "300"], **(on("n1") | {"placing": Placing(node="n1", cpus=4)})
        )
        assert fleet["n1"].sfactl("fleet", "drain", "n3").returncode == 0
        placing = Placing(cpus=1, restart_elsewhere=True)
        run = started(client, ["sleep", "300"], **(on("n2") | {"placing": placing, "attempts": 2}))
        first = there(fleet, run)
        assert fleet["n1"].sfactl("fleet", "drain", "n3", "--undo").returncode == 0
        os.kill(fleet["n2"].pid, signal.SIGSTOP)
        try:

            def elsewhere() -> bool:
                place = client.call(m.Info(id=0, run=run.id), m.RunReply).run.fleet
                return place is not None and place.node == "n3" and bool(place.run)

            wait_until(
                elsewhere, "its second attempt began on the third node", seconds=2 * PATIENCE
            )
        finally:
            os.kill(fleet["n2"].pid, signal.SIGCONT)
        wait_until(
            lambda: not psutil.pid_exists(first.pid or -1),
            "the first was stopped at the end of its lease",
        )
        client.call(m.Stop(id=0, runs=[run.id, full.id]), m.Stopped)
    nothing_left(fleet)


def test_a_node_that_does_not_answer_is_named_and_can_be_given_up(fleet: Daemons) -> None:
    with fleet["n1"].client() as client:
        run = started(client, ["sleep", "300"], **on("n3"))
        pid = there(fleet, run).pid
        os.kill(fleet["n3"].pid, signal.SIGSTOP)
        try:
            listed = fleet["n1"].sfactl("list", "--fleet", "--json")
            assert json.loads(listed.stdout)["unanswered"] == ["n3"]
            assert listed.returncode == 75
            given_up = fleet["n1"].sfactl("fleet", "forget", "n3", "--json")
            assert json.loads(given_up.stdout) == {"node": "n3", "runs": [run.id]}
        finally:
            os.kill(fleet["n3"].pid, signal.SIGCONT)
        assert ended(client, run.id).status is Status.LOST
    assert psutil.pid_exists(pid or -1)  # a tree goes on without its asker
    far = live_named(fleet, "n3", "sleep")
    assert far is not None
    assert fleet["n1"].sfactl("stop", f"n3/{far.id}").returncode == 0
    nothing_left(fleet)


def test_files_come_although_both_daemons_are_killed(fleet: Daemons, project: Path) -> None:
    n1 = fleet["n1"]
    with n1.client() as client:
        full = started(
            client, ["sleep", "300"], **(on("n2") | {"placing": Placing(node="n2", cpus=4)})
        )
    command = ("sh", "-c", f"{CHANGE} sleep 300")
    words = ("--on", "n2", "--cpus", "1", "--timeout", "200", "--ship", str(project))
    run = n1.sfactl("spawn", *words, "--", *command).stdout.strip()
    n1.kill()
    n1.restart()
    stays(n1.pid)
    wait_until(lambda: connected(n1), "another actor is connected", seconds=4 * PATIENCE)
    with n1.client() as client:
        client.call(m.Stop(id=0, runs=[full.id]), m.Stopped)
        wait_until(
            lambda: client.call(m.Info(id=0, run=run), m.RunReply).run.status is Status.RUNNING,
            "it runs",
            seconds=2 * PATIENCE,
        )
    fleet["n2"].kill()
    fleet["n2"].restart()
    stays(fleet["n2"].pid)
    wait_until(
        lambda: all(connected(daemon) for daemon in fleet.values()),
        "all nodes are connected",
        seconds=4 * PATIENCE,
    )
    wait_until(
        lambda: "new/deep/file" in n1.sfactl("fetch", run, "--patch").stdout,
        "its changes can be fetched",
    )
    with n1.client() as client:
        client.call(m.Stop(id=0, runs=[run]), m.Stopped)
    assert "added new/deep/file" in n1.sfactl("fetch", run).stdout
    nothing_left(fleet)

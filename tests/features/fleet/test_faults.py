"""Nodes whose actor, raylet, daemon or network fails, and a head that stands still: what is told of
them, and how soon."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Limit, LimitKind, Placing, RunInfo, Status
from tests.harness import PYTHON, spawn, started, wait_until
from tests.paper_fleet import Fleet, fleet

TOLD = 60.0
"""Seconds for what takes three, on a busy machine. Without bounds, one stop takes 75."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, ("n1", "n2", "n3"), lease=30) as made:
        for daemon in made.daemons.values():  # all know all
            wait_until(lambda: shown(made) == READY, "all nodes are ready")
            daemon.sfactl("list", "--fleet")
        yield made


READY = {"n1": None, "n2": None, "n3": None}


def shown(nodes: Fleet, asked: str = "n1") -> dict[str, str | None]:
    """Return what each node lacks."""
    told = json.loads(nodes[asked].sfactl("fleet", "nodes", "--json").stdout)
    return {
        node["name"]: node["missing"] or (None if node["version"] else "version")
        for node in told["nodes"]
    }


@contextmanager
def said(nodes: Fleet, *words: str) -> Iterator[None]:
    """Have something happen, and its end after that."""
    nodes.say(words[0])
    try:
        yield
    finally:
        nodes.say(words[1])


@contextmanager
def stopped_daemon(nodes: Fleet) -> Iterator[None]:
    os.kill(nodes["n2"].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(nodes["n2"].pid, signal.SIGCONT)


@contextmanager
def dead_daemon(nodes: Fleet) -> Iterator[None]:
    nodes["n2"].kill()
    try:
        yield
    finally:
        nodes["n2"].restart()


FAULTS: dict[str, tuple[Callable[[Fleet], AbstractContextManager[None]], str]] = {
    "a hung daemon": (stopped_daemon, "daemon"),
    "a dead daemon": (dead_daemon, "daemon"),
    "a hung actor": (lambda nodes: said(nodes, "hang n2", "wake n2"), "actor"),
    "a cut network": (lambda nodes: said(nodes, "cut n2", "join n2"), "actor"),
}


def placed(client: Client, node: str = "n2", **more: object) -> RunInfo:
    time_limit = Limit(kind=LimitKind.TIME, threshold=300, source="--timeout")
    given = {"limits": [time_limit], "placing": Placing(node=node), "key": os.urandom(8).hex()}
    return started(client, ["sleep", "300"], **(given | more))


@pytest.mark.parametrize("fault", FAULTS)
def test_answers_are_bounded_and_true(nodes: Fleet, fault: str) -> None:
    """Whatever n2 lacks, it is named, its runs are shown as they were, and nobody waits for it."""
    begin, missing = FAULTS[fault]
    n1 = nodes["n1"]
    with n1.client() as client, nodes["n2"].client() as two:
        far = started(two, ["sleep", "300"], name="far")
        run = placed(client, name="given")
        near = placed(client, "n3", name="near")
        wait_until(lambda: info(client, run).status is Status.RUNNING, "n2 has taken it")
        wait_until(lambda: n1.sfactl("list", "--fleet").returncode == 0, "all answer")
        with begin(nodes):
            began = time.monotonic()
            assert shown(nodes) == READY | {"n2": missing}
            listed = n1.sfactl("list", "--fleet", "--json")
            assert listed.returncode == 75
            found = {each["id"]: each for each in json.loads(listed.stdout)["runs"]}
            assert found[f"n2/{far.id}"]["fleet"]["unreachable_since"]
            assert {f"n1/{run.id}", f"n1/{near.id}"} <= found.keys()
            told = n1.sfactl("info", f"n2/{far.id}", "--json")
            assert (told.returncode, json.loads(told.stdout)["name"]) == (75, "far"), told
            for line in ("fleet status", "summary --fleet", "events --fleet --tail 3"):
                assert n1.sfactl(*line.split()).returncode in (0, 75), line
            # a start that was admitted is answered, and a repetition starts nothing twice
            key = os.urandom(8).hex()
            late = placed(client, name="late", key=key)
            assert late.status in (Status.QUEUED, Status.STARTING)
            given: Any = {"name": "late", "key": key, "placing": Placing(node="n2")}
            again = spawn(client, ["sleep", "300"], **given)
            assert isinstance(again, m.RunReply)
            assert again.run.id == late.id
            # what cannot be stopped is told with when it will be
            stop = n1.sfactl("stop", run.id, near.id)
            assert stop.returncode == 5, stop
            assert f"not known to be gone: {run.id}, not reached since " in stop.stderr
            assert "it will be stopped when node n2 is heard of" in stop.stderr
            assert f"stopped: {near.id}" in stop.stderr
            assert "pid 0" not in stop.stderr
            there = n1.sfactl("stop", f"n2/{far.id}")
            assert there.returncode == 5
            assert "stop it again when the node answers" in there.stderr
            assert time.monotonic() - began < TOLD
        wait_until(lambda: shown(nodes) == READY, "all nodes are ready again")
        wait_until(lambda: info(client, run).status is Status.CANCELLED, "the stop has reached it")
        wait_until(lambda: info(client, late).status is Status.RUNNING, "it was started")
        started_there = [each for each in live(nodes, "n2") if each.name == "late"]
        assert len(started_there) == 1
        wait_until(lambda: n1.sfactl("stop", "--fleet", "--all").returncode == 0, "all has stopped")


def info(client: Client, run: RunInfo) -> RunInfo:
    return client.call(m.Info(id=0, run=run.id), m.RunReply).run


def live(nodes: Fleet, node: str) -> list[RunInfo]:
    with nodes[node].client() as client:
        runs = client.call(m.List(id=0, rows=0), m.RunList).runs
    return [run for run in runs if not run.status.terminal]


def test_a_head_that_stands_still_delays_nobody(nodes: Fleet) -> None:
    n1 = nodes["n1"]
    with said(nodes, "stop head", "start head"), n1.client() as client:
        began = time.monotonic()
        told = n1.sfactl("fleet", "nodes")
        assert (told.returncode, "Ray does not answer here" in told.stderr) == (75, True), told
        assert told.stdout.count("ready") == 3
        wait_until(lambda: n1.sfactl("list", "--fleet").returncode == 0, "all answer")
        run = placed(client)
        assert run.status is Status.QUEUED
        why = n1.sfactl("why", run.id)
        assert "the fleet's actor does not answer" in why.stdout, why
        assert n1.sfactl("fleet", "drain", "n2").returncode == 75
        assert n1.sfactl("stop", run.id).returncode == 0
        assert time.monotonic() - began < TOLD


def test_a_node_without_its_raylet_is_not_ready(nodes: Fleet) -> None:
    """Though its daemon answers: Ray places nothing there."""
    with said(nodes, "lose n3", "join n3"):
        assert shown(nodes) == READY | {"n3": "raylet"}
        said_of = nodes["n1"].sfactl("fleet", "nodes").stderr
        assert "n3: its part of Ray is gone; on it: systemctl restart sfad-ray" in said_of
    assert shown(nodes) == READY


def test_without_a_connection_a_node_shows_its_own_runs(nodes: Fleet) -> None:
    """And knows the others after a start without the cluster."""
    nodes["n1"].kill()
    nodes.end_actors()
    nodes["n1"].restart()
    with nodes["n1"].client() as client:
        run = started(client, ["sleep", "300"], name="own")
        listed = nodes["n1"].sfactl("list", "--fleet", "--json")
        found = json.loads(listed.stdout)
        assert (listed.returncode, found["unanswered"]) == (75, ["n2", "n3"])
        assert [each["id"] for each in found["runs"]] == [f"n1/{run.id}"]
        told = nodes["n1"].sfactl("fleet", "nodes")
        assert told.returncode == 75
        assert told.stdout.count("not known") == 2
        client.call(m.Stop(id=0, runs=[run.id]), m.Stopped)


def test_a_node_that_was_never_asked_knows_the_others_when_it_is_cut_off(nodes: Fleet) -> None:
    with said(nodes, "cut n3", "join n3"):
        listed = nodes["n3"].sfactl("list", "--fleet", "--json")
    assert (listed.returncode, json.loads(listed.stdout)["unanswered"]) == (75, ["n1", "n2"])


def test_what_is_left_of_a_run_is_told_when_its_node_has_burnt_down(nodes: Fleet) -> None:
    command = ["sh", "-c", "echo begun; echo trouble >&2; read line <fifo; echo the result"]
    n1 = nodes["n1"]
    with n1.client() as client:
        fifo = Path(nodes["n2"].state_dir).parent / "fifo"
        os.mkfifo(fifo)
        command[-1] = command[-1].replace("fifo", str(fifo))
        given = {"placing": Placing(node="n2"), "key": os.urandom(8).hex()}
        run = started(client, command, name="burnt", meter="none", **given)
        left = Path(n1.state_dir) / "elsewhere" / run.id
        wait_until(lambda: left.exists() and b"begun" in left.read_bytes(), "its lines are here")
        fifo.write_text("go\n")
        wait_until(lambda: info(client, run).status is Status.COMPLETED, "it has ended")
        wait_until(lambda: b"the result" in left.read_bytes(), "its result is here")
        with said(nodes, "cut n2", "join n2"):
            result = n1.sfactl("result", run.id)
            assert (result.returncode, "the result" in result.stdout) == (0, True), result
            assert "this is what is left of it here" in result.stdout
            for name in (f"n1/{run.id}", "burnt"):
                assert n1.sfactl("logs", name, "--stdout").stdout == "begun\nthe result\n"
                assert n1.sfactl("logs", name, "--stderr").stdout == "trouble\n"
            summed = n1.sfactl("summary", "--fleet", "--json")
            assert (summed.returncode, json.loads(summed.stdout)["runs"]) == (75, 1), summed
            assert "node n2" in summed.stderr


def test_a_placed_run_shows_what_it_has_used_and_where_it_comes_from(nodes: Fleet) -> None:
    with nodes["n1"].client() as client, nodes["n2"].client() as two:
        cost = Limit(kind=LimitKind.COST, threshold=5.0, source="--limit")
        run = placed(client, name="beta", limits=[cost], meter="report")
        (there,) = wait_until(lambda: live(nodes, "n2"), "n2 has taken it")
        assert info(client, run).total_cost_usd in (None, 0)
        two.call(m.Report(id=0, run=there.id, cost_usd=0.25, input_tokens=1000), m.RunReply)

        def told() -> bool:
            return info(client, run).usage.cost_usd == 0.25

        wait_until(told, "n1 shows what it has used")
        state = next(each for each in info(client, run).limits if each.kind is LimitKind.COST)
        assert (state.used, state.reserved) == (0.25, 4.75)
        assert info(client, run).total_cost_usd == 0.25
        client.call(m.Stop(id=0, runs=[run.id]), m.Stopped)
        ended = info(client, run)
        assert (ended.total_cost_usd, ended.total_at_most) == (0.25, False)


def test_a_placed_child_has_its_ancestors_on_both_nodes_and_is_listed_once(nodes: Fleet) -> None:
    n1, n2 = nodes["n1"], nodes["n2"]
    starts = f"{PYTHON} -m sfactl spawn --on n2 --name inner -- sleep 300; exec sleep 300"

    def told() -> list[tuple[str, list[str], int, str]]:
        """Return what is told of it: here and there, in the list of one node and of all."""
        found = []
        for daemon, words in ((n1, ()), (n2, ()), (n1, ("--fleet",)), (n2, ("--fleet",))):
            runs = json.loads(daemon.sfactl("list", *words, "--json").stdout)["runs"]
            found += [
                (each["name"], each["chain"], each["depth"], each["status"])
                for each in runs
                if each["name"] == "inner"
            ]
        return found

    with n1.client() as client:
        outer = started(client, ["sh", "-c", starts], name="outer")
        chain = ["outer", "inner"]
        wait_until(lambda: told() == [("inner", chain, 1, "running")] * 4, "all tell the same")
        there = live(nodes, "n2")[0]
        with n2.client() as two:
            assert info(two, there).chain == chain
        client.call(m.Stop(id=0, runs=[outer.id]), m.Stopped)
    assert told() == [("inner", chain, 1, "cancelled")] * 4

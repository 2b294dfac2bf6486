"""The daemon of a node answers for all nodes of its fleet, on connections that ask for that."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import Client, DaemonError
from sfad.protocol import messages as m
from sfad.protocol.types import Action, Limit, LimitKind, Placing, RunInfo, Status
from tests.harness import Daemon, spawn, started, wait_until
from tests.paper_fleet import Fleet, fleet
from tests.top.terminal import ENTER, top


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("fleet")) as made:
        yield made


@contextmanager
def asking(daemon: Daemon) -> Iterator[Client]:
    """Connect to a daemon that answers for the fleet."""
    with daemon.client() as client:
        client.ask_fleet()
        yield client


@pytest.fixture
def run(nodes: Fleet) -> Iterator[str]:
    """A live run of the node n2, by its name in the fleet."""
    with nodes["n2"].client() as client:
        command = ["sh", "-c", "echo out; echo err >&2; exec sleep 100"]
        found = started(client, command, name="far", labels={"k": "fleet"}, meter="report")
        yield f"n2/{found.id}"
        client.call(m.Stop(id=0, runs=[found.id]), m.Stopped)


def given(nodes: Fleet, client: Client, name: str, **more: Any) -> RunInfo:
    """Start a run on n1 that executes on n2."""
    run = started(
        client,
        ["sh", "-c", "echo said there; exec sleep 100"],
        name=name,
        placing=Placing(node="n2"),
        key=os.urandom(8).hex(),
        **more,
    )
    with nodes["n2"].client() as other:
        wait_until(lambda: _live(other, name), "n2 has taken it")
    return client.call(m.Info(id=0, run=run.id), m.RunReply).run


def _live(client: Client, name: str) -> list[RunInfo]:
    runs = client.call(m.List(id=0, name=name, rows=0), m.RunList).runs
    return [run for run in runs if run.status is Status.RUNNING]


def test_runs_of_all_nodes_have_one_list(nodes: Fleet) -> None:
    with nodes["n1"].client() as one, nodes["n2"].client() as two:
        here = started(one, ["sleep", "100"], name="here")
        there = started(two, ["sleep", "100"], name="there")
        shared = given(nodes, one, "given")
        places = {f"n1/{here.id}": "n1", f"n2/{there.id}": "n2", f"n1/{shared.id}": "n2"}
        for node in ("n1", "n2"):
            shown = nodes[node].sfactl("list", "--fleet", "--status", "live", "--json")
            assert shown.returncode == 0, shown.stderr
            found = json.loads(shown.stdout)
            assert (found["nodes"], found["unanswered"]) == (["n1", "n2"], [])
            assert {run["id"]: run["node"] for run in found["runs"]} == places
        assert "NODE" in nodes["n1"].sfactl("list", "--fleet").stdout
        tree = nodes["n1"].sfactl("tree", "--json", f"n1/{shared.id}").stdout
        assert [each["run"]["id"] for each in json.loads(tree)["tree"]] == [f"n1/{shared.id}"]
        stopped = nodes["n2"].sfactl("stop", "--json", *places)
        assert stopped.returncode == 0, stopped.stderr
        assert sorted(json.loads(stopped.stdout)["stopped"]) == sorted(places)
        assert not _live(one, "here")
        assert not _live(two, "given")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("list --fleet --status running --name far --label k=fleet --since 1h", "n2"),
        ("list --fleet --name far --sum", "sum "),
        ("tree --fleet", "far"),
        ("summary --fleet --by label", "run"),
        ("plans --fleet --json", '"nodes"'),
        ("events --fleet --tail 3 --type run_started", "n2  "),
        ("events --fleet --since 1h --json", '"node":"n2"'),
        ("events --run RUN", "far"),
        ("logs --fleet RUN --tail 4096B", "out"),
        ("logs RUN --stderr", "err"),
        ("info RUN", "far"),
        ("info RUN --timeline", "RUN"),
        ("why RUN", "RUN"),
        ("pause RUN", ""),
        ("resume --fleet --name far", ""),
        ("limit RUN time=30m turns=70", ""),
        ("limit --fleet --name far turns=60", ""),
        ("calls RUN", ""),
        ("wait RUN --timeout 0", ""),
    ],
)
def test_a_verb_reaches_the_node_of_a_run(nodes: Fleet, run: str, line: str, shown: str) -> None:
    done = nodes["n1"].sfactl(*line.replace("RUN", run).split())
    assert done.returncode == (75 if line.startswith("wait") else 0), done
    assert shown.replace("RUN", run) in done.stdout


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("pause --fleet", 2, "say which runs"),
        ("logs --fleet n2/a1 --tail 5", 2, "give bytes"),
        ("top --fleet a1", 2, "leave out RUN"),
        ("events --fleet --since 3", 2, "say since which time"),
        ("info n3/a1", 75, "node n3"),
        ("info n2/zz", 66, "zz"),
        ("continue n2/a1 more", 2, "was started on node n2"),
        ("rerun n2/a1", 2, "was started on node n2"),
        ("stop n2/zz n2/far", 66, "zz"),
    ],
)
def test_what_a_fleet_cannot_do(nodes: Fleet, line: str, code: int, said: str) -> None:
    done = nodes["n1"].sfactl(*line.split())
    assert (done.returncode, said in done.stderr) == (code, True), done


def test_decisions_reach_the_node_that_takes_them(nodes: Fleet) -> None:
    """A limit holds a run where it executes; a person pauses it where it was started."""
    asks = Limit(kind=LimitKind.TURNS, threshold=50, action=Action.PAUSE, source="--limit")
    with nodes["n1"].client() as one, nodes["n2"].client() as two:
        run = given(nodes, one, "held", meter="report", limits=[asks])
        name = f"n1/{run.id}"
        (there,) = _live(two, "held")
        assert nodes["n1"].sfactl("limit", name, "turns=5").returncode == 0
        two.call(m.Report(id=0, run=there.id, turns=6), m.RunReply)

        def status(daemon: str = "n2") -> str:
            shown = nodes[daemon].sfactl("info", "--json", name)
            assert shown.returncode == 0, shown.stderr
            return str(json.loads(shown.stdout)["status"])

        wait_until(lambda: status() == "paused", "the limit has paused it")
        resumed = nodes["n1"].sfactl("resume", name, "--limit", "turns=20")
        assert resumed.returncode == 0, resumed.stderr
        assert status("n1") == "running"
        assert nodes["n2"].sfactl("pause", name).returncode == 0
        wait_until(lambda: status() == "paused", "its giver has paused it")
        assert nodes["n2"].sfactl("resume", name).returncode == 0
        wait_until(lambda: status() == "running", "its giver has let it go on")
        assert nodes["n2"].sfactl("stop", name).returncode == 0


def test_a_wait_goes_on_until_the_run_ends_on_its_node(nodes: Fleet, run: str) -> None:
    node, _, there = run.partition("/")
    with asking(nodes["n1"]) as client, nodes[node].client() as other:
        waiting = client.send(m.Wait(id=0, run=run))
        other.call(m.Stop(id=0, runs=[there]), m.Stopped)
        ended, _ = client.answer(waiting, m.RunReply)
        assert (ended.run.id, ended.run.status) == (run, Status.CANCELLED)


def test_events_of_all_nodes_are_followed_and_taken_up_again(nodes: Fleet) -> None:
    with asking(nodes["n1"]) as client, nodes["n2"].client() as two:
        request = m.Events(id=0, follow=True, types=["run_started"], rows=1)
        page, _ = client.answer(client.send(request), m.EventPage)
        first = started(two, ["true"], name="first")

        def pushed(asked: Client) -> m.EventPush:
            while True:
                for answer in asked.arrived():
                    if isinstance(answer.reply, m.EventPush):
                        return answer.reply

        push = pushed(client)
        assert (push.event.node, push.event.run_id) == ("n2", f"n2/{first.id}")
    with nodes["n2"].client() as two:
        second = started(two, ["true"], name="second")
    with asking(nodes["n1"]) as client:
        again = m.Events(id=0, types=["run_started"], rows=100, cursor=push.cursor)
        page = client.call(again, m.EventPage)
        assert [event.run_id for event in page.events] == [f"n2/{second.id}"]


def test_what_happens_to_a_run_of_another_node_is_followed(nodes: Fleet, run: str) -> None:
    node, _, there = run.partition("/")
    with asking(nodes["n1"]) as client, nodes[node].client() as other:
        watching = client.send(m.Watch(id=0, run=run))
        client.answer(watching, m.Done)
        other.call(m.Pause(id=0, run=there), m.RunReply)
        pushed, _ = client.answer(watching, m.EventPush)
        assert (pushed.event.type, pushed.event.run_id) == ("run_paused", run)
        other.call(m.Resume(id=0, run=there), m.RunReply)
        with pytest.raises(DaemonError, match="leave out the root"):
            client.call(m.WatchRuns(id=0, root=run), m.RunList)


def test_a_node_that_hangs_is_waited_for_once(nodes: Fleet) -> None:
    process = nodes["n2"].process
    process.send_signal(signal.SIGSTOP)
    try:
        listed = nodes["n1"].sfactl("list", "--fleet", "--json")
        assert (listed.returncode, json.loads(listed.stdout)["unanswered"]) == (75, ["n2"])
        assert "node n2: does not answer" in listed.stderr
        assert nodes["n1"].sfactl("list", "--fleet").returncode == 75
    finally:
        process.send_signal(signal.SIGCONT)
    wait_until(lambda: nodes["n1"].sfactl("list", "--fleet").returncode == 0, "it answers again")


def test_the_rows_of_a_node_that_is_cut_off_stay_with_the_time_when_they_were_heard(
    tmp_path: Path,
) -> None:
    with fleet(tmp_path) as nodes, nodes["n2"].client() as two, asking(nodes["n1"]) as client:
        run = started(two, ["sleep", "100"], name="cut")
        watching = client.send(m.WatchRuns(id=0))
        first, _ = client.answer(watching, m.RunList)
        assert [each.id for each in first.runs] == [f"n2/{run.id}"]

        def news() -> m.RunList:
            while True:
                for answer in client.arrived():
                    if isinstance(answer.reply, m.RunList):
                        return answer.reply

        nodes.cut("n2")
        # what is said to it now finds no way
        two.call(m.Pause(id=0, run=run.id), m.RunReply)
        lost = news()
        (row,) = lost.runs
        assert "n2" in lost.unanswered
        assert (row.id, row.status) == (f"n2/{run.id}", Status.RUNNING)
        assert row.fleet is not None
        assert row.fleet.unreachable_since is not None
        listed = json.loads(nodes["n1"].sfactl("list", "--fleet", "--name", "cut", "--json").stdout)
        (told,) = listed["runs"]
        assert (told["id"], listed["unanswered"]) == (row.id, ["n2"])
        assert "unreachable_since" in told["fleet"]
        nodes.join("n2")
        back = news()
        assert back.unanswered == {}
        assert [each.status for each in back.runs] == [Status.PAUSED]
        two.call(m.Stop(id=0, runs=[run.id]), m.Stopped)


def test_top_shows_and_steers_the_runs_of_all_nodes(nodes: Fleet, run: str) -> None:
    with nodes["n1"].client() as one:
        near = started(one, ["sleep", "100"], name="near")
        with top(nodes["n1"].env, "--fleet", columns=140, lines=30) as terminal:
            terminal.press("e")
            terminal.until(rf"{run} far +running +n2")
            terminal.until(rf"n1/{near.id} near +running +n1")
            terminal.press("/far" + ENTER + "o")
            terminal.until(rf"(?s)output of {run} far.*out")
            terminal.press("o" + "p")
            terminal.until(rf"{run} far +paused +n2")
            terminal.press("r")
            terminal.until(rf"{run} far +running +n2")
            terminal.press("q")
            assert terminal.exit_code() == 0
        one.call(m.Stop(id=0, runs=[near.id]), m.Stopped)


def test_only_who_may_use_the_fleet_is_answered_for_it(nodes: Fleet) -> None:
    """A run may not: it would reach other nodes with the rights of this node's daemon."""
    ask = (
        "from sfactl.connecting.connection import connect\n"
        "try: connect(None).ask_fleet()\n"
        "except Exception as error: print(error.message)"
    )
    with nodes["n1"].client() as client:
        reply = spawn(
            client, [sys.executable, "-c", ask], env=[f"PYTHONPATH={Path.cwd()}".encode()]
        )
        assert isinstance(reply, m.RunReply)
        client.call(m.Wait(id=0, run=reply.run.id), m.RunReply)
    said = nodes["n1"].sfactl("logs", reply.run.id).stdout
    assert "only a caller outside any run may" in said

"""Trees over three nodes of Ray on one machine."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from sfactl.connecting.connection import Client
from sfactl.exits import Quit
from sfad.features.fleet.messages import FleetState, FleetStatus
from sfad.protocol import messages as m
from sfad.protocol.types import (
    Action,
    Bound,
    BudgetState,
    Checks,
    Limit,
    LimitKind,
    Placing,
    RunInfo,
    Status,
)
from tests.codex import codex
from tests.harness import PATIENCE, Daemon, ended, spawn, started, wait_until
from tests.leaks import stays
from tests.top.terminal import ENTER, top
from tests.web.console import Console

from .asking import CHANGE, Daemons, live_named, nothing_left, on, there, time_limit
from .cluster import NAMES

pytest.importorskip("ray", reason="the extra `fleet` is not installed")


TREE = """
echo "$SFA_NAME at depth $SFA_DEPTH below $SFA_CALL_CHAIN"
case $SFA_NAME in
a) {sfactl} run --on n2 --name b --timeout 100 -- sh {script};;
b) {sfactl} run --on n3 --name c --timeout 100 -- sh {script};;
c) {sfactl} run --on n1 --name a --timeout 100 -- true; echo "refused with $?"; sleep 300;;
esac
"""


def test_a_tree_over_three_nodes(fleet: Daemons, tmp_path: Path) -> None:
    script = tmp_path / "tree.sh"
    script.write_text(TREE.format(sfactl=Path(sys.executable).with_name("sfactl"), script=script))
    with fleet["n1"].client() as client:
        top = started(client, ["sh", script], name="a", limits=time_limit())

        def said(stream: Literal["stdout", "stderr"] = "stdout") -> str:
            return client.call(
                m.ReadOutput(id=0, run=top.id, stream=stream), m.OutputPart
            ).data.decode()

        wait_until(lambda: "refused with 1" in said(), "the loop was refused", seconds=2 * PATIENCE)
        assert said().splitlines()[:3] == [
            "a at depth 0 below ",
            "b at depth 1 below a",
            "c at depth 2 below a,b",
        ]
        # the nodes pass on stdout and stderr one by one
        wait_until(
            lambda: "it would call itself in a circle (a → b → c → a)" in said("stderr"),
            "the path was told",
        )
        shown = json.loads(
            fleet["n1"].sfactl("list", "--fleet", "--json", "--status", "running").stdout
        )
        assert (shown["nodes"], shown["unanswered"]) == (list(NAMES), [])
        rows = {row["name"]: row for row in shown["runs"] if row["name"] in "abc"}
        ids = {name: row["id"] for name, row in rows.items()}
        assert {name: row["node"] for name, row in rows.items()} == {
            "a": "n1",
            "b": "n2",
            "c": "n3",
        }
        assert ids["a"] == f"n1/{top.id}"
        assert {name: row["parent_id"] for name, row in rows.items()} == {
            "a": None,
            "b": ids["a"],
            "c": ids["b"],
        }
        assert {row["root_id"] for row in rows.values()} == {ids["a"]}
        assert [row["depth"] for row in rows.values()] == [0, 1, 2]
        assert "never started" not in fleet["n1"].sfactl("tree", "--fleet").stdout

        def told() -> list[dict[str, Any]] | None:
            """Return what is told once each node has answered within its bound."""
            found = json.loads(
                fleet["n3"].sfactl("list", "--fleet", "--json", "--root", ids["b"]).stdout
            )
            return None if found["unanswered"] else found["runs"]

        below = wait_until(told, "each node answers")
        assert {row["id"] for row in below if row["status"] == "running"} == {ids["b"], ids["c"]}
        drawn = fleet["n2"].sfactl("tree", "--fleet", ids["a"], "--live").stdout
        assert [name in drawn for name in ids.values()] == [True] * 3
        assert "process" in drawn
        assert (
            json.loads(fleet["n1"].sfactl("list", "--fleet", "--json", "--group", "none").stdout)[
                "runs"
            ]
            == []
        )

        fleet["n1"].sfactl("pause", ids["a"])
        wait_until(
            lambda: there(fleet, _only(fleet, "n2", "c"), "n2").status is Status.PAUSED,
            "the grandchild stands still",
        )
        fleet["n1"].sfactl("resume", ids["a"])
        wait_until(
            lambda: there(fleet, _only(fleet, "n2", "c"), "n2").status is Status.RUNNING,
            "the grandchild goes on",
        )
        alive = [
            there(fleet, _only(fleet, "n1", "b")).pid,
            there(fleet, _only(fleet, "n2", "c"), "n2").pid,
        ]
        stopped = client.call(m.Stop(id=0, runs=[top.id]), m.Stopped)
        assert stopped.survivors == []
        assert not any(psutil.pid_exists(pid or -1) for pid in alive)
    nothing_left(fleet)


def _only(fleet: Daemons, node: str, name: str) -> RunInfo:
    """Return the live run of this name that a node has granted."""
    with fleet[node].client() as client:
        runs = client.call(m.List(id=0, name=name, rows=0), m.RunList).runs
    (found,) = [
        run
        for run in runs
        if not run.status.terminal and run.fleet is not None and run.fleet.node is not None
    ]
    return found


ASK = """
import os, sys
from sfactl.connecting.connection import connect
from sfad.protocol import messages as m
from sfad.protocol.types import *
client = connect(None)
for n in range(int(sys.argv[1])):
    client.send(m.Spawn(
        id=0, argv=[b"sleep", b"300"], cwd=b"/", env=[], name=f"{sys.argv[2]}{n}",
        key=os.urandom(8).hex(),
    ))
yes = no = 0
while yes + no < int(sys.argv[1]):
    for answer in client.arrived():
        yes += isinstance(answer.reply, m.RunReply)
        no += isinstance(answer.reply, m.Refused)
print("asked", yes, no, flush=True)
import threading
import time
time.sleep(300)
"""


def test_64_descendants_are_exact_with_200_asking_from_three_nodes(
    fleet: Daemons, tmp_path: Path
) -> None:
    script = tmp_path / "ask.py"
    script.write_text(ASK)
    python = sys.executable
    with fleet["n1"].client() as client:
        starts = f"""
        for node in n2 n3; do {python} -m sfactl spawn --on $node --max-descendants 20 \
            --timeout 200 --name ask-$node -- {python} {script} 67 $node; done
        exec {python} {script} 66 own"""
        top = started(
            client,
            ["sh", "-c", starts],
            name="top",
            limits=time_limit(),
            max_descendants=Bound(value=64, source="--max-descendants"),
        )

        def answers() -> list[list[int]]:
            found = []
            for run in (top, *(live_named(fleet, "n1", f"ask-{node}") for node in ("n2", "n3"))):
                if run is None:
                    return []
                text = client.call(
                    m.ReadOutput(id=0, run=run.id, stream="stdout"), m.OutputPart
                ).data.decode()
                words = [line.split()[1:] for line in text.splitlines() if line.startswith("asked")]
                found += [[int(word) for word in line] for line in words]
            return found

        counts = wait_until(
            lambda: len(found := answers()) == 3 and found, "all have asked", seconds=3 * PATIENCE
        )
        assert [yes for yes, _ in counts] == [22, 20, 20]
        assert sum(yes for yes, _ in counts) + 2 == 64
        stopped = client.call(m.Stop(id=0, runs=[top.id]), m.Stopped)
        assert stopped.survivors == []
    nothing_left(fleet)


def test_a_cost_limit_is_exact_over_parent_and_remote_child(fleet: Daemons) -> None:
    cost = [
        *time_limit(),
        Limit(kind=LimitKind.COST, threshold=1.0, action=Action.REFUSE, source="--limit"),
    ]
    with fleet["n1"].client() as client:
        top = started(client, ["sleep", "300"], name="payer", limits=cost, meter="report")
        inside = fleet["n1"].directory / "inside.py"
        inside.write_text("")
        parent = started(
            client,
            ["sh", "-c",
             "sfactl spawn --on n2 --name spender --timeout 200 --meter report --limit "
             "cost=0.4:refuse -- sleep 300; exec sleep 300"],
            name="parent", limits=cost, meter="report",
            env=[f"PATH={sys.prefix}/bin:/usr/bin:/bin".encode()],
        )  # fmt: skip
        child = wait_until(lambda: live_named(fleet, "n1", "spender"), "the child was granted")
        far = there(fleet, child)
        with fleet["n2"].client() as other:
            for _ in range(5):
                reply = other.call(_report(far.id, 0.08), m.RunReply)
            assert reply.run.usage.cost_usd == pytest.approx(0.4)

        # its share is reserved until it has ended
        assert sum(_cost(client, parent.id)) == pytest.approx(0.4)
        client.call(m.Stop(id=0, runs=[child.id]), m.Stopped)
        assert _cost(client, parent.id) == pytest.approx((0.4, 0))
        client.call(m.Stop(id=0, runs=[parent.id, top.id]), m.Stopped)
    nothing_left(fleet)


def test_a_placed_run_is_checked_on_its_node(fleet: Daemons) -> None:
    check = Checks(commands=["true", "echo $SFA_ATTEMPT on the node; test $SFA_ATTEMPT = 2"])
    with fleet["n1"].client() as client:
        ended(client, started(client, ["true"]).id)  # its id is another one than there
        options = {"check": check, "retry_delay": 0.0}
        failed = ended(client, started(client, ["true"], name="once", **options, **on("n2")).id)
        run = ended(client, started(client, ["true"], attempts=2, **options, **on("n2")).id)
        assert failed.reason is not None
        assert (failed.status, failed.reason.kind, failed.reason.lines) == (
            Status.FAILED, "check", ["1 on the node"],
        )  # fmt: skip
        assert [each.state for each in failed.checks] == ["passed", "failed"]
        assert (run.status, [each.state for each in run.checks]) == (
            Status.COMPLETED,
            ["passed"] * 2,
        )
    n1 = fleet["n1"]
    assert n1.sfactl("wait", failed.id).returncode == 6
    assert "checked: true, " in n1.sfactl("why", run.id).stdout
    for name in (run.id, f"n1/{run.id}"):
        logs = n1.sfactl("logs", "--check", "-f", name)
        printed = [line for line in logs.stdout.splitlines() if not line.startswith("── ")]
        assert (printed, logs.stderr) == (["1 on the node", "2 on the node"], "")
    groups = json.loads(n1.sfactl("summary", "--json").stdout)["groups"]
    once = next(each for each in groups if each["key"] == "once")
    assert (once["checked"], once["unchecked"], once["failed"]) == (0, 0, 1)
    nothing_left(fleet)


def _report(run: str, usd: float) -> m.Report:
    return m.Report(id=0, run=run, cost_usd=usd)


def _cost(client: Any, run: str) -> tuple[float, float]:
    """Return what a limit of cost counts: what is used, and what is reserved."""
    info = client.call(m.Info(id=0, run=run), m.RunReply).run
    (state,) = (state for state in info.limits if state.kind is LimitKind.COST)
    return state.used or 0, state.reserved or 0


def test_what_is_not_used_comes_back(fleet: Daemons) -> None:
    with fleet["n1"].client() as client:
        reply = spawn(client, ["true"], **on("n3"))
        assert isinstance(reply, m.RunReply)
        run = ended(client, reply.run.id)
        assert (run.status, run.usage.cost_usd) == (Status.COMPLETED, None)
        assert run.fleet is not None
        assert run.fleet.node == "n3"
    assert fleet["n1"].sfactl("result", run.id).returncode == 0


def test_a_summary_of_all_nodes_counts_each_run_once(fleet: Daemons) -> None:
    label = os.urandom(4).hex()
    with fleet["n1"].client() as client:
        here = ended(
            client,
            started(client, ["false"], name="bad", limits=time_limit(), labels={"t": label}).id,
        )
        far = started(client, ["sleep", "300"], **(on("n2") | {"labels": {"t": label}}))
        place = there(fleet, far)
        with fleet["n2"].client() as other:
            other.call(_report(place.id, 0.5), m.RunReply)
            other.call(m.Pause(id=0, run=place.id), m.Reply)
        shown = json.loads(
            fleet["n3"].sfactl("summary", "--fleet", "--json", "--label", f"t={label}").stdout
        )
        assert (shown["runs"], shown["cost_usd"], shown["nodes"], shown["unanswered"]) == (
            2,
            0.5,
            list(NAMES),
            [],
        )
        assert [each["run_id"] for each in shown["failed"]] == [f"n1/{here.id}"]
        (waits,) = shown["waiting"]
        assert (waits["what"], waits["command"]) == ("paused", f"sfactl resume n1/{far.id}")
        text = fleet["n3"].sfactl("summary", "--fleet", "--label", f"t={label}")
        assert f"n1/{far.id} (sleep) is paused" in text.stdout
        assert text.returncode == 0
        client.call(m.Stop(id=0, runs=[far.id]), m.Stopped)
    nothing_left(fleet)


def test_top_shows_and_steers_the_runs_of_all_nodes(fleet: Daemons) -> None:
    asking = Limit(
        kind=LimitKind.TURNS, threshold=50, action=Action.REQUEST_INCREASE, source="--limit"
    )
    options = on("n2") | {"name": "farther", "meter": "report", "limits": [*time_limit(), asking]}
    with (
        fleet["n1"].client() as client,
        fleet["n2"].client() as second,
        fleet["n3"].client() as third,
    ):
        far = started(client, ["sh", "-c", "echo said on n2; exec sleep 300"], **options)
        taken, own = (
            there(fleet, far),
            started(third, ["sleep", "300"], name="nearby", limits=time_limit()),
        )
        with top(fleet["n1"].env, "--fleet", columns=140, lines=30) as terminal:
            terminal.press("e")
            terminal.until(rf"n1/{far.id} farther +running +n2")
            terminal.until(rf"n3/{own.id} nearby +running +n3")
            terminal.press("/farther" + ENTER + "p")
            terminal.until(rf"n1/{far.id} farther +paused +n2")
            terminal.press("r")
            terminal.until(rf"n1/{far.id} farther +running +n2")
            terminal.press("o")
            terminal.until(rf"(?s)output of n1/{far.id} farther.*said on n2")
            terminal.press("o" + "l" + "turns=5" + ENTER)
            terminal.until(rf"n1/{far.id} is running: turns .*5")
            second.call(m.Report(id=0, run=taken.id, turns=6), m.RunReply)
            terminal.until(rf"n1/{far.id} farther +approval +n2")
            terminal.press("a" + "turns=9" + ENTER)
            terminal.until(rf"n1/{far.id} farther +running +n2")
            second.call(m.Report(id=0, run=taken.id, turns=4), m.RunReply)
            terminal.until(rf"n1/{far.id} farther +approval +n2")
            told = fleet["n1"].sfactl("resume", far.id)
            assert (told.returncode, f"sfactl resume n2/{taken.id}" in told.stderr) == (1, True), (
                told
            )
            assert (
                fleet["n3"].sfactl("approve", f"n1/{far.id}", "--limit", "turns=30").returncode == 0
            )
            terminal.until(rf"n1/{far.id} farther +running +n2")
            terminal.press("A")
            terminal.until(
                rf"(?s)── alerts.*raised since .* n1/{far.id} \(farther\) used \d+ turns"
            )
            terminal.press("A" + "sy")
            terminal.until(rf"stopped: n1/{far.id}")
            terminal.press(f"/\x15nearby{ENTER}sy")
            terminal.until(rf"stopped: n3/{own.id}")
            terminal.press("q")
            assert terminal.exit_code() == 0
        assert fleet["n1"].sfactl("top", "--fleet", far.id).returncode == 2
    nothing_left(fleet)


def test_the_console_shows_and_steers_the_runs_of_all_nodes(
    fleet: Daemons, browser: Browser
) -> None:
    with (
        fleet["n1"].client() as client,
        fleet["n2"].client() as other,
        console(fleet["n1"], browser) as page,
    ):
        near = started(client, ["sleep", "300"], name="web-near", limits=time_limit())
        turns = Limit(
            kind=LimitKind.TURNS, threshold=10, action=Action.REQUEST_INCREASE, source="--limit"
        )
        far = started(
            client, ["sh", "-c", "echo said on n2; sleep 300"], name="web-far", **on("n2")
        )
        there(fleet, far)
        local = started(
            other, ["sleep", "300"], name="web-local", meter="report", limits=[*time_limit(), turns]
        )
        for run in (f"n1/{near.id}", f"n1/{far.id}", f"n2/{local.id}"):
            expect(page.locator(f'[data-run="{run}"]')).to_contain_text("running")
        for name in ("web-near", "web-far", "web-local"):
            expect(
                page.locator("[data-run]").filter(has=page.get_by_role("link", name=name))
            ).to_have_count(1)
        page.get_by_role("link", name="web-far").click()
        expect(page).to_have_url(re.compile(f"/runs/n1~{far.id}$"))
        expect(page.get_by_role("log")).to_contain_text("said on n2")
        expect(page.locator("[data-seq]").filter(has_text="run started")).to_have_count(1)
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("button", name="Resume")).to_be_visible()
        wait_until(lambda: there(fleet, far).status is Status.PAUSED, "its node has paused it")
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        page.get_by_role("button", name="Limit").click()
        page.get_by_role("dialog").get_by_label("time").fill("250")
        page.get_by_role("dialog").get_by_role("button", name="Limit").click()
        expect(page.get_by_text(re.compile(f"n1/{far.id} is running: time"))).to_be_visible()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        expect(page.get_by_text(f"n1/{far.id} is stopped")).to_be_visible()
        assert there(fleet, far).status is Status.CANCELLED
        page.goto(f"/runs/n2~{there(fleet, far).id}")  # its id there
        expect(page).to_have_url(re.compile(f"/runs/n1~{far.id}$"))
        page.goto("/history")
        expect(page.locator(f'[data-run="n1/{far.id}"]')).to_contain_text("cancelled")
        expect(page.locator(f'[data-run="n2/{local.id}"]')).to_contain_text("running")
        page.goto("/plans")
        expect(page.get_by_text("As node n1 knows them")).to_be_visible()
        page.goto("/events")
        expect(page.get_by_text("Those of node n1")).to_be_visible()
        page.goto("/runs/n2~zz")
        expect(page.locator("#main")).to_contain_text(re.compile("no run.*zz"))
        page.goto("/")
        other.call(m.Report(id=0, run=local.id, turns=11), m.RunReply)
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_text(f"n2/{local.id} is running: turns 11 of 20")).to_be_visible()
        expect(page.locator(f'[data-run="n2/{local.id}"]')).to_contain_text("running")
        os.kill(fleet["n2"].pid, signal.SIGSTOP)
        try:
            said = "node n2: does not answer;( heard of last at [0-9:]+;)? its runs are shown as"
            expect(page.locator("#banner")).to_have_text(re.compile(said))
            expect(page.locator(f'[data-run="n2/{local.id}"]')).to_contain_text("running")
            page.goto("/history")
            expect(page.locator(".headline")).to_contain_text(
                "without node n2, which does not answer"
            )
            page.goto("/")
        finally:
            os.kill(fleet["n2"].pid, signal.SIGCONT)
        expect(page.locator("#banner")).to_have_text("")
        page.locator(f'[data-run="n2/{local.id}"]').get_by_role("button", name="Stop").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        expect(page.locator(f'[data-run="n2/{local.id}"]')).to_contain_text("cancelled")
        client.call(m.Stop(id=0, runs=[near.id]), m.Stopped)
    nothing_left(fleet)


@contextmanager
def console(daemon: Daemon, browser: Browser) -> Iterator[Page]:
    """Open the first page of the console of all nodes. No script of it fails."""
    one = Console(daemon, "--fleet")
    context = browser.new_context(base_url=one.origin)
    context.set_default_timeout(PATIENCE * 1000)
    page, wrong = context.new_page(), list[str]()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None,
    )
    try:
        page.goto(one.link)
        yield page
    finally:
        context.close()
        code = one.end()
    assert (code, wrong) == (0, [])


CLAUDE = """#!/bin/sh
echo "called with: $*"
echo "through: $ANTHROPIC_BASE_URL"
"""


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_an_agent_is_started_alike_on_its_own_node_and_on_another(
    fleet: Daemons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    (tmp_path / "claude").write_text(CLAUDE)
    (tmp_path / "claude").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    n1 = fleet["n1"]
    done = n1.sfactl(
        "run", "--on", node, "--timeout", "60", "--limit", "cost=1", "claude", "hello world"
    )
    assert done.returncode == 0, done
    assert "called with: -p " in done.stdout
    assert done.stdout.splitlines()[0].endswith("-- hello world")
    assert "through: http://127.0.0.1:" in done.stdout
    refused = n1.sfactl(
        "run", "--on", node, "--no-gateway", "--timeout", "60", "--limit", "cost=1", "--", "true"
    )
    assert (
        refused.returncode,
        "nothing would enforce its cost limit of 1.00 USD" in refused.stderr,
    ) == (70, True), refused
    nothing_left(fleet)


def test_pending_and_infeasible_are_told_apart(fleet: Daemons) -> None:
    with fleet["n1"].client() as client:
        full = [
            started(
                client, ["sleep", "300"], **(on("n2") | {"placing": Placing(node="n2", cpus=4)})
            )
        ]
        waiting = started(
            client, ["sleep", "300"], **(on("n2") | {"placing": Placing(node="n2", cpus=2)})
        )
        never = started(client, ["sleep", "300"], **(on("n2") | {"placing": Placing(cpus=4000)}))
        assert (waiting.status, never.status) == (Status.QUEUED, Status.QUEUED)
        assert "too little is free now on n2" in fleet["n1"].sfactl("why", waiting.id).stdout
        assert (
            "no node that is there now could ever take it"
            in fleet["n1"].sfactl("why", never.id).stdout
        )
        client.call(m.Stop(id=0, runs=[full[0].id, never.id]), m.Stopped)
        wait_until(
            lambda: (
                client.call(m.Info(id=0, run=waiting.id), m.RunReply).run.status is Status.RUNNING
            ),
            "room was freed",
        )
        place = client.call(m.Info(id=0, run=waiting.id), m.RunReply).run.fleet
        client.call(m.Stop(id=0, runs=[waiting.id]), m.Stopped)
    assert place is not None
    told = fleet["n1"].sfactl("continue", waiting.id)
    assert (told.returncode, f"there, sfactl continue {place.run}" in told.stderr) == (1, True), (
        told
    )
    told = fleet["n1"].sfactl("spawn", "--fleet", "--worktree", "--", "true")
    assert (told.returncode, "exclude each other" in told.stderr) == (2, True), told
    nothing_left(fleet)


def test_a_drained_node_takes_no_more_runs(fleet: Daemons) -> None:
    assert fleet["n1"].sfactl("fleet", "drain", "n2").returncode == 0
    try:
        refused = fleet["n1"].sfactl("spawn", "--on", "n2", "--", "true")
        assert "node n2 is drained" in refused.stderr
        with fleet["n1"].client() as client:
            for _ in range(4):
                run = ended(
                    client, started(client, ["true"], placing=Placing(), limits=time_limit()).id
                )
                assert run.fleet is None or run.fleet.node == "n3"
    finally:
        assert fleet["n1"].sfactl("fleet", "drain", "n2", "--undo").returncode == 0
    assert "no node nine" in fleet["n1"].sfactl("fleet", "drain", "nine").stderr


def test_inside_a_run_the_fleet_is_not_open(fleet: Daemons) -> None:
    with fleet["n1"].client() as client:
        python = sys.executable
        run = started(client, [python, "-m", "sfactl", "list", "--fleet"], limits=time_limit())
        assert ended(client, run.id).exit_code == 77


def test_events_of_all_nodes_have_their_node(fleet: Daemons) -> None:
    for name in NAMES:
        with fleet[name].client() as client:
            ended(client, started(client, ["true"], limits=time_limit()).id)
    done = fleet["n1"].sfactl("events", "--fleet", "--json", "--tail", "50")
    assert {json.loads(line)["node"] for line in done.stdout.splitlines()} == set(NAMES)


def test_nodes_and_status(fleet: Daemons) -> None:
    def all_answer() -> list[dict[str, Any]]:
        shown = fleet["n2"].sfactl("fleet", "nodes", "--json")
        found: list[dict[str, Any]] = (
            json.loads(shown.stdout)["nodes"] if shown.returncode == 0 else []
        )
        return found

    nodes = wait_until(all_answer, "all nodes answer")
    assert [node["name"] for node in nodes] == list(NAMES)
    assert len({(node["version"], node["python"], node["ray"]) for node in nodes}) == 1
    status = json.loads(fleet["n2"].sfactl("fleet", "status", "--json").stdout)
    assert (status["node"], status["connected"]) == ("n2", True)


def test_the_daemon_imports_nothing_of_ray(fleet: Daemons) -> None:
    maps = Path(f"/proc/{fleet['n1'].pid}/maps").read_text()
    assert "/ray/" not in maps


# ---- Budgets of users over all nodes


BUDGET = 1.0
STEP = 0.01
PRICE = f"[prices.m]\ninput_mtok = {1000 * STEP}\noutput_mtok = 1\n"


def reconfigured(daemon: Daemon, before: str, more: str) -> None:
    daemon.config.write_text(before + more)
    told = daemon.sfactl("reload")
    assert told.returncode == 0, told.stderr


@contextmanager
def budget(fleet: Daemons, usd: float) -> Iterator[None]:
    """Give each node the same budget of the tests' user, of this day."""
    before = {name: daemon.config.read_text() for name, daemon in fleet.items()}
    user = pwd.getpwuid(os.getuid()).pw_name
    for name, daemon in fleet.items():
        reconfigured(daemon, before[name], f"[budgets.users.{user}]\ndaily_usd = {usd}\n{PRICE}")
    try:
        yield
    finally:
        for name, daemon in fleet.items():
            reconfigured(daemon, before[name], "")


class Spender(threading.Thread):
    """Reserves money on one node, again and again, until nothing is left of the budget."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon=True)
        self.daemon_ = daemon
        self.got = 0
        self.unsure = 0
        """Requests whose answers were lost with the daemon."""
        self.said: list[str] = []
        self.stopped = threading.Event()
        with daemon.client() as client:
            self.run_id = started(client, ["sleep", "300"], limits=time_limit()).id

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                with self.daemon_.client() as client:
                    client.be_patient(60)
                    self._spend(client)
                    return
            except (Quit, OSError):
                self.unsure += 1
                self.stopped.wait(0.1)

    def _spend(self, client: Client) -> None:
        while not self.stopped.is_set():
            reply = client.call(
                m.Reserve(id=0, run=self.run_id, model="m", input_tokens=1000, max_output_tokens=0),
                m.Reserved,
            )
            if reply.refused is None:
                self.got += 1
                continue
            self.said.append(reply.refused.message)
            if "used up" in reply.refused.message:
                return
            self.stopped.wait(0.05)


def budget_of(daemon: Daemon) -> BudgetState:
    with daemon.client() as client:
        (budget,) = client.call(m.DaemonInfo(id=0), m.DaemonStatus).budgets
    return budget


def counted(daemon: Daemon) -> float:
    """Return what counts of a budget: what is used and reserved."""
    found = budget_of(daemon)
    return found.used_usd + found.reserved_usd


def test_a_budget_is_exact_over_three_nodes_while_daemons_are_killed(fleet: Daemons) -> None:
    with budget(fleet, BUDGET):
        _spend_all(fleet)
    nothing_left(fleet)


def _spend_all(fleet: Daemons) -> None:
    wait_until(lambda: _keeper(fleet["n2"]) == _keeper(fleet["n3"]) == "n1", "all know the keeper")
    spenders = [Spender(fleet[name]) for name in NAMES]
    for each in spenders:
        each.start()
    wait_until(lambda: sum(each.got for each in spenders) > 20, "some was spent")
    for name in ("n1", "n2"):
        fleet[name].kill()
        fleet[name].restart()
        stays(fleet[name].pid)
    most = round(BUDGET / STEP)
    wait_until(
        lambda: sum(each.got + each.unsure for each in spenders) >= most,
        "it is used up",
        seconds=4 * PATIENCE,
    )
    assert sum(each.got for each in spenders) <= most
    wait_until(
        lambda: counted(fleet["n1"]) == pytest.approx(BUDGET),
        "the keeper knows",
        seconds=4 * PATIENCE,
    )
    assert (
        sum(budget_of(fleet[name]).nodes.get(other, 0) for name in ("n1",) for other in NAMES)
        <= BUDGET
    )
    for each in spenders:
        each.stopped.set()
        each.join()
        with each.daemon_.client() as client:
            client.call(m.Stop(id=0, runs=[each.run_id]), m.Stopped)
    here = [budget_of(fleet[name]) for name in ("n2", "n3")]
    assert all(
        budget.allowance_usd is not None
        and budget.used_usd + budget.reserved_usd <= budget.allowance_usd + 1e-9
        for budget in here
    )


def _keeper(daemon: Daemon) -> str | None:
    with daemon.client() as client:
        return client.call(FleetStatus(id=0), FleetState).keeper


def test_without_the_keeper_a_node_uses_what_it_has_and_then_holds(fleet: Daemons) -> None:
    with budget(fleet, 5 * BUDGET):
        spender = Spender(fleet["n2"])
        os.kill(fleet["n1"].pid, signal.SIGSTOP)
        try:
            spender.start()
            wait_until(lambda: spender.said, "it is refused", seconds=2 * PATIENCE)
            assert "node n1, which keeps the budgets, does not answer" in spender.said[-1]
            assert spender.got < BUDGET / STEP
        finally:
            os.kill(fleet["n1"].pid, signal.SIGCONT)
        had = spender.got
        wait_until(
            lambda: spender.got > had, "it goes on when the keeper is back", seconds=2 * PATIENCE
        )
        spender.stopped.set()
        spender.join()
        with fleet["n2"].client() as client:
            client.call(m.Stop(id=0, runs=[spender.run_id]), m.Stopped)
    nothing_left(fleet)


# ---- Windows of subscriptions


def test_a_node_hears_what_others_know_of_a_subscription(fleet: Daemons, tmp_path: Path) -> None:
    home = tmp_path / "home"
    program = codex(
        tmp_path,
        (None, {"used_percent": 85.0, "window_minutes": 300, "resets_at": time.time() + 3600}),
    )
    with fleet["n2"].client() as client, fleet["n3"].client() as other:
        env = [f"CODEX_HOME={home}".encode(), f"PATH={tmp_path}:/usr/bin:/bin".encode()]
        agent = started(
            client,
            [str(program), "exec", "x"],
            limits=time_limit(),
            cwd=str(tmp_path).encode(),
            env=env,
        )
        bystander = started(other, ["sleep", "300"], limits=time_limit())

        def told(where: Client) -> list[tuple[str, float | None]]:
            accounts = where.call(m.ListSubscriptions(id=0), m.SubscriptionList).accounts
            return [
                (each.window, each.used_ratio) for account in accounts for each in account.windows
            ]

        wait_until(lambda: told(client) == [("primary", 0.85)], "its own node hears of it")
        wait_until(lambda: told(other) == [("primary", 0.85)], "another node does")
        (account,) = json.loads(fleet["n1"].sfactl("plans", "--fleet", "--json").stdout)["accounts"]
        assert [(each["window"], each["used_ratio"]) for each in account["windows"]] == [
            ("primary", 0.85)
        ]
        client.call(m.Stop(id=0, runs=[agent.id]), m.Stopped)
        other.call(m.Stop(id=0, runs=[bystander.id]), m.Stopped)


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_files_are_sent_and_changes_brought_back(fleet: Daemons, project: Path, node: str) -> None:
    n1 = fleet["n1"]
    words = (
        "run",
        "--on",
        node,
        "--ship",
        str(project),
        "--cwd",
        str(project / "sub"),
        "--timeout",
        "200",
        "--",
    )
    done = n1.sfactl(
        *words,
        "sh",
        "-ec",
        f"pwd; test ! -e ../secret.log; cd ..; cmp big {project / 'big'}; {CHANGE}",
    )
    assert done.returncode == 0, done
    where, _, subject, *rest = done.stdout.splitlines()
    assert where.endswith("/own/files/sub")
    assert str(fleet[node].state_dir) in where
    assert (subject, rest) == ("shipped", [])
    run = done.stderr.split("sfactl fetch ")[1].strip()

    patch = n1.sfactl("fetch", run, "--patch").stdout
    assert "+more" in patch
    assert "old mode 100644\nnew mode 100755" in patch
    assert (project / "gone.txt").exists()
    clone = project.parent / "clone"
    shutil.copytree(project, clone)
    subprocess.run(["git", "-C", clone, "apply"], input=patch, text=True, check=True)

    (project / "kept.txt").write_text("mine\n")
    landed = n1.sfactl("land", run)
    assert (landed.returncode, f"sfactl fetch {run}" in landed.stderr) == (1, True), landed.stderr
    refused = n1.sfactl("fetch", f"n1/{run}")
    assert (refused.returncode, "kept.txt; nothing was brought back" in refused.stderr) == (
        1,
        True,
    ), refused
    assert (project / "gone.txt").exists()
    (project / "kept.txt").write_text("one\n")
    fetched = n1.sfactl("fetch", run)
    assert fetched.stdout.splitlines() == [
        "added new/deep/file",
        "changed kept.txt",
        "changed tool.sh",
        "deleted gone.txt",
    ]
    assert (project / "kept.txt").read_text() == "one\nmore\n"
    assert (project / "new/deep/file").read_text() == "fresh\n"
    assert os.access(project / "tool.sh", os.X_OK)
    assert not (project / "gone.txt").exists()
    assert not (project / "scrap.log").exists()
    assert (
        subprocess.run(["diff", "-r", "--exclude=.git", project, clone], check=False).returncode
        == 0
    )
    assert "nothing to bring back" in n1.sfactl("fetch", run).stderr
    elsewhere = json.loads(
        fleet["n3"]
        .sfactl("fetch", f"n1/{run}", "--to", str(project.parent / "to"), "--json")
        .stdout
    )
    assert (elsewhere["added"], elsewhere["deleted"]) == (["new/deep/file"], [])
    told = fleet["n3"].sfactl("fetch", f"n1/{run}")
    assert (told.returncode, "on node n1: fetch them there" in told.stderr) == (1, True), told
    nothing_left(fleet)


def test_what_is_sent_is_bounded_and_refused_with_what_to_do(
    fleet: Daemons, tmp_path: Path
) -> None:
    n1 = fleet["n1"]
    (tmp_path / "large").mkdir()
    with (tmp_path / "large" / "file").open("wb") as file:
        file.truncate(200 << 20)
    for words, said in (
        (
            ("--on", "n2", "--ship", str(tmp_path / "large")),
            "the files have 200 MiB, and fleet.ship_max is 100 MiB",
        ),
        (("--on", "n2", "--ship", str(tmp_path / "missing")), "is not a directory"),
        (("--ship", str(tmp_path / "large")), "add --fleet or --on NODE"),
    ):
        done = n1.sfactl("spawn", *words, "--", "true")
        assert (done.returncode != 0, said in done.stderr) == (True, True), done
    with n1.client() as client:
        run = ended(client, started(client, ["true"], **on("n2")).id)
    assert "no files were sent with it" in n1.sfactl("fetch", run.id).stderr
    nothing_left(fleet)

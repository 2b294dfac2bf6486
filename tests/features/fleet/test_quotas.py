"""Quotas of trees that all nodes share, and runs that wait for runs of other nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfad.features.fleet.messages import SlotsGiven, SlotsWanted
from sfad.features.fleet.slots import SlotBook
from sfad.protocol import messages as m
from sfad.protocol.types import After, Placing, RunInfo, Status
from tests.harness import Daemon, started, wait_until
from tests.paper_fleet import Fleet, fleet
from tests.tiers import examples, variant

CONFIG = """
keeper = "n1"
share_quotas = true
[quotas]
trees_per_user = 3
[groups.g]
slots = 1
"""
SLEEP = ["sleep", "300"]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, ("n1", "n2", "n3"), more=CONFIG) as made:
        yield made


def start(daemon: Daemon, **more: Any) -> RunInfo:
    with daemon.client() as client:
        return started(client, SLEEP, key=os.urandom(8).hex(), **more)


def info(daemon: Daemon, run: RunInfo) -> RunInfo:
    with daemon.client() as client:
        return client.call(m.Info(id=0, run=run.id), m.RunReply).run


def runs_soon(daemon: Daemon, run: RunInfo) -> None:
    wait_until(lambda: info(daemon, run).status is Status.RUNNING, f"{run.name} runs")


def stop(daemon: Daemon, run: RunInfo) -> None:
    with daemon.client() as client:
        client.call(m.Stop(id=0, runs=[run.id]), m.Stopped)


def test_a_quota_bounds_all_nodes_together_and_priority_counts_over_them(nodes: Fleet) -> None:
    n1, n2, n3 = (nodes[name] for name in ("n1", "n2", "n3"))
    first = start(n1, name="first")
    far = start(n1, name="far", placing=Placing(node="n3"))
    second = start(n2, name="second")
    for daemon, run in ((n1, first), (n1, far), (n2, second)):
        runs_soon(daemon, run)
    low = start(n3, name="low")
    high = start(n2, name="high", priority=5)

    def why(daemon: Daemon, run: RunInfo) -> str:
        return daemon.sfactl("why", run.id).stdout

    wait_until(lambda: "others have the rest" in why(n3, low), "it is told why")
    assert "of all machines quotas.trees_per_user is 3" in why(n3, low)
    stop(n1, far)  # of n1, whose share of it waits on n2
    runs_soon(n2, high)
    assert info(n3, low).status is Status.QUEUED
    stop(n2, second)  # n2 has nothing that waits
    runs_soon(n3, low)
    nodes.cut("n1")  # the keeper
    again = start(n2, name="again")
    stop(n2, high)  # n2 has that slot
    runs_soon(n2, again)
    more = start(n2, name="more")
    wait_until(lambda: "n1, which keeps the quotas" in why(n2, more), "it is told why")
    assert info(n2, more).status is Status.QUEUED
    nodes.join("n1")
    stop(n1, first)
    runs_soon(n2, more)


@variant
def test_a_group_bounds_all_nodes_and_a_lost_node_can_be_forgotten(nodes: Fleet) -> None:
    n2, n3 = nodes["n2"], nodes["n3"]
    one = start(n2, name="one", group="g")
    runs_soon(n2, one)
    two = start(n3, name="two", group="g")
    outside = start(n3, name="outside")
    runs_soon(n3, outside)
    assert info(n3, two).status is Status.QUEUED
    n2.kill()
    n2.restart()  # it has what it had
    assert info(n2, one).status is Status.RUNNING
    nodes["n1"].kill()
    nodes["n1"].restart()  # the keeper knows what it has given
    os.kill(n3.pid, signal.SIGUSR2)  # as at an upgrade
    beside = start(n3, name="beside")
    runs_soon(n3, beside)
    assert info(n3, two).status is Status.QUEUED
    nodes.cut("n2")
    assert nodes["n1"].sfactl("fleet", "forget", "n2").returncode == 0
    runs_soon(n3, two)


def test_a_run_waits_for_one_of_another_node(nodes: Fleet) -> None:
    n1, n2 = nodes["n1"], nodes["n2"]
    with n2.client() as client:
        first = started(client, SLEEP, name="first")
    after = start(n1, name="then", after=[After(run="n2/first")])
    only_ok = start(n1, name="ok", after=[After(run=f"n2/{first.id}", ok=True)])
    assert f"n2/{first.id} has ended" in n1.sfactl("why", after.id).stdout
    n1.kill()
    n1.restart()
    stop(n2, first)
    runs_soon(n1, after)
    wait_until(lambda: info(n1, only_ok).status is Status.CANCELLED, "it never starts")
    refused = n1.sfactl("spawn", "--after", "n2/nothing", "--", "true")
    assert "no run" in refused.stderr
    refused = n1.sfactl("spawn", "--after", "n9/a1", "--", "true")
    assert "there is no node 'n9'" in refused.stderr


# ---- What the keeper gives


class Node:
    def __init__(self, name: str) -> None:
        self.name, self.number, self.has, self.used, self.needs = name, 0, 0, 0, 0
        self.sent: list[tuple[int, list[SlotsWanted]]] = []

    def ask(self) -> tuple[int, list[SlotsWanted]]:
        self.number += 1
        self.has = self.used  # what it gives back is gone before it is told
        wanted = SlotsWanted(key="q", user="", has=self.has, needs=self.needs)
        self.sent.append((self.number, [wanted]))
        return self.sent[-1]

    def take(self, number: int, given: list[SlotsGiven]) -> None:
        if number == self.number:
            self.has = given[0].has


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "lose", "late", "start", "end"]),
        st.integers(0, 2),
        st.integers(0, 9),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=examples(300), deadline=None)
def test_all_nodes_never_have_more_than_there_is(steps: list[tuple[str, int, int]]) -> None:
    most, at = 4, 0.0
    book = SlotBook(lambda _: most)
    all_nodes = [Node(f"n{number}") for number in range(3)]
    for what, which, amount in steps:
        node, at = all_nodes[which], at + amount
        match what:
            case "ask" | "lose":
                node.needs = amount
                number, wanted = node.ask()
                given, _ = book.give(node.name, number, wanted, at)
                if what == "ask":
                    node.take(number, given)
            case "late" if node.sent:
                number, wanted = node.sent[amount % len(node.sent)]
                given, _ = book.give(node.name, number, wanted, at)
                node.take(number, given)
            case "start":
                node.used = min(node.has, node.used + 1)
            case "end":
                node.used = max(0, node.used - 1)
        assert sum(each.used for each in all_nodes) <= most
        assert sum(each.has for each in all_nodes) <= most
    for node in all_nodes:  # nothing is lost
        node.used = node.needs = 0
        number, wanted = node.ask()
        node.take(number, book.give(node.name, number, wanted, at)[0])
    first = all_nodes[0]
    first.needs = most
    number, wanted = first.ask()
    first.take(number, book.give(first.name, number, wanted, at + 100)[0])
    assert first.has == most

"""Runs on other nodes: their share of the tree, their lease, and what the network may do to the
messages about them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.life.stages import checks_of
from sfad.core.machine import NewPurses
from sfad.core.state.money import to_nanos
from sfad.core.state.run import Run
from sfad.features.fleet.deciding.heard import GrantSeen, GrantState, Placed, PlacementWaits
from sfad.features.fleet.feature import FleetConfig
from sfad.protocol.types import Action, Bound, Check, Grant, LimitKind, Placing, RunId, Status
from tests.bench.fleet import simulate
from tests.core.holding import moment
from tests.core.policies import policy
from tests.core.transcript import ANN, Transcript, bound, limits
from tests.tiers import examples

from .in_memory import Net, Node

LEASE = 60.0
ELSEWHERE = Placing()


def fleet(*names: str, purses: NewPurses | None = None, **numbers: Any) -> Net:
    sections = {"fleet": FleetConfig(lease=LEASE)}
    return Net(policy(sections=sections, max_time=1e6, **numbers), list(names), purses=purses)


def root(node: Node, **asked: Any) -> RunId:
    """Start a tree here."""
    given = limits("time=3600 cost=1") if "limits" not in asked else ()
    answer = node.spawn("root", **({"limits": given} | asked))
    assert isinstance(answer, c.SpawnDone)
    return answer.run.id


def child(node: Node, inside: RunId, to: str, name: str = "kid", **asked: Any) -> Run:
    """Start a run on another node, and have all messages arrive."""
    before = len(node.admitted)
    node.spawn(name, inside=inside, placing=Placing(node=to), **asked)
    assert len(node.admitted) == before + 1, node.answers
    node.net.settle()
    return node.admitted[-1]


def there(net: Net, run: Run) -> Run | None:
    """Return the run on the node where it executes, while it is live."""
    assert run.remote is not None
    return net.nodes[run.remote.node or ""].machine.tree.get(run.remote.id)


def test_a_child_on_another_node_runs_and_ends() -> None:
    net = fleet("n1", "n2")
    one, two = net.nodes["n1"], net.nodes["n2"]
    top = root(one)
    kid = child(one, top, "n2")
    assert str(kid.status) == "running"
    assert two.alive == {"a1"}
    two.exit("a1")
    net.settle()
    assert kid.status is Status.COMPLETED
    assert [
        answer.run.id for answer in one.answers.values() if isinstance(answer, c.SpawnDone)
    ] == [top, kid.id]


def test_what_a_node_tells_of_checks_is_known_where_the_run_was_asked_for() -> None:
    net = fleet("n1", "n2")
    one = net.nodes["n1"]
    kid = child(one, root(one), "n2")
    running, passed = (Check(command="test", state=state) for state in ("running", "passed"))
    for status, told in ((Status.RUNNING, running), (Status.COMPLETED, passed)):
        one.hear(kid.id, GrantSeen("n2", GrantState(status, "a1", checks=(told,))))
        assert checks_of(kid) == (told,)
    lost = child(one, "a1", "n2", "lost")
    one.hear(lost.id, GrantSeen("n2", GrantState(Status.RUNNING, "a2", checks=(running,))))
    one.hear(lost.id, GrantSeen("n2", GrantState(Status.LOST, "a2", checks=(running,))))
    assert [each.state for each in checks_of(lost)] == ["not_run"]


def test_its_share_is_counted_before_it_is_sent_and_the_rest_comes_back() -> None:
    net = fleet("n1", "n2")
    one = net.nodes["n1"]
    top = one.machine.tree.get(root(one, max_descendants=bound(41)))
    assert top is not None
    one.spawn("kid", inside=top.id, placing=Placing(node="n2"))
    # 1 + 9 of 41; a quarter of 1 USD
    assert (top.admitted, top.account.below[LimitKind.COST]) == (10, to_nanos(0.25))
    net.settle()
    assert net.nodes["n2"].spend("a1", to_nanos(0.1))
    net.nodes["n2"].spawn("below", inside="a1")
    assert not net.nodes["n2"].spend("a1", to_nanos(0.2))  # its limit ends it
    net.settle()
    assert (top.admitted, top.account.below[LimitKind.COST]) == (2, to_nanos(0.1))
    handed_on = bound(41, "SFA_MAX_DESCENDANTS")
    one.spawn("next", inside=top.id, placing=Placing(node="n2"), max_descendants=handed_on)
    assert top.admitted == 2 + 1 + 8  # as if it had asked for nothing: of 39, a quarter


def test_a_loop_across_nodes_is_refused_with_its_path() -> None:
    net = fleet("n1", "n2", "n3")
    top = root(net.nodes["n1"])
    child(net.nodes["n1"], top, "n2", "b")
    child(net.nodes["n2"], "a1", "n3", "c")
    for name, path in (("root", ["root", "b", "c", "root"]), ("b", ["b", "c", "b"])):
        answer = net.nodes["n3"].spawn(name, inside="a1", placing=Placing(node="n1"))
        assert isinstance(answer, c.SpawnRefused)
        assert answer.refusal.path == path


def test_depth_counts_over_nodes() -> None:
    net = fleet("n1", "n2")
    top = root(net.nodes["n1"], max_depth=bound(3), max_descendants=bound(64))
    child(net.nodes["n1"], top, "n2", "b")
    child(net.nodes["n2"], "a1", "n1", "c")
    answer = net.nodes["n1"].spawn("d", inside="a3")
    assert isinstance(answer, c.SpawnRefused)
    assert answer.refusal.kind == "depth"


def test_a_share_that_is_not_left_is_refused() -> None:
    net = fleet("n1", "n2")
    top = root(net.nodes["n1"])
    answer = net.nodes["n1"].spawn(
        "kid", inside=top, placing=Placing(node="n2"), limits=limits("cost=2")
    )
    assert isinstance(answer, c.ErrorAnswer)
    assert "would be 2.00 USD, and run a1 has 1.00 USD left" in answer.message


def test_stop_answers_after_the_last_process_of_the_last_node() -> None:
    net = fleet("n1", "n2", "n3")
    top = root(net.nodes["n1"])
    child(net.nodes["n1"], top, "n2", "b")
    child(net.nodes["n2"], "a1", "n3", "c")
    token = net.nodes["n1"].stop(top)
    assert net.nodes["n1"].alive == set()
    assert token not in net.nodes["n1"].answers
    net.nodes["n1"].tend()
    net.deliver_all()
    assert token not in net.nodes["n1"].answers  # n2 waits for n3
    net.settle()
    answer = net.nodes["n1"].answers[token]
    assert isinstance(answer, c.StopDone)
    assert (answer.stopped, answer.survivors) == ((top,), ())
    assert not any(node.alive or len(node.machine.tree) for node in net.nodes.values())


def test_pause_and_resume_follow_the_grant() -> None:
    net = fleet("n1", "n2")
    one = net.nodes["n1"]
    top = root(one)
    kid = child(one, top, "n2")
    one.feed(_pause(one, top))
    net.settle()
    assert (kid.status, there(net, kid).status) == (Status.PAUSED, Status.PAUSED)  # type: ignore[union-attr]
    one.feed(_resume(one, top))
    net.settle()
    assert (kid.status, there(net, kid).status) == (Status.RUNNING, Status.RUNNING)  # type: ignore[union-attr]


def _pause(node: Node, run: RunId) -> Any:
    return e.PauseRequested(node.now, 900, ANN, run)


def _resume(node: Node, run: RunId) -> Any:
    return e.ResumeRequested(node.now, 901, ANN, run)


def test_a_cut_off_node_stops_the_run_before_its_giver_gives_it_up() -> None:
    net = fleet("n1", "n2")
    one, two = net.nodes["n1"], net.nodes["n2"]
    top = root(one)
    kid = child(one, top, "n2")
    net.cut.add("n2")
    net.wait(LEASE - 5)
    assert two.alive == {"a1"}
    net.wait(10)
    assert two.alive == set()
    assert str(kid.status) == "running"
    net.wait(60)
    assert kid.status is Status.LOST
    above = one.machine.tree.get(top)
    assert above is not None
    assert above.account.below[LimitKind.COST] == to_nanos(0.25)  # what it has used is not known
    assert (kid.account.cost_at_most, kid.account.partial) == (True, False)
    assert kid.account.sources["report"].tokens is None  # of which its share has none


def test_a_node_that_is_away_for_less_than_the_lease_goes_on() -> None:
    net = fleet("n1", "n2")
    kid = child(net.nodes["n1"], root(net.nodes["n1"]), "n2", limits=limits("time=3600"))
    for _ in range(4):
        net.cut.add("n2")
        net.wait(LEASE * 0.8)
        net.cut.clear()
        net.settle(2)
    assert kid.status is Status.RUNNING
    assert net.nodes["n2"].alive == {"a1"}


def test_a_grant_that_arrives_after_its_lease_starts_nothing() -> None:
    net = fleet("n1", "n2")
    one = net.nodes["n1"]
    top = root(one)
    one.spawn("kid", inside=top, placing=Placing(node="n2"))
    one.tend()
    net.deliver_all()  # the first stamp
    one.tend()
    late = [message for message in net.flying if type(message[1]).__name__ == "Offer"]
    net.flying.clear()
    net.wait(200)
    net.flying = late
    net.deliver_all()
    assert net.nodes["n2"].admitted == []


@pytest.mark.parametrize("who", ["n1", "n2"])
def test_a_daemon_that_is_killed_changes_nothing(who: str) -> None:
    net = fleet("n1", "n2")
    one = net.nodes["n1"]
    top = root(one)
    kid = child(one, top, "n2").id
    net.nodes[who].crash()
    net.settle()
    live = one.machine.tree.get(kid)
    assert live is not None
    assert live.status is Status.RUNNING
    net.nodes["n2"].exit("a1")
    net.settle()
    assert one.ended[kid].status is Status.COMPLETED
    assert len(net.nodes["n2"].admitted) == 1


def test_a_root_is_placed_queued_and_keeps_its_id() -> None:
    net = fleet("n1", "n2")
    one = net.nodes["n1"]
    assert one.spawn("job", placing=ELSEWHERE, limits=limits("time=3600")) is None
    run = one.admitted[-1]
    assert run.status is Status.QUEUED
    one.feed(_waits(one, run.id))
    assert isinstance(one.answers[1], c.SpawnDone)
    one.feed(_placed(one, run.id, "n2"))
    net.settle()
    assert (run.id, run.status, there(net, run).status) == ("a1", Status.RUNNING, Status.RUNNING)  # type: ignore[union-attr]
    net.cut.add("n1")
    net.wait(500)
    assert net.nodes["n2"].alive == {"a1"}  # a tree goes on without its asker


def _waits(node: Node, run: RunId) -> Any:
    return e.HeardOf(node.now, run, PlacementWaits("4 CPUs are not free"))


def _placed(node: Node, run: RunId, where: str) -> Any:
    return e.HeardOf(node.now, run, Placed(where))


def test_a_lost_run_starts_elsewhere_only_after_its_lease() -> None:
    net = fleet("n1", "n2", "n3")
    one = net.nodes["n1"]
    one.place = "n2"
    one.spawn("job", placing=Placing(restart_elsewhere=True), attempts=2)
    net.settle()
    net.cut.add("n2")
    one.place = "n3"
    net.wait(LEASE + 5)
    assert (net.nodes["n2"].alive, net.nodes["n3"].alive) == (set(), set())
    net.wait(60)
    net.settle()
    assert net.nodes["n3"].alive == {"a1"}
    net.cut.clear()
    net.settle()
    assert one.admitted[0].status is Status.RUNNING


def test_only_the_fleet_may_bring_a_grant() -> None:
    net = fleet("n1")
    top = root(net.nodes["n1"])
    grant = Grant(giver="x", run="a1", root="x/a1", max_depth=5, descendants=1)
    answer = net.nodes["n1"].spawn("kid", inside=top, grant=grant)
    assert isinstance(answer, c.ErrorAnswer)
    assert "only the daemon's own process" in answer.message


# ---- anything, in any order


class Fleet(RuleBasedStateMachine):
    """Trees over three nodes, while messages are lost, repeated and reordered, nodes are cut off,
    and daemons are killed."""

    DESCENDANTS = 12
    COST = to_nanos(1)

    @initialize()
    def begin(self) -> None:
        self.net = fleet("n1", "n2", "n3")
        self.net.nodes["n1"].spawn(
            "root",
            limits=limits("time=100000 cost=1:refuse"),
            max_descendants=Bound(value=12, source="x"),
        )

    def _node(self, number: int) -> Node:
        return self.net.nodes[self.net.names[number]]

    def _alive(self, number: int, pick: int) -> tuple[Node, RunId] | None:
        node = self._node(number)
        alive = sorted(node.alive)
        return (node, alive[pick % len(alive)]) if alive else None

    @rule(
        number=st.integers(0, 2),
        pick=st.integers(0, 9),
        to=st.integers(0, 2),
        name=st.sampled_from("abcdefgh"),
        share=st.sampled_from([None, 0.3, 0.6, 0.9]),
        arrives=st.booleans(),
    )
    def start(
        self, number: int, pick: int, to: int, name: str, share: float | None, arrives: bool
    ) -> None:
        if (found := self._alive(number, pick)) is not None:
            node, run = found
            placing = Placing(node=self.net.names[to]) if to != number else None
            most = () if share is None else limits(f"time=5000 cost={share}:refuse")
            node.spawn(
                name,
                inside=run,
                placing=placing,
                limits=most or limits("time=5000"),
                on_limit=Action.REFUSE,
                max_descendants=bound(8),
            )
            if arrives and not self.net.cut:
                self.net.settle(3)

    @rule(number=st.integers(0, 2), first=st.sampled_from([0.2, 0.5, 0.9]))
    def fill(self, number: int, first: float) -> None:
        """Use as much as there is, in runs and in money."""
        node = self._node(number)
        for run in sorted(node.alive):
            for n in range(4):
                node.spawn(f"leaf{n}", inside=run, limits=limits("time=5000"))
        for run in sorted(node.alive):
            if node.machine.tree.get(run) is not None:
                node.spend(run, to_nanos(first))

    @rule(number=st.integers(0, 2), pick=st.integers(0, 9), cents=st.integers(1, 30))
    def spend(self, number: int, pick: int, cents: int) -> None:
        if (found := self._alive(number, pick)) is not None:
            found[0].spend(found[1], to_nanos(cents / 100))

    @rule(number=st.integers(0, 2), pick=st.integers(0, 9))
    def exits(self, number: int, pick: int) -> None:
        if (found := self._alive(number, pick)) is not None and (number, found[1]) != (0, "a1"):
            found[0].exit(found[1])

    @rule(number=st.integers(0, 2), pick=st.integers(0, 9))
    def stop(self, number: int, pick: int) -> None:
        if (found := self._alive(number, pick)) is not None and (number, found[1]) != (0, "a1"):
            found[0].stop(found[1])

    @rule(number=st.integers(0, 2))
    def tend(self, number: int) -> None:
        self._node(number).tend()

    @rule(number=st.integers(0, 2))
    def crash(self, number: int) -> None:
        self._node(number).crash()

    @precondition(lambda self: self.net.flying)
    @rule(
        pick=st.integers(0, 50),
        how=st.sampled_from(["deliver", "deliver", "deliver", "lose", "repeat"]),
    )
    def network(self, pick: int, how: str) -> None:
        number = pick % len(self.net.flying)
        if how == "lose":
            self.net.flying.pop(number)
        else:
            self.net.deliver(number, keep=how == "repeat")

    @rule(number=st.integers(0, 2))
    def cut(self, number: int) -> None:
        self.net.cut.symmetric_difference_update({self.net.names[number]})

    @rule(seconds=st.sampled_from([1.0, 20.0, 45.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.net.wait(seconds)

    @invariant()
    def never_more_than_the_tree_may_have(self) -> None:
        admitted = sum(
            run.remote is None for node in self.net.nodes.values() for run in node.admitted
        )
        assert admitted <= self.DESCENDANTS + 1
        assert sum(sum(node.spent.values()) for node in self.net.nodes.values()) <= self.COST

    @invariant()
    def never_a_loop(self) -> None:
        for node in self.net.nodes.values():
            for run in node.machine.tree:
                chain = [*(name for _, name in run.root.birth.origin), *run.chain]
                assert len(set(chain)) == len(chain)

    @invariant()
    def never_twice(self) -> None:
        """Each grant has become at most one run, and none that its giver has given up is alive."""
        for node in self.net.nodes.values():
            keys = list(node.keys.values())
            assert len(set(keys)) == len(keys)
        for giver in self.net.nodes.values():
            given_up = {run for run, state in giver.ended.items() if state.status is Status.LOST}
            for node in self.net.nodes.values():
                for key, run in node.keys.items():
                    name, stand_in, _ = key.split("/")
                    assert not (name == giver.name and stand_in in given_up and run in node.alive)

    def teardown(self) -> None:
        """When the network works again and the root is stopped, nothing is left anywhere."""
        self.net.cut.clear()
        self.net.deliver_all()
        self.net.settle(12)
        if self.net.nodes["n1"].machine.tree.get("a1") is not None:
            self.net.nodes["n1"].stop("a1")
        self.net.settle(12)
        self.net.wait(400)
        self.net.settle(4)
        for node in self.net.nodes.values():
            assert not node.alive
            assert not list(node.machine.tree)


Fleet.TestCase.settings = settings(
    max_examples=examples(50),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestFleet = Fleet.TestCase


def test_thirty_nodes_with_lost_messages_leave_nothing() -> None:
    found = simulate(30, 1, lost=0.1)
    assert found["live runs"] > 100
    assert found["a minute and node"] < 180


def test_a_run_of_a_fleet_is_placed_and_paused_on_both_nodes() -> None:
    net = fleet("n1", "n2")
    one, two = net.nodes["n1"], net.nodes["n2"]
    top = root(one)
    one.spawn("kid", inside=top, placing=Placing())
    kid = one.admitted[-1]
    (placing,) = one.machine.holds(kid, 0.0, moment)
    assert (placing.kind, placing.words) == ("placing", "it is being placed")
    one.spawn("other", inside=top, placing=Placing(node="n2"))
    other = one.admitted[-1]
    (lease,) = one.machine.holds(other, 0.0, moment)
    assert (other.status, lease.kind) == (Status.STARTING, "lease")
    net.settle()
    assert one.machine.holds(other, 0.0, moment) == ()
    far = two.machine.tree.get("a1")
    assert far is not None
    assert other.remote is not None
    two.feed(Transcript().pause("a1"))
    net.settle()
    (node,) = one.machine.holds(other, 0.0, moment)
    assert (node.kind, node.command) == ("node", "sfactl resume n2/a1")

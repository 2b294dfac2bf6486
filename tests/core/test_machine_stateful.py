"""The machine against a simulated shell that does whatever the contract allows, in any order Hypothesis can think of."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.access import Peer
from sfad.core.policy import Policy
from sfad.core.run import Run
from sfad.protocol.types import Bound, Claim, Limit, RunId, Status

from .machine_model import Box, World, every_move, snapshot

USERS = ("ann", "bob")
NAMES = ("a", "b", "c", "d", "e", "f")

# small numbers everywhere: a limit that is never reached is never tested
POLICIES = st.builds(
    Policy,
    max_depth=st.builds(Bound, value=st.integers(2, 4), source=st.just("config")),
    max_descendants=st.builds(Bound, value=st.integers(2, 6), source=st.just("config")),
    depth_ceiling=st.just(6),
    descendants_ceiling=st.just(8),
    allow_detach=st.booleans(),
    timeout=st.builds(Limit, kind=st.just("time"), threshold=st.sampled_from([2.0, 20.0]), source=st.just("config")),
    grace=st.sampled_from([0.0, 3.0]),
    kill_wait=st.sampled_from([0.5, 4.0]),
    trees_per_user=st.integers(1, 3),
    trees=st.integers(1, 4),
    spawns_per_hour=st.sampled_from([3, 100]),
)

BOUNDS = st.one_of(st.none(), st.none(), st.builds(Bound, value=st.integers(-1, 9), source=st.just("--flag")))

ASKED = st.builds(
    e.Asked,
    argv=st.just(("x",)),
    name=st.sampled_from(NAMES),
    kind=st.sampled_from(["agent", "agent", "agent", "skill"]),
    timeout=st.one_of(st.none(), st.builds(Limit, kind=st.just("time"), threshold=st.sampled_from([0.1, 1.5, 30.0]))),
    max_depth=BOUNDS,
    max_descendants=BOUNDS,
    attempts=st.sampled_from([1, 1, 2, 3]),
    retry_delay=st.sampled_from([None, 0.0, 2.0]),
    grace=st.sampled_from([None, None, 0.0, 1.0, 100.0]),
    tied_to=st.sampled_from([None, None, 1, 2]),
    detach=st.sampled_from([False, False, False, True]),
    leaf=st.sampled_from([False] * 7 + [True]),
    queue=st.sampled_from([True, True, False]),
    priority=st.integers(0, 2),
    claim=st.sampled_from([Claim(), Claim(), Claim(), Claim(), Claim(names=["a"]), Claim(depth=3)]),
)


SWIFT = st.sampled_from([True, True, False])
SELDOM = st.sampled_from([False] * 5 + [True])


class MachineAgainstShell(RuleBasedStateMachine):
    """Rules are what the outside world does; `World` checks every command, the invariants check what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(every_move())
        self.world = World()
        self.drained = False
        self.holders: set[RunId] = set()

    @initialize(policy=POLICIES)
    def configure(self, policy: Policy) -> None:
        """The numbers to decide by."""
        self.world = World(policy)

    # ---- requests

    def person(self, user: str) -> Peer:
        return Peer(1000, user)

    def inside(self, run: RunId) -> Peer:
        book = self.world.books[run]
        return Peer(1000, book.run.user, run=run)

    def ask(self, asked: e.Asked, peer: Peer, *, swift: bool = False) -> None:
        before = snapshot(self.world.machine, self.world.now)
        token = self.world.spawn(asked, peer)
        answer = self.world.answers.get(token)
        if isinstance(answer, c.Refused | c.Failed):
            assert snapshot(self.world.machine, self.world.now) == before, "a refusal changed something"
            kinds = {type(command) for command in self.world.batch}
            assert kinds <= {c.RecordRefusal, c.CountRefusal, c.Publish, c.Reply}, "a refusal started something"
        elif swift:
            # one step instead of three, else few examples ever see a grandchild
            self.world.commit(len(self.world.uncommitted))
            for box in self.world.launching:
                self.world.launched(box)

    @precondition(lambda self: len(self.world.machine.tree.roots()) < 5)
    @rule(asked=ASKED, user=st.sampled_from(USERS), swift=SWIFT)
    def spawn_root(self, asked: e.Asked, user: str, swift: bool) -> None:
        """A person asks."""
        self.ask(asked, self.person(user), swift=swift)

    @precondition(lambda self: self.world.populated)
    @rule(asked=ASKED, data=st.data(), swift=SWIFT)
    def spawn_child(self, asked: e.Asked, data: st.DataObject, swift: bool) -> None:
        """An agent asks."""
        box: Box = data.draw(st.sampled_from(self.world.populated))
        self.ask(asked, self.inside(box.id), swift=swift)

    @precondition(lambda self: self.world.populated)
    @rule(asked=ASKED, swift=SWIFT)
    def spawn_deeper(self, asked: e.Asked, swift: bool) -> None:
        """The agent that was started last asks: chains grow, not only families."""
        self.ask(asked, self.inside(self.world.populated[-1].id), swift=swift)

    @precondition(lambda self: any(book.ended for book in self.world.books.values()))
    @rule(asked=ASKED, data=st.data())
    def spawn_from_the_dead(self, asked: e.Asked, data: st.DataObject) -> None:
        """A peer whose run ended meanwhile."""
        ended = [run for run, book in self.world.books.items() if book.ended]
        peer = self.inside(data.draw(st.sampled_from(ended)))
        self.ask(asked, peer)
        assert not any(isinstance(command, c.Admit) for command in self.world.batch)

    @precondition(lambda self: self.world.books)
    @rule(data=st.data(), grace=st.sampled_from([None, 0.0, 2.0]), whole=SELDOM, agent=st.booleans())
    def stop(self, data: st.DataObject, grace: float | None, whole: bool, agent: bool) -> None:
        """Somebody stops runs, ended ones and the same one twice included; or everything."""
        known = sorted(self.world.books)
        runs = known if whole else data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        peer = self.person("ann")
        if agent and self.world.populated:
            peer = self.inside(data.draw(st.sampled_from(self.world.populated)).id)
        self.world.feed(e.StopRequested(self.world.now, self.world.token(), peer, tuple(runs), grace=grace))

    @precondition(lambda self: self.world.live)
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        """Somebody pauses a run."""
        run = data.draw(st.sampled_from(sorted(self.world.live)))
        self.world.feed(e.PauseRequested(self.world.now, self.world.token(), self.person("ann"), run))

    @precondition(lambda self: any(run.frozen for run in self.world.machine.tree))
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """Somebody resumes a run, paused or not."""
        run = data.draw(st.sampled_from(sorted(self.world.live)))
        self.world.feed(e.ResumeRequested(self.world.now, self.world.token(), self.person("ann"), run))

    @precondition(lambda self: self.world.machine._tied)
    @rule(client=st.sampled_from([1, 2]))
    def client_gone(self, client: int) -> None:
        """A connection ends."""
        self.world.feed(e.ClientGone(self.world.now, client))

    @precondition(lambda self: len(self.world.books) > 4)
    @rule(really=st.integers(0, 4))
    def drain(self, really: int) -> None:
        """The daemon is told to end; seldom, since little happens afterwards."""
        if really == 0:
            self.drained = True
            self.world.feed(e.DrainRequested(self.world.now))

    @precondition(lambda self: len(self.world.books) > 2)
    @rule(per_user=st.integers(1, 3), total=st.integers(1, 4), rate=st.sampled_from([3, 100]))
    def reload(self, per_user: int, total: int, rate: int) -> None:
        """The quotas change; trees that run go on."""
        policy = replace(self.world.policy, trees_per_user=per_user, trees=total, spawns_per_hour=rate)
        self.world.policy = policy
        self.world.feed(e.Reconfigured(self.world.now, policy))

    # ---- the ledger, the launcher and the clock

    @precondition(lambda self: self.world.uncommitted)
    @rule(count=st.integers(1, 3))
    def commit(self, count: int) -> None:
        """The ledger has written."""
        self.world.commit(count)

    @precondition(lambda self: self.world.uncommitted)
    @rule(count=st.integers(1, 3))
    def fail_commit(self, count: int) -> None:
        """The ledger could not write."""
        self.world.fail_commit(count)

    @precondition(lambda self: self.world.launching)
    @rule(data=st.data())
    def launched(self, data: st.DataObject) -> None:
        """A command runs."""
        self.world.launched(data.draw(st.sampled_from(self.world.launching)))

    @precondition(lambda self: self.world.launching)
    @rule(data=st.data())
    def launch_failed(self, data: st.DataObject) -> None:
        """A command is not there."""
        self.world.launch_failed(data.draw(st.sampled_from(self.world.launching)))

    @precondition(lambda self: self.world.mains)
    @rule(data=st.data(), code=st.sampled_from([0, 1, None]), late=st.booleans())
    def exited(self, data: st.DataObject, code: int | None, late: bool) -> None:
        """A main process ends: by itself, by a signal, while frozen, whenever."""
        self.world.exited(data.draw(st.sampled_from(self.world.mains)), code, late=late)

    @precondition(lambda self: self.world.populated)
    @rule(data=st.data())
    def forked(self, data: st.DataObject) -> None:
        """An agent leaves something in the background."""
        box: Box = data.draw(st.sampled_from(self.world.populated))
        box.strays += 1

    @precondition(lambda self: any(box.strays for box in self.world.populated))
    @rule(data=st.data())
    def strays_gone(self, data: st.DataObject) -> None:
        """What was left in the background ends."""
        box: Box = data.draw(st.sampled_from(self.world.populated))
        box.strays = 0

    @precondition(lambda self: self.world.owed_emptied)
    @rule(data=st.data())
    def emptied(self, data: st.DataObject) -> None:
        """The kernel tells that nothing is alive."""
        self.world.emptied(data.draw(st.sampled_from(self.world.owed_emptied)))

    @precondition(lambda self: self.world.owed_frozen)
    @rule(data=st.data())
    def frozen(self, data: st.DataObject) -> None:
        """The kernel tells that everything stands still."""
        self.world.stands(data.draw(st.sampled_from(self.world.owed_frozen)))

    @precondition(lambda self: self.world.owed_survey)
    @rule(data=st.data())
    def surveyed(self, data: st.DataObject) -> None:
        """A survey is answered."""
        self.world.surveyed(data.draw(st.sampled_from(self.world.owed_survey)))

    @precondition(lambda self: self.world.timers)
    @rule()
    def next_timer(self) -> None:
        """Nothing happens until the next timer."""
        self.world.advance(max(0.0, min(self.world.timers.values()) - self.world.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        """Time passes."""
        self.world.advance(min(seconds, 7.0) if self.world.live else seconds)

    # ---- what must hold after every step

    @invariant()
    def the_tree_is_the_live_runs(self) -> None:
        """No run is forgotten, none lingers."""
        assert {run.id for run in self.world.machine.tree} == set(self.world.live)
        for run in self.world.machine.tree:
            assert not run.status.terminal
            assert run.parent is None or run.parent.children[run.id] is run
            assert run.parent is None or self.world.machine.tree.get(run.parent.id) is run.parent

    @invariant()
    def budgets_add_up(self) -> None:
        """The machine's counters are what was admitted, and within their bounds."""
        for book in self.world.live.values():
            assert book.run.admitted == book.descendants <= book.run.max_descendants.value
            assert book.run.max_descendants.value == book.max_descendants
            assert book.run.max_depth.value == book.max_depth

    @invariant()
    def slots_add_up(self) -> None:
        """One for each live root that does not wait; never more than a user or the daemon may have."""
        slots, policy = self.world.machine.slots, self.world.policy
        roots = self.world.machine.tree.roots()
        holders = [run for run in roots if not slots.waits(run.id)]
        assert slots.count == len(holders)
        # a reload may leave more than the new numbers allow; whoever comes next must fit under them
        for new in {run.id for run in holders} - self.holders:
            user = self.world.books[new].run.user
            assert slots.count <= policy.trees
            assert slots.user_count(user) <= policy.trees_per_user
        self.holders = {run.id for run in holders}
        for user in USERS:
            assert slots.user_count(user) == len([run for run in holders if run.user == user])
        assert slots.queued == len(roots) - len(holders)
        assert all(run.status is Status.QUEUED for run in roots if slots.waits(run.id))

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """A tree only waits while the user or the daemon is full."""
        slots = self.world.machine.slots
        for run in self.world.machine.tree.roots():
            if slots.waits(run.id):
                assert not slots.free_for(run.user)

    @invariant()
    def clocks_match(self) -> None:
        """A clock counts, and its deadline is armed, exactly while the run is running."""
        for run in self.world.machine.tree:
            running = run.status is Status.RUNNING
            assert (run.clock.since is not None) == running
            assert self.world.timers.get((run.id, "deadline")) == (run.own_deadline if running else None)
            if running:
                assert run.own_deadline is not None
                assert run.deadline is not None
                assert run.deadline <= run.own_deadline
            if run.status in {Status.RUNNING, Status.PAUSED}:
                assert run.standing_still == (run.status is Status.PAUSED)

    @invariant()
    def somebody_will_act(self) -> None:
        """Whatever is not running by itself is waiting for something that will come."""
        for run in self.world.machine.tree:
            if run.status is Status.RETRYING and not run.clearing and not run.standing_still:
                assert (run.id, "retry") in self.world.timers
            if run.status is Status.STARTING:
                assert run.id in self.world.boxes
                assert self.world.boxes[run.id].starting
            if run.clearing or (run.status is Status.STOPPING and run.attempt):
                assert any(self.will_be_killed(r) for r in run.lineage), f"nothing will ever kill {run.id}"

    def will_be_killed(self, run: Run) -> bool:
        timers = self.world.timers
        return run.stop is not None and ((run.id, "grace") in timers or (run.id, "kill") in timers)

    @invariant()
    def ladders_are_the_stopping_ones(self) -> None:
        """Only a run that is being emptied has a ladder, and only a ladder has its timers."""
        for run in self.world.machine.tree:
            emptying = run.status is Status.STOPPING or run.clearing
            assert run.stop is None or emptying
            for timer in ("grace", "kill", "survey"):
                assert (run.id, timer) not in self.world.timers or run.stop is not None

    @invariant()
    def pauses_are_pending(self) -> None:
        """A pause that waits for its answer is one whose freeze is under way, or whose run is going."""
        for run in self.world.machine.tree:
            if run.pause_tokens:
                assert run.frozen or run.status is Status.STOPPING

    @invariant()
    def nothing_survives_a_stopping_ancestor(self) -> None:
        """Where a run is being emptied, everything below it is on its way out."""
        for run in self.world.machine.tree:
            if run.parent is not None and (run.parent.status is Status.STOPPING or run.parent.clearing):
                assert run.status is Status.STOPPING

    # ---- the end

    def teardown(self) -> None:
        """Everything runs out."""
        with self.stack:
            world = self.world
            runs = tuple(world.live)
            world.feed(e.StopRequested(world.now, world.token(), self.person("root"), runs))
            for _ in range(200):
                if not world.live:
                    break
                self.run_out()
            assert not world.live, f"did not end: {[(b.run.id, b.run.status) for b in world.live.values()]}"
            self.check_the_end()

    def run_out(self) -> None:
        world = self.world
        world.commit(len(world.uncommitted))
        for box in world.launching:
            world.launched(box)
        for box in world.mains:
            if box.main:  # an earlier one of this round may have taken it along
                world.exited(box, None)
        for box in list(world.boxes.values()):
            box.strays = 0
        for box in world.owed_survey:
            world.surveyed(box)
        for box in world.owed_emptied[::-1]:
            if box.emptying and box.id in world.boxes:
                world.emptied(box)
        if world.timers:
            self.next_timer()

    def check_the_end(self) -> None:
        world = self.world
        assert not world.waiting, f"requests without an answer: {world.waiting}"
        assert not world.timers
        assert not world.boxes
        assert not len(world.machine.tree)
        assert not world.machine.slots.count
        assert not world.machine.slots.queued
        assert not world.machine._tied
        assert not world.machine._tickets
        assert not [key for key in world.machine._refusals if not key[0].startswith("user ")], "kept for runs that are gone"
        assert all(book.run.status.terminal and book.run.ended_at is not None for book in world.books.values())
        assert bool(world.shutdowns) == self.drained


MachineAgainstShell.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # to shrink sixty steps takes five minutes; add Phase.shrink to read a failure
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestMachineAgainstShell = MachineAgainstShell.TestCase

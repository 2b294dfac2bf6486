"""The machine against a simulated shell that does what the contract allows, in any order that
Hypothesis finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.life.stopping import GONE
from sfad.core.state.access import Peer
from sfad.core.state.account import OpenReservation, Use
from sfad.core.state.money import NANOS
from sfad.core.state.policy import Policy
from sfad.core.state.request import Asked, Stage
from sfad.core.state.run import Run, Rung
from sfad.core.state.vocabulary import Timer
from sfad.protocol.kinds import KINDS, METERED_KINDS
from sfad.protocol.types import Action, After, Bound, Claim, Limit, LimitKind, RunId, Source, Status
from tests.core.asking import asked_for, replaced
from tests.core.policies import changed
from tests.core.policies import policy as policy_with
from tests.tiers import examples

from .holding import check_holds
from .machine_model import (
    BEFORE,
    OF_RUNS,
    OF_TREES,
    Book,
    Box,
    Crashed,
    World,
    every_move,
    places_in_queues,
    snapshot,
)

USERS = ("ann", "bob")
NAMES = ("a", "b", "c", "d", "e", "f")
SWIFT = st.sampled_from([True, True, False])
SELDOM = st.sampled_from([False] * 5 + [True])

# small numbers, because a limit that is never reached is never tested
THRESHOLDS: dict[LimitKind, list[float]] = {
    LimitKind.TIME: [2.0, 20.0, 30.0],
    LimitKind.TURNS: [2, 10],
    LimitKind.MESSAGES: [3],
    LimitKind.TOKENS: [10, 40],
    LimitKind.COST: [0.5, 2.0],
    LimitKind.PLANNING_COST: [0.5],
    LimitKind.EXECUTION_COST: [0.5],
    LimitKind.OUTPUT: [65536],
    LimitKind.SILENCE: [4.0],
    LimitKind.WAITING: [4.0],
    LimitKind.MEMORY: [2**20, 2**21],
    LimitKind.PIDS: [3, 9],
    LimitKind.CPU: [0.5],
    LimitKind.PLAN: [5, 20],
}
MAX_TIME = 45.0
ACTIONS = [action for action in Action if action is not Action.CONTINUE]
"""Without the one that needs a session, which agents here do not have."""


def limits_of(kinds: list[LimitKind], *, acting: bool = True) -> st.SearchStrategy[Limit]:
    """One limit of one of these kinds."""
    actions = [None, None, *ACTIONS] if acting else [None]
    pairs = [(kind, threshold) for kind in kinds for threshold in THRESHOLDS[kind]]
    return st.builds(
        lambda pair, action: Limit(
            kind=pair[0], threshold=pair[1], action=action if _takes(pair[0], action) else None
        ),
        st.sampled_from(pairs),
        st.sampled_from(actions),
    )


def _takes(kind: LimitKind, action: Action | None) -> bool:
    return KINDS[kind].acts and (action is not Action.REFUSE or kind in METERED_KINDS)


OFTEN = [LimitKind.TURNS, LimitKind.TOKENS, LimitKind.COST]
LIMITS = st.lists(limits_of([*LimitKind, *OFTEN, *OFTEN, *OFTEN]), max_size=4).map(tuple)
TOO_MUCH = (Limit(kind=LimitKind.TIME, threshold=0.1),)
SOME = [0, 1, 3, 9, 30]
MONEY = [None, 0, 62_500_000, 250_000_000, NANOS]


def uses() -> st.SearchStrategy[Use]:
    """What a source tells."""
    number = st.sampled_from([None, *SOME])
    return st.builds(
        Use, turns=number, messages=number, input_tokens=number, output_tokens=number,
        cost=st.sampled_from(MONEY), planning_cost=st.sampled_from([None, None, 125_000_000]),
        execution_cost=st.sampled_from([None, None, 125_000_000]),
    )  # fmt: skip


RESERVATIONS = st.builds(
    OpenReservation,
    model=st.just("m"),
    input_tokens=st.sampled_from([0, 2, 8]),
    output_tokens=st.sampled_from([0, 4]),
    cost=st.sampled_from(MONEY),
    role=st.sampled_from([None, "planning", "execution"]),
)
KERNELS = [LimitKind.MEMORY, LimitKind.PIDS, LimitKind.SILENCE]
METERS: st.SearchStrategy[Source] = st.sampled_from(["stream", "stream", "gateway", "session"])

POLICIES = st.builds(
    policy_with,
    max_depth=st.integers(2, 4),
    max_descendants=st.integers(2, 6),
    depth_ceiling=st.just(6),
    descendants_ceiling=st.just(8),
    allow_detach=st.booleans(),
    unadmitted=st.sampled_from(["warn", "warn", "terminate", "off"]),
    defaults=st.lists(
        limits_of([LimitKind.TURNS, LimitKind.TOKENS, LimitKind.COST, LimitKind.PIDS]), max_size=3
    ).flatmap(
        lambda some: limits_of([LimitKind.TIME]).map(
            lambda time: {
                each.kind: each
                for each in (*some, time)
                if each.threshold >= KINDS[each.kind].least
            }
        )
    ),
    max_time=st.just(MAX_TIME),
    pause_max=st.sampled_from([5.0, 86400.0]),
    approval_timeout=st.just(8.0),
    result_wait=st.just(3.0),
    grace=st.sampled_from([0.0, 3.0]),
    polite=st.sampled_from([0.0, 1.0]),
    kill_wait=st.sampled_from([0.5, 4.0]),
    trees_per_user=st.integers(1, 3),
    trees=st.integers(1, 4),
    spawns_per_hour=st.sampled_from([3, 100]),
    groups=st.sampled_from([{"g": 1, "h": 2}, {"g": 2, "h": 1}, {"g": 1}]),
)

BOUNDS = st.one_of(
    st.none(), st.none(), st.builds(Bound, value=st.integers(-1, 9), source=st.just("--flag"))
)

CHECKS = (Stage("check", "a", seconds=2.0), Stage("check", "b"))
SETUP = Stage("setup", "c", before=True)

ASKED = st.builds(
    asked_for,
    argv=st.sampled_from([("x",), ("claude",)]),
    name=st.sampled_from(NAMES),
    kind=st.sampled_from(["agent", "agent", "agent", "skill"]),
    limits=st.one_of(*[LIMITS] * 9, st.just(TOO_MUCH)),
    on_limit=st.sampled_from([None, None, *ACTIONS]),
    run_type=st.sampled_from([None, None, None, "architect"]),
    takes_input=SELDOM,
    blocked_tools=st.sampled_from([(), (), ("Bash",)]),
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
    stages=st.sampled_from([(), (), (), CHECKS, (SETUP, *CHECKS), (SETUP,)]),
)

PLAIN = st.builds(
    asked_for,
    argv=st.just(("x",)),
    name=st.sampled_from(NAMES),
    attempts=st.sampled_from([1, 1, 2]),
    detach=SELDOM,
    priority=st.integers(0, 2),
)
"""Requests that are seldom refused."""


class MachineAgainstShell(RuleBasedStateMachine):
    """Rules are what the outside world does; `World` checks every command, the invariants check
    what is left."""

    WORLD: ClassVar[type[World]] = World

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(every_move())
        self.world = self.WORLD()
        self.drained = False
        self.holders: set[RunId] = set()
        self.was_held: Action | None = None

    @initialize(
        policy=POLICIES,
        tree=st.lists(st.tuples(ASKED, SWIFT), min_size=1, max_size=3),
        funded=st.booleans(),
        waits=st.lists(st.tuples(PLAIN, st.booleans()), max_size=2),
        data=st.data(),
    )
    def configure(
        self,
        policy: Policy,
        tree: list[tuple[Asked, bool]],
        funded: bool,
        waits: list[tuple[Asked, bool]],
        data: st.DataObject,
    ) -> None:
        """Choose the policy, and start a chain: otherwise most steps would concern no run."""
        self.world = self.WORLD(self.with_features(policy, data))
        if funded:
            self.fund()
        for asked, swift in tree:
            populated = self.world.populated
            self.ask(
                asked,
                self.inside(populated[-1].id) if populated else self.person("ann"),
                swift=swift,
            )
        for asked, within in waits if self.world.live else ():
            self.ask_after(
                asked,
                data,
                self.world.populated[0] if within and self.world.populated else None,
                None,
            )

    def with_features(self, policy: Policy, data: st.DataObject) -> Policy:  # noqa: ARG002 - for machines with features
        """Choose what features are configured with."""
        return policy

    def fund(self) -> None:
        """Tell of purses, if there are any."""

    # ---- requests

    def person(self, user: str) -> Peer:
        return Peer(1000, user)

    def inside(self, run: RunId) -> Peer:
        book = self.world.books[run]
        return Peer(1000, book.run.user, run=run)

    def lineage(self, peer: Peer) -> tuple[RunId, ...]:
        """Return the run that a peer is in, and those above it."""
        assert peer.run is not None
        return self.world.books[peer.run].run.lineage_ids

    def ask(self, asked: Asked, peer: Peer, *, swift: bool = False) -> None:
        before = snapshot(self.world.machine, self.world.now, USERS)
        token = self.world.spawn(asked, peer)
        answer = self.world.answers.get(token)
        if isinstance(answer, c.SpawnRefused | c.ErrorAnswer):
            assert snapshot(self.world.machine, self.world.now, USERS) == before, (
                "a refusal changed something"
            )
            kinds = {type(command) for command in self.world.batch}
            assert kinds <= {c.RecordRefusal, c.CountRefusal, c.Publish, c.AnswerRequest}, (
                "a refusal started something"
            )
        elif swift:
            # one step instead of three, else few examples ever see a grandchild
            self.world.commit(len(self.world.uncommitted))
            for box in self.world.launching:
                self.world.launched(box)

    @precondition(lambda self: len(self.world.machine.tree.roots()) < 5)
    @rule(asked=ASKED, user=st.sampled_from(USERS), swift=SWIFT)
    def spawn_root(self, asked: Asked, user: str, swift: bool) -> None:
        """A person asks for a run."""
        self.ask(asked, self.person(user), swift=swift)

    @precondition(lambda self: len(self.world.machine.tree.roots()) < 5)
    @rule(asked=PLAIN, user=st.sampled_from(USERS), group=st.sampled_from(["g", "g", "h"]))
    def spawn_in_group(self, asked: Asked, user: str, group: str) -> None:
        """A person asks for a run of a group, which may be unknown."""
        self.ask(replaced(asked, group=group), self.person(user), swift=True)

    @precondition(lambda self: 0 < len(self.world.live) < 8)
    @rule(
        asked=PLAIN, data=st.data(), within=st.booleans(), group=st.sampled_from([None, None, "g"])
    )
    def spawn_after(
        self, asked: Asked, data: st.DataObject, within: bool, group: str | None
    ) -> None:
        """A person or an agent asks for a run that starts when others have ended."""
        box: Box | None = (
            data.draw(st.sampled_from(self.world.populated))
            if within and self.world.populated
            else None
        )
        self.ask_after(asked, data, box, group)

    @precondition(lambda self: self.awaited())
    @rule(asked=PLAIN, data=st.data())
    def spawn_in_a_circle(self, asked: Asked, data: st.DataObject) -> None:
        """An agent for whose end a run waits asks for one that waits for that run, which is
        refused."""
        name = data.draw(st.sampled_from(self.awaited()))
        waiting = [
            run.id
            for run in self.world.machine.tree
            if any(after.run == name for after in run.awaits)
        ]
        awaited = (After(run=data.draw(st.sampled_from(waiting))),)
        self.ask(
            replaced(asked, queue=True, detach=False, after=awaited),
            self.inside(name),
        )
        assert not any(isinstance(command, c.Admit) for command in self.world.batch)

    def ask_after(
        self, asked: Asked, data: st.DataObject, box: Box | None, group: str | None
    ) -> None:
        """Ask for a run that waits, most often for runs that are live or wait themselves."""
        live = [*self.world.live, *(run.id for run in self.world.machine.tree if run.awaits)]
        known = [*live, *live, *(run for run, book in self.world.books.items() if book.ended)]
        awaited = data.draw(
            st.lists(
                st.builds(After, run=st.sampled_from(known), ok=st.booleans()),
                min_size=1,
                max_size=2,
            )
        )
        peer = self.inside(box.id) if box is not None else self.person("ann")
        group = group if box is None else None
        self.ask(
            replaced(asked, queue=True, after=tuple(awaited), group=group),
            peer,
            swift=True,
        )

    def awaited(self) -> list[RunId]:
        """Return the runs with a main process for whose end others wait."""
        wanted = {after.run for run in self.world.machine.tree for after in run.awaits}
        return [box.id for box in self.world.mains if box.id in wanted]

    @precondition(lambda self: self.awaited())
    @rule(data=st.data(), code=st.sampled_from([0, 0, 1]))
    def awaited_ends(self, data: st.DataObject, code: int) -> None:
        """A run ends for which others wait, with all that it has started."""
        box = self.world.boxes[data.draw(st.sampled_from(self.awaited()))]
        for each in box.subtree():
            each.strays = 0
        self.world.exited(box, code, late=False)

    @precondition(lambda self: self.world.populated)
    @rule(asked=ASKED, data=st.data(), swift=SWIFT)
    def spawn_child(self, asked: Asked, data: st.DataObject, swift: bool) -> None:
        """An agent asks for a run."""
        box: Box = data.draw(st.sampled_from(self.world.populated))
        peer = self.inside(box.id)
        prints_in = data.draw(st.sampled_from([None, *self.lineage(peer)]))
        self.ask(replaced(asked, prints_in=prints_in), peer, swift=swift)

    @precondition(lambda self: self.world.populated)
    @rule(asked=ASKED, swift=SWIFT)
    def spawn_deeper(self, asked: Asked, swift: bool) -> None:
        """The agent that was started last asks, so that chains grow long. It prints what the new
        run prints."""
        run = self.world.populated[-1].id
        self.ask(replaced(asked, prints_in=run), self.inside(run), swift=swift)

    @precondition(lambda self: any(book.ended for book in self.world.books.values()))
    @rule(asked=ASKED, data=st.data())
    def spawn_from_the_dead(self, asked: Asked, data: st.DataObject) -> None:
        """A peer asks whose run has ended meanwhile."""
        ended = [run for run, book in self.world.books.items() if book.ended]
        peer = self.inside(data.draw(st.sampled_from(ended)))
        self.ask(asked, peer)
        assert not any(isinstance(command, c.Admit) for command in self.world.batch)

    @precondition(lambda self: self.world.books)
    @rule(
        data=st.data(), grace=st.sampled_from([None, 0.0, 2.0]), whole=SELDOM, agent=st.booleans()
    )
    def stop(self, data: st.DataObject, grace: float | None, whole: bool, agent: bool) -> None:
        """A client stops some runs, or all; also ended ones, and one twice."""
        known = sorted(self.world.books)
        if whole and len(known) > 3 and data.draw(SELDOM):
            runs = known
        else:
            runs = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        peer = self.person("ann")
        if agent and self.world.populated:
            peer = self.inside(data.draw(st.sampled_from(self.world.populated)).id)
        self.world.feed(
            e.StopRequested(self.world.now, self.world.token(), peer, tuple(runs), grace=grace)
        )

    @precondition(lambda self: self.world.live)
    @rule(data=st.data(), suspended=SELDOM)
    def pause(self, data: st.DataObject, suspended: bool) -> None:
        """A person pauses a run, or suspends its client with Ctrl-Z."""
        run = data.draw(st.sampled_from(sorted(self.world.live)))
        self.world.feed(
            e.PauseRequested(
                self.world.now, self.world.token(), self.person("ann"), run, suspended=suspended
            )
        )

    @precondition(lambda self: any(run.paused for run in self.world.machine.tree))
    @rule(data=st.data())
    def fg(self, data: st.DataObject) -> None:
        """A suspended client continues, and its run with it unless a limit, a budget or a person
        keeps it paused."""
        run = self.world.live[self.one_that_waits(data)].run
        goes_on = run.suspended and run.held_by is None and run.no_money is None
        frozen = run.paused is not None and not goes_on
        self.world.feed(
            e.ResumeRequested(
                self.world.now, self.world.token(), self.person("ann"), run.id, (), suspended=True
            )
        )
        assert (run.paused is not None) == frozen
        assert not run.suspended

    @rule(data=st.data(), limits=LIMITS, agent=SELDOM)
    @precondition(lambda self: self.world.live)
    def limit(self, data: st.DataObject, limits: tuple[Limit, ...], agent: bool) -> None:
        """A client changes limits of a live run, up or down. An agent may only lower them."""
        name, peer = self.one_that_waits(data), self.somebody(data, agent)
        run = self.world.live[name].run
        before = dict(run.limits)
        event = e.LimitRequested(self.world.now, self.world.token(), peer, name, limits)
        with self.nothing_if_failed(event.token):
            answer = self.world.more_room(event)
        if isinstance(answer, c.Changed):
            asked = {limit.kind: limit.threshold for limit in limits}
            assert {kind: held.limit.threshold for kind, held in run.limits.items()} == {
                kind: held.limit.threshold for kind, held in before.items()
            } | asked
            assert peer.run is None or all(
                kind not in before or threshold <= before[kind].limit.threshold
                for kind, threshold in asked.items()
            )

    @precondition(lambda self: any(run.paused or run.held_by for run in self.world.machine.tree))
    @rule(data=st.data(), limits=LIMITS, more=st.booleans(), agent=SELDOM)
    def resume(
        self, data: st.DataObject, limits: tuple[Limit, ...], more: bool, agent: bool
    ) -> None:
        """A client resumes a run, paused or not, with more room or without."""
        run, peer = self.one_that_waits(data), self.somebody(data, agent)
        event = e.ResumeRequested(
            self.world.now, self.world.token(), peer, run, limits if more else ()
        )
        with self.nothing_if_failed(event.token):
            answer = self.world.more_room(event)
        if isinstance(answer, c.Changed) and (event.limits or self.was_held):
            assert peer.run is None, "an agent gave more room"

    @precondition(lambda self: any(run.held_by for run in self.world.machine.tree))
    @rule(data=st.data(), limits=LIMITS, more=st.booleans(), agent=SELDOM)
    def approve(
        self, data: st.DataObject, limits: tuple[Limit, ...], more: bool, agent: bool
    ) -> None:
        """A client approves an increase."""
        run, peer = self.one_that_waits(data), self.somebody(data, agent)
        event = e.ApproveRequested(
            self.world.now, self.world.token(), peer, run, limits if more else ()
        )
        with self.nothing_if_failed(event.token):
            answer = self.world.more_room(event)
        assert isinstance(answer, c.ErrorAnswer) or (
            peer.run is None and self.was_held is Action.REQUEST_INCREASE
        )

    @precondition(lambda self: any(run.held_by for run in self.world.machine.tree))
    @rule(data=st.data(), agent=SELDOM)
    def deny(self, data: st.DataObject, agent: bool) -> None:
        """A client denies an increase."""
        run, peer = self.one_that_waits(data), self.somebody(data, agent)
        event = e.DenyRequested(self.world.now, self.world.token(), peer, run)
        with self.nothing_if_failed(event.token):
            self.world.feed(event)
        failed = isinstance(self.world.answers[event.token], c.ErrorAnswer)
        assert failed or (peer.run is None and self.was_held is Action.REQUEST_INCREASE)
        assert failed or self.world.books[run].run.status in {
            Status.STOPPING,
            Status.FAILED,
            Status.TIMEOUT,
        }

    def one_that_waits(self, data: st.DataObject) -> RunId:
        """Draw a run, most often one that is held, and note by what."""
        live = self.world.live
        waiting = [run for run, book in live.items() if book.run.held_by or book.run.paused]
        run = data.draw(st.sampled_from(sorted(waiting) * 3 + sorted(live)))
        held = live[run].run.held_by
        self.was_held = held.action if held is not None else None
        return run

    def somebody(self, data: st.DataObject, agent: bool) -> Peer:
        """Return a person or an agent."""
        if agent and self.world.populated:
            return self.inside(data.draw(st.sampled_from(self.world.populated)).id)
        return self.person("ann")

    @contextmanager
    def nothing_if_failed(self, token: int) -> Iterator[None]:
        """Check that a request that fails changes nothing."""
        before = snapshot(self.world.machine, self.world.now, USERS)
        yield
        if isinstance(self.world.answers.get(token), c.ErrorAnswer):
            assert snapshot(self.world.machine, self.world.now, USERS) == before, (
                "a request that failed changed something"
            )
            assert {type(command) for command in self.world.batch} == {c.AnswerRequest}

    # ---- use

    def a_book(self, data: st.DataObject) -> Book:
        """Draw a live run, one with a containment if there is any."""
        live = self.world.live
        boxed = [run for run in live if run in self.world.boxes]
        return live[data.draw(st.sampled_from(sorted(boxed) * 3 + sorted(live)))]

    @precondition(lambda self: self.world.boxes)
    @rule(data=st.data(), source=METERS, use=uses())
    def use_seen(self, data: st.DataObject, source: Source, use: Use) -> None:
        """A meter tells a use: mostly more than before, sometimes less."""
        self.world.used(
            self.world.live[data.draw(st.sampled_from(sorted(self.world.boxes)))], source, use
        )

    @precondition(lambda self: self.world.boxes)
    @rule(
        data=st.data(),
        kind=st.sampled_from(KERNELS),
        part=st.sampled_from([0.5, 0.8, 1, 2]),
        refused=SELDOM,
    )
    def level_seen(self, data: st.DataObject, kind: LimitKind, part: float, refused: bool) -> None:
        """The kernel tells memory or processes."""
        book = self.world.live[data.draw(st.sampled_from(sorted(self.world.boxes)))]
        held = book.run.limits.get(kind)
        level = part * held.limit.threshold if held is not None else 5
        self.world.feed(e.LevelSeen(self.world.now, book.run.id, kind, level, refused))

    @precondition(lambda self: self.world.live)
    @rule(data=st.data(), words=st.sampled_from(["", "Bash in /tmp", "Edit in /tmp"]))
    def person_asked(self, data: st.DataObject, words: str) -> None:
        """A program asks a person for a call of a tool, or has its answer."""
        self.world.feed(e.PersonAsked(self.world.now, self.a_book(data).run.id, words))

    @precondition(lambda self: self.world.live)
    @rule(data=st.data(), more=uses(), agent=st.booleans())
    def report(self, data: st.DataObject, more: Use, agent: bool) -> None:
        """An agent or a person reports, whatever the run's status."""
        book, peer = self.a_book(data), self.somebody(data, agent)
        answer = self.world.report(book, peer, more)
        assert isinstance(answer, c.ErrorAnswer) is not self.within(book.run, peer)

    @precondition(lambda self: self.world.live)
    @rule(data=st.data(), told=st.lists(uses(), min_size=2, max_size=4))
    def busy(self, data: st.DataObject, told: list[Use]) -> None:
        """An agent works for a while."""
        book = self.a_book(data)
        for use in told:
            if not book.ended:
                self.world.report(book, self.person("ann"), use)

    @precondition(lambda self: self.world.live)
    @rule(data=st.data(), reservation=RESERVATIONS, agent=SELDOM)
    def reserve(self, data: st.DataObject, reservation: OpenReservation, agent: bool) -> None:
        """An agent reserves before a call: each account and budget is charged, or none."""
        book, peer = self.a_book(data), self.somebody(data, agent)
        kinds = (*OF_TREES, *OF_RUNS)
        before = [
            self.world.used_in_all(above, kind)
            for above in [*book.ancestors, book]
            for kind in kinds
        ]
        answer = self.world.reserve(book, peer, reservation)
        after = [
            self.world.used_in_all(above, kind)
            for above in [*book.ancestors, book]
            for kind in kinds
        ]
        if isinstance(answer, c.ReserveAnswer) and answer.reservation is not None:
            assert self.within(book.run, peer)
        else:
            assert before == after, "charged for a refused reservation"

    @precondition(lambda self: self.world.reservations)
    @rule(data=st.data(), used=uses(), agent=SELDOM)
    def settle(self, data: st.DataObject, used: Use, agent: bool) -> None:
        """Settle a reservation. One that was settled, or charged at its run's end, changes
        nothing."""
        names = sorted(self.world.reservations)
        still = [
            name
            for name in names
            if name in self.world.reservations[name].reservations
            and not self.world.reservations[name].ended
        ]
        name = data.draw(st.sampled_from(names + still * 3))
        answer = self.world.settle(name, self.somebody(data, agent), used)
        assert name in still or isinstance(answer, c.ErrorAnswer)

    def within(self, run: Run, peer: Peer) -> bool:
        return peer.run is None or peer.run in {each.id for each in run.lineage}

    @precondition(lambda self: self.world.boxes)
    @rule(data=st.data(), finished=st.booleans(), failed=st.sampled_from([None, None, "no credit"]))
    def agent_said(self, data: st.DataObject, finished: bool, failed: str | None) -> None:
        """An agent prints its result, or that it failed."""
        run = data.draw(st.sampled_from(sorted(self.world.boxes)))
        self.world.feed(e.AgentSaid(self.world.now, run, finished, failed))

    @precondition(lambda self: self.world.boxes)
    @rule(data=st.data(), pid=st.integers(5000, 5003), is_main=st.booleans())
    def agent_seen(self, data: st.DataObject, pid: int, is_main: bool) -> None:
        """An agent program was started without asking, or is the run's own."""
        book = self.world.live[data.draw(st.sampled_from(sorted(self.world.boxes)))]
        before, stopping = book.run.seen.unadmitted, book.run.status is Status.STOPPING
        process = e.AgentProcess(pid, 1, "claude", "claude", is_main=is_main)
        self.world.feed(e.AgentSeen(self.world.now, book.run.id, process))
        assert not (is_main or stopping) or book.run.seen.unadmitted == before
        for each in (book, *book.ancestors):
            each.unasked += book.run.seen.unadmitted - before

    @precondition(lambda self: self.world.boxes)
    @rule(data=st.data(), tools=st.sampled_from([("Read",), ("Bash", "Read"), ("Bash", "Bash")]))
    def tools_called(self, data: st.DataObject, tools: tuple[str, ...]) -> None:
        """An agent calls tools, forbidden ones too."""
        book = self.world.live[data.draw(st.sampled_from(sorted(self.world.boxes)))]
        running = book.run.status is not Status.STOPPING
        self.world.feed(e.ToolsCalled(self.world.now, book.run.id, tools))
        if (
            running
            and "Bash" in tools
            and book.run.asked.terms.blocked_tools
            and book.run.asked.terms.on_limit is not Action.WARN
        ):
            assert book.run.status is Status.STOPPING

    @precondition(lambda self: self.tied())
    @rule(client=st.sampled_from([1, 2]))
    def client_gone(self, client: int) -> None:
        """A connection ends."""
        self.world.feed(e.ClientGone(self.world.now, client))

    @precondition(lambda self: len(self.world.books) > 4)
    @rule(really=st.integers(0, 4))
    def drain(self, really: int) -> None:
        """The daemon is told to end; rarely, because little happens afterwards."""
        if really == 0:
            self.drained = True
            self.world.feed(e.DrainRequested(self.world.now))

    @precondition(lambda self: len(self.world.books) > 2)
    @rule(per_user=st.integers(1, 3), total=st.integers(1, 4), rate=st.sampled_from([3, 100]))
    def reload(self, per_user: int, total: int, rate: int) -> None:
        """The quotas change; running trees continue."""
        policy = changed(
            self.world.policy, trees_per_user=per_user, trees=total, spawns_per_hour=rate
        )
        self.world.policy = policy
        self.world.feed(e.Reconfigured(self.world.now, policy))

    # ---- the ledger, the launcher and the clock

    @precondition(lambda self: self.world.uncommitted)
    @rule(count=st.integers(1, 3))
    def commit(self, count: int) -> None:
        """The ledger commits admissions."""
        self.world.commit(count)

    @precondition(lambda self: self.world.uncommitted)
    @rule(count=st.integers(1, 3))
    def fail_commit(self, count: int) -> None:
        """The ledger fails to commit admissions."""
        self.world.fail_commit(count)

    @precondition(lambda self: self.world.launching)
    @rule(data=st.data())
    def launched(self, data: st.DataObject) -> None:
        """A command is executed."""
        self.world.launched(data.draw(st.sampled_from(self.world.launching)))

    @precondition(lambda self: self.world.launching)
    @rule(data=st.data())
    def launch_failed(self, data: st.DataObject) -> None:
        """A command cannot be executed."""
        self.world.launch_failed(data.draw(st.sampled_from(self.world.launching)))

    @precondition(lambda self: self.world.mains)
    @rule(data=st.data(), code=st.sampled_from([0, 1, None]), late=st.booleans())
    def exited(self, data: st.DataObject, code: int | None, late: bool) -> None:
        """A main process ends, in any state."""
        self.world.exited(data.draw(st.sampled_from(self.world.mains)), code, late=late)

    @precondition(lambda self: self.world.populated)
    @rule(data=st.data())
    def forked(self, data: st.DataObject) -> None:
        """An agent leaves a process in the background."""
        box: Box = data.draw(st.sampled_from(self.world.populated))
        box.strays += 1

    @precondition(lambda self: any(box.strays for box in self.world.populated))
    @rule(data=st.data())
    def strays_gone(self, data: st.DataObject) -> None:
        """A background process ends."""
        box: Box = data.draw(st.sampled_from(self.world.populated))
        box.strays = 0

    @precondition(lambda self: self.world.owed_emptied)
    @rule(data=st.data())
    def emptied(self, data: st.DataObject) -> None:
        """The launcher reports that nothing is alive."""
        self.world.emptied(data.draw(st.sampled_from(self.world.owed_emptied)))

    @precondition(lambda self: self.world.owed_frozen)
    @rule(data=st.data())
    def frozen(self, data: st.DataObject) -> None:
        """The launcher reports that everything is frozen."""
        self.world.stands(data.draw(st.sampled_from(self.world.owed_frozen)))

    @precondition(lambda self: self.world.owed_survey)
    @rule(data=st.data())
    def surveyed(self, data: st.DataObject) -> None:
        """A survey is answered."""
        self.world.surveyed(data.draw(st.sampled_from(self.world.owed_survey)))

    @precondition(lambda self: self.world.timers)
    @rule()
    def next_timer(self) -> None:
        """Let time pass until the next timer."""
        self.world.advance(max(0.0, min(self.world.timers.values()) - self.world.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        """Time passes."""
        self.world.advance(min(seconds, 7.0) if self.world.live else seconds)

    # ---- the daemon

    @rule(
        data=st.data(),
        prefix=st.one_of(st.none(), st.integers(BEFORE, 12)),
        gap=st.sampled_from([0.0, 0.0, 2.5, 9.0, 50.0]),
        reboot=SELDOM,
        gently=st.booleans(),
        raised=SELDOM,
    )
    def crash(
        self,
        data: st.DataObject,
        prefix: int | None,
        gap: float,
        reboot: bool,
        gently: bool,
        raised: bool,
    ) -> None:
        """The daemon is killed, between two events or at any effect of one, and is there again
        after a while, perhaps with more money in its config."""
        if prefix is not None:
            actions = self.what_may_happen(data)
            action = actions[data.draw(st.sampled_from(sorted(actions)))]
            self.world.crash_after = prefix
            with suppress(Crashed):
                action()
        if raised:
            for purse in self.world.purses.values():
                purse.allowed *= 16
        fates = ["lives"] if gently else ["lives", "lives", "lives", "forks", "main exits", "gone"]
        self.world.die(
            lambda _: data.draw(st.sampled_from(fates)),
            gap=gap,
            reboot=reboot,
            startable=lambda _: gently or data.draw(st.sampled_from([True, True, True, False])),
        )
        self.drained = False

    def what_may_happen(self, data: st.DataObject) -> dict[str, Callable[[], object]]:
        """Events that a crash may interrupt."""
        world = self.world
        draw = data.draw
        actions: dict[str, Callable[[], object]] = {
            "spawn a root": lambda: self.ask(draw(ASKED), self.person("ann")),
            "drain": lambda: world.feed(e.DrainRequested(world.now)),
            "reload": lambda: world.feed(e.Reconfigured(world.now, world.policy)),
        }
        if world.timers:
            actions["timer"] = self.next_timer
        if world.uncommitted:
            actions |= {
                "commit": lambda: world.commit(3),
                "fail commit": lambda: world.fail_commit(3),
            }
        if self.tied():
            actions["client gone"] = lambda: world.feed(
                e.ClientGone(world.now, draw(st.sampled_from([1, 2])))
            )
        if world.populated:
            actions |= {
                "spawn a child": lambda: self.ask(
                    draw(ASKED), self.inside(draw(st.sampled_from(world.populated)).id)
                ),
                "said": lambda: self.agent_said(
                    data, draw(st.booleans()), draw(st.sampled_from([None, "no credit"]))
                ),
                "tool": lambda: self.tools_called(data, ("Bash",)),
                "level": lambda: self.level_seen(
                    data, LimitKind.MEMORY, draw(st.sampled_from([0.5, 2])), False
                ),
                "use": lambda: self.use_seen(data, draw(METERS), draw(uses())),
            }
        if world.live:
            actions |= {
                "stop": lambda: self.stop(
                    data, draw(st.sampled_from([None, 0.0, 2.0])), False, False
                ),
                "pause": lambda: self.pause(data, draw(st.booleans())),
                "fg": lambda: self.fg(data),
                "limit": lambda: self.limit(data, draw(LIMITS), False),
                "resume": lambda: self.resume(data, draw(LIMITS), draw(st.booleans()), False),
                "approve": lambda: self.approve(data, draw(LIMITS), draw(st.booleans()), False),
                "deny": lambda: self.deny(data, False),
                "report": lambda: self.report(data, draw(uses()), False),
                "reserve": lambda: self.reserve(data, draw(RESERVATIONS), False),
            }
        if world.reservations:
            actions["settle"] = lambda: self.settle(data, draw(uses()), False)
        if world.launching:
            actions |= {
                "launched": lambda: self.launched(data),
                "launch failed": lambda: self.launch_failed(data),
            }
        if world.mains:
            actions["exited"] = lambda: self.exited(
                data, draw(st.sampled_from([0, 1, None])), draw(st.booleans())
            )
        if world.owed_emptied:
            actions["emptied"] = lambda: self.emptied(data)
        if world.owed_frozen:
            actions["frozen"] = lambda: self.frozen(data)
        if world.owed_survey:
            actions["surveyed"] = lambda: self.surveyed(data)
        return actions

    @rule(data=st.data())
    def re_execute(self, data: st.DataObject) -> None:
        """Re-execute the daemon, unless it is ending."""
        if not self.drained:
            self.world.re_execute(lambda _: data.draw(st.sampled_from([True, True, True, False])))

    @rule()
    def save_use(self) -> None:
        """What was used is saved."""
        self.world.save_use()

    @precondition(lambda self: any(run.tied_to is not None for run in self.world.machine.tree))
    @rule(data=st.data(), client=st.sampled_from([1, 2, 3]))
    def client_back(self, data: st.DataObject, client: int) -> None:
        """A client has reconnected."""
        runs = [run.id for run in self.world.machine.tree if run.tied_to is not None]
        run = data.draw(st.sampled_from(runs))
        self.world.feed(e.ClientBack(self.world.now, run, client))
        assert (run, "reconnect") not in self.world.timers

    # ---- what must hold after every step

    @invariant()
    def what_is_remembered_is_true(self) -> None:
        """The next daemon could continue with every live run as it is now."""
        self.world.check_copies()

    @invariant()
    def processes_belong_to_runs(self) -> None:
        """Each process belongs to a live run, and a run is frozen exactly while it is paused."""
        for box in self.world.boxes.values():
            assert not box.alive or box.id in self.world.live
        for run in self.world.machine.tree:
            assert not run.paused or run.status is Status.PAUSED
            assert run.paused or not run.suspended
            if run.status in {Status.RUNNING, Status.PAUSED}:
                assert self.world.boxes[run.id].stands == (run.status is Status.PAUSED)

    @invariant()
    def clients_hold_their_runs(self) -> None:
        """A tied run ends with its connection, or after a while if an earlier daemon lost that."""
        for run in self.world.machine.tree:
            if run.status is Status.STOPPING:
                continue
            waits = (run.id, "reconnect") in self.world.timers
            assert waits == (run.tied_to == GONE and not run.suspended), (
                "a client that is stopped cannot come back"
            )
            assert not waits or self.world.timers[run.id, Timer.RECONNECT] <= self.world.now + 10

    def tied(self) -> bool:
        """Return whether a run that is not being stopped is tied to a connection."""
        going = [run for run in self.world.machine.tree if run.status is not Status.STOPPING]
        return any(run.tied_to not in (None, GONE) for run in going)

    @invariant()
    def queues_are_in_order(self) -> None:
        """Higher priority first, then first come."""
        for places in places_in_queues(self.world.machine).values():
            assert sorted(places) == list(range(1, len(places) + 1))
            runs = [places[place] for place in sorted(places)]
            assert [-run.asked.queueing.priority for run in runs] == sorted(
                -run.asked.queueing.priority for run in runs
            )
            # the others came to the queue when what they waited for had ended
            waiting = [run for run in runs if not run.asked.queueing.after]
            assert waiting == sorted(
                waiting, key=lambda run: (-run.asked.queueing.priority, run.birth.number)
            )

    @invariant()
    def the_tree_is_the_live_runs(self) -> None:
        """The tree has exactly the live runs."""
        assert {run.id for run in self.world.machine.tree} == set(self.world.live)
        for run in self.world.machine.tree:
            assert not run.status.terminal
            assert run.parent is None or run.parent.children[run.id] is run
            assert run.parent is None or self.world.machine.tree.get(run.parent.id) is run.parent

    @invariant()
    def budgets_add_up(self) -> None:
        """The machine's counters match the books, and stay within their bounds."""
        for book in self.world.live.values():
            assert book.run.admitted == book.descendants + book.unasked
            assert book.descendants <= book.run.birth.max_descendants.value
            assert book.run.birth.max_descendants.value == book.max_descendants
            assert book.run.birth.max_depth.value == book.max_depth

    @invariant()
    def calls_under_way_add_up(self) -> None:
        """What is summed for each user is what the live runs have reserved."""
        machine = self.world.machine
        under_way = machine.calls_of_users
        for user in {book.run.user for book in self.world.books.values()}:
            accounts = [run.account for run in machine.tree if run.user == user]
            assert under_way.count(user) == sum(
                account.reserved_by_gateway.get(LimitKind.MESSAGES, 0) for account in accounts
            )
            assert under_way.doubts(user) == sum(
                account.doubts.get(LimitKind.COST, 0) for account in accounts
            )

    @invariant()
    def the_status_follows_from_the_holds(self) -> None:
        """A run is queued, paused or retrying if, and only if, something holds it."""
        check_holds(self.world.machine, self.world.now)

    @invariant()
    def slots_add_up(self) -> None:
        """There is one slot for each live root that does not wait, and never more than a user or
        the daemon may have."""
        slots, policy = self.world.machine.slots, self.world.policy
        roots = self.world.machine.tree.roots()
        holders = [run for run in roots if not slots.waits(run.id)]
        assert slots.count == len(holders)
        # a reload may leave more than the new numbers allow; the next tree must fit under them
        for new in {run.id for run in holders} - self.holders:
            user = self.world.books[new].run.user
            assert slots.count <= policy.quotas.trees
            assert slots.user_count(user) <= policy.quotas.trees_per_user
            group = self.world.books[new].run.asked.queueing.group
            assert group is None or slots.group_count(user, group) <= policy.groups.get(group, 1000)
        self.holders = {run.id for run in holders}
        for user in USERS:
            assert slots.user_count(user) == len([run for run in holders if run.user == user])
            for group in "gh":
                assert slots.group_count(user, group) == len(
                    [
                        run
                        for run in holders
                        if (run.user, run.asked.queueing.group) == (user, group)
                    ]
                )
        assert slots.queued == len(roots) - len(holders)
        assert all(run.status is Status.QUEUED for run in roots if slots.waits(run.id))

    @invariant()
    def no_request_waits_for_nothing(self) -> None:
        """A tree waits only while the user, the group or the daemon has no free slot, and a run
        only while one lives that it waits for, and does not wait for it."""
        slots, tree = self.world.machine.slots, self.world.machine.tree
        for run in tree:
            assert run.status in {Status.QUEUED, Status.STOPPING} or not run.awaits
            if run.status is not Status.QUEUED:
                continue
            assert all(tree.get(after.run) is not None for after in run.awaits)
            if run.awaits:
                self.check_no_circle(run)
            elif run.parent is None:
                assert not slots.waits(run.id) or not slots.free_for(
                    run.user, run.asked.queueing.group
                )
                assert slots.waits(run.id) or not run.committed
            else:
                assert run.paused_in_lineage or not run.committed

    def check_no_circle(self, run: Run) -> None:
        """Check that nothing that the run waits for can only end after it."""
        reached = [run]
        for each in reached:
            for after in each.awaits:
                awaited = self.world.machine.tree.get(after.run)
                if awaited is None:
                    assert each.status is Status.STOPPING, (
                        "what is stopped waits for nothing any more"
                    )
                    continue
                assert awaited not in run.lineage
                if awaited not in reached:
                    reached.append(awaited)

    @invariant()
    def clocks_match(self) -> None:
        """A clock counts, and its deadline is armed, exactly while the run is running."""
        for run in self.world.machine.tree:
            running = run.status is Status.RUNNING and not run.asks
            assert (run.clock.since is not None) == running
            mark = self.world.next_mark(self.world.books[run.id])
            if run.latest.stage_until is not None:
                mark = min(mark, run.latest.stage_until)
            due = (
                run.clock.since + mark - run.clock.counted if run.clock.since is not None else None
            )
            armed = self.world.timers.get((run.id, Timer.DEADLINE))
            # a run that was given another time while it was starting has a timer that does nothing
            # if the run is paused by then
            assert armed == due or (due is None and run.status in {Status.STARTING, Status.PAUSED})
            if running:
                assert run.clock.elapsed(self.world.now) <= run.allowed_time
                assert run.own_deadline is not None
                assert run.deadline is not None
                assert run.deadline <= run.own_deadline
            if run.status in {Status.RUNNING, Status.PAUSED}:
                assert run.paused_in_lineage == (run.status is Status.PAUSED)

    @invariant()
    def each_run_will_be_acted_on(self) -> None:
        """A run that is not running waits for an event that will come."""
        for run in self.world.machine.tree:
            if run.status is Status.RETRYING and not run.clearing and not run.paused_in_lineage:
                assert (run.id, "retry") in self.world.timers
            if run.status is Status.STARTING:
                assert run.id in self.world.boxes
                assert self.world.boxes[run.id].starting
            if run.clearing or (run.status is Status.STOPPING and run.attempt):
                assert any(self.will_be_killed(r) for r in run.lineage), (
                    f"nothing will ever kill {run.id}"
                )
                asked = [
                    r
                    for r in run.lineage
                    if r.ladder is not None and r.ladder.rung is Rung.INTERRUPTED
                ]
                emptying = [
                    r
                    for r in run.lineage
                    if r.id in self.world.boxes and self.world.boxes[r.id].emptying
                ]
                assert asked or emptying, "no report will come"

    def will_be_killed(self, run: Run) -> bool:
        if run.ladder is None:
            return False
        if run.ladder.rung is Rung.KILLED:
            return self.world.boxes[run.id].killing
        return any((run.id, timer) in self.world.timers for timer in ("polite", "grace"))

    @invariant()
    def ladders_are_the_stopping_ones(self) -> None:
        """Only a run that is being emptied has a ladder, and the timers of one."""
        for run in self.world.machine.tree:
            emptying = run.status is Status.STOPPING or run.clearing
            assert run.ladder is None or emptying
            for timer in ("grace", "survey"):
                assert (run.id, timer) not in self.world.timers or run.ladder is not None
            asked = run.ladder is not None and run.ladder.rung is Rung.INTERRUPTED
            assert ((run.id, "polite") in self.world.timers) == asked
            if run.ladder is not None and asked:
                assert (run.id, "grace") not in self.world.timers
                assert all(self.world.boxes[name].main for name in run.ladder.interrupted), (
                    "it waits for a main process that has ended"
                )
                assert run.ladder.polite_ends_at <= run.ladder.grace_ends_at

    @invariant()
    def pauses_are_pending(self) -> None:
        """A pause request waits only while its freeze is under way, or its run is ending."""
        for run in self.world.machine.tree:
            if run.pause_tokens:
                assert run.paused or run.status is Status.STOPPING

    @invariant()
    def nothing_survives_a_stopping_ancestor(self) -> None:
        """Below a run that is being emptied, every run is ending."""
        for run in self.world.machine.tree:
            if run.parent is not None and (
                run.parent.status is Status.STOPPING or run.parent.clearing
            ):
                assert run.status is Status.STOPPING

    @invariant()
    def accounts_add_up(self) -> None:
        """Each limit counts the sum of the books; what was never told is unknown."""
        self.add_up(list(self.world.live.values()))
        for book in self.world.live.values():
            assert set(book.run.account.reservations) == set(book.reservations)
        open_ = {name for book in self.world.live.values() for name in book.reservations}
        assert all(self.world.machine.reservation(name) is not None for name in open_)

    def add_up(self, books: list[Book]) -> None:
        """Check that for these runs."""
        for book in books:
            for kind in (*OF_TREES, *OF_RUNS):
                used, expected = (
                    book.run.account.used(LimitKind(kind)),
                    self.world.used_in_all(book, kind),
                )
                assert (used or 0) == (expected or 0), kind
                assert used is None or expected is not None or self.world.ever_known(book, kind)

    @invariant()
    def no_run_above_a_limit_goes_on(self) -> None:
        """A run above a limit was acted on at once, or an ancestor's breach holds it."""
        for book in self.world.live.values():
            for kind, held in book.run.limits.items():
                if kind.value not in (*OF_TREES, *OF_RUNS) or held.action is Action.WARN:
                    continue
                if (self.world.used_in_all(book, kind.value) or 0) > held.threshold:
                    terminates = held.action is Action.TERMINATE
                    held_above = any(above.held_by is not None for above in book.run.ancestors)
                    waits = not terminates and book.run.held_by is not None
                    assert book.run.status is Status.STOPPING or waits or held_above

    @invariant()
    def what_waits_does_not_run_and_not_for_ever(self) -> None:
        """A run that waits for a decision is paused or not launched, and a timer bounds the
        wait."""
        for run in self.world.machine.tree:
            timers = {timer for name, timer in self.world.timers if name == run.id}
            waits = run.held_by is not None and run.held_by.action is Action.REQUEST_INCREASE
            assert ("approval" in timers) == waits
            assert ("pause_max" in timers) == (run.paused is not None)
            assert run.held_by is None or run.status is not Status.RUNNING
            if run.held_by is not None and run.status is Status.PAUSED:
                assert run.paused, "another request's resume would let it continue"
            if "result" in timers:
                assert run.latest.said_finished
                assert not run.asked.takes_input
            if (
                run.latest.said_finished
                and not run.asked.takes_input
                and run.status in {Status.RUNNING, Status.PAUSED}
            ):
                assert "result" in timers
            known = {
                "deadline",
                "approval",
                "pause_max",
                "result",
                "polite",
                "grace",
                "survey",
                "retry",
                "reconnect",
            }
            assert timers <= known

    @invariant()
    def no_run_outlives_an_ancestor(self) -> None:
        """A run's deadline is no later than its ancestors'."""
        for run in self.world.machine.tree:
            for above in run.ancestors:
                if run.deadline is not None and above.own_deadline is not None:
                    assert run.deadline <= above.own_deadline

    # ---- the end

    def teardown(self) -> None:
        """Stop everything, and check that nothing is left."""
        with self.stack:
            world = self.world
            runs = tuple(world.live)
            world.feed(e.StopRequested(world.now, world.token(), self.person("root"), runs))
            for _ in range(200):
                if not world.live:
                    break
                self.run_out()
            assert not world.live, (
                f"did not end: {[(b.run.id, b.run.status) for b in world.live.values()]}"
            )
            self.check_the_end()

    def run_out(self) -> None:
        world = self.world
        world.commit(len(world.uncommitted))
        for box in world.launching:
            world.launched(box)
        for box in world.mains:
            if box.main:  # an earlier one of this round may have ended it
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
        assert not world.machine.tickets()
        # what was reserved counts as used, and ended runs still count
        self.add_up(list(world.books.values()))
        assert all(caller.startswith("user ") for caller in world.machine.refused_callers), (
            "kept for runs that are gone"
        )
        assert all(
            book.run.status.terminal and book.run.ended_at is not None
            for book in world.books.values()
        )
        assert bool(world.shutdowns) == self.drained


SETTINGS = settings(
    max_examples=examples(40),
    stateful_step_count=60,
    deadline=None,
    database=None,
    # shrinking sixty steps takes five minutes; add Phase.shrink to read a failure
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)
MachineAgainstShell.TestCase.settings = SETTINGS
TestMachineAgainstShell = MachineAgainstShell.TestCase

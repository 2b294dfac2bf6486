"""Random walks with many live runs, which Hypothesis's short examples rarely reach.

The same world and the same invariants; the steps are drawn by a seeded generator with weights that
keep a few trees working near their limits. A walk that fails is repeated by its number.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.state.access import Peer
from sfad.core.state.account import OpenReservation, Use
from sfad.core.state.money import NANOS
from sfad.protocol.kinds import METERED_KINDS
from sfad.protocol.types import Action, Limit, LimitKind, Role, Source
from tests.core.asking import asked_for, replaced
from tests.core.policies import policy
from tests.tiers import sampled

from .machine_model import BEFORE, Book, Crashed, World
from .test_machine_stateful import (
    ACTIONS,
    KERNELS,
    MAX_TIME,
    OFTEN,
    THRESHOLDS,
    MachineAgainstShell,
)
from .transcript import ANN

STEPS = 120
WALKS = range(80)
EVERY_ACTION = [None, *ACTIONS, Action.PAUSE, Action.REQUEST_INCREASE]

INVARIANTS = [
    MachineAgainstShell.what_is_remembered_is_true,
    MachineAgainstShell.processes_belong_to_runs,
    MachineAgainstShell.clients_hold_their_runs,
    MachineAgainstShell.the_tree_is_the_live_runs,
    MachineAgainstShell.calls_under_way_add_up,
    MachineAgainstShell.slots_add_up,
    MachineAgainstShell.clocks_match,
    MachineAgainstShell.each_run_will_be_acted_on,
    MachineAgainstShell.ladders_are_the_stopping_ones,
    MachineAgainstShell.pauses_are_pending,
    MachineAgainstShell.nothing_survives_a_stopping_ancestor,
    MachineAgainstShell.accounts_add_up,
    MachineAgainstShell.no_run_above_a_limit_goes_on,
    MachineAgainstShell.what_waits_does_not_run_and_not_for_ever,
]


class Walk:
    """One walk. What it did is counted in `done`."""

    SHELL: ClassVar[type[MachineAgainstShell]] = MachineAgainstShell

    def __init__(self, number: int) -> None:
        self.dice = random.Random(number)
        self.printing = random.Random(f"who prints in whom {number}")
        self.done: Counter[str] = Counter()
        self.shell = self.SHELL()
        self.world = self.shell.world = self.SHELL.WORLD(
            policy(
                grace=2.0, kill_wait=1.0, max_time=MAX_TIME,
                pause_max=self.dice.choice([6.0, 86400.0]), approval_timeout=8.0, result_wait=3.0,
                delay=0.5,
                defaults=self.dice.choice([{}, {LimitKind.TIME: self.limit([LimitKind.TIME])}]),
            )
        )  # fmt: skip
        self.steps: list[tuple[float, Any]] = [
            (5, self.spawn), (4, self.commit), (0.3, self.fail_commit), (8, self.launched),
            (0.3, self.launch_failed), (3, self.exited), (0.4, self.stop), (2, self.pause),
            (3, self.resume), (3, self.approve), (3, self.deny), (6, self.use),
            (2, self.change_limits), (0.3, self.reload), (6, self.report), (5, self.reserve),
            (4, self.settle), (1, self.level), (1.5, self.said), (0.4, self.tools), (4, self.timer),
            (3, self.time), (3, self.emptied), (2, self.frozen), (1, self.surveyed),
            (0.01, self.drain), (0.6, self.crash), (0.3, self.re_execute),
            (2, self.shell.save_use), (0.2, self.client_gone), (0.5, self.client_back),
        ]  # fmt: skip

    def begin(self) -> None:
        """Do what comes before all steps."""

    def go(self, steps: int) -> None:
        """Take so many steps, with all invariants checked after each."""
        self.begin()
        weights = [weight for weight, _ in self.steps]
        for _, step in self.dice.choices(self.steps, weights, k=steps):
            step()
            self.done["used"] += len(self.world.noted)
            for command in self.world.batch:
                name = (
                    command.event.type if isinstance(command, c.Publish) else type(command).__name__
                )
                self.done[
                    f"{name} {command.event.limit_kind}" if isinstance(command, c.Publish) else name
                ] += 1
            for holds in INVARIANTS:
                holds(self.shell)

    # ---- choices

    def limit(self, kinds: list[LimitKind]) -> Limit:
        kind = self.dice.choice(kinds)
        action = (
            self.dice.choice(EVERY_ACTION)
            if kind not in {LimitKind.OUTPUT, LimitKind.CPU}
            else None
        )
        action = action if action is not Action.REFUSE or kind in METERED_KINDS else None
        return Limit(
            kind=kind, threshold=self.dice.choice(THRESHOLDS[kind]), action=action, source="--limit"
        )

    def limits(self) -> tuple[Limit, ...]:
        return tuple(
            self.limit([*LimitKind, *OFTEN, *OFTEN]) for _ in range(self.dice.randrange(4))
        )

    def book(self) -> Book | None:
        live = list(self.world.live.values())
        return self.dice.choice(live) if live else None

    def waiting(self) -> Book | None:
        """Return a run, most often one that is held or paused."""
        standing = [
            book
            for book in self.world.live.values()
            if book.run.held_by is not None or book.run.paused
        ]
        return self.dice.choice(standing) if standing and self.dice.random() < 0.9 else self.book()

    def peer(self) -> Peer:
        """Return a peer, most often a person."""
        inside = self.world.populated
        if inside and self.dice.random() < 0.1:
            return self.shell.inside(self.dice.choice(inside).id)
        return Peer(1000, "ann")

    def amounts(self) -> Use:
        def some() -> int | None:
            return self.dice.choice([None, None, 0, 1, 1, 2, 5])

        output = some()
        cost = self.dice.choice([None, 0, 62_500_000, 125_000_000, 250_000_000])
        guess = self.dice.choice([0, 0, output or 0])
        return Use(
            turns=some(), messages=some(), input_tokens=some(), output_tokens=output,
            cost=cost, planning_cost=self.dice.choice([None, None, 62_500_000]),
            guessed_tokens=guess or None, guessed_cost=(guess and (cost or 0) // 2) or None,
            partial=self.dice.random() < 0.1,
        )  # fmt: skip

    def told(self) -> Use:
        """Return amounts without an estimate: only meters of what an agent prints estimate."""
        return replace(self.amounts(), guessed_tokens=None, guessed_cost=None)

    # ---- steps

    def spawn(self) -> None:
        inside = self.world.populated
        peer, prints_in = Peer(1000, self.dice.choice(["ann", "bob"])), None
        if inside and self.dice.random() < 0.6:
            peer = self.shell.inside(self.dice.choice(inside).id)
            prints_in = self.printing.choice([None, *self.shell.lineage(peer)])
        asked = asked_for(
            ("claude",) if len(self.world.live) % 2 else ("x",), name=f"n{self.dice.randrange(50)}",
            limits=self.limits(), attempts=self.dice.choice([1, 1, 3]),
            on_limit=self.dice.choice(EVERY_ACTION), grace=self.dice.choice([None, 0.0]),
            blocked_tools=self.dice.choice([(), ("Bash",)]),
            tied_to=self.dice.choice([None, None, None, 1, 2]), prints_in=prints_in,
        )  # fmt: skip
        if len(self.world.live) < 12:
            self.world.spawn(asked, peer)

    def commit(self) -> None:
        if self.world.uncommitted:
            self.world.commit(3)

    def fail_commit(self) -> None:
        if self.world.uncommitted:
            self.world.fail_commit(1)

    def launched(self) -> None:
        for box in self.world.launching[:2]:
            self.world.launched(box)

    def launch_failed(self) -> None:
        for box in self.world.launching[:1]:
            self.world.launch_failed(box)

    def exited(self) -> None:
        if self.world.mains:
            box = self.dice.choice(self.world.mains)
            box.strays += self.dice.random() < 0.2
            self.world.exited(box, self.dice.choice([0, 1, 1, None]), late=self.dice.random() < 0.3)

    def stop(self) -> None:
        if (book := self.book()) is not None:
            world = self.world
            world.feed(e.StopRequested(world.now, world.token(), self.peer(), (book.run.id,)))

    def pause(self) -> None:
        if (book := self.book()) is not None:
            self.world.feed(
                e.PauseRequested(self.world.now, self.world.token(), self.peer(), book.run.id)
            )

    def resume(self) -> None:
        if (book := self.waiting()) is not None:
            limits = self.limits() if self.dice.random() < 0.5 else ()
            self.world.more_room(
                e.ResumeRequested(
                    self.world.now, self.world.token(), self.peer(), book.run.id, limits
                )
            )

    def approve(self) -> None:
        if (book := self.waiting()) is not None:
            limits = self.limits() if self.dice.random() < 0.5 else ()
            self.world.more_room(
                e.ApproveRequested(
                    self.world.now, self.world.token(), self.peer(), book.run.id, limits
                )
            )

    def deny(self) -> None:
        if (book := self.waiting()) is not None:
            self.world.feed(
                e.DenyRequested(self.world.now, self.world.token(), self.peer(), book.run.id)
            )

    def change_limits(self) -> None:
        if (book := self.waiting()) is not None:
            event = e.LimitRequested(
                self.world.now, self.world.token(), self.peer(), book.run.id, self.limits()
            )
            self.world.more_room(event)

    def reload(self) -> None:
        self.shell.reload(self.dice.randint(1, 3), self.dice.randint(1, 4), 1000)

    def use(self) -> None:
        if self.world.boxes:
            book = self.world.books[self.dice.choice(list(self.world.boxes))]
            source: Source = self.dice.choice(["stream", "stream", "gateway"])
            self.world.used(book, source, self.told() if source == "gateway" else self.amounts())

    def report(self) -> None:
        if (book := self.book()) is not None:
            self.world.report(book, self.peer(), self.told())

    def reserve(self) -> None:
        if (book := self.book()) is not None:
            role: Role | None = self.dice.choice([None, "planning", "execution"])
            cost = self.dice.choice([None, 62_500_000, 250_000_000, NANOS])
            self.world.reserve(
                book, self.peer(), OpenReservation("m", self.dice.choice([0, 2, 8]), 1, cost, role)
            )

    def settle(self) -> None:
        if self.world.reservations:
            self.world.settle(
                self.dice.choice(list(self.world.reservations)[-8:]), self.peer(), self.told()
            )

    def level(self) -> None:
        if self.world.boxes:
            book = self.world.books[self.dice.choice(list(self.world.boxes))]
            kind = self.dice.choice(KERNELS)
            level = self.dice.choice([0.5, 0.9, 1, 2]) * THRESHOLDS[kind][0]
            self.world.feed(
                e.LevelSeen(self.world.now, book.run.id, kind, level, self.dice.random() < 0.1)
            )

    def said(self) -> None:
        if self.world.boxes:
            run = self.dice.choice(list(self.world.boxes))
            failed = self.dice.choice([None, "no credit"])
            self.world.feed(e.AgentSaid(self.world.now, run, self.dice.random() < 0.5, failed))

    def tools(self) -> None:
        if self.world.boxes:
            self.world.feed(
                e.ToolsCalled(
                    self.world.now, self.dice.choice(list(self.world.boxes)), ("Read", "Bash")
                )
            )

    def timer(self) -> None:
        if self.world.timers:
            self.world.advance(min(max(0.0, min(self.world.timers.values()) - self.world.now), 2.0))

    def time(self) -> None:
        self.world.advance(self.dice.choice([0.0, 0.25, 1.5]))

    def emptied(self) -> None:
        world = self.world
        for box in list(world.boxes.values()):
            if box.emptying and self.dice.random() < 0.7:
                box.strays = 0
                if box.main:
                    world.exited(box, None)
        for box in world.owed_emptied[::-1]:
            if box.emptying and box.id in world.boxes:
                world.emptied(box)

    def frozen(self) -> None:
        for box in self.world.owed_frozen:
            self.world.stands(box)

    def surveyed(self) -> None:
        for box in self.world.owed_survey:
            self.world.surveyed(box)

    def drain(self) -> None:
        self.shell.drained = True
        self.world.feed(e.DrainRequested(self.world.now))

    def client_gone(self) -> None:
        self.world.feed(e.ClientGone(self.world.now, 2))

    def client_back(self) -> None:
        for run in [run.id for run in self.world.machine.tree if run.tied_to is not None][:1]:
            self.world.feed(e.ClientBack(self.world.now, run, self.dice.choice([1, 2, 3])))

    def crash(self) -> None:
        """Kill the daemon, most often while it applies commands."""
        dice = self.dice
        others = [
            (weight, step)
            for weight, step in self.steps
            if step not in {self.crash, self.re_execute}
        ]
        self.world.crash_after = dice.choice([BEFORE, 0, 0, 1, 2, 3, 5, 8])
        with suppress(Crashed):
            dice.choices([step for _, step in others], [weight for weight, _ in others])[0]()
        fates = dice.choice([["lives"], ["lives", "lives", "forks", "main exits", "gone"]])
        self.world.die(
            lambda _: dice.choice(fates),
            gap=dice.choice([0.0, 0.5, 5.0]),
            reboot=dice.random() < 0.1,
            startable=lambda _: dice.random() < 0.8,
        )
        self.shell.drained = False

    def re_execute(self) -> None:
        if not self.shell.drained:
            self.world.re_execute(lambda _: self.dice.random() < 0.9)


class Printing(Walk):
    """A walk of a chain of runs without limits, whose meters tell much and often: that a run prints
    in another matters only where both have told of use."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.steps = [
            (2, self.spawn), (3, self.commit), (3, self.launched), (20, self.use),
            (4, self.report), (4, self.reserve), (4, self.settle), (0.6, self.exited),
            (2, self.emptied), (1.5, self.re_execute),
            (2, self.shell.save_use),
        ]  # fmt: skip

    def go(self, steps: int) -> None:
        peer = Peer(1000, "ann")
        for name in ("outer", "between", "inner"):
            self.world.spawn(asked_for(name=name, prints_in=peer.run), peer)
            self.commit()
            self.launched()
            peer = self.shell.inside(self.world.populated[-1].id)
        super().go(steps)

    def limits(self) -> tuple[Limit, ...]:
        return ()

    def amounts(self) -> Use:
        output = self.dice.choice([0, 10, 20, 50])
        return replace(
            super().amounts(), output_tokens=output, guessed_tokens=None, guessed_cost=None
        )


def walked(number: int, of: type[Walk] = Walk) -> Counter[str]:
    """Return what one walk has met."""
    walk = of(number)
    walk.go(STEPS)
    walk.shell.teardown()
    return walk.done


def test_walks() -> None:
    done: Counter[str] = Counter()
    for number in WALKS:
        try:
            done += walked(number)
        except BaseException as error:
            error.add_note(f"in walk {number}")
            raise
    # they were worth walking
    for met in (
        "increase_requested",
        "increase_approved",
        "increase_denied",
        "run_paused",
        "run_resumed",
        "run_timeout",
    ):
        assert sum(count for name, count in done.items() if name.startswith(met)) > 0, met
    for met in (
        "Rebound",
        "used",
        "limit_exceeded cost",
        "limit_exceeded turns",
    ):
        assert done[met] > 5, met


@pytest.mark.parametrize("walks", sampled([WALKS[:8], WALKS[8:]], ids=["first", "others"]))
def test_walks_among_runs_that_print_in_one_another(walks: range) -> None:
    for number in walks:
        try:
            walked(number, Printing)
        except BaseException as error:
            error.add_note(f"in walk {number}")
            raise


# ---- every order of what may come to a run that waits


def _held_running(world: World) -> Book:
    return _one(world, attempts=2)


def _held_retrying(world: World) -> Book:
    book = _one(world, attempts=3, breach=False)
    world.exited(world.boxes[book.run.id], 1)
    _breach(world, book)
    return book


def _held_starting(world: World) -> Book:
    world.spawn(_ASKED, Peer(1000, "ann"))
    world.commit(1)
    (book,) = world.live.values()
    _breach(world, book)
    return book


def _held_before_its_commit(world: World) -> Book:
    world.spawn(_ASKED, Peer(1000, "ann"))
    (book,) = world.live.values()
    _breach(world, book)
    return book


def _held_under_a_frozen_parent(world: World) -> Book:
    parent = _one(world, breach=False, name="parent", limits=())
    child = _one(world, peer=Peer(1000, "ann", run=parent.run.id), breach=False)
    world.feed(e.PauseRequested(world.now, world.token(), Peer(1000, "ann"), parent.run.id))
    _breach(world, child)
    return child


_LIMITS = (
    Limit(kind=LimitKind.TURNS, threshold=10, action=Action.REQUEST_INCREASE),
    Limit(kind=LimitKind.COST, threshold=1, action=Action.PAUSE),
    Limit(kind=LimitKind.TOKENS, threshold=10, action=Action.TERMINATE),
)
_ASKED = asked_for(("x",), name="a", limits=_LIMITS)
_MORE = (Limit(kind=LimitKind.TURNS, threshold=100),)


def _one(world: World, peer: Peer = ANN, *, breach: bool = True, **asked: Any) -> Book:
    world.spawn(replaced(_ASKED, **asked), peer)
    world.commit(1)
    book = list(world.live.values())[-1]
    world.launched(world.boxes[book.run.id])
    if breach:
        _breach(world, book)
    return book


def _breach(world: World, book: Book) -> None:
    world.report(book, ANN, Use(turns=11))
    assert book.run.held_by is not None


def _may_happen(world: World, book: Book) -> dict[str, Callable[[], object]]:
    """Return what a client, the launcher or a timer can do next."""
    run, box = book.run.id, world.boxes.get(book.run.id)

    def exited() -> None:
        if box is not None and box.main:
            box.strays = 0
            world.exited(box, 1)

    def launcher() -> None:
        if world.uncommitted:
            world.commit(1)
        for each in world.launching:
            world.launched(each)
        for each in world.owed_emptied[::-1]:
            if each.emptying and each.id in world.boxes:
                world.emptied(each)

    def top() -> str:
        return world.live[run].run.root.id if run in world.live else run

    more: dict[str, Callable[[], object]] = {}
    if world.uncommitted:
        more["commit fails"] = lambda: world.fail_commit(1)
    if book.ancestors:
        more["resume the tree"] = lambda: world.more_room(
            e.ResumeRequested(world.now, world.token(), ANN, top())
        )
    return more | {
        "approve": lambda: world.more_room(e.ApproveRequested(world.now, world.token(), ANN, run)),
        "approve with room": lambda: world.more_room(
            e.ApproveRequested(world.now, world.token(), ANN, run, _MORE)
        ),
        "deny": lambda: world.feed(e.DenyRequested(world.now, world.token(), ANN, run)),
        "resume": lambda: world.more_room(e.ResumeRequested(world.now, world.token(), ANN, run)),
        "pause the tree": lambda: world.feed(
            e.PauseRequested(world.now, world.token(), ANN, top())
        ),
        "stop": lambda: world.feed(e.StopRequested(world.now, world.token(), ANN, (run,))),
        "exit": exited,
        "launcher": launcher,
        "use that pauses": lambda: world.used(book, "stream", Use(turns=12, cost=2_000_000_000)),
        "use that terminates": lambda: world.used(
            book, "stream", Use(turns=12, cost=2_000_000_000, input_tokens=11)
        ),
        "timer": lambda: world.advance(
            max(0.0, min(world.timers.values(), default=world.now) - world.now)
        ),
        "drain": lambda: world.feed(e.DrainRequested(world.now)),
    }


_SCENES = [
    _held_running,
    _held_retrying,
    _held_starting,
    _held_before_its_commit,
    _held_under_a_frozen_parent,
]


@pytest.mark.parametrize(
    "scene", sampled(_SCENES, ids=(scene.__name__.strip("_") for scene in _SCENES))
)
@pytest.mark.parametrize("length", sampled([2, 3]))
def test_every_order(scene: Callable[[World], Book], length: int) -> None:
    sample = World()
    names = list(_may_happen(sample, scene(sample)))
    seen: tuple[str, ...] = ()
    for order in product(names, repeat=length):
        shell = MachineAgainstShell()
        world = shell.world = World(policy(approval_timeout=8.0, pause_max=8.0))
        book = scene(world)
        try:
            for done, name in enumerate(order, start=1):
                _may_happen(world, book).get(name, bool)()
                # the order before this one has shown what it has in common with this one
                if order[:done] != seen[:done]:
                    for holds in INVARIANTS[2:]:
                        holds(shell)
            seen = order
            shell.drained = world.machine.draining
            shell.teardown()
        except BaseException as error:
            error.add_note(f"in {order}")
            raise

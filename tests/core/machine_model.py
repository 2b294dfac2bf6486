"""A simulated shell for tests of the machine: ledger, processes, freezer and timers are plain data.

`World.feed` hands an event to the machine and applies the commands, and checks each of them against
what `sfad.core.commands` promises. What the world may report next (`launching`, `owed_emptied`,
...) follows what `sfad.core.events` promises, so a test can pick among the legal next events
without knowing the machine.

Its books (the parent of each run, its statuses, the tokens that wait, what was used and charged)
are counted from events and commands alone, and are compared with the machine's own counters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.life.stages import is_checked
from sfad.core.machine import Machine
from sfad.core.purses import Purses
from sfad.core.state.access import Peer
from sfad.core.state.account import Account, OpenReservation, Use
from sfad.core.state.policy import Policy
from sfad.core.state.request import Asked
from sfad.core.state.run import TRANSITIONS, Birth, Run, State
from sfad.core.state.tree import Remembered, rebased
from sfad.core.state.vocabulary import Timer
from sfad.core.watching import NewWatcher
from sfad.durable.snapshots import encode, from_saved
from sfad.protocol import types
from sfad.protocol.types import Action, After, Limit, LimitKind, RunId, Source, Status, Survivor

RunTimer = tuple[RunId, Timer]

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)

BEFORE = -1
"""The daemon is killed before it has saved anything of an event."""


class Crashed(Exception):
    """The daemon was killed."""


@dataclass(eq=False)
class Box:
    """What the launcher holds of a run: its processes, and what it owes the core."""

    id: RunId
    parent: Box | None
    children: list[Box] = field(default_factory=list)
    starting: bool = False
    main: bool = False
    strays: int = 0
    """Processes that are not the main one."""
    emptying: bool = False
    killing: bool = False
    """Whether it is killed until it is empty."""
    interrupts: int = 0
    """SIGINTs to the main process of this attempt."""
    surveys: int = 0
    freezing: bool = False
    frozen: bool = False
    orphan: bool = False
    """Its main process is not this daemon's child, so its exit status stays unknown."""

    @property
    def stands(self) -> bool:
        """Whether it is frozen, by itself or with an outer box."""
        return self.frozen or (self.parent is not None and self.parent.stands)

    def forget(self) -> None:
        """Owe no more reports: the daemon that would have made them is gone."""
        self.emptying, self.killing, self.surveys, self.freezing = False, False, 0, False

    def subtree(self) -> Iterator[Box]:
        """This box and those nested in it."""
        yield self
        for child in self.children:
            yield from child.subtree()

    @property
    def alive(self) -> int:
        """Processes in it, child boxes included."""
        return sum(box.main + box.strays + box.starting for box in self.subtree())


Amounts = dict[str, float]
"""By kind of limit; what is unknown is not in it."""

OF_TREES = ("tokens", "cost", "planning_cost", "execution_cost")
OF_RUNS = ("turns", "messages")
GUESSES = {
    "tokens": "guessed_tokens", "output_tokens": "guessed_tokens", "cost": "guessed_cost"
}  # fmt: skip
"""The part of an amount that its source has only estimated."""
OF_AGENT = {"stream", "session"}
MEASURED = ("input_tokens", "output_tokens", "messages")
"""What tells whether a source tells of more than the gateway has seen."""


def amounts_of(use: Use) -> Amounts:
    """Return what a source tells, by kind."""
    told = {kind: getattr(use, kind) for kind in (*OF_RUNS, *OF_TREES) if kind != "tokens"}
    tokens = [number for number in (use.input_tokens, use.output_tokens) if number is not None]
    if tokens:
        told["tokens"] = sum(tokens)
    told |= {name: getattr(use, name) for name in MEASURED}
    told |= {name: getattr(use, name) or None for name in (*GUESSES.values(), "partial")}
    return {kind: amount for kind, amount in told.items() if amount is not None}


def amounts_reserved(reservation: OpenReservation) -> Amounts:
    """Return what is reserved, by kind."""
    reserved: Amounts = {"tokens": reservation.input_tokens + reservation.output_tokens}
    if reservation.cost is not None:
        reserved["cost"] = reservation.cost
        if reservation.role is not None:
            reserved[f"{reservation.role}_cost"] = reservation.cost
    return reserved


def measured(told: Amounts, *, by: Amounts) -> bool:
    """Return whether the calls may all be known that a source tells of."""
    return all(told.get(kind, 0) <= by.get(kind, 0) for kind in MEASURED)


def beyond(told: Amounts, tokens: float) -> Amounts:
    """Return what is left of the figures if so many tokens are counted elsewhere."""
    total = told.get("tokens")
    if not total:
        return told
    left = max(0, total - tokens)
    output = min(told.get("output_tokens", 0), left)
    of_tokens = {"cost", *GUESSES.values()} & told.keys()
    parts = {kind: told[kind] * left // total for kind in of_tokens}
    return told | parts | {"tokens": left, "output_tokens": output, "input_tokens": left - output}


def added(one: Amounts, other: Amounts) -> Amounts:
    """Return the sums."""
    return {kind: one.get(kind, 0) + other.get(kind, 0) for kind in one | other}


@dataclass(eq=False)
class Purse:
    """A purse of a feature as it was announced, and what was charged to it since."""

    members: frozenset[str]
    allowed: int
    charged: int
    told: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Book:
    """An admitted run, by events and commands alone."""

    run: Run
    ancestors: list[Book]
    max_depth: int
    max_descendants: int
    descendants: int = 0
    unasked: int = 0
    """Agent programs that were started without asking, in it and below."""
    unheard: int = 0
    """Those descendants whose admission was not saved yet when the daemon was killed."""
    saves: list[Status] = field(default_factory=list)
    ended: bool = False
    released: bool = False
    failed_commit: bool = False
    waited: bool = False
    """Others had to end before it could start."""
    sources: dict[str, Amounts] = field(default_factory=dict)
    guesses: dict[str, Amounts] = field(default_factory=dict)
    """What each source has only estimated."""
    reservations: dict[str, Amounts] = field(default_factory=dict)
    told: dict[tuple[str, float], list[str]] = field(default_factory=dict)
    """What was published of each limit: `near`, `over`. A limit that is set again begins again."""
    known: set[str] = field(default_factory=set)
    """Kinds of use of which a figure was told."""
    printed: list[Book] = field(default_factory=list)
    """Runs below whose output is a part of its own."""

    def believe(self, run: Run) -> None:
        """Take what was saved: the daemon that knew more was killed."""
        self.run = run
        self.sources.clear()
        for source, use in run.account.sources.items():
            self.learn(source, amounts_of(use))
        self.reservations = {
            name: amounts_reserved(reservation)
            for name, reservation in run.account.reservations.items()
        }
        for amounts in self.reservations.values():
            self.known |= set(amounts)
        self.told = {
            (kind.value, held.limit.threshold): ["near"] * held.near + ["over"] * held.over
            for kind, held in run.limits.items()
        }

    def learn(self, source: str, amounts: Amounts) -> None:
        """Take the figures of a source."""
        self.sources[source] = amounts
        self.known |= set(amounts)

    def counted(self, source: str, amounts: Amounts) -> Amounts:
        """Return what counts of a source: neither an estimate nor the agent's price of what the
        gateway has measured."""
        seen = self.sources.get("gateway")
        if seen is None:
            return amounts
        sure = {
            kind: each - amounts.get(GUESSES.get(kind, ""), 0) for kind, each in amounts.items()
        }
        if "partial" not in seen and measured(sure, by=seen):
            amounts = sure
        if (
            source in OF_AGENT
            and "cost" in seen
            and amounts.get("tokens")
            and measured(amounts, by=seen)
        ):
            amounts = {kind: each for kind, each in amounts.items() if kind != "cost"}
        return amounts

    def own(self, kind: str, *, reserves: bool = True) -> float | None:
        """Return what it has used: the largest figure of any source. Reservations count as
        reported."""
        reserved: Amounts = {}
        for amounts in self.reservations.values() if reserves else ():
            reserved = added(reserved, amounts)
        # what an ended run had reserved is used
        printed = sum(each.own("tokens", reserves=each.ended) or 0 for each in self.printed)
        told = {
            source: self.counted(
                source, beyond(amounts, printed) if source in OF_AGENT and printed else amounts
            )
            for source, amounts in self.sources.items()
        }
        if reserved.get(kind):
            told["report"] = added(told.get("report", {}), reserved)
        return max((amounts[kind] for amounts in told.values() if kind in amounts), default=None)


class World:
    """The machine together with a simulated shell."""

    WATCHERS: ClassVar[Mapping[str, NewWatcher]] = {}
    """The halves of features in the core."""
    PURSES: ClassVar[type[Purses] | None] = None

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.machine = with_fair_turns(self.new_machine())
        self.now = 0.0
        self.boxes: dict[RunId, Box] = {}
        self.books: dict[RunId, Book] = {}
        self.timers: dict[RunTimer, float] = {}
        self.uncommitted: deque[RunId] = deque()
        self.committed: set[RunId] = set()
        self.waiting: set[int] = set()
        """Tokens without a reply."""
        self.answers: dict[int, c.Answer] = {}
        self.events: list[str] = []
        self.refusals: list[Run] = []
        self.shutdowns = 0
        self.purses: dict[tuple[str, str], Purse] = {}
        self.reservations: dict[str, Book] = {}
        self.reserved_in: dict[str, set[tuple[str, str]]] = {}
        """The purses that there were, by reservation."""
        self.charging = False
        self.batch: list[c.Command] = []
        self.copies: dict[RunId, tuple[bytes, bytes]] = {}
        """What is saved of each live run: `Birth` and `State`."""
        self.noted: set[RunId] = set()
        """Runs that have used something since they were saved."""
        self.launches: set[tuple[RunId, int, int]] = set()
        self.crash_after: int | None = None
        """After how many commands of the next event the daemon is killed."""
        self.rebooted = False
        self._over: list[RunId] = []
        self.reminders: dict[tuple[str, str], float] = {}
        """By feature and key."""
        self._token = 0
        self._appliers: dict[type, Any] = {
            c.Admit: self._admit,
            c.Record: self._save,
            c.RecordRefusal: self._record_refusal,
            c.CountRefusal: lambda x: self._has_row(x.run),
            c.Rebound: lambda x: self._alive(x.run.id),
            c.MeterAgent: lambda x: self._alive(x.run),
            c.Tell: lambda x: self.told(x.what),
            c.Launch: self._launch,
            c.Terminate: self._empty_it,
            c.Interrupt: self._interrupt,
            c.Kill: self._empty_it,
            c.Survey: self._survey,
            c.Freeze: self._freeze,
            c.Thaw: self._thaw,
            c.Release: self._release,
            c.Arm: self._arm,
            c.Disarm: self._disarm,
            c.Publish: self._publish,
            c.Remind: self._arm_reminder,
            c.MeterAgent: lambda x: self._alive(x.run),
            c.SaveOf: lambda _: None,  # it was saved before the first command was applied
            c.Retire: self._ended,
            c.AnswerRequest: self._reply,
            c.Shutdown: self._shutdown,
        }

    # ---- driving

    def new_machine(self, **numbers: Any) -> Machine:
        """Return the machine of a daemon that begins."""
        machine = Machine(self.policy, watchers=self.WATCHERS, purses=type(self).PURSES, **numbers)
        machine.purses()
        return machine

    def token(self) -> int:
        """Return a new token, which waits for its reply."""
        self._token += 1
        self.waiting.add(self._token)
        return self._token

    def feed(self, event: e.Event) -> list[c.Command]:
        """Have the machine handle an event; apply and check its commands."""
        if self.crash_after == BEFORE:
            self.batch = []
            raise Crashed
        outcome = self.machine.handle(event)
        self.batch = outcome.commands
        for name in (*outcome.changed, *outcome.used):
            self._alive(name)
        for changed in outcome.changed.values():
            if changed.id in self.copies:
                self.remember(changed)
        self.noted.update(outcome.used)
        if any(isinstance(command, c.SaveOf) for command in self.batch):
            self.save_features()
        for index, command in enumerate(self.batch):
            if index == self.crash_after:
                raise Crashed
            self._appliers[type(command)](command)
        if self.crash_after is not None:
            raise Crashed
        for run in self._over:
            del self.copies[run]
        self._over.clear()
        stale = {run for run, _ in self.timers} - set(self.live)
        assert not stale, f"timers left armed for ended runs {stale}"
        stale = {key for _, key in self.reminders if key} - set(self.live)
        assert not stale, f"reminders left for ended runs {stale}"
        return self.batch

    def spawn(self, asked: Asked, peer: Peer) -> int:
        """Ask for a run; return the token of the answer."""
        token = self.token()
        self.feed(e.SpawnRequested(self.now, token, peer, asked, self.ends(asked.queueing.after)))
        return token

    def ends(self, awaited: Iterable[After]) -> dict[RunId, Status]:
        """Return how those of the runs have ended that have."""
        books = {after.run: self.books[after.run] for after in awaited}
        return {name: book.run.status for name, book in books.items() if book.ended}

    # ---- what is remembered

    def remember(self, run: Run) -> None:
        """Save the run as it is now."""
        birth = self.copies[run.id][0] if run.id in self.copies else encode(run.birth)
        self.copies[run.id] = birth, encode(run)
        self.noted.discard(run.id)

    def save_use(self) -> None:
        """Save what was used, as the shell does after a while."""
        for name in list(self.noted & set(self.copies)):
            self.remember(self.books[name].run)
        self.noted.clear()

    def copy_of(self, run: RunId) -> tuple[Birth, State]:
        """Return what is saved of it."""
        birth, state = self.copies[run]
        return msgspec.msgpack.decode(birth, type=Birth), msgspec.msgpack.decode(
            state, type=State, dec_hook=from_saved
        )

    def check_copies(self) -> None:
        """What is saved of each run is what it is, but for what it is said to have used, and what
        the kernel tells."""
        assert set(self.copies) == set(self.live)
        for run in self.machine.tree:
            # the same bytes need no second look, which takes most of the time of these tests
            if self.copies[run.id] != (encode(run.birth), encode(run)):
                self._check_copy(run)

    def _check_copy(self, run: Run) -> None:
        birth, kept = self.copy_of(run.id)
        now = msgspec.msgpack.decode(encode(run), type=State, dec_hook=from_saved)
        # the times of a clock that has started again mean nothing, and nothing reads this one any
        # more
        assert birth == (
            replace(run.birth, created_at=birth.created_at) if self.rebooted else run.birth
        )
        for name in State.__dataclass_fields__:
            if name != "account":
                assert getattr(kept, name) == getattr(now, name), (
                    f"{name} of {run.id} was not saved"
                )
        check_account(kept.account, now.account, noted=run.id in self.noted)

    # ---- the daemon dies, or re-executes itself

    def die(
        self,
        fate: Callable[[Box], str],
        *,
        gap: float,
        reboot: bool,
        startable: Callable[[RunId], bool],
    ) -> None:
        """Kill the daemon, and start the next one after a while."""
        self.waiting.clear()
        self._forget_what_was_promised()
        self.rebooted |= reboot
        self.died(reboot=reboot)
        self.now = 3.0 if reboot else self.now + gap
        held, never = self._what_is_remembered(reboot=reboot)
        for box in list(self.boxes.values()):
            box.starting, box.orphan = False, True
            self._meet_fate(box, "gone" if reboot else fate(box))
        self._adopt(held)
        for run in held:
            run.adopt(999 if run.id in self.boxes and self.boxes[run.id].main else None)
        runs = [self._remembered(run, startable=startable(run.id)) for run in held]
        before = {
            one.run.id: msgspec.msgpack.decode(
                self.copies[one.run.id][1], type=State, dec_hook=from_saved
            )
            for one in runs
        }
        self._restart()
        self.feed(
            e.RunsAdopted(self.now, tuple(runs), "the daemon died", ended=self._ends_before(runs))
        )
        for one in runs:
            self._check_recovered(one, before[one.run.id], never)
        self._know_again()
        self.advance(0)

    def re_execute(self, startable: Callable[[RunId], bool]) -> None:
        """Re-execute the daemon: processes are still its children, and clients still wait."""
        self.save_use()
        tickets = self.machine.tickets()
        held, _ = self._what_is_remembered(reboot=False)
        starting = {box.id for box in self.boxes.values() if box.starting}
        self._forget_what_was_promised()
        self._adopt(held)
        runs = [
            self._remembered(run, startable=startable(run.id), starting=run.id in starting)
            for run in held
        ]
        self._restart()
        event = e.RunsAdopted(
            self.now,
            tuple(runs),
            "the daemon restarted itself",
            continued=True,
            tickets=tickets,
            ended=self._ends_before(runs),
        )
        self.feed(event)
        for one in runs:
            if one.starting:
                assert one.run.status in {Status.STARTING, Status.STOPPING}
            if one.run.pid is not None:
                assert one.run.status not in {Status.LOST, Status.FAILED}
        self._know_again()
        self.advance(0)

    def _ends_before(self, runs: list[Remembered]) -> dict[RunId, Status]:
        return self.ends(after for one in runs for after in one.run.awaits)

    def _forget_what_was_promised(self) -> None:
        self.charging = False
        self.crash_after = None
        self.timers.clear()
        self.uncommitted.clear()
        self.noted.clear()
        self.shutdowns = 0
        for box in self.boxes.values():
            box.forget()

    def _what_is_remembered(self, *, reboot: bool) -> tuple[list[Run], set[RunId]]:
        """Return the saved runs that have not ended, parents first, and those of them that the
        ledger may never have held."""
        self._over.clear()
        assert set(self.live) <= set(self.copies), "a run was not saved"
        runs: dict[RunId, Run] = {}
        never: set[RunId] = set()
        copies = [self.copy_of(name) for name in self.copies]
        for birth, state in sorted(copies, key=lambda copy: copy[0].number):
            birth, state = rebased(birth, state, 3.0) if reboot else (birth, state)
            run = Run(birth, state, runs.get(birth.parent) if birth.parent is not None else None)
            assert run.parent is None or not run.parent.status.terminal, "ended before a descendant"
            book = self.books[run.id]
            book.believe(run)
            for name, reservation in run.account.reservations.items():
                self.reservations[name] = book
                self.reserved_in[name] = {(scope, whose) for scope, whose, _ in reservation.periods}
            if run.status.terminal:
                book.ended = True
                del self.copies[run.id]
            else:
                assert not book.ended
                runs[run.id] = run
                book.failed_commit = False
                if not run.committed:
                    never.add(run.id)
        self._count_again()
        return list(runs.values()), never

    def _count_again(self) -> None:
        unheard = [
            x.run for x in self.batch if isinstance(x, c.Admit) and x.run.id not in self.books
        ]
        for name, book in self.live.items():
            book.unheard += sum(name in [above.id for above in run.ancestors] for run in unheard)
            known = sum(
                book in other.ancestors and not other.failed_commit for other in self.books.values()
            )
            book.descendants = known + book.unheard
            assert book.run.admitted == book.descendants + book.unasked
        self.batch = []

    def _meet_fate(self, box: Box, fate: str) -> None:
        if fate in {"main exits", "gone"}:
            box.main = False
        if fate == "gone":
            box.strays = 0
        if fate == "forks" and box.main:
            box.strays += 1

    def _adopt(self, held: list[Run]) -> None:
        """Check that each process belongs to a live run, and give the launcher each run that may
        have been launched."""
        live = {run.id for run in held}
        for box in list(self.boxes.values())[::-1]:
            if box.id not in live:
                assert not box.alive, f"processes of {box.id} are alive, which has ended"
                assert not box.children
                if box.parent is not None:
                    box.parent.children.remove(box)
                del self.boxes[box.id]
        for run in held:
            if run.attempt and run.id not in self.boxes:
                self._box_for(run)

    def _box_for(self, run: Run) -> Box:
        if run.id not in self.boxes:
            parent = self.boxes[run.parent.id] if run.parent is not None else None
            self.boxes[run.id] = Box(run.id, parent)
            if parent is not None:
                parent.children.append(self.boxes[run.id])
        return self.boxes[run.id]

    def _remembered(self, run: Run, *, startable: bool, starting: bool = False) -> Remembered:
        box = self.boxes.get(run.id)
        # the process may be a trampoline whose gate was not opened
        unknown = run.status is not Status.STARTING or bool(run.birth.number % 2)
        begun = starting or run.pid is not None or (run.status is not Status.ACCEPTED and unknown)
        return Remembered(
            run,
            empty=box is None or not box.alive,
            starting=starting,
            startable=startable,
            begun=begun,
        )

    def _restart(self) -> None:
        live = [book.run for book in self.live.values()]
        numbers = [
            run.birth.number
            for run in (*self.refusals, *(book.run for book in self.books.values()))
            if run not in live
        ]
        settled = [
            name for name, book in self.reservations.items() if name not in book.reservations
        ]
        reserved = max((int(name.rpartition("-")[2]) for name in settled), default=0)
        self.machine = with_fair_turns(
            self.new_machine(next_number=max(numbers, default=0) + 1, reservations=reserved)
        )
        self.reminders.clear()
        self.restored()

    def _know_again(self) -> None:
        if self.purses:
            self.know_again()
            for purse in self.purses.values():
                purse.told.clear()

    def _check_recovered(self, one: Remembered, before: State, never: set[RunId]) -> None:
        run, old = one.run, before.status
        if run.id in never and not run.attempt:
            assert run.status in {Status.FAILED, Status.STOPPING, Status.CANCELLED}, (
                "started, but it was never committed"
            )
            assert run.status is not Status.FAILED or old in {Status.ACCEPTED, Status.QUEUED}
        elif (
            old in {Status.RUNNING, Status.PAUSED}
            and one.run.pid is not None
            and not one.run.status.terminal
        ):
            stopped_above = any(
                above.status is Status.STOPPING or above.clearing for above in run.ancestors
            )
            assert run.status is old or (stopped_above and run.status is Status.STOPPING)
        elif run.latest.next_stage is not None or (
            run.latest.stage and old in {Status.RUNNING, Status.PAUSED, Status.STARTING}
        ):
            self._check_stage(one, before)
        elif not one.begun:
            assert run.outcome is Status.FAILED
            assert run.latest.exit is None
        elif old in {Status.RUNNING, Status.PAUSED, Status.STARTING} and run.pid is None:
            verdict = Status.COMPLETED if run.latest.said_failed is None else Status.FAILED
            assert run.outcome is (verdict if run.latest.said_finished else Status.LOST), (
                run.outcome
            )
            assert run.latest.exit is not None
            assert run.latest.exit.unknown
        elif old is Status.STOPPING:
            assert run.outcome is before.outcome, "a decided end was changed"
        elif old is Status.QUEUED and not one.startable:
            assert run.status is Status.FAILED
        elif old is Status.QUEUED:
            assert run.status in {
                Status.QUEUED,
                Status.STARTING,
                Status.STOPPING,
            } or ended_by_another(run)
        assert run.status is Status.STARTING or run.attempt == before.attempt
        assert run.admitted == before.admitted

    @staticmethod
    def _check_stage(one: Remembered, before: State) -> None:
        """A check is executed again, a setup is not, and nothing unknown is a success."""
        run = one.run
        if run.ending is not None:
            assert run.outcome is not Status.COMPLETED
        elif before.status is not Status.RETRYING:
            assert run.status is Status.RETRYING
            assert one.startable
            assert is_checked(run) or run.latest.said_finished

    # ---- use

    def used(self, book: Book, source: Source, use: Use) -> None:
        """A meter has read more."""
        with self._charging(book):
            if not book.ended:
                book.learn(source, amounts_of(use))
            self.feed(e.UseSeen(self.now, book.run.id, source, use))

    def report(self, book: Book, peer: Peer, more: Use) -> c.Answer:
        """A client reports."""
        token = self.token()
        with self._charging(book):
            self.feed(e.ReportRequested(self.now, token, peer, book.run.id, more))
            if isinstance(self.answers[token], c.Changed):
                book.learn("report", added(book.sources.get("report", {}), amounts_of(more)))
        return self.answers[token]

    def reserve(self, book: Book, peer: Peer, reservation: OpenReservation) -> c.Answer:
        """A client reserves an amount."""
        token = self.token()
        with self._charging(book):
            self.feed(e.ReserveRequested(self.now, token, peer, book.run.id, reservation))
            answer = self.answers[token]
            if isinstance(answer, c.ReserveAnswer) and answer.reservation is not None:
                assert answer.reservation not in self.reservations, (
                    "a reservation's name was used twice"
                )
                self.reservations[answer.reservation] = book
                self.reserved_in[answer.reservation] = set(self.purses)
                book.reservations[answer.reservation] = amounts_reserved(reservation)
                book.known |= set(amounts_reserved(reservation))
        return answer

    def settle(self, name: str, peer: Peer, used: Use) -> c.Answer:
        """A client settles a reservation, open or not."""
        token = self.token()
        book = self.reservations[name]
        with self._charging(book, self.reserved_in.get(name, set())):
            self.feed(e.SettleRequested(self.now, token, peer, name, used))
            if isinstance(self.answers[token], c.Changed):
                del book.reservations[name]
                book.learn("report", added(book.sources.get("report", {}), amounts_of(used)))
        return self.answers[token]

    def more_room(
        self, event: e.ResumeRequested | e.ApproveRequested | e.LimitRequested
    ) -> c.Answer:
        """A client gives a run new limits, or lets it continue as it is."""
        book = self.books[event.run]
        told = dict(book.told)
        for limit in event.limits:
            self._forget_published(book, limit)  # before: what is near the new one is said at once
        self.feed(event)
        answer = self.answers[event.token]
        if not isinstance(answer, c.Changed):
            book.told = told
        return answer

    def _forget_published(self, book: Book, limit: Limit) -> None:
        for key in [key for key in book.told if key[0] == limit.kind]:
            del book.told[key]

    @contextmanager
    def _charging(
        self, book: Book, reserved_in: set[tuple[str, str]] | None = None
    ) -> Iterator[None]:
        """Check that exactly what the run has used meanwhile was charged to its user's purses.
        `reserved_in`: those that what is given back was charged to; it is not given to others."""
        before = self._cost(book)
        mine = {key: purse for key, purse in self.purses.items() if book.run.user in purse.members}
        purses = list(mine.values())
        wanted = [
            (purse.charged, reserved_in is None or key in reserved_in)
            for key, purse in mine.items()
        ]
        others = {key: purse.charged for key, purse in self.purses.items() if purse not in purses}
        self.charging = True
        yield
        self.charging = False
        change = self._cost(book) - before
        # never below 0: what was reserved before a purse was renewed is not given back to it
        assert [purse.charged for purse in purses] == [
            max(0, charged + change) if change > 0 or gets_back else charged
            for charged, gets_back in wanted
        ]
        assert {key: self.purses[key].charged for key in others} == others

    def used_in_all(self, book: Book, kind: str) -> float | None:
        """Return what a limit of the run counts, by the books."""
        below = (
            [other for other in self.books.values() if book in other.ancestors]
            if kind in OF_TREES
            else []
        )
        known = [
            amount for amount in (each.own(kind) for each in (book, *below)) if amount is not None
        ]
        return sum(known) if known else None

    def ever_known(self, book: Book, kind: str) -> bool:
        """Return whether a figure was told of the run or of a descendant."""
        return any(
            kind in other.known
            for other in self.books.values()
            if other is book or book in other.ancestors
        )

    def next_mark(self, book: Book) -> float:
        """Return the seconds at which its clock calls for an event or an action, by what was
        published."""
        time = book.run.limits.get(LimitKind.TIME)
        if time is None:
            return book.run.max_time
        told = book.told.get(("time", time.limit.threshold), [])
        if "over" in told:
            return book.run.max_time
        return min(
            time.limit.threshold * (1.0 if told else self.policy.limits.nearing), book.run.max_time
        )

    # ---- the ledger

    def commit(self, count: int) -> None:
        """The ledger commits the oldest admissions."""
        self.feed(e.Committed(self.now, self._next_batch(count)))

    def fail_commit(self, count: int) -> None:
        """The ledger cannot commit the oldest admissions."""
        runs = self._next_batch(count)
        self.committed.difference_update(runs)
        for run in runs:
            book = self.books[run]
            if not book.ended:
                book.failed_commit = True
                for above in book.ancestors:
                    above.descendants -= 1
        self.feed(e.CommitFailed(self.now, runs, "no space left on device"))

    def _next_batch(self, count: int) -> tuple[RunId, ...]:
        runs = tuple(self.uncommitted.popleft() for _ in range(min(count, len(self.uncommitted))))
        self.committed.update(runs)
        return runs

    def launched(self, box: Box) -> None:
        """The command of a run in `launching` was executed."""
        assert box.starting
        box.starting, box.main, box.orphan = False, True, False
        self.feed(e.LaunchSucceeded(self.now, box.id, 1000 + len(self.boxes)))

    def launch_failed(self, box: Box) -> None:
        """The command of a run in `launching` could not be executed."""
        assert box.starting
        box.starting = False
        self.feed(e.LaunchFailed(self.now, box.id, 2, "No such file or directory"))

    def exited(self, box: Box, code: int | None, *, late: bool = False) -> None:
        """A main process was reaped. `late`: the kernel has not yet told that nothing else is
        alive."""
        assert box.main
        box.main = False
        signal = 9 if code is None else None
        run = self.books[box.id].run
        before = run.status
        if box.orphan:
            code = signal = None
        self.feed(e.MainExited(self.now, box.id, code, signal, empty=not box.alive and not late))
        if box.orphan and before in {Status.RUNNING, Status.PAUSED}:
            verdict = Status.COMPLETED if run.latest.said_failed is None else Status.FAILED
            assert run.outcome is (verdict if run.latest.said_finished else Status.LOST)

    def emptied(self, box: Box) -> None:
        """Report `Emptied` of a box in `owed_emptied`."""
        assert box.emptying
        assert not box.alive
        box.emptying = box.killing = False
        self.feed(e.Emptied(self.now, box.id))

    def stands(self, box: Box) -> None:
        """Report `Frozen` of a box in `owed_frozen`."""
        assert box.freezing
        box.freezing = False
        self.feed(e.Frozen(self.now, box.id))

    def surveyed(self, box: Box) -> None:
        """Answer a survey."""
        box.surveys -= 1
        self.feed(e.Surveyed(self.now, box.id, self.survivors(box)))

    def survivors(self, box: Box) -> tuple[Survivor, ...]:
        """Return what a survey finds."""
        return tuple(
            Survivor(pid=100 * index + number, run_id=each.id, why="uninterruptible sleep")
            for index, each in enumerate(box.subtree())
            for number in range(each.main + each.strays)
        )

    def advance(self, seconds: float) -> None:
        """Let time pass; timers fire in order."""
        until = self.now + seconds
        while (due := min(self.timers, key=lambda t: self.timers[t], default=None)) and self.timers[
            due
        ] <= until:
            self._remind(self.timers[due])
            self.now = max(self.now, self.timers.pop(due))
            self.feed(e.TimerFired(self.now, *due))
        self._remind(until)
        self.now = until

    def _remind(self, until: float) -> None:
        while (due := min(self.reminders, key=lambda r: self.reminders[r], default=None)) and (
            self.reminders[due] <= until
        ):
            self.now = max(self.now, self.reminders.pop(due))
            self.feed(e.Reminded(self.now, *due, time=NOON + timedelta(seconds=self.now)))

    # ---- features, for a world that has some

    def save_features(self) -> None:
        """Save what they keep."""

    def died(self, *, reboot: bool) -> None:
        """Note that the daemon was killed."""

    def restored(self) -> None:
        """Give them what the daemon before had saved."""

    def published(self, event: types.Event) -> None:
        """Check what they tell."""

    def told(self, what: object) -> None:
        """Do what a half tells its part."""

    def know_again(self) -> None:
        """Tell the next daemon of the purses."""

    # ---- what may happen next

    @property
    def live(self) -> dict[RunId, Book]:
        """Runs that are admitted and have not ended."""
        return {run: book for run, book in self.books.items() if not book.ended}

    @property
    def launching(self) -> list[Box]:
        """Launches that have neither succeeded nor failed."""
        return [box for box in self.boxes.values() if box.starting]

    @property
    def mains(self) -> list[Box]:
        """Boxes with a main process alive."""
        return [box for box in self.boxes.values() if box.main]

    @property
    def populated(self) -> list[Box]:
        """Boxes with any process of their own alive."""
        return [box for box in self.boxes.values() if box.main or box.strays]

    @property
    def owed_emptied(self) -> list[Box]:
        """Boxes about which `Emptied` is owed and true."""
        return [box for box in self.boxes.values() if box.emptying and not box.alive]

    @property
    def owed_frozen(self) -> list[Box]:
        """Boxes about which `Frozen` is owed."""
        return [box for box in self.boxes.values() if box.freezing]

    @property
    def owed_survey(self) -> list[Box]:
        """Boxes about which `Surveyed` is owed."""
        return [box for box in self.boxes.values() if box.surveys]

    def _cost(self, book: Book) -> float:
        """Return what a run has cost, with those that print what it prints."""
        printing = [above for above in book.ancestors if book in above.printed]
        return sum(each.own("cost") or 0 for each in (book, *printing))

    # ---- commands

    def _admit(self, command: c.Admit) -> None:
        run = command.run
        assert run.id not in self.books, "a run was admitted twice"
        assert all(run.id > other for other in self.books if len(other) == len(run.id)), "ids go up"
        above = [self.books[ancestor.id] for ancestor in run.ancestors]
        depth, descendants = self._bounds(run, above)
        assert len(above) < depth, f"{run.id} is at depth {len(above)}, max_depth is {depth}"
        for book in above:
            book.descendants += 1
            assert book.descendants <= book.max_descendants, (
                f"{book.run.id} has more than {book.max_descendants} descendants"
            )
        assert run.identity not in [book.run.identity for book in above], "a loop was admitted"
        assert not any(book.run.status is Status.STOPPING for book in above), (
            "born into a tree that is being emptied"
        )
        assert not self.machine.draining
        book = Book(run, above, depth, descendants, waited=bool(run.awaits))
        for one in above:
            if one.run.id == run.asked.prints_in:
                for each in (one, *[other for other in above if one in other.printed]):
                    each.printed.append(book)
        self.books[run.id] = book
        self.remember(run)
        self.uncommitted.append(run.id)

    def _bounds(self, run: Run, above: list[Book]) -> tuple[int, int]:
        depth, descendants = (
            bound.value if bound is not None and bound.value > 0 else None
            for bound in (run.asked.terms.max_depth, run.asked.terms.max_descendants)
        )
        if not above:
            return (
                depth or self.policy.max_depth.value,
                descendants or self.policy.max_descendants.value,
            )
        top = above[-1]
        return min(depth or top.max_depth, top.max_depth), min(
            descendants or top.max_descendants, top.max_descendants
        )

    def _save(self, command: c.Record) -> None:
        book = self.books[command.run.id]
        status = command.run.status
        assert not any(old.terminal for old in book.saves), (
            f"{command.run.id} was saved after its end"
        )
        if status.terminal:
            assert not command.run.children, "terminal before its children"
            assert not any(book in other.ancestors for other in self.live.values()), (
                "terminal before a descendant"
            )
        book.saves.append(status)

    def _record_refusal(self, command: c.RecordRefusal) -> None:
        assert command.run.status.rejected
        assert command.run.id not in self.books
        self.refusals.append(command.run)

    def _has_row(self, run: RunId) -> None:
        assert run in [refused.id for refused in self.refusals], (
            "counted in a row that was never written"
        )

    def _launch(self, command: c.Launch) -> None:
        run = command.run
        assert run.id in self.committed, f"{run.id} was launched before its admission was committed"
        assert run.status is Status.STARTING
        assert not self.books[run.id].released
        what = (run.id, run.attempt, run.latest.stage)
        # a check is executed again if it is not known how it ended
        assert what not in self.launches or is_checked(run), "the same was launched twice"
        assert run.attempt > 1 or not run.awaits
        for after in run.asked.queueing.after:
            awaited = self.books[after.run]
            assert awaited.ended, f"{run.id} was launched before {after.run} had ended"
            assert not after.ok or awaited.run.status is Status.COMPLETED
        assert (
            run.attempt > 1
            or run.parent is None
            or not self.books[run.id].waited
            or not run.paused_in_lineage
        )
        self.launches.add(what)
        box = self._box_for(run)
        assert not box.alive, f"{run.id} was launched over what its last attempt left"
        box.starting = True
        box.interrupts = 0

    def _box(self, run: RunId) -> Box:
        assert run in self.boxes, (
            f"a command for {run}, which was never launched or has been released"
        )
        return self.boxes[run]

    def _empty_it(self, command: c.Terminate | c.Kill) -> None:
        box = self._box(command.run)
        box.emptying = True
        box.killing |= isinstance(command, c.Kill)
        for each in box.subtree():
            each.frozen = False

    def _interrupt(self, command: c.Interrupt) -> None:
        box = self._box(command.run)
        assert not box.emptying, (
            f"{box.id} was interrupted after all its processes had been signalled"
        )
        box.interrupts += 1
        assert box.interrupts == 1, f"{box.id} was interrupted twice"

    def _survey(self, command: c.Survey) -> None:
        self._box(command.run).surveys += 1

    def _freeze(self, command: c.Freeze) -> None:
        box = self._box(command.run)
        box.freezing = box.frozen = True

    def _thaw(self, command: c.Thaw) -> None:
        box = self._box(command.run)
        box.freezing = box.frozen = False

    def _release(self, command: c.Release) -> None:
        box = self._box(command.run)
        assert not box.alive, f"{box.id} was released with {box.alive} processes alive"
        assert not box.children, f"{box.id} was released before its children"
        assert self.books[box.id].run.status.terminal
        if box.parent is not None:
            box.parent.children.remove(box)
        del self.boxes[box.id]
        self.books[box.id].released = True

    def _alive(self, run: RunId) -> None:
        book = self.books[run]
        assert not book.ended, f"a command for {run}, which has ended"
        assert not book.released, f"a command for {run}, which has been released"

    def _arm(self, command: c.Arm) -> None:
        self._alive(command.run)
        assert isfinite(command.at)
        self.timers[command.run, command.timer] = command.at

    def _disarm(self, command: c.Disarm) -> None:
        self._alive(command.run)
        self.timers.pop((command.run, command.timer), None)

    def _arm_reminder(self, command: c.Remind) -> None:
        assert not command.key or command.key in self.live or command.at is None
        self.reminders.pop((command.feature, command.key), None)
        if command.at is not None:
            self.reminders[command.feature, command.key] = command.at

    def _publish(self, command: c.Publish) -> None:
        run = command.event.run_id
        self.published(command.event)
        assert run is None or run not in self.books or not self.books[run].ended
        self.events.append(f"{command.event.type} {run}")
        if command.event.type in {"limit_nearing", "limit_exceeded"}:
            self._told(command.event)

    def _told(self, event: types.Event) -> None:
        """Check that `near` and `over` are published at most once, in this order, for each limit
        and each budget."""
        kind, threshold, used = event.limit_kind, event.threshold, event.used
        assert kind is not None
        assert threshold is not None
        assert used is not None
        if kind == "tool":
            return
        used = threshold + event.exceeded_by if event.exceeded_by else used + (event.reserved or 0)
        over = event.type == "limit_exceeded"
        if event.message.startswith("was refused") and event.scope in {"user", "team"}:
            return  # it tells nothing of what was used
        if event.scope in {"user", "team"}:
            told = next(
                p.told
                for (scope, name), p in self.purses.items()
                if event.message.startswith(f"{scope} {name} ")
            )
        else:
            assert event.run_id is not None
            told = self.books[event.run_id].told.setdefault((kind, threshold), [])
            assert over or used >= threshold * self.policy.limits.nearing - 1e-6
            assert (
                not over or used > threshold or (kind in {"time", "silence"} and used == threshold)
            )
        word = (
            "refused"
            if event.refused and event.action is Action.REFUSE
            else "over"
            if over
            else "near"
        )
        assert word not in told, f"{word} was said twice of {kind} {threshold}"
        assert over or "over" not in told, "near after over"
        told.append(word)

    def charged(self, key: tuple[str, str], nanos: int) -> None:
        """Charge a purse."""
        # a run that ends has used what it had reserved, and so has printed it
        printed = any(each.reservations for book in self.books.values() for each in book.printed)
        assert self.charging or not nanos or (printed and nanos < 0), "charged without a use"
        purse = self.purses[key]
        purse.charged += nanos
        assert purse.charged >= 0

    def _ended(self, command: c.Retire) -> None:
        run = command.run
        book = self.books[run.id]
        assert not book.ended, "ended twice"
        assert run.status.terminal
        assert not run.account.reservations, "ended with an open reservation"
        assert book.failed_commit or book.saves[-1] is run.status, "Ended comes after its Record"
        assert run.id not in self.boxes, "ended, but its containment was not released"
        if ended_by_another(run):
            awaited = self.books[(run.shown_reason.by if run.shown_reason else None) or ""]
            assert awaited.ended
            assert awaited.run.status is not Status.COMPLETED
        book.ended = True
        self._over.append(run.id)

    def _reply(self, command: c.AnswerRequest) -> None:
        assert command.token in self.waiting, (
            f"token {command.token} was answered twice, or was never given out"
        )
        self.waiting.remove(command.token)
        self.answers[command.token] = command.answer

    def _shutdown(self, _: c.Shutdown) -> None:
        assert self.machine.draining
        assert not self.live
        self.shutdowns += 1


def ended_by_another(run: Run) -> bool:
    """Return whether it never started, because a run that it waited for did not complete."""
    return (
        run.ending is not None
        and run.ending.reason is not None
        and run.ending.reason.kind == "after"
    )


def check_account(kept: Account, now: Account, *, noted: bool) -> None:
    """Check that all of an account is saved. What meters and the kernel tell is saved later, and
    sums over descendants are computed again."""
    assert kept.reservations == now.reservations
    assert kept.reserved_by_agent == now.reserved_by_agent
    assert kept.ended == now.ended
    assert kept.printed_ended == now.printed_ended
    assert kept.sources.get("report") == now.sources.get("report")
    assert noted or kept.sources == now.sources


def with_fair_turns(machine: Machine) -> Machine:
    """Check, whenever a waiting tree gets a slot, that it is the first of its user, and that no
    waiting user who may have one has fewer trees."""
    slots, give = machine.slots, machine.slots.give_next

    def checked() -> RunId | None:
        able = [
            run
            for run in machine.tree
            if slots.place_of(run.id) is not None
            and slots.free_for(run.user, run.asked.queueing.group)
        ]
        places = {run.id: slots.place_of(run.id) for run in able}
        trees = {run.id: slots.user_count(run.user) for run in able}
        root = give()
        assert (root is None) == (not able)
        if root is not None:
            assert trees[root] == min(trees.values())
            assert (place := places[root]) is not None
            assert place.place == 1
        return root

    slots.give_next = checked  # type: ignore[method-assign]
    return machine


def places_in_queues(machine: Machine) -> dict[tuple[str, str | None], dict[int, Run]]:
    """Return the waiting trees of each queue by their place: those of a user, or of a group of the
    user that has no room."""
    queues: dict[tuple[str, str | None], dict[int, Run]] = {}
    for run in machine.tree:
        if (place := machine.slots.place_of(run.id)) is not None:
            full = machine.slots.group_full(run.user, run.asked.queueing.group)
            queue = queues.setdefault((run.user, run.asked.queueing.group if full else None), {})
            assert place.place not in queue, (
                f"{run.id} and {queue[place.place].id} have the same place"
            )
            queue[place.place] = run
    return queues


def snapshot(machine: Machine, at: float, users: Iterable[str]) -> dict[str, Any]:
    """Return everything that a request of these users could see of the machine, without the next
    number and the counters of refusals."""
    return {
        "runs": {run.id: _of_run(run) for run in machine.tree},
        "slots": (machine.slots.count, machine.slots.queued),
        "waiting": {
            run.id: (machine.slots.waits(run.id), machine.slots.place_of(run.id))
            for run in machine.tree
        },
        "quotas": {user: machine.quotas(user, at) for user in users},
        "tickets": {ticket.token: set(ticket.pending) for ticket in machine.tickets()},
        "purses": [
            [getattr(each, name, None) for name in ("charged", "near", "over")]
            for each in machine.purses().known
        ],
        "draining": machine.draining,
        "admitted": machine.admitted,
    }


def _of_run(run: Run) -> dict[str, Any]:
    saved: dict[str, Any] = msgspec.msgpack.decode(encode(run))
    return saved | {
        "parent": run.parent.id if run.parent is not None else None,
        "children": list(run.children),
    }


Arrow = tuple[Status, Status]


@contextmanager
def every_move() -> Iterator[set[Arrow]]:
    """Check each assignment to a run's status against the table."""
    slot = State.__dict__["status"]
    seen: set[Arrow] = set()

    def assign(run: Run, new: Status) -> None:
        old = slot.__get__(run, Run) if run_has_status(run) else None
        if old is not None and not new.rejected:
            assert new in TRANSITIONS[old], (
                f"{run.id} went from {old} to {new}, which is not in the table"
            )
            seen.add((old, new))
        slot.__set__(run, new)

    def run_has_status(run: Run) -> bool:
        try:
            slot.__get__(run, Run)
        except AttributeError:
            return False
        return True

    setattr(Run, "status", property(lambda run: slot.__get__(run, Run), assign))  # noqa: B010 - mypy sees a field
    try:
        yield seen
    finally:
        delattr(Run, "status")

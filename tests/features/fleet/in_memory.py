"""A fleet in memory: a machine for each node, and a network that loses, repeats, delays and
reorders messages.

Each node does what the shell does: it saves before it sends, keeps the keys of what it was granted,
and answers for ended runs from its ledger. The clocks of nodes start apart and go at different
speeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.machine import Machine, NewPurses
from sfad.core.state.access import Peer
from sfad.core.state.account import OpenReservation, Use
from sfad.core.state.policy import Policy
from sfad.core.state.request import Asked
from sfad.core.state.run import Birth, Run, State
from sfad.core.state.tree import Remembered
from sfad.durable.snapshots import from_saved, to_saved
from sfad.features.fleet.deciding.elsewhere import elsewhere
from sfad.features.fleet.deciding.giving import grant_of, limits_to_send, wanted_of
from sfad.features.fleet.deciding.heard import (
    GrantRefused,
    GrantRenewed,
    GrantSeen,
    GrantState,
    GrantTended,
    Heard,
    Placed,
)  # fmt: skip
from sfad.features.fleet.feature import FleetConfig
from sfad.protocol.types import LimitKind, Reason, RunId, Wanted
from tests.core.asking import asked_for, replaced
from tests.core.holding import check_holds

ANN = Peer(1000, "ann")


@dataclass
class Offer:
    giver: str
    run: RunId
    key: str
    asked: Asked


@dataclass
class Tend:
    giver: str
    echo: float | None
    """What the taker's clock said, as the giver has heard."""
    runs: dict[RunId, tuple[RunId, Wanted]]
    """By ids of the giver: the id of the taker, and what is wanted."""


@dataclass
class Told:
    node: str
    clock: float
    states: dict[RunId, GrantState | Reason]
    """By ids of the giver."""


Message = Offer | Tend | Told


@dataclass
class Net:
    policy: Policy
    names: list[str]
    random: Random = field(default_factory=lambda: Random(0))
    at: float = 0.0
    purses: NewPurses | None = None
    flying: list[tuple[str, Message]] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    """Nodes that nothing is sent to, nor by."""
    sent: int = 0
    nodes: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = {
            name: Node(name, self, 1000.0 * n, 1 + 0.004 * (n % 3 - 1))
            for n, name in enumerate(self.names)
        }

    def send(self, sender: str, to: str, message: Message) -> None:
        self.sent += 1
        if sender not in self.cut and to not in self.cut:
            self.flying.append((to, message))

    def deliver(self, number: int, *, keep: bool = False) -> None:
        """Deliver one message. `keep`: it will come again."""
        to, message = self.flying[number] if keep else self.flying.pop(number)
        self.nodes[to].receive(message)  # what was sent before a node was cut off may arrive late

    def deliver_all(self) -> None:
        while self.flying:
            self.deliver(0)

    def wait(self, seconds: float) -> None:
        """Let time pass on every clock, up to each timer that fires meanwhile."""
        until = self.at + seconds
        while True:
            due = min(
                ((node.fires_at(), node.name) for node in self.nodes.values()), default=(until, "")
            )
            if due[0] >= until:
                break
            self.at = max(self.at, due[0])
            self.nodes[due[1]].fire()
        self.at = until

    def settle(self, rounds: int = 6) -> None:
        """Let each node tend its grants until everything was told."""
        for _ in range(rounds):
            for node in self.nodes.values():
                node.tend()
            self.deliver_all()


@dataclass
class Node:
    name: str
    net: Net
    begins: float
    speed: float
    machine: Machine = field(init=False)
    timers: dict[tuple[RunId, Any], float] = field(default_factory=dict)
    alive: set[RunId] = field(default_factory=set)
    """Runs whose main process is."""
    keys: dict[str, RunId] = field(default_factory=dict)
    ended: dict[RunId, GrantState] = field(default_factory=dict)
    admitted: list[Run] = field(default_factory=list)
    spent: dict[RunId, int] = field(default_factory=dict)
    refused: dict[int, c.Answer] = field(default_factory=dict)
    answers: dict[int, c.Answer] = field(default_factory=dict)
    stamps: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of other nodes: what their clock said, and when that was heard."""
    takers: dict[RunId, str] = field(default_factory=dict)
    unsent: set[RunId] = field(default_factory=set)
    number: int = 0
    token: int = 0
    place: str | None = None
    """Where its next runs are placed."""

    def __post_init__(self) -> None:
        self.machine = Machine(self.net.policy, purses=self.net.purses, elsewhere=elsewhere)

    @property
    def now(self) -> float:
        return self.begins + self.net.at * self.speed

    def feed(self, event: e.Event) -> None:
        outcome = self.machine.handle(event)
        for command in outcome.commands:
            self._apply(command)
        check_holds(self.machine, self.now)
        for run in outcome.changed.values():
            if run.remote is not None and run.remote.id and not run.status.terminal:
                self.unsent.add(run.id)

    def hear(self, run: RunId, what: Heard) -> None:
        self.feed(e.HeardOf(self.now, run, what))

    def spawn(self, name: str, *, inside: RunId | None = None, **asked: Any) -> c.Answer | None:
        self.token += 1
        peer = Peer(1000, "ann", run=inside)
        self.feed(e.SpawnRequested(self.now, self.token, peer, asked_for((name,), **asked)))
        return self.answers.get(self.token)

    def spend(self, run: RunId, nanos: int) -> bool:
        """Reserve and use so much, as the gateway does. Return whether it was admitted."""
        self.token += 1
        reservation = OpenReservation("m", 10, 0, nanos, None)
        self.feed(e.ReserveRequested(self.now, self.token, ANN, run, reservation))
        answer = self.answers[self.token]
        if not isinstance(answer, c.ReserveAnswer) or answer.reservation is None:
            return False
        self.token += 1
        self.feed(
            e.SettleRequested(
                self.now, self.token, ANN, answer.reservation, Use(input_tokens=10, cost=nanos)
            )
        )
        self.spent[run] = self.spent.get(run, 0) + nanos
        return True

    def stop(self, run: RunId) -> int:
        self.token += 1
        self.feed(e.StopRequested(self.now, self.token, ANN, (run,)))
        return self.token

    def exit(self, run: RunId) -> None:
        self.alive.discard(run)
        live = self.machine.tree.get(run)
        alone = live is not None and not any(each.id in self.alive for each in live.subtree())
        self.feed(e.MainExited(self.now, run, 0, None, empty=alone))

    def crash(self) -> None:
        """Have another daemon adopt what is saved. Timers and what was heard are forgotten."""
        number = max([0, *(run.birth.number for run in self.admitted)]) + 1
        found: dict[RunId, Run] = {}
        for run in list(self.machine.tree):
            birth = msgspec.msgpack.decode(msgspec.msgpack.encode(run.birth), type=Birth)
            state = msgspec.msgpack.decode(
                msgspec.msgpack.encode(run, enc_hook=to_saved), type=State, dec_hook=from_saved
            )
            found[birth.id] = Run(birth, state, found.get(birth.parent or ""))
            found[birth.id].adopt(88 if birth.id in self.alive else None)
        self.timers.clear()
        self.stamps.clear()
        self.unsent.clear()
        self.machine = Machine(
            self.net.policy, next_number=number, purses=self.net.purses, elsewhere=elsewhere
        )
        inhabited = {above.id for run in self.alive if run in found for above in found[run].lineage}
        self.feed(
            e.RunsAdopted(
                self.now,
                tuple(
                    Remembered(run, empty=run.id not in inhabited, startable=True, begun=True)
                    for run in found.values()
                ),
                "the daemon died",
            )
        )

    # ---- the shell

    def _apply(self, command: c.Command) -> None:
        match command:
            case c.Admit(run):
                self.admitted.append(run)
                self.feed(e.Committed(self.now, (run.id,)))
            case c.Launch(run):
                self.alive.add(run.id)
                self.feed(e.LaunchSucceeded(self.now, run.id, 7))
            case c.Place(run) if run.remote is not None and run.remote.node is not None:
                self.takers[run.id] = run.remote.node
                self.unsent.add(run.id)
            case c.Place(run):
                placing = run.asked.placing
                node = (
                    placing.node if placing is not None and placing.node is not None else self.place
                )
                if node is not None:
                    self.hear(run.id, Placed(node))
            case c.Terminate(run_id, _) | c.Kill(run_id) if (
                live := self.machine.tree.get(run_id)
            ) is not None:
                if live.remote is not None:
                    self.unsent.add(run_id)
                    return
                for each in reversed(live.subtree()):
                    if each.id in self.alive:
                        self.alive.discard(each.id)
                        self.feed(e.MainExited(self.now, each.id, None, 15))
                self.feed(e.Emptied(self.now, run_id))
            case c.Freeze(run_id) if run_id in self.alive:
                self.feed(e.Frozen(self.now, run_id))
            case c.Arm(run_id, timer, at):
                self.timers[run_id, timer] = at
            case c.Disarm(run_id, timer):
                self.timers.pop((run_id, timer), None)
            case c.AnswerRequest(token, answer):
                self.answers[token] = answer
            case c.Retire(run):
                self.ended[run.id] = self._state(run)
                self.timers = {key: at for key, at in self.timers.items() if key[0] != run.id}

    def fires_at(self) -> float:
        return min(
            ((at - self.begins) / self.speed for at in self.timers.values()), default=float("inf")
        )

    def fire(self) -> None:
        key = min(self.timers, key=lambda each: self.timers[each])
        at = self.timers.pop(key)
        self.feed(e.TimerFired(max(at, self.now), *key))

    def tend(self) -> None:
        """Send each grant that was not answered, and what is wanted of the others."""
        remote = [
            run
            for run in self.machine.tree
            if run.remote is not None and run.remote.node is not None
        ]
        by_node: dict[str, list[Run]] = {}
        for run in remote:
            assert run.remote is not None
            by_node.setdefault(run.remote.node or "", []).append(run)
        for node, runs in by_node.items():
            self.tend_node(node, runs)

    def tend_node(self, node: str, runs: list[Run]) -> None:
        stamp, heard = self.stamps.get(node, (None, 0.0))
        if stamp is not None:
            for run in runs:
                self.feed(e.HeardOf(heard, run.id, GrantRenewed()))
        tended: dict[RunId, tuple[RunId, Wanted]] = {}
        for run in runs:
            assert run.remote is not None
            if run.remote.id:
                self.number += 1
                tended[run.id] = (
                    run.remote.id,
                    wanted_of(run, int(self.net.at * 1e6) + self.number, self.now),
                )
            elif stamp is not None:
                self._offer(run, node, stamp)
        self.net.send(self.name, node, Tend(self.name, stamp, tended))

    def _offer(self, run: Run, node: str, stamp: float) -> None:
        grant = grant_of(run, self.name, str(stamp))
        asked = replaced(
            run.asked,
            placing=None,
            grant=grant,
            max_descendants=None,
            max_depth=None,
            name=run.name,
            limits=tuple(limits_to_send(run, self.now)),
        )
        self.net.send(
            self.name, node, Offer(self.name, run.id, f"{self.name}/{run.id}/{run.attempt}", asked)
        )

    def receive(self, message: Message) -> None:
        match message:
            case Offer(giver, run, key, asked):
                if key not in self.keys:
                    grant = asked.grant
                    assert grant is not None
                    until = float(grant.stamp) + grant.lease if grant.lease is not None else None
                    before = len(self.admitted)
                    self.token += 1
                    self.feed(e.SpawnRequested(self.now, self.token, ANN, asked, lease_until=until))
                    if len(self.admitted) == before:
                        answer = self.answers[self.token]
                        why = answer.message if isinstance(answer, c.ErrorAnswer) else str(answer)
                        self._tell(giver, {run: Reason(kind="fleet", message=why)})
                        return
                    self.keys[key] = self.admitted[-1].id
                self._tell(giver, {run: self._known(self.keys[key])})
            case Tend(giver, echo, runs):
                section = self.net.policy.sections.get("fleet", FleetConfig())
                assert isinstance(section, FleetConfig)
                lease = section.lease
                until = echo + lease if echo is not None else None
                for taken, wanted in runs.values():
                    self.hear(taken, GrantTended(wanted, until))
                self._tell(giver, {mine: self._known(taken) for mine, (taken, _) in runs.items()})
            case Told(node, clock, states):
                if clock >= self.stamps.get(node, (0.0, 0.0))[0]:
                    self.stamps[node] = (clock, self.now)
                for mine, state in states.items():
                    if isinstance(state, Reason):
                        self.hear(mine, GrantRefused(state))
                    else:
                        self.hear(mine, GrantSeen(node, state))

    def _tell(self, giver: str, states: dict[RunId, GrantState | Reason]) -> None:
        self.net.send(self.name, giver, Told(self.name, self.now, states))

    def _known(self, run: RunId) -> GrantState:
        live = self.machine.tree.get(run)
        return self._state(live) if live is not None else self.ended[run]

    def _state(self, run: Run) -> GrantState:
        used = {kind: run.account.used(kind) for kind in (LimitKind.COST, LimitKind.TOKENS)}
        tokens, cost = used[LimitKind.TOKENS], used[LimitKind.COST]
        return GrantState(
            run.status,
            run.id,
            Use(
                input_tokens=None if tokens is None else int(tokens),
                cost=None if cost is None else int(cost),
            ),
            run.admitted,
            run.shown_reason,
        )

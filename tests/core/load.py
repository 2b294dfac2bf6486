"""A load for the machine without checks of single commands: a busy day, as fast as possible.

Both the big simulation and the benchmark run it. Outcomes are chosen by a seeded generator; what
comes out is counted here, by outcome, to be held against what the machine says.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import sfad.core
from sfad.core import commands as c
from sfad.core import events as e
from sfad.core.machine import Machine
from sfad.core.state.access import Peer
from sfad.core.state.request import Stage
from sfad.core.state.run import Run
from sfad.core.state.vocabulary import Timer
from sfad.protocol.types import Bound, Limit, LimitKind, RunId
from tests.core.asking import asked_for
from tests.core.policies import policy


def calls_of(what: Callable[[], object]) -> int:
    """Return how often functions of the core are called in it: what it costs, in a number that no
    other load touches."""
    calls, inside = 0, str(Path(sfad.core.__file__).parent)

    def called(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(inside)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        what()
    finally:
        sys.setprofile(before)
    return calls


LIMITS = (Limit(kind=LimitKind.TIME, threshold=60.0),)
BUDGET = Bound(value=12, source="--max-descendants")
PEERS = [Peer(1000 + number, f"user-{number}") for number in range(8)]
BUSY = policy(trees_per_user=16, trees=64, spawns_per_hour=10**9)


@dataclass
class Load:
    """A crowd of agents that start, nest, are refused, fail, are retried, time out and are
    stopped."""

    seed: int = 1
    machine: Machine = field(default_factory=lambda: Machine(BUSY))
    now: float = 0.0
    events: int = 0
    asked: int = 0
    replies: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    launches: int = 0
    releases: int = 0
    kills: int = 0
    stages: tuple[Stage, ...] = ()
    """Of every fourth run."""
    fed: list[e.Event] | None = None
    """The events, where they are to be fed to another machine."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.queue: deque[e.Event] = deque()
        self.timers: dict[tuple[RunId, Timer], float] = {}
        self.due: list[tuple[float, RunId, Timer]] = []
        self.mains: dict[RunId, Run] = {}
        self.some: list[Run] = []
        """Runs that had a main process lately: choosing from a list is cheaper than from a dict."""

    def until(self, asked: int) -> None:
        """Ask for so many runs, and let all of them end."""
        while self.asked < asked or len(self.machine.tree):
            if self.asked < asked and len(self.mains) < 200:
                self.ask()
            else:
                self.pass_time()
            while self.queue:
                self.feed(self.queue.popleft())

    def ask(self) -> None:
        """A person asks, or more often an agent."""
        self.asked += 1
        dice = self.random
        attempts = 3 if dice.random() < 0.1 else 1
        parent = self.any() if dice.random() < 0.5 else None
        peer = (
            Peer(parent.birth.uid, parent.user, run=parent.id)
            if parent is not None
            else dice.choice(PEERS)
        )
        asked = asked_for(
            ("x",),
            name=f"n{dice.randrange(30)}",
            limits=LIMITS,
            max_descendants=BUDGET,
            attempts=attempts,
            stages=self.stages if self.asked % 4 == 0 else (),
        )
        self.queue.append(e.SpawnRequested(self.now, self.asked, peer, asked))

    def any(self) -> Run | None:
        """Return a run with a main process."""
        while self.some:
            at = int(self.random.random() * len(self.some))
            if self.some[at].id in self.mains:
                return self.some[at]
            self.some[at] = self.some[-1]
            self.some.pop()
        return None

    def pass_time(self) -> None:
        """An agent ends, is stopped, is stuck, or the next timer fires."""
        chance = self.random.random()
        run = self.any()
        if run is None or chance < 0.1:
            self.fire()
        elif chance < 0.15:
            self.queue.append(e.StopRequested(self.now, -1, PEERS[0], (run.id,)))
        else:
            self.exit(run, 0 if chance < 0.7 else 1)

    def exit(self, run: Run, code: int) -> None:
        """A main process ends, and with it everything below where the run is being emptied."""
        del self.mains[run.id]
        alone = not any(child.id in self.mains for child in run.subtree())
        self.queue.append(e.MainExited(self.now, run.id, code, empty=alone))

    def fire(self) -> None:
        """Let time pass until the next timer."""
        while self.due:
            at, run, timer = heapq.heappop(self.due)
            if self.timers.get((run, timer)) == at:
                del self.timers[run, timer]
                self.now = max(self.now, at)
                self.queue.append(e.TimerFired(self.now, run, timer))
                return

    def feed(self, event: e.Event) -> None:
        """Handle an event and apply its commands."""
        self.events += 1
        if self.fed is not None:
            self.fed.append(event)
        for command in self.machine.handle(event).commands:
            match command:
                case c.Arm(run, timer, at):
                    self.timers[run, timer] = at
                    heapq.heappush(self.due, (at, run, timer))
                case c.Disarm(run, timer):
                    self.timers.pop((run, timer), None)
                case c.Admit(run):
                    self.queue.append(e.Committed(self.now, (run.id,)))
                case c.Launch(run):
                    self.launch(run)
                case c.Terminate(name, _):
                    self.empty(name, self.random.random() < 0.7)
                case c.Kill(name):
                    self.kills += 1
                    self.empty(name, True)
                case c.AnswerRequest(_, answer):
                    self.replies[type(answer).__name__] += 1
                case c.Release():
                    self.releases += 1
                case c.Retire(run):
                    self.ended[run.status] += 1

    def launch(self, run: Run) -> None:
        """Launch; it rarely fails."""
        self.launches += 1
        if self.random.random() < 0.02:
            self.queue.append(e.LaunchFailed(self.now, run.id, 2, "No such file or directory"))
        else:
            self.queue.append(e.LaunchSucceeded(self.now, run.id, 1))
            self.mains[run.id] = run
            self.some.append(run)

    def empty(self, name: RunId, obeys: bool) -> None:
        """End everything in a containment on a signal, or only on SIGKILL."""
        run = self.machine.tree.get(name)
        if run is None or not obeys:
            return
        for each in reversed(run.subtree()):
            if self.mains.pop(each.id, None):
                self.queue.append(e.MainExited(self.now, each.id, None, 15))
        self.queue.append(e.Emptied(self.now, name))

"""The loop: feeds the machine with events and applies its commands, in the trio thread."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import assert_never

import trio
from msgspec.structs import replace

from ...core import commands as c
from ...core import events as e
from ...core.machine import Machine
from ...core.state.access import Scope
from ...core.state.limits import PROFILED, advice_key
from ...core.state.policy import Policy
from ...core.state.run import Run
from ...core.state.tree import Tree
from ...core.state.vocabulary import Timer
from ...durable.adoption import StoredPidfds
from ...durable.budgets import BudgetBooks
from ...durable.maintenance import SessionArchive
from ...durable.plans import PlanBooks
from ...hooks.processes import HookProcesses
from ...host.clock import Timers, wall_clock
from ...host.faults import crash_point
from ...host.tasks import Background, FairLock, in_thread
from ...protocol.requests.advice import Advice
from ...protocol.types import ErrorCode, LimitKind, RunId
from ...runs.catalogue import RunCatalogue
from ...runs.live import Live
from ...storage.ledger.database import LedgerError
from ...storage.ledger.summary import learn
from ...usage.metering import Metering
from ...usage.pricing import PRICES_WAIT
from ...usage.sessions import LAST_LOOK_WAIT
from .announcing import Announcer
from .fleet import Fleet
from .gateways import ConnectionWatch
from .granted import GrantedRuns
from .keeper import KeeperRequests
from .launching import Launching
from .pending_requests import PendingRequests
from .resources import Resources
from .saving import Saver

# ---- Limits that past runs suggest: for `sfactl recommend`, and for `limits.adaptive`, which applies them

LEARN_AGAIN = 20
"""Ended runs of a user's type or name after which its limits are learnt again."""

KEYS_KEPT = 1000
"""Types and names of users that are kept. When there are more, all are forgotten, and learnt again when one is used."""


class Adviser:
    """Reads the ledger in a thread, so that the loop does not wait for it.

    While `limits.adaptive` is on, the core is told what was learnt. An admission does not wait for that, so the first run of a
    type starts without advice."""

    def __init__(self, directory: Path, background: Background, feed: e.Feed, trouble: Callable[[str], None]) -> None:
        self.adaptive = False
        self._policy = Policy()
        self._directory = directory
        self._background = background
        self._feed = feed
        self._trouble = trouble
        self._ended: dict[str, int] = {}
        self._fair = FairLock()
        """Each walk over the ledger keeps a CPU busy."""

    def configure(self, *, adaptive: bool, policy: Policy) -> None:
        """Follow a new config. Everything is learnt again, because the ranges in `policy` may have changed."""
        self.adaptive, self._policy = adaptive, policy
        self._ended.clear()

    async def advise(self, scope: Scope, run_type: str | None, name: str | None, asker: Sequence[Hashable] = ()) -> list[Advice]:
        """Return advice for each kind, from the runs in the scope. `asker`: see `FairLock`. Raises `LedgerError`, `OSError`."""
        look = partial(learn, self._directory, scope, type=run_type, name=name, policy=self._policy)
        async with self._fair.turn(asker):
            return await in_thread(look)

    def noticed(self, uid: int, run_type: str | None, name: str) -> None:
        """A run of a user was admitted or has ended. It is one of its type, or of its name if it has no type."""
        if not self.adaptive:
            return
        key = advice_key(uid, run_type, name)
        seen = self._ended.get(key)
        if len(self._ended) >= KEYS_KEPT:
            self._ended.clear()
        self._ended[key] = 0 if seen is None else seen + 1
        if seen is None or seen + 1 >= LEARN_AGAIN:
            self._ended[key] = 0
            self._background.start_soon(self._learn, key, uid, run_type, None if run_type is not None else name)

    async def _learn(self, key: str, uid: int, run_type: str | None, name: str | None) -> None:
        try:
            advice = await self.advise(Scope(uid=uid, run=None), run_type, name, (uid,))
        except (LedgerError, OSError) as error:
            self._trouble(f"nothing was learnt for limits.adaptive: {error}")
            return
        if not self.adaptive:
            return
        thresholds = {LimitKind(one.kind): one.suggested for one in advice if one.kind in PROFILED and one.suggested is not None}
        self._feed(e.AdviceLearned(trio.current_time(), key, thresholds))


# ---- What the launcher and the timers tell of runs. An end waits until it is known what its run has used

ENDS_WAIT = PRICES_WAIT + LAST_LOOK_WAIT
"""Seconds that a re-execution waits at most for pending ends. An end that is fed sooner stays without a price."""

CALLS_WAIT = 2.0
"""Seconds that an end waits for what its model calls have used. The gateway tells when it sees that its caller is gone."""

End = e.MainExited | e.Emptied


@dataclass(frozen=True, slots=True)
class _PendingTree:
    learning: trio.CancelScope
    """For all runs of the tree together: 1 000 waits in a row would let it exceed its time, or a stop its grace."""
    events: deque[End | e.TimerFired] = field(default_factory=deque)


@dataclass(slots=True)
class Arrivals:
    """Feeds the core with what the launcher and the timers tell.

    The end of a run waits while the price list is being loaded, or a session file may still grow. The ends of a tree are fed
    in their order."""

    tree: Tree
    timers: Timers
    metering: Metering
    pidfds: StoredPidfds
    background: Background
    feed: e.Feed
    hooks: HookProcesses
    connections: ConnectionWatch
    _pending: dict[RunId, _PendingTree] = field(default_factory=dict)
    """By root."""
    _settled: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    _none_pending: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def arrived(self, event: e.Event) -> None:
        """Take what the launcher tells. Before the core decides about an end, everything is learnt that the run wrote or used."""
        match event:
            case e.OfRun(run=name) if name in self.hooks:
                self.hooks.arrived(event)
            case e.LaunchSucceeded(run=name) if (run := self.tree.get(name)) is not None:
                self.pidfds.keep(run, event.pid)
                self.feed(event)
            case e.AgentSeen():
                self.connections.agent_seen(event.run, event.process)
                self.feed(event)
            case e.MainExited(run=name) | e.Emptied(run=name) if (run := self.tree.get(name)) is not None:
                self._ended(run, event)
            case _:
                self.feed(event)

    def arm(self, run: RunId, timer: Timer, at: float) -> None:
        self.timers.arm((run, timer), at, lambda: self._fired(e.TimerFired(trio.current_time(), run, timer)))

    def arm_alerts(self, at: float | None) -> None:
        """Feed `AlertsDue` then, or not any more."""
        if at is None:
            self.timers.disarm("alerts")
        else:
            self.timers.arm("alerts", at, lambda: self.feed(e.AlertsDue(trio.current_time())))

    def arm_plans(self, at: float | None) -> None:
        """Feed `PlansDue` then, or not any more."""
        if at is None:
            self.timers.disarm("plans")
        else:
            self.timers.arm("plans", at, lambda: self.feed(e.PlansDue(trio.current_time(), wall_clock().astimezone())))

    def _ended(self, run: Run, event: End) -> None:
        """Feed that a run or its main process has ended, now or later."""
        root = run.root.id
        if root not in self._pending:
            if not self.metering.may_wait(run) and not _calls(run):
                self._feed_now(event)
                return
            self._pending[root] = _PendingTree(trio.CancelScope(deadline=trio.current_time() + PRICES_WAIT))
            self.background.start_soon(self._feed_later, root)
        self._pending[root].events.append(event)

    def _fired(self, event: e.TimerFired) -> None:
        """Feed that a timer has fired. A run with a pending end must not exceed its time."""
        run = self.tree.get(event.run)
        pending = self._pending.get(run.root.id) if run is not None else None
        if pending is None:
            self._feed_now(event)
        else:
            pending.events.append(event)
            pending.learning.deadline = min(pending.learning.deadline, trio.current_time() + LAST_LOOK_WAIT)

    def call_settled(self) -> None:
        """Note that a model call was settled."""
        self._settled.unpark_all()

    async def _calls_settled(self, run: Run) -> None:
        with trio.move_on_after(CALLS_WAIT):
            while _calls(run):
                await self._settled.park()

    def feed_all(self) -> None:
        for pending in list(self._pending.values()):
            self._feed_tree(pending)

    async def none_pending(self) -> None:
        """Wait until no end is pending, at most `ENDS_WAIT`."""
        with trio.move_on_after(ENDS_WAIT):
            while self._pending:
                await self._none_pending.park()

    async def _feed_later(self, root: RunId) -> None:
        pending = self._pending[root]
        with pending.learning:
            while pending.events:
                first = pending.events[0]
                run = self.tree.get(first.run)
                if run is not None:
                    await self.metering.learn_use(run, succeeded=isinstance(first, e.MainExited) and first.code == 0)
                    if isinstance(first, e.Emptied) or (isinstance(first, e.MainExited) and first.empty):
                        await self._calls_settled(run)
                if pending.events:  # else `feed_all` was called in the meantime
                    self._feed_now(pending.events.popleft())
        self._feed_tree(pending)
        del self._pending[root]
        if not self._pending:
            self._none_pending.unpark_all()

    def _feed_tree(self, pending: _PendingTree) -> None:
        while pending.events:
            self._feed_now(pending.events.popleft())

    def _feed_now(self, event: End | e.TimerFired) -> None:
        run = self.tree.get(event.run)
        if run is not None and not isinstance(event, e.TimerFired):
            self.metering.catch_up(run, event.signal if isinstance(event, e.MainExited) else None)
            if isinstance(event, e.MainExited):
                self.pidfds.forget(run)
                if event.code:
                    event = replace(event, last_line=self.metering.last_line(run.id))
        self.feed(event)


def _calls(run: Run) -> bool:
    """Return whether model calls are under way in the run or below it."""
    return any(each.account.under_way for each in run.subtree())


# ---- The loop: feeds the machine with events and applies its commands, in the trio thread

_INTERNAL = frozenset({c.Arm, c.Disarm, c.ArmAlerts, c.ArmPlans, c.SaveAlerts, c.TellCall, c.MeterAgent})
"""These have no effect outside the process: a crash before or after one is equivalent."""


_SIGNS = (e.LaunchSucceeded, e.UseSeen, e.ToolsCalled, e.AgentSaid, e.ReportRequested, e.ReserveRequested)
"""Events that are signs of life of their runs."""


class EventQueue:
    """Passes events on one after the other: an event that is fed while another is handled is handled after it. Those that are fed
    before `begin` wait for it."""

    def __init__(self) -> None:
        self._events: deque[e.Event] = deque()
        self._busy = True
        self._handle: e.Feed = self._events.append

    def feed(self, event: e.Event) -> None:
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._busy = False

    def begin(self, handle: e.Feed) -> None:
        while self._events:
            handle(self._events.popleft())
        self._handle, self._busy = handle, False


INTERNAL_ERROR = "internal error; the daemon's log has the traceback"


@dataclass(frozen=True, slots=True)
class CoreLoop:
    """Has the machine decide about an event, saves what it decided, and applies its commands."""

    machine: Machine
    resources: Resources
    catalogue: RunCatalogue
    requests: PendingRequests
    announcer: Announcer
    adviser: Adviser
    metering: Metering
    budgets: BudgetBooks
    plans: PlanBooks
    saver: Saver
    launching: Launching
    arrivals: Arrivals
    background: Background
    archive: SessionArchive
    fleet: Fleet
    keeper: KeeperRequests
    granted: GrantedRuns
    shut_down: Callable[[], None]

    def handle(self, event: e.Event) -> None:
        try:
            outcome = self.machine.handle(event)
        except Exception:  # noqa: BLE001 - a bug in one request must not leave every tree without a supervisor
            self.resources.log.internal_error(event)
            token = getattr(event, "token", None)
            if token is not None:
                answer = c.ErrorAnswer(ErrorCode.INTERNAL, INTERNAL_ERROR)
                self.requests.answer(token, answer)
            return
        if isinstance(event, _SIGNS):
            self._hear(event.run, event.at)
        changed = self.saver.save_snapshots(outcome)
        for command in outcome.commands:
            if type(command) not in _INTERNAL:
                crash_point(type(command).__name__)
            try:
                self._apply(command, changed)
            except Exception:  # noqa: BLE001 - what was decided stands: the commands after it, a timer, a reply, must be applied
                self.resources.log.internal_error(command)
                if isinstance(command, c.Admit):  # else its client would wait for good, and the run would keep a slot
                    self.saver.commit_failed([command.run.id], INTERNAL_ERROR)
        if outcome.changed:
            if self.fleet.remote:
                self.fleet.look()
            self.granted.changed(outcome.changed.values())

    def _apply(self, command: c.Command, changed: Iterable[Live]) -> None:
        launcher = self.resources.launcher
        if self.fleet.remote and isinstance(command, c.WithId) and self.fleet.takes(command):
            return
        match command:  # each case is a test: what every run needs comes first
            case c.Publish(event, lineage):
                self.announcer.publish_event(event, lineage)
            case c.Record(run):
                self.saver.record(run)
            case c.Arm(run_id, timer, at):
                self.arrivals.arm(run_id, timer, at)
            case c.Disarm(run_id, timer):
                self.resources.timers.disarm((run_id, timer))
            case c.AnswerRequest(token, answer):
                self.requests.answer(token, answer)
            case c.Admit(run):
                self._admit(run, changed)
            case c.Launch(run):
                self.launching.launch(run)
            case c.Place() | c.Offer() | c.Tend():
                self.fleet.apply(command)
            case c.Release(run_id):
                self.metering.forget(run_id)
                launcher.release(run_id)
            case c.TellEnd(run):
                self._end(run)
            case c.ArmAlerts(at):
                self.arrivals.arm_alerts(at)
            case c.ArmPlans(at):
                self.arrivals.arm_plans(at)
            case c.SavePlan(subscription):
                self.plans.record(subscription)
                self.keeper.plan_changed()
            case c.SaveAlerts(soon):
                if soon:  # else it was saved with the snapshots
                    self.saver.save_alerts_soon()
            case c.RecordRefusal(run):
                self._refuse(run)
            case c.CountRefusal(run_id):
                self.resources.ledger.count_refusal(run_id)
            case c.TellCall(call, lineage):
                self._hear(call.run_id, trio.current_time())
                self.saver.watchers.called(call, lineage)
            case c.RecordCall(call, lineage):
                self._hear(call.run_id, trio.current_time())
                self.saver.record_call(call, lineage)
            case c.SaveBudget():
                pass  # it was saved with the snapshots
            case c.Draw():
                self.keeper.draw(command)
            case c.Charge(scope, name, nanos):
                self.budgets.record(scope, name, nanos)
            case c.Interrupt(run_id):
                launcher.signal_main(run_id, SIGINT)  # if it has ended by now, the core will hear of that
            case c.Terminate(run_id, signal):
                launcher.terminate(run_id, signal)
            case c.Kill(run_id):
                launcher.kill(run_id)
            case c.Survey(run_id):
                launcher.survey(run_id)
            case c.Freeze(run_id):
                launcher.freeze(run_id)
            case c.Thaw(run_id):
                launcher.thaw(run_id)
                for run in self.catalogue.live[run_id].run.subtree():
                    self._hear(run.id, trio.current_time())
            case c.MeterAgent(run_id, process):
                self.metering.follow_agent(self.catalogue.live[run_id], process)
            case c.Rebound(run):
                self.catalogue.live[run.id].limits_changed()
                self.metering.rebound(run)
            case c.Shutdown():
                self.shut_down()
            case _:
                assert_never(command)

    def _hear(self, run: RunId, at: float) -> None:
        """Note a sign of life."""
        if (live := self.catalogue.live.get(run)) is not None:
            live.hear(at)

    def _admit(self, run: Run, changed: Iterable[Live]) -> None:
        assert run.admit_token is not None
        pending = self.requests.take_admitted(run.admit_token)
        live = pending.live(run, self.resources.launcher)
        self.catalogue.add(live)
        if live.stdin is not None:
            self.background.start_soon(live.stdin.serve)
        pending.on_admit(run.id)
        self.adviser.noticed(run.birth.uid, run.asked.type, run.name)
        self.saver.admit(live, changed)

    def _refuse(self, run: Run) -> None:
        self.saver.refuse(self.requests.refused(run, self.resources.launcher))

    def _end(self, run: Run) -> None:
        if run.asked.placing is not None:
            self.fleet.ended(run.id)
        self.adviser.noticed(run.birth.uid, run.asked.type, run.name)
        if run.asked.session is not None:
            self.archive.ended(run.id)
        self.saver.end(self.catalogue.live[run.id])

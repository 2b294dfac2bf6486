"""The loop: feeds the machine with events and applies its commands, in the trio thread."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from signal import SIGINT
from typing import assert_never

import trio

from ...core import commands as c
from ...core import events as e
from ...core.machine import Machine
from ...core.state.run import Run
from ...durable.budgets import BudgetBooks
from ...durable.maintenance import SessionArchive
from ...host.faults import crash_point
from ...host.tasks import Background
from ...protocol.types import ErrorCode, RunId
from ...runs.catalogue import RunCatalogue
from ...runs.live import Live
from ...usage.metering import Metering
from .announcing import Announcer
from .fleet import Fleet
from .granted import GrantedRuns
from .keeper import KeeperRequests
from .launcher_events import LauncherEvents
from .launching import Launching
from .pending_requests import PendingRequests
from .resources import Resources
from .saving import Saver
from .seam import Parts

_INTERNAL = frozenset({c.Arm, c.Disarm, c.Remind, c.SaveOf, c.TellCall, c.MeterAgent})
"""These have no effect outside the process: a crash before or after one is equivalent."""


_SIGNS = (
    e.LaunchSucceeded,
    e.UseSeen,
    e.ToolsCalled,
    e.AgentSaid,
    e.ReportRequested,
    e.ReserveRequested,
)
"""Events that are signs of life of their runs."""


class EventQueue:
    """Passes events on one after the other: an event that is fed while another is handled is
    handled after it. Those that are fed before `begin` wait for it."""

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
    parts: Parts
    metering: Metering
    budgets: BudgetBooks
    saver: Saver
    launching: Launching
    launcher_events: LauncherEvents
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
        unsaved = self.saver.save_snapshots(outcome)
        for command in outcome.commands:
            if type(command) not in _INTERNAL:
                crash_point(type(command).__name__)
            try:
                self._apply(command, unsaved)
            except Exception:  # noqa: BLE001 - what was decided stands: the commands after it, a timer, a reply, must be applied
                self.resources.log.internal_error(command)
                # else its client would wait for good, and the run would keep a slot
                if isinstance(command, c.Admit):
                    self.saver.commit_failed([command.run.id], INTERNAL_ERROR)
        if outcome.changed:
            if self.fleet.remote:
                self.fleet.look()
            if self.granted.waiting:
                self.granted.changed(outcome.changed.values())

    def _apply(self, command: c.Command, unsaved: Iterable[Live]) -> None:
        launcher = self.resources.launcher
        if self.fleet.remote and isinstance(command, c.WithId) and self.fleet.takes(command):
            return
        match command:  # each case is a test: what every run needs comes first
            case c.Publish(event, lineage):
                self.announcer.publish_event(event, lineage)
            case c.Record(run):
                self.saver.record(run)
            case c.Arm(run_id, timer, at):
                self.launcher_events.arm(run_id, timer, at)
            case c.Disarm(run_id, timer):
                self.resources.timers.disarm((run_id, timer))
            case c.AnswerRequest(token, answer):
                self.requests.answer(token, answer)
            case c.Admit(run):
                self._admit(run, unsaved)
            case c.Launch(run):
                self.launching.launch(run)
            case c.Place() | c.Offer() | c.Tend():
                self.fleet.apply(command)
            case c.Release(run_id):
                self.metering.forget(run_id)
                launcher.release(run_id)
            case c.Retire(run):
                self._retire(run)
            case c.Remind(feature, key, at):
                self.launcher_events.remind(feature, key, at)
            case c.SaveOf(feature, soon):
                if soon:
                    self.saver.save_feature_soon(feature)
                else:  # it was saved with the snapshots
                    self.parts.state_saved(feature)
                    if self.parts.shares(feature):
                        self.keeper.shares_changed()
            case c.RecordRefusal(run):
                self._refuse(run)
            case c.CountRefusal(run_id):
                self.resources.ledger.count_refusal(run_id)
            case c.TellCall(call, lineage):
                self._hear(call.run_id, trio.current_time())
                self.saver.watchers.called(call, lineage)
                self.saver.run_feed.changed([call.run_id])
            case c.RecordCall(call, lineage):
                self._hear(call.run_id, trio.current_time())
                self.saver.record_call(call, lineage)
                self.saver.run_feed.changed([call.run_id])
            case c.SaveBudget():
                pass  # it was saved with the snapshots
            case c.Draw():
                self.keeper.draw(command)
            case c.Charge(scope, name, nanos):
                self.budgets.record(scope, name, nanos)
            case c.Interrupt(run_id):
                # if it has ended by now, the core will hear of that
                launcher.signal_main(run_id, SIGINT)
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

    def _admit(self, run: Run, unsaved: Iterable[Live]) -> None:
        assert run.admit_token is not None
        pending = self.requests.take_admitted(run.admit_token)
        live = pending.live(run, self.resources.launcher)
        self.catalogue.add(live)
        if live.stdin is not None:
            self.background.start_soon(live.stdin.serve)
        if pending.admitted is not None:
            pending.admitted(run.id)
        for tell in self.parts.admitted:
            tell(run)
        self.saver.admit(live, unsaved)

    def _refuse(self, run: Run) -> None:
        self.saver.refuse(self.requests.refused(run, self.resources.launcher))

    def _retire(self, run: Run) -> None:
        if run.asked.placing is not None:
            self.fleet.ended(run.id)
        if run.asked.session is not None:
            self.archive.ended(run.id)
        self.saver.retire(self.catalogue.live[run.id])
        for tell in self.parts.ended:  # last: a bug of a feature must not keep the run
            tell(run)

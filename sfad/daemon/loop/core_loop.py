"""The loop: feeds the machine with events and applies its commands, in the trio thread."""

from collections.abc import Callable, Iterable, Mapping
from signal import SIGINT
from typing import assert_never

import trio
from msgspec import Struct

from ...core import commands as c
from ...core import events as e
from ...core.machine import Machine
from ...core.state.run import Run
from ...durable.maintenance import SessionArchive
from ...host.faults import crash_point
from ...host.tasks import Background
from ...processes.launcher import RunProcesses
from ...protocol.types import ErrorCode, RunId
from ...runs.catalogue import RunCatalogue
from ...runs.live import Live
from ...storage.ledger import Ledger
from ...usage.metering import Metering
from .announcing import Announcer
from .launcher_events import LauncherEvents
from .launching import Launching
from .pending_requests import PendingRequests
from .resources import Resources
from .saving import INTERNAL_ERROR, Saver
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
    """Passes events on. Those that are fed while others are handled, or within `with queue`, are
    handled together, after them. Those that are fed before `begin` wait for it."""

    def __init__(self) -> None:
        self._events: list[e.Event] = []
        self._busy = True
        self._handle: Callable[[list[e.Event]], None]

    def feed(self, event: e.Event) -> None:
        self._events.append(event)
        if not self._busy:
            self._pass_on()

    def __enter__(self) -> None:
        self._busy = True

    def _pass_on(self, *_error: object) -> None:
        self._busy = True
        try:
            while self._events:
                events, self._events = self._events, []
                self._handle(events)
        finally:
            self._busy = False

    __exit__ = _pass_on

    def begin(self, handle: Callable[[list[e.Event]], None]) -> None:
        self._handle = handle
        self._pass_on()


class Together:
    """Entered around events that come in one go: they are handled together, and what is urgent of
    that is on record at the end."""

    def __init__(
        self, queue: EventQueue, ledger: Ledger, failed: Callable[[object], object]
    ) -> None:
        self._queue, self._ledger, self._failed = queue, ledger, failed

    def __enter__(self) -> None:
        self._ledger.__enter__()
        self._queue.__enter__()

    def __exit__(self, *_error: object) -> None:
        try:
            self._queue.__exit__()
        finally:
            try:
                self._ledger.__exit__()
            except Exception:  # noqa: BLE001 - a bug in what is told of a commit must not end what watches the runs
                self._failed(self)


class CoreLoop(Struct, frozen=True):
    """Has the machine decide about an event, saves what it decided, and applies its commands."""

    machine: Machine
    resources: Resources
    catalogue: RunCatalogue
    requests: PendingRequests
    announcer: Announcer
    parts: Parts
    metering: Metering
    saver: Saver
    launching: Launching
    launcher_events: LauncherEvents
    background: Background
    archive: SessionArchive
    processes: Mapping[RunId, RunProcesses]
    """See `Heart.processes`."""
    shut_down: Callable[[], None]

    def handle(self, events: list[e.Event]) -> None:
        """Decide about events that came together, save all that was decided, and do it. A run that
        has begun and ended since the last round is saved once."""
        outcomes = list[c.Outcome]()
        self.catalogue.version += 1
        for event in events:
            live = None
            if len(events) > 1 and isinstance(event, e.LaunchSucceeded):
                live = self.catalogue.live.get(event.run)
            awaited = live is not None and live.run.admit_token is not None
            try:
                outcomes.append(self.machine.handle(event))
            except Exception:  # noqa: BLE001 - a bug in one request must not leave every tree without a supervisor
                self.resources.log.internal_error(event)
                token = getattr(event, "token", None)
                if token is not None:
                    answer = c.ErrorAnswer(ErrorCode.INTERNAL, INTERNAL_ERROR)
                    self.requests.answer(token, answer)
                continue
            if isinstance(event, _SIGNS):
                self._hear(event.run, event.at)
            if live is not None and awaited:
                self.catalogue.note_begun(live)
        if not outcomes:
            return
        unsaved = self.saver.save_snapshots(outcomes)
        for outcome in outcomes:
            self._apply(outcome.commands, unsaved)
            if outcome.changed:
                for tell in self.parts.changed:
                    tell(outcome.changed.values())

    def _apply(self, commands: Iterable[c.Command], unsaved: Iterable[Live]) -> None:
        for command in commands:
            if type(command) not in _INTERNAL:
                crash_point(type(command).__name__)
            try:
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
                    case c.Place(run):
                        self.parts.place(run)
                    case c.Release(run_id):
                        self.metering.forget(run_id)
                        self._processes(run_id).release(run_id)
                    case c.Retire(run):
                        self._retire(run)
                    case c.Remind(feature, key, at):
                        self.launcher_events.remind(feature, key, at)
                    case c.SaveOf(feature, soon):
                        if soon:
                            self.saver.save_feature_soon(feature)
                        else:  # it was saved with the snapshots
                            self.parts.state_saved(feature)
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
                    case c.Tell(feature, what):
                        self.parts.told(feature, what)
                    case c.Interrupt(run_id):
                        # if it has ended by now, the core will hear of that
                        self._processes(run_id).signal_main(run_id, SIGINT)
                    case c.Terminate(run_id, signal):
                        self._processes(run_id).terminate(run_id, signal)
                    case c.Kill(run_id):
                        self._processes(run_id).kill(run_id)
                    case c.Survey(run_id):
                        self._processes(run_id).survey(run_id)
                    case c.Freeze(run_id):
                        self._processes(run_id).freeze(run_id)
                    case c.Thaw(run_id):
                        self._processes(run_id).thaw(run_id)
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
            except Exception:  # noqa: BLE001 - what was decided stands: the commands after it, a timer, a reply, must be applied
                self.resources.log.internal_error(command)
                # else its client would wait for good, and the run would keep a slot
                if isinstance(command, c.Admit):
                    self.saver.commit_failed([command.run.id], INTERNAL_ERROR)

    def _processes(self, run: RunId) -> RunProcesses:
        """Return what carries out commands about the processes of a run."""
        return self.processes.get(run, self.resources.launcher)

    def _hear(self, run: RunId, at: float) -> None:
        """Note a sign of life."""
        if (live := self.catalogue.live.get(run)) is not None:
            live.hear(at)

    def _admit(self, run: Run, unsaved: Iterable[Live]) -> None:
        assert run.admit_token is not None
        pending = self.requests.spawns.pop(run.admit_token)
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
        assert run.admit_token is not None
        pending = self.requests.spawns[run.admit_token]
        self.saver.refuse(pending.live(run, self.resources.launcher, refused=True))

    def _retire(self, run: Run) -> None:
        if run.asked.session is not None:
            self.archive.ended(run.id)
        self.saver.retire(self.catalogue.live[run.id])
        for tell in self.parts.ended:  # last: a bug of a feature must not keep the run
            tell(run)

"""The loop: feeds the machine with events and applies its commands, in the trio thread."""

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from pathlib import Path
from signal import SIGINT
from typing import assert_never

import trio
from msgspec import structs

from .. import config as configuration
from ..agents import registered
from ..core import commands as c
from ..core import events as e
from ..core.machine import Machine
from ..core.quotas import HOUR
from ..core.run import Run
from ..core.vocabulary import Timer
from ..durable.adoption import Adoption, Rows
from ..durable.budgets import BudgetKeeper
from ..durable.handover import HandedRun
from ..durable.maintenance import Maintenance
from ..durable.pidfds import StoredPidfds
from ..faults import effect
from ..host.clock import wall_clock
from ..host.descriptors import Descriptors
from ..host.tasks import Background, keep_serving
from ..metering.metering import Metering
from ..protocol.messages import Change
from ..protocol.types import ErrorCode, RunId
from ..runs.catalogue import RunCatalogue
from ..runs.live import Live
from ..runs.subscribers import Subscribers
from .advising import Adviser
from .announcing import Announcer
from .ends import End, PendingEnds
from .launching import Launching
from .pending_requests import PendingRequests
from .resources import Resources
from .saving import Saver
from .storage import StorageWatch
from .translate import policy_of

_INTERNAL = c.Arm | c.Disarm
"""These have no effect outside the process: a crash before or after one is equivalent."""

ReadConfig = Callable[[], tuple[configuration.Loaded, list[Change]]]


class Runtime:
    """Owns the machine and the parts that carry out its commands. `trio.current_time()` is the core's clock."""

    def __init__(
        self,
        resources: Resources,
        loaded: configuration.Loaded,
        *,
        shut_down: Callable[[], None],
        read_config: ReadConfig,
        began: float | None = None,
    ) -> None:
        """`read_config` reads the config again, and returns what is in force then and what has changed. `began`: when the daemon
        was started, if it was re-executed since."""
        now, config = trio.current_time(), loaded.config
        self.log, self.timers, self.journal, self.ledger = resources.log, resources.timers, resources.journal, resources.ledger
        self.output, self.launcher = resources.output, resources.launcher
        self.socket, self.state_dir = resources.socket, resources.state_dir
        self.began = now if began is None else began
        self.adopted = 0
        """Live runs that were adopted from an earlier daemon."""
        self._reports = resources.reports
        self._events: deque[e.Event] = deque()
        self._feeding = False
        # the clock has gone on since an earlier daemon named its reservations, so these names are new
        self.machine = Machine(policy_of(loaded), next_number=self.ledger.next_number, reservations=int(1000 * now))
        self.descriptors = Descriptors()
        self.background = Background(self.log.internal_error)
        self.pidfds = StoredPidfds()
        self.subscribers = Subscribers()
        self.journal.begin(os.path.realpath(self.state_dir))
        self.catalogue = RunCatalogue(self.ledger.records, self.journal.keys(), self.output.forget)
        self.announcer = Announcer(resources, self.catalogue, self.subscribers)
        self.metering = Metering(
            feed=self.feed, publish=self.announcer.tell_of_run, trouble=self.log.warning, output=self.output,
            launcher=self.launcher, prices=config.prices, nearing=config.limits.nearing,
        )  # fmt: skip
        self.adviser = Adviser(Path(self.state_dir), self.background, self.feed, self.log.warning)
        self.maintenance = Maintenance(
            self.ledger, self.output, config.retention,
            live=lambda: self.catalogue.live, report=self.log.warning, say=self.log.info,
        )  # fmt: skip
        self.requests = PendingRequests(self.feed, self.catalogue, self.descriptors)
        self.storage = StorageWatch(resources, self.catalogue, self.metering, self.announcer)
        self.ends = PendingEnds(self.machine.tree, self.metering, self.background, self._report)
        self._budgets = BudgetKeeper(self.machine.budgets, self.ledger, self.timers, self.feed, self.log.warning, self.journal)
        self.saver = Saver(resources, self.catalogue, self.subscribers, self._budgets, self.metering, self.storage, self.feed)
        self.ledger.report_to(self.saver)
        self._launching = Launching(resources, self.catalogue, self.metering, self.descriptors, self.feed, self._arm)
        self._shut_down = shut_down
        self.config, self.settings, self.agents = config, loaded.settings, registered(config, loaded.settings)
        self._read_config = read_config

    # ---- the loop

    def feed(self, event: e.Event) -> None:
        """Handle an event and apply its commands. An event that these cause is handled after it."""
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._feeding = False

    def _handle(self, event: e.Event) -> None:
        try:
            outcome = self.machine.handle(event)
        except Exception:  # noqa: BLE001 - a bug in one request must not leave every tree without a supervisor
            self.log.internal_error(event)
            token = getattr(event, "token", None)
            if token is not None:
                answer = c.ErrorAnswer(ErrorCode.INTERNAL, "internal error; the daemon's log has the traceback")
                self.requests.answer(token, answer)
            return
        changed = self.saver.save_snapshots(outcome)
        for command in outcome.commands:
            if not isinstance(command, _INTERNAL):
                effect(type(command).__name__)
            try:
                self._apply(command, changed)
            except Exception:  # noqa: BLE001 - what was decided stands: the commands after it, a timer, a reply, must be applied
                self.log.internal_error(command)

    def _apply(self, command: c.Command, changed: Iterable[Live]) -> None:
        match command:
            case c.Publish(event, chain):
                self.announcer.publish(event, chain)
            case c.Arm(run, timer, at):
                self._arm(run, timer, at)
            case c.Disarm(run, timer):
                self.timers.disarm((run, timer))
            case c.AnswerRequest(token, answer):
                self.requests.answer(token, answer)
            case c.Save(saved):
                self.saver.save(saved)
            case c.Admit(admitted):
                self._admit(admitted, changed)
            case c.RecordRefusal(refused):
                self._refuse(refused)
            case c.CountRefusal(run):
                self.ledger.count_refusal(run)
            case c.Charge(scope, name, nanos):
                self._budgets.charge(scope, name, nanos)
            case c.Launch(launched):
                self._launching.launch(launched)
            case c.Interrupt(run):
                self.launcher.signal_main(run, SIGINT)  # if it has ended by now, the core will hear of that
            case c.Terminate(run, signal):
                self.launcher.terminate(run, signal)
            case c.Kill(run):
                self.launcher.kill(run)
            case c.Survey(run):
                self.launcher.survey(run)
            case c.Freeze(run):
                self.launcher.freeze(run)
            case c.Thaw(run):
                self.launcher.thaw(run)
            case c.Rebound(bound):
                self.catalogue.live[bound.id].limits_changed()
                self.metering.rebound(bound)
            case c.Release(run):
                self.metering.forget(run)
                self.launcher.release(run)
            case c.ReportEnd(ended):
                self._end(ended)
            case c.Shutdown():
                self._shut_down()
            case _:
                assert_never(command)

    def _admit(self, run: Run, changed: Iterable[Live]) -> None:
        assert run.admit_token is not None
        pending = self.requests.admitted(run.admit_token)
        live = pending.live(run, self.launcher)
        self.catalogue.add(live)
        if live.stdin is not None:
            self.background.start_soon(live.stdin.serve)
        pending.admitted(run.id)
        self.adviser.noticed(run.asked.type, run.name)
        self.saver.admit(live, changed)

    def _refuse(self, run: Run) -> None:
        assert run.admit_token is not None
        now = wall_clock()
        self.saver.refuse(Live(run, self.requests.refused(run.admit_token), self.launcher, now, ended_at=now))

    def _end(self, run: Run) -> None:
        self.adviser.noticed(run.asked.type, run.name)
        self.saver.end(self.catalogue.live[run.id])

    def _arm(self, run: RunId, timer: Timer, at: float) -> None:
        self.timers.arm((run, timer), at, lambda: self.ends.time_came(e.TimerFired(trio.current_time(), run, timer)))

    def reported(self, event: e.Event) -> None:
        """Take what the launcher reports. Before the core decides about an end, everything is learnt that the run wrote or used."""
        match event:
            case e.LaunchSucceeded(run=name) if (run := self.machine.tree.get(name)) is not None:
                self.pidfds.keep(run, event.pid)
                self.feed(event)
            case e.MainExited(run=name) | e.Emptied(run=name) if (run := self.machine.tree.get(name)) is not None:
                self.ends.ended(run, event)
            case _:
                self.feed(event)

    def _report(self, event: End | e.TimerFired) -> None:
        run = self.machine.tree.get(event.run)
        if run is not None and not isinstance(event, e.TimerFired):
            self.metering.catch_up(run, event.signal if isinstance(event, e.MainExited) else None)
            if isinstance(event, e.MainExited):
                self.pidfds.forget(run)
        self.feed(event)

    # ---- from start to end

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the launcher, timers and everything else that goes on by itself, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.background.serve)
            await nursery.start(self.metering.serve)
            await nursery.start(self.launcher.serve)
            for serve in (self.timers.serve, self.maintenance.serve, self.metering.sample, self.storage.serve):
                nursery.start_soon(keep_serving, serve, self.log.internal_error)
            self._follow_config()
            self._count_earlier_spawns()
            task_status.started()

    def adopt(self, adoption: Adoption) -> None:
        """Hold an earlier daemon's runs. The core knows them from `supervise` on."""
        for one in adoption.runs:
            self.catalogue.add(one.live)

    async def supervise(self, adoption: Adoption, unwritten: Rows) -> None:
        """Have the core take over, before a client asks anything. `unwritten` are rows that the ledger could not take."""
        self._settle(adoption, unwritten)
        for one in adoption.runs:
            if one.live.stdin is not None:
                self.background.start_soon(one.live.stdin.serve)
            if one.live.run.attempt:
                self.metering.take_over(one.live, one.meter)
        runs = adoption.event.runs
        learnt = await self.metering.read_ended([one.run for one in runs if one.run.pid is None and not one.starting])
        self.adopted = sum(1 for one in runs if one.run.pid is not None)
        self.feed(structs.replace(adoption.event, learnt=learnt))
        for starting in (one.run for one in runs if one.starting):
            # not sooner: its time may come while ended runs are read, when the core does not know it yet
            self._launching.expect(starting)
        self._budgets.look()  # a tree that was paused for a budget goes on if that was renewed or raised since
        for one in adoption.runs:
            if one.exited is not None:
                self.reported(one.exited)
        self._reports.pass_on(self.reported)
        if not adoption.event.continued:
            self._tell_of_lost_stdin()

    def tell_adopted(self, adoption: Adoption) -> None:
        """Announce what became of an earlier daemon's runs, if there were any."""
        if adoption.event.runs or adoption.rows:
            message = f"{adoption.event.why}: {adoption}"
            if adoption.event.continued:
                self.announcer.tell("daemon_reexecuted", message, "low")
            else:
                self.announcer.tell("daemon_recovered", message, "medium")

    def _settle(self, adoption: Adoption, unwritten: Rows) -> None:
        for info, extra in unwritten:
            self.ledger.upsert(info, extra)
        later = {info.id for info, _ in unwritten}
        closed = [info.id for info, _ in adoption.rows if info.status.terminal and info.id not in later]
        self.journal.recorded([*closed, *adoption.over])
        self.journal.forget_entirely(adoption.never)
        self.journal.forget_spawns(but=self.catalogue.live)
        self.catalogue.forget_requests(adoption.never)

    def _tell_of_lost_stdin(self) -> None:
        for run, live in self.catalogue.live.items():
            if live.spawn.stdin == "pipe" and live.stdin is None:
                self.announcer.tell_of_run("run_progress", run, "its stdin has ended: the daemon that held it died")

    def _count_earlier_spawns(self) -> None:
        # a restart of the daemon must not be a way around the spawn rate
        now, at = wall_clock(), trio.current_time()
        for user, created in self.ledger.records.root_spawns(now - timedelta(seconds=HOUR)):
            ago = (now - created).total_seconds()
            if ago >= 0:  # else the wall clock was set back
                self.machine.spawned_before(user, at - ago)

    def hand_over(self) -> dict[RunId, HandedRun]:
        """Save every snapshot, and return what is not in one. Raises `OSError` where that cannot be, and where an earlier save has
        failed."""
        self.ends.report_all()  # of what was reaped here, the next program could not learn how it ended
        live_runs = self.catalogue.live
        self.journal.save_all(live_runs.values(), self.metering.position)
        remains = self.launcher.hand_over()
        return {
            run: HandedRun(remains.get(run), live.descriptors, live.stdin.hand_over() if live.stdin is not None else None)
            for run, live in live_runs.items()
        }

    def close(self) -> None:
        """Close what the loop has opened, and the journal."""
        self.catalogue.close()
        self.metering.close()
        self.announcer.close()
        self.journal.close()
        self.pidfds.close()

    # ---- what the operator asks for

    def reload(self) -> tuple[configuration.Loaded, list[Change]]:
        """Read the config again and follow it. Runs that were admitted keep their limits. Return the config, and what has changed.
        Raises `ConfigError`, and then nothing has."""
        loaded, changed = self._read_config()
        config = loaded.config
        self.config, self.settings, self.agents = config, loaded.settings, registered(config, loaded.settings)
        self.metering.reconfigure(config.prices, config.limits.nearing)
        self.maintenance.reconfigure(config.retention)
        self.feed(e.Reconfigured(trio.current_time(), policy_of(loaded)))
        self._follow_config()
        self.log.info("config reloaded", files=[str(path) for path in loaded.files])
        if waiting := [change.key for change in changed if change.waits]:
            self.log.warning("these take effect at the next start", keys=waiting)
        return loaded, changed

    def _follow_config(self) -> None:
        self._budgets.know(self.config.budgets)
        self.adviser.configure(adaptive=self.config.limits.adaptive, policy=self.machine.policy)

    def forget_pruned(self, runs: Collection[RunId]) -> None:
        """Forget runs that were deleted from the ledger."""
        self.journal.pruned(runs)
        self.catalogue.forget(runs)

"""The parts of a daemon that goes on: makes them, serves them, and has them follow the config."""

import os
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import trio
from msgspec import Struct, structs

from ... import config as configuration
from ...agents.registered import registered
from ...core import events as e
from ...core.life.lifecycle import severity_of_end
from ...core.machine import Machine
from ...core.state.quotas import HOUR
from ...durable.adoption import Adoption, Rows, StoredPidfds
from ...durable.handover import HandedRun
from ...durable.maintenance import Maintenance, MaintenanceJobs, SessionArchive
from ...features.listed import FEATURES
from ...host import systemd
from ...host.clock import wall_clock
from ...host.linux.descriptors import Descriptors
from ...host.tasks import Background, keep_serving
from ...processes.contained_commands import ContainedCommands
from ...processes.launcher import RunProcesses
from ...protocol.event_types import EventType
from ...protocol.known import AGENTS
from ...protocol.messages import Change
from ...protocol.texts.units import counted
from ...protocol.types import Event, RunId, RunInfo
from ...runs.catalogue import CallList, RunCatalogue
from ...runs.live import Watchers
from ...runs.showing import holds_at
from ...usage.metering import Metering
from .announcing import Announcer, RunFeed
from .core_loop import CoreLoop, EventQueue, Together
from .launcher_events import LauncherEvents
from .launching import Launching
from .leading import Leading
from .own_servers import ServerWatch
from .pending_requests import PendingRequests
from .policy import policy_of, shares
from .resources import Resources
from .saving import Saver
from .seam import Heart, Parts, half_of, watchers_of
from .starting import Starting
from .status_text import StatusText
from .storage_watch import StorageWatch

# ---- What this daemon has from an earlier one, and what it hands over to the next


class Succession(Struct):
    """Adopts the runs of an earlier daemon, and hands this one's over."""

    resources: Resources
    machine: Machine
    catalogue: RunCatalogue
    announcer: Announcer
    metering: Metering
    leading: Leading
    parts: Parts
    launching: Launching
    launcher_events: LauncherEvents
    background: Background
    feed: e.Feed
    adopted: int = 0
    """Live runs that were adopted."""

    def adopt(self, adoption: Adoption) -> None:
        """Take in an earlier daemon's runs. The core knows them from `supervise` on."""
        for one in adoption.runs:
            self.catalogue.add(one.live)
            self.parts.adopt(one.live)

    async def supervise(self, adoption: Adoption, unwritten: Rows) -> None:
        """Have the core adopt the runs, before a client asks anything. `unwritten` are rows that
        the ledger could not take."""
        self._complete_records(adoption, unwritten)
        for one in adoption.runs:
            if one.live.stdin is not None:
                self.background.start_soon(one.live.stdin.serve)
            if one.live.main is not None:
                self.resources.output.adopt(one.live.run.id, one.live.main.files)
            if one.live.run.attempt:
                self.metering.adopt(one.live, one.meter)
        runs = adoption.event.runs
        ended = [one for one in runs if one.run.pid is None and not one.starting]
        may_have_calls = runs if self.leading.has_gone() else ended
        calls = any(one.run.account.reserved_by_gateway for one in may_have_calls)
        learnt = await self.metering.read_ended([one.run for one in ended], calls=calls)
        settled = self.leading.calls_of([one.run for one in ended if one.empty])
        self.adopted = sum(1 for one in runs if one.run.pid is not None)
        self.feed(structs.replace(adoption.event, learnt=(*learnt, *settled)))
        if calls:
            # now, because a run whose call has broken off may end at once
            self.leading.tell_gone()
        for starting in (one.run for one in runs if one.starting):
            # not sooner: its time may come while ended runs are read, when the core does not know
            # it yet
            self.launching.expect(starting, trio.current_time())
        for one in adoption.runs:
            if one.exited is not None:
                self.launcher_events.arrived(one.exited)
        self.resources.early_events.pass_on(self.launcher_events.arrived)
        if not adoption.event.continued:
            self._tell_of_lost_stdin()

    def tell_adopted(self, adoption: Adoption) -> None:
        """Announce what was damaged, and what became of an earlier daemon's runs, if there were
        any."""
        self.resources.damages.tell_events(
            lambda message: self.announcer.tell(EventType.DAEMON_STATE_DAMAGED, message, "high")
        )
        if adoption.event.runs or adoption.rows:
            message = f"{adoption.event.why}: {adoption}"
            if adoption.event.continued:
                self.announcer.tell(EventType.DAEMON_REEXECUTED, message, "low")
            else:
                self.announcer.tell(EventType.DAEMON_RECOVERED, message, "medium")

    def _complete_records(self, adoption: Adoption, unwritten: Rows) -> None:
        for info, extra in unwritten:
            self.resources.ledger.upsert(info, extra)
        for call in adoption.calls:  # nearly always they are there by now
            self.resources.ledger.record_call(call)
        later = {info.id for info, _ in unwritten}
        closed = [
            info.id for info, _ in adoption.rows if info.status.terminal and info.id not in later
        ]
        self.resources.spool.ended.recorded([*closed, *adoption.over])
        self.resources.spool.ended.forget(adoption.never)
        self.resources.spool.spawns.forget_others(self.catalogue.live)
        self.catalogue.forget_requests(adoption.never)
        for info, _ in adoption.rows:
            if info.status.terminal:
                self._tell_of_end(info)

    def _tell_of_end(self, info: RunInfo) -> None:
        """Announce an end that an earlier daemon decided, or that was found, unless the ledger has
        the event."""
        what = f"run_{info.status}"
        if not self.resources.ledger.records.has_event(info.id, what):
            why = info.reason.message if info.reason is not None else ""
            event = Event(type=what, severity=severity_of_end(info.status), run_id=info.id,
                          root_id=info.root_id, agent_name=info.name, user=info.user, message=why,
                          channel=info.channel)  # fmt: skip
            self.announcer.publish_event(event, tuple(self.catalogue.lineage(info.id)))

    def _tell_of_lost_stdin(self) -> None:
        for run, live in self.catalogue.live.items():
            if live.output.stdin == "pipe" and live.stdin is None:
                self.announcer.tell_of_run(
                    EventType.RUN_PROGRESS, run, "its stdin has ended: the daemon that held it died"
                )

    def count_earlier_spawns(self) -> None:
        """Count the spawns of the last hour, and the sessions: a restart of the daemon must not be
        a way around their rates."""
        now, at = wall_clock(), trio.current_time()
        records, window = (
            self.resources.ledger.records,
            self.machine.policy.sessions.spawn_rate_limit.window_seconds,
        )
        for found, count in (
            (records.root_spawns(now - timedelta(seconds=HOUR)), self.machine.spawned_before),
            (
                records.sessions(now - timedelta(seconds=window)),
                self.machine.session_started_before,
            ),
        ):
            for user, created in found:
                ago = (now - created).total_seconds()
                if ago >= 0:  # else the wall clock was set back
                    count(user, at - ago)

    def hand_over(self) -> dict[RunId, HandedRun]:
        """Save every snapshot, and return what is not in one. Raises `OSError` where that cannot
        be, and where an earlier save has failed."""
        # of what was reaped here, the next program could not learn how it ended
        self.launcher_events.feed_all()
        live_runs = self.catalogue.live
        self.resources.spool.journal.save_all(live_runs.values(), self.metering.position)
        records = self.resources.launcher.hand_over()
        return {
            run: HandedRun(
                records.get(run),
                live.descriptors,
                live.stdin.hand_over() if live.stdin is not None else None,
            )
            for run, live in live_runs.items()
        }


# ---- The parts of a daemon that goes on: makes them, serves them, and has them follow the config

ReadConfig = Callable[[], tuple[configuration.Loaded, list[Change]]]


class Runtime:
    """The machine and the parts around it. `trio.current_time()` is the core's clock."""

    def __init__(
        self,
        resources: Resources,
        loaded: configuration.Loaded,
        *,
        shut_down: Callable[[], None],
        read_config: ReadConfig,
        began: float | None = None,
    ) -> None:
        """`read_config` reads the config again, and returns what is in force then and what has
        changed. `began`: when the daemon was started, if it was re-executed since."""
        now, config, queue = trio.current_time(), loaded.config, EventQueue()
        self.resources = resources
        self.log, self.timers, self.spool, self.ledger = (
            resources.log,
            resources.timers,
            resources.spool,
            resources.ledger,
        )
        self.output, self.launcher = resources.output, resources.launcher
        self.socket, self.state_dir = resources.socket, resources.state_dir
        self.counts, self.damages = resources.counts, resources.damages
        self.everyone = resources.everyone
        self.config, self.settings, self.agents = (
            config,
            loaded.settings,
            registered(config, loaded.settings),
        )
        self.config_files = loaded.files
        self.rejected_config = loaded.rejected
        """Why the config files are not used as they are now; `None` if they are."""
        self.began = now if began is None else began
        self._renewed = began is not None
        self.feed = queue.feed
        """Handles an event and applies its commands."""
        # the clock has gone on since an earlier daemon named its reservations, so these names are
        # new
        self.machine = Machine(
            policy_of(loaded, everyone=self.everyone),
            next_number=self.ledger.next_number,
            reservations=int(1000 * now),
            may_start=[rule for feature in FEATURES.values() for rule in feature.may_start],
            watchers=watchers_of(FEATURES),
            barrier=half_of(FEATURES, "barrier"),
            purses=half_of(FEATURES, "purses"),
            elsewhere=half_of(FEATURES, "elsewhere"),
            calls=half_of(FEATURES, "calls"),
        )
        self.descriptors = Descriptors(resources.rounds)
        self.background = Background(self.log.internal_error)
        self.pidfds = StoredPidfds()
        self.watchers = Watchers()
        self.status_text = StatusText(self._describe, self._show)
        self.spool.begin(os.path.realpath(self.state_dir))
        self.catalogue = RunCatalogue(
            self.ledger.records,
            self.spool.earlier.keys(),
            self.output.forget,
            partial(holds_at, self.machine),
        )
        self.calls = CallList(
            self.ledger.records,
            self.catalogue.live,
            self.machine.waiting_calls,
            self.machine.calls_under_way,
        )
        self.announcer = Announcer(resources, self.catalogue, self.watchers, self.status_text)
        self.metering = Metering(
            feed=self.feed, publish=self.announcer.tell_of_run, milestone=self._reached,
            trouble=self.log.warning, output=self.output, launcher=self.launcher,
            prices=config.prices, nearing=_nearing(config), lives=self.catalogue.live,
            led=lambda process: self.leading.leads(process),
        )  # fmt: skip
        self.catalogue.heard = self.metering.silence.heard
        jobs = MaintenanceJobs(
            self.ledger, self.output, lambda: self.catalogue.live, self.log.info,
            self._ledger_damaged, kept=lambda: self.parts.kept(),
        )  # fmt: skip
        self.session_archive = SessionArchive(
            Path(self.state_dir), self.output, config.sessions, self.log.warning
        )
        self.maintenance = Maintenance(jobs, config.retention, self.log.warning)
        self.requests = PendingRequests(self.feed, self.catalogue, self.descriptors, self.counts)
        self.storage = StorageWatch(resources, self.catalogue, self.metering, self.announcer)
        self.commands = ContainedCommands(self.launcher)
        self.connections: Callable[[], int] = lambda: 0
        """Returns how many clients are connected. The server sets it."""
        processes: dict[RunId, RunProcesses] = {}
        heart = Heart(
            resources, self.machine, self.catalogue, self.announcer, self.storage, self.background,
            self.feed, lambda: self.config, lambda: self.config_files, self.began,
            lambda: self.connections(), self.commands, self.metering,
            lambda: self.launcher_events.call_settled(),
            lambda *asked: self.starting.prepare_here(*asked), processes, lambda: self.parts,
        )  # fmt: skip
        self.parts = Parts(FEATURES, heart)
        self.leading = self.parts.leading()
        self.server_watch = ServerWatch(self.catalogue.live, self.launcher, self.feed)
        self.launcher_events = LauncherEvents(
            self.machine.tree, self.timers, self.metering, self.pidfds, self.background, self.feed,
            self.commands, self.leading, self.server_watch, self.parts,
        )  # fmt: skip
        self.run_feed = RunFeed(self.catalogue, self.launcher, self.timers)
        self.saver = Saver(
            resources, self.catalogue, self.watchers, self.metering, self.storage,
            self.feed, self.run_feed, self.parts,
        )  # fmt: skip
        self.ledger.report_to(self.saver)
        self.starting = Starting(
            self.machine, self.catalogue, self.leading,
            self.server_watch, self.parts, lambda: self.agents,
            lambda: self.config.service.continue_lost,
        )  # fmt: skip
        launching = Launching(
            resources,
            self.catalogue,
            self.metering,
            self.descriptors,
            self.feed,
            self.launcher_events.arm,
            self.leading,
            self.parts,
        )
        self.succession = Succession(
            resources, self.machine, self.catalogue, self.announcer, self.metering,
            self.leading, self.parts, launching, self.launcher_events, self.background, self.feed,
        )  # fmt: skip
        loop = CoreLoop(
            self.machine, resources, self.catalogue, self.requests, self.announcer, self.parts,
            self.metering, self.saver, launching,
            self.launcher_events, self.background, self.session_archive, processes,
            shut_down,
        )  # fmt: skip
        self._read_config = read_config
        queue.begin(loop.handle)
        resources.early_events.together = Together(queue, self.ledger, self.log.internal_error)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the launcher, timers and everything else that goes on by itself, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.background.serve)
            await nursery.start(self.metering.serve)
            await nursery.start(self.launcher.serve)
            for serve in (
                self.timers.serve, self.maintenance.serve, self.session_archive.serve,
                self.metering.sample, self.storage.serve, self.run_feed.serve,
                self.ledger.serve, self.server_watch.serve,
            ):  # fmt: skip
                nursery.start_soon(keep_serving, serve, self.log.internal_error)
            if systemd.manages():
                nursery.start_soon(keep_serving, self.status_text.serve, self.log.internal_error)
            self.parts.follow()
            self._follow_config()
            self.succession.count_earlier_spawns()
            task_status.started()

    def close(self) -> None:
        self.catalogue.close()
        self.metering.close()
        self.announcer.close()
        self.leading.close()
        self.spool.close()
        self.pidfds.close()

    def reload(self) -> tuple[configuration.Loaded, list[Change]]:
        """Read the config again and follow it. Runs that were admitted keep their limits. Return
        the config, and what has changed. Raises `ConfigError`, and then nothing has."""
        try:
            loaded, changed = self._read_config()
        except configuration.ConfigError as error:
            self.rejected_config = str(error)
            self.status_text.outdated()
            raise
        config, self.rejected_config = loaded.config, None
        self.status_text.outdated()
        self.config, self.settings, self.agents = (
            config,
            loaded.settings,
            registered(config, loaded.settings),
        )
        self.config_files = loaded.files
        self.metering.reconfigure(config.prices, _nearing(config))
        self.maintenance.reconfigure(config.retention)
        self.session_archive.reconfigure(config.sessions)
        self.feed(e.Reconfigured(trio.current_time(), policy_of(loaded, everyone=self.everyone)))
        self.parts.reconfigure()
        self._follow_config()
        self.log.info("config reloaded", files=[str(path) for path in loaded.files])
        if waiting := [change.key for change in changed if change.waits]:
            self.log.warning("these take effect at the next start", keys=waiting)
        return loaded, changed

    def _follow_config(self) -> None:
        self.counts.registers(
            agent.type for agent in self.config.agents.values() if agent.type is not None
        )
        guard = self.config.guard
        self.launcher.watch_agents(
            frozenset({*AGENTS, *guard.agent_programs} if guard.unadmitted != "off" else ())
        )

    def _describe(self) -> str:
        """Return what the administrator of the service should see first."""
        queued = self.machine.slots.queued
        parts = [
            (
                f"{counted(len(self.machine.tree), 'run')} "
                f"live, {queued} {'of them ' if queued else ''}queued"
            )
        ]
        if self.machine.draining:
            parts.append("stopping every tree")
        if self.storage.unwritable is not None:
            parts.append(f"the ledger cannot be written: {self.storage.unwritable}")
        if self.rejected_config is not None:
            parts.append(f"config rejected: {self.rejected_config}")
        return "; ".join([*parts, *self.parts.notices()])

    def _show(self, text: str) -> None:
        with suppress(OSError):  # `systemctl status` shows the text before it
            systemd.notify(systemd.status(text))

    def _ledger_damaged(self, message: str) -> None:
        """Tell it, and have the daemon renew itself: the next program sets the ledger aside, and
        begins another with the live runs, which notice nothing. One that was renewed does not do so
        again, in case that did not help."""
        self.damages(message)
        if not self._renewed:
            self._renewed = True
            os.kill(os.getpid(), signal.SIGUSR2)

    def _reached(self, run: RunId, milestone: str) -> None:
        self.run_feed.changed([run])
        self.announcer.tell_milestone(run, milestone)

    def forget_pruned(self, runs: Collection[RunId]) -> None:
        self.spool.ended.pruned(runs)
        self.catalogue.forget(runs)


def _nearing(config: configuration.Configuration) -> float:
    """Return the share of a limit from which on its use must be known."""
    return min([config.limits.nearing, *shares(config)])

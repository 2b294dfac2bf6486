"""The parts of a daemon that goes on: makes them, serves them, and has them follow the config."""

import os
import signal
from collections.abc import Callable, Collection

import trio

from ...config import Loaded
from ...core import events as e
from ...durable.adoption import StoredPidfds
from ...durable.maintenance import Upkeep
from ...features.listed import FEATURES
from ...host import systemd
from ...host.linux.descriptors import Descriptors
from ...host.tasks import Background, keep_serving
from ...processes.contained_commands import ContainedCommands
from ...protocol.known import AGENTS
from ...protocol.messages import Change
from ...protocol.texts.units import counted
from ...protocol.types import RunId
from ...runs.catalogue import CallList, RunCatalogue
from ...runs.live import Watchers
from ...usage.metering import Metering
from .announcing import Announcer, RunFeed
from .core_loop import CoreLoop, EventQueue, Together
from .launcher_events import LauncherEvents
from .launching import Launching
from .own_servers import ServerWatch
from .pending_requests import PendingRequests
from .policy import InForce, ReadConfig, nearing, policy_of
from .resources import Resources
from .saving import Saver
from .seam import Heart, Parts, new_machine
from .starting import Starting
from .status_text import StatusText
from .storage_watch import StorageWatch
from .succession import Succession


class Runtime:
    """The machine and the parts around it. `trio.current_time()` is the core's clock."""

    def __init__(
        self, resources: Resources, loaded: Loaded, *, shut_down: Callable[[], None],
        read_config: ReadConfig, began: float | None = None,
    ) -> None:  # fmt: skip
        """`began`: when the daemon was started, if it was re-executed since."""
        queue, self.resources = EventQueue(), resources
        self.feed, self.in_force = queue.feed, InForce(loaded, read_config)
        self.began = trio.current_time() if began is None else began
        self._renewed = began is not None
        policy = policy_of(loaded, everyone=resources.everyone)
        self.machine = new_machine(FEATURES, policy, resources)
        self.descriptors, self.pidfds = Descriptors(resources.rounds), StoredPidfds()
        self.background = Background(resources.log.internal_error)
        self.connections: Callable[[], int] = lambda: 0
        """Returns how many clients are connected. The server sets it."""
        self._know_runs()
        self._load_features()
        loop = self._carry_out(shut_down)
        queue.begin(loop.handle)
        resources.early_events.together = Together(
            queue, resources.ledger, resources.log.internal_error
        )

    def _know_runs(self) -> None:
        """Make what knows of runs, and tells of them."""
        resources, config = self.resources, self.in_force.config
        records, launcher = resources.ledger.records, resources.launcher
        resources.spool.begin(os.path.realpath(resources.state_dir))
        self.catalogue = RunCatalogue(
            records, resources.spool.earlier.keys(), resources.output.forget, self.machine
        )
        live = self.catalogue.live
        self.calls = CallList(records, live, self.machine)
        self.watchers, self.status_text = Watchers(), StatusText(self._describe)
        self.announcer = Announcer(resources, self.catalogue, self.watchers, self.status_text)
        self.metering = Metering(
            feed=self.feed, publish=self.announcer.tell_of_run, milestone=self._reached,
            trouble=resources.log.warning, output=resources.output, launcher=launcher,
            prices=config.prices, nearing=nearing(config), lives=live,
            led=lambda process: self.leading.leads(process),
        )  # fmt: skip
        self.catalogue.heard = self.metering.silence.heard
        self.requests = PendingRequests(
            self.feed, self.catalogue, self.descriptors, resources.counts
        )
        self.storage = StorageWatch(resources, self.catalogue, self.metering, self.announcer)
        self.run_feed = RunFeed(self.catalogue, launcher, resources.timers)

    def _load_features(self) -> None:
        self.commands = ContainedCommands(self.resources.launcher)
        self.heart = Heart(
            self.resources, self.machine, self.catalogue, self.announcer, self.storage,
            self.background, self.feed, self.in_force, self.began, lambda: self.connections(),
            self.commands, self.metering, self.requests,
            lambda *call: self.saver.record_call(*call),
            lambda: self.launcher_events.call_settled(),
            lambda *asked: self.starting.prepare_here(*asked), {}, lambda: self.parts,
        )  # fmt: skip
        self.parts = Parts(FEATURES, self.heart)
        self.leading = self.parts.leading()

    def _carry_out(self, shut_down: Callable[[], None]) -> CoreLoop:
        """Return what carries out the machine's commands."""
        resources, parts = self.resources, self.parts
        self.upkeep = Upkeep(
            self.in_force.config, resources.ledger, resources.output, resources.log,
            self.catalogue.live, parts.kept, self._ledger_damaged,
        )  # fmt: skip
        self.server_watch = ServerWatch(self.catalogue.live, resources.launcher, self.feed)
        self.launcher_events = LauncherEvents(
            self.machine.tree, resources.timers, self.metering, self.pidfds, self.background,
            self.feed, self.commands, self.leading, self.server_watch, parts,
        )  # fmt: skip
        self.saver = Saver(
            resources, self.catalogue, self.watchers, self.metering, self.storage, self.feed,
            self.run_feed, parts,
        )  # fmt: skip
        resources.ledger.report_to(self.saver)
        self.starting = Starting(
            self.catalogue, self.leading, self.server_watch, parts, self.in_force
        )
        launching = Launching(
            resources, self.catalogue, self.metering, self.descriptors, self.feed,
            self.launcher_events.arm, self.leading, parts,
        )  # fmt: skip
        self.succession = Succession(
            self.heart, parts, self.leading, launching, self.launcher_events
        )
        return CoreLoop(
            self.machine, resources, self.catalogue, self.requests, self.announcer, parts,
            self.metering, self.saver, launching, self.launcher_events, self.background,
            self.upkeep.archive, self.heart.processes, shut_down,
        )  # fmt: skip

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the launcher, timers and everything else that goes on by itself, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.background.serve)
            await nursery.start(self.metering.serve)
            await nursery.start(self.resources.launcher.serve)
            for serve in (
                self.resources.timers.serve, self.upkeep.maintenance.serve,
                self.upkeep.archive.serve, self.metering.sample, self.storage.serve,
                self.run_feed.serve, self.resources.ledger.serve, self.server_watch.serve,
                *([self.status_text.serve] if systemd.manages() else []),
            ):  # fmt: skip
                nursery.start_soon(keep_serving, serve, self.resources.log.internal_error)
            self.parts.follow()
            self._follow_config()
            self.succession.count_earlier_spawns()
            task_status.started()

    def close(self) -> None:
        self.catalogue.close()
        self.metering.close()
        self.announcer.close()
        self.leading.close()
        self.resources.spool.close()
        self.pidfds.close()

    def reload(self) -> tuple[Loaded, list[Change]]:
        """Read the config again and follow it. Runs that were admitted keep their limits. Return
        the config, and what has changed. Raises `ConfigError`, and then nothing has."""
        try:
            loaded, changed = self.in_force.read_again()
        finally:
            self.status_text.outdated()
        config = loaded.config
        self.metering.reconfigure(config.prices, nearing(config))
        self.upkeep.reconfigure(config)
        policy = policy_of(loaded, everyone=self.resources.everyone)
        self.feed(e.Reconfigured(trio.current_time(), policy))
        self.parts.reconfigure()
        self._follow_config()
        self.resources.log.info("config reloaded", files=[str(path) for path in loaded.files])
        if waiting := [change.key for change in changed if change.waits]:
            self.resources.log.warning("these take effect at the next start", keys=waiting)
        return loaded, changed

    def _follow_config(self) -> None:
        config = self.in_force.config
        self.resources.counts.registers(
            agent.type for agent in config.agents.values() if agent.type is not None
        )
        guard = config.guard
        self.resources.launcher.watch_agents(
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
        if self.in_force.rejected is not None:
            parts.append(f"config rejected: {self.in_force.rejected}")
        return "; ".join([*parts, *self.parts.notices()])

    def _ledger_damaged(self, message: str) -> None:
        """Tell it, and have the daemon renew itself: the next program sets the ledger aside, and
        begins another with the live runs, which notice nothing. One that was renewed does not do so
        again, in case that did not help."""
        self.resources.damages(message)
        if not self._renewed:
            self._renewed = True
            os.kill(os.getpid(), signal.SIGUSR2)

    def _reached(self, run: RunId, milestone: str) -> None:
        self.run_feed.changed([run])
        self.announcer.tell_milestone(run, milestone)

    def forget_pruned(self, runs: Collection[RunId]) -> None:
        self.resources.spool.ended.pruned(runs)
        self.catalogue.forget(runs)

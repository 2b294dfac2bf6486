"""What this daemon has from an earlier one, and what it hands over to the next."""

from datetime import timedelta

import trio
from msgspec import Struct, structs

from ...core.life.lifecycle import severity_of_end
from ...core.state.quotas import HOUR
from ...durable.adoption import Adoption, Rows
from ...durable.handover import HandedRun
from ...host.clock import wall_clock
from ...protocol.event_types import EventType
from ...protocol.types import Event, RunId, RunInfo
from .launcher_events import LauncherEvents
from .launching import Launching
from .leading import Leading
from .seam import Heart, Parts


class Succession(Struct):
    """Adopts the runs of an earlier daemon, and hands this one's over."""

    heart: Heart
    parts: Parts
    leading: Leading
    launching: Launching
    launcher_events: LauncherEvents
    adopted: int = 0
    """Live runs that were adopted."""

    def adopt(self, adoption: Adoption) -> None:
        """Take in an earlier daemon's runs. The core knows them from `supervise` on."""
        for one in adoption.runs:
            self.heart.catalogue.add(one.live)
            self.parts.adopt(one.live)

    async def supervise(self, adoption: Adoption, unwritten: Rows) -> None:
        """Have the core adopt the runs, before a client asks anything. `unwritten` are rows that
        the ledger could not take."""
        self._complete_records(adoption, unwritten)
        for one in adoption.runs:
            if one.live.stdin is not None:
                self.heart.background.start_soon(one.live.stdin.serve)
            if one.live.main is not None:
                self.heart.resources.output.adopt(one.live.run.id, one.live.main.files)
            if one.live.run.attempt:
                self.heart.metering.adopt(one.live, one.meter)
        runs = adoption.event.runs
        ended = [one for one in runs if one.run.pid is None and not one.starting]
        may_have_calls = runs if self.leading.has_gone() else ended
        calls = any(one.run.account.reserved_by_gateway for one in may_have_calls)
        learnt = await self.heart.metering.read_ended([one.run for one in ended], calls=calls)
        settled = self.leading.calls_of([one.run for one in ended if one.empty])
        self.adopted = sum(1 for one in runs if one.run.pid is not None)
        self.heart.feed(structs.replace(adoption.event, learnt=(*learnt, *settled)))
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
        self.heart.resources.early_events.pass_on(self.launcher_events.arrived)
        if not adoption.event.continued:
            self._tell_of_lost_stdin()

    def tell_adopted(self, adoption: Adoption) -> None:
        """Announce what was damaged, and what became of an earlier daemon's runs, if there were
        any."""
        self.heart.resources.damages.tell_events(
            lambda message: self.heart.announcer.tell(
                EventType.DAEMON_STATE_DAMAGED, message, "high"
            )
        )
        if adoption.event.runs or adoption.rows:
            message = f"{adoption.event.why}: {adoption}"
            if adoption.event.continued:
                self.heart.announcer.tell(EventType.DAEMON_REEXECUTED, message, "low")
            else:
                self.heart.announcer.tell(EventType.DAEMON_RECOVERED, message, "medium")

    def _complete_records(self, adoption: Adoption, unwritten: Rows) -> None:
        for info, extra in unwritten:
            self.heart.resources.ledger.upsert(info, extra)
        for call in adoption.calls:  # nearly always they are there by now
            self.heart.resources.ledger.record_call(call)
        later = {info.id for info, _ in unwritten}
        closed = [
            info.id for info, _ in adoption.rows if info.status.terminal and info.id not in later
        ]
        self.heart.resources.spool.ended.recorded([*closed, *adoption.over])
        self.heart.resources.spool.ended.forget(adoption.never)
        self.heart.resources.spool.spawns.forget_others(self.heart.catalogue.live)
        self.heart.catalogue.forget_requests(adoption.never)
        for info, _ in adoption.rows:
            if info.status.terminal:
                self._tell_of_end(info)

    def _tell_of_end(self, info: RunInfo) -> None:
        """Announce an end that an earlier daemon decided, or that was found, unless the ledger has
        the event."""
        what = f"run_{info.status}"
        if not self.heart.resources.ledger.records.has_event(info.id, what):
            why = info.reason.message if info.reason is not None else ""
            event = Event(type=what, severity=severity_of_end(info.status), run_id=info.id,
                          root_id=info.root_id, agent_name=info.name, user=info.user, message=why,
                          channel=info.channel)  # fmt: skip
            self.heart.announcer.publish_event(event, tuple(self.heart.catalogue.lineage(info.id)))

    def _tell_of_lost_stdin(self) -> None:
        for run, live in self.heart.catalogue.live.items():
            if live.output.stdin == "pipe" and live.stdin is None:
                self.heart.announcer.tell_of_run(
                    EventType.RUN_PROGRESS, run, "its stdin has ended: the daemon that held it died"
                )

    def count_earlier_spawns(self) -> None:
        """Count the spawns of the last hour, and the sessions: a restart of the daemon must not be
        a way around their rates."""
        now, at = wall_clock(), trio.current_time()
        records, window = (
            self.heart.resources.ledger.records,
            self.heart.machine.policy.sessions.spawn_rate_limit.window_seconds,
        )
        for found, count in (
            (records.root_spawns(now - timedelta(seconds=HOUR)), self.heart.machine.spawned_before),
            (
                records.sessions(now - timedelta(seconds=window)),
                self.heart.machine.session_started_before,
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
        live_runs = self.heart.catalogue.live
        self.heart.resources.spool.journal.save_all(
            live_runs.values(), self.heart.metering.position
        )
        records = self.heart.resources.launcher.hand_over()
        return {
            run: HandedRun(
                records.get(run),
                live.descriptors,
                live.stdin.hand_over() if live.stdin is not None else None,
            )
            for run, live in live_runs.items()
        }

"""Saves what the core decides about runs, in the journal first and in the ledger, and tells clients
of ends that are on record."""

from collections.abc import Iterable, Sequence

import trio
from msgspec import Struct, field

from ...core import commands as c
from ...core import events as e
from ...core.state.run import Run, run_number
from ...core.state.vocabulary import ReasonKind
from ...durable.snapshots import Changes
from ...host.clock import wall_clock
from ...host.faults import crash_point
from ...protocol.types import CallInfo, RunId, RunInfo
from ...runs.catalogue import RunCatalogue
from ...runs.live import Live, Watchers
from ...runs.showing import info_of
from ...storage.ledger.ledger import CallKey
from ...storage.ledger.rows import RunExtra
from ...usage.metering import Metering
from .announcing import RunFeed
from .resources import Resources
from .seam import Parts
from .storage_watch import StorageWatch

RECORD_STATE_WITHIN = 0.1
"""Seconds until the ledger has another state of a live run, which the journal has at once. So a run
that is shorter has two rows to write and not three, and what reads the ledger without a daemon is
not far behind."""
SAVE_USE_WITHIN = 1.0
"""Seconds until a changed use is saved: a daemon that is killed forgets this much, and each save is
a row of each run."""


INTERNAL_ERROR = "internal error; the daemon's log has the traceback"

_SAVED_WITH = frozenset({c.Launch, c.Admit, c.SaveOf, c.RecordCall})
"""Commands that say what is saved with the snapshots."""


class Saver(Struct):
    resources: Resources
    catalogue: RunCatalogue
    watchers: Watchers
    metering: Metering
    storage: StorageWatch
    feed: e.Feed
    run_feed: RunFeed
    parts: Parts
    _admitted: list[Live] = field(default_factory=list)
    """Runs that are not saved yet."""
    _beside: dict[RunId, Live] = field(default_factory=dict)
    """Those that change with them."""
    _changed: set[RunId] = field(default_factory=set)
    """Runs that have another state than their rows."""
    _used: set[RunId] = field(default_factory=set)
    """Runs that have used more than their rows tell."""

    def save_snapshots(self, outcomes: Sequence[c.Outcome]) -> list[Live]:
        """Save what was decided, before any of it is done: the next daemon may find it half done.
        Where a run was admitted, return what is to be saved together with it."""
        admits = uses = unsaved = False
        launched: set[RunId] = set()
        changed, used = outcomes[0].changed, outcomes[0].used
        for outcome in outcomes[1:]:
            changed, used = changed | outcome.changed, used | outcome.used
        for outcome in outcomes:
            if _SAVED_WITH.isdisjoint(map(type, outcome.commands)):
                continue
            for command in outcome.commands:
                match command:
                    case c.Launch(run):
                        launched.add(run.id)
                    case c.Admit():
                        admits = True
                    case c.SaveOf(feature, soon=False, used=of_use):
                        self.resources.timers.disarm(("save", feature))
                        self.resources.spool.values.add_to_next(self.parts.state(feature))
                        unsaved, uses = True, uses or of_use
                    case c.RecordCall(call) if call.state == "ended":
                        self._keep(call)
        # what was charged for use which is not saved would be charged for it again by the next
        # daemon
        runs = changed | used if uses else changed
        lives, now = list[Live](), wall_clock()
        """The same time for all: no run has ended before its descendants."""
        for run_id in runs:
            if (live := self.catalogue.live.get(run_id)) is not None:
                live.look_at_the_clock(now)
                lives.append(live)
        if used:
            self._note_use(used)
        if self.run_feed.followers:
            self.run_feed.changed({*changed, *used})
        if admits and len(outcomes) == 1:
            return lives
        saved = lives
        if launched:  # saved when their processes are known, before these execute anything
            saved = [
                live for live in lives if live.run.id not in launched or live.run.latest.number > 1
            ]
        if saved:
            self.resources.spool.journal.save(saved, self.metering.position if uses else None)
        elif unsaved:
            self.resources.spool.values.write_soon({})
        return lives

    def admit(self, live: Live, changed: Iterable[Live]) -> None:
        """Have a run saved, then recorded, with all that are admitted in the same round. `changed`:
        those that this has changed."""
        self._admitted.append(live)
        for each in changed:
            self._beside[each.run.id] = each
        if len(self._admitted) == 1:
            self.resources.ledger.before_next(self._save_admitted)

    def _save_admitted(self) -> None:
        admitted, beside = self._admitted, list(self._beside.values())
        self._admitted, self._beside = [], {}
        # the ledger tries again for what it holds; clients that go on asking meanwhile must not use
        # up the spool's room for ends
        refused = self.storage.look() or (
            self.resources.ledger.trouble if self.resources.ledger.backlog else None
        )
        if refused is not None:
            self.commit_failed([live.run.id for live in admitted], refused)
        elif not self._are_saved(admitted, beside):
            # the disk may have room for some, and a fault in one must not be that of all
            for live in admitted:
                self._are_saved([live], beside)

    def _are_saved(self, admitted: Sequence[Live], beside: Iterable[Live]) -> bool:
        """Save these runs, and queue their rows. If that fails for one alone, it is not admitted;
        for several, return false."""
        try:
            more: Changes = {}
            for saved in self.parts.saves:
                for live in admitted:
                    more |= saved(live)
            self.resources.spool.journal.admit(admitted, beside, more)
            crash_point("admitted, not on record")
            rows = list[tuple[RunInfo, RunExtra]]()
            for live in admitted:
                rows.append((info_of(live, live.run.birth.created_at), live.extra))
        except Exception as error:  # noqa: BLE001 - a bug in one request must not keep its client waiting
            if len(admitted) > 1:
                return False
            why = f"the spool: {error}"
            if not isinstance(error, OSError):
                self.resources.log.internal_error(admitted)
                why = INTERNAL_ERROR
            self.commit_failed([admitted[0].run.id], why)
            return True
        for info, extra in rows:
            self.resources.ledger.admit(info, extra)
        return True

    def record(self, run: Run) -> None:
        """Record the end of a run at once, and another state soon."""
        if run.status.terminal:
            live = self.catalogue.live[run.id]
            if live.end is None:  # else it began in the same round, and that was to be recorded
                live.set_end(self._record(live))
            return
        if not self._changed:
            self.resources.timers.arm(
                "record", trio.current_time() + RECORD_STATE_WITHIN, self._record_changed
            )
        self._changed.add(run.id)

    def _record(self, live: Live) -> RunInfo:
        if self._admitted and live in self._admitted:
            self._save_admitted()  # its row comes first
        ended = live.run.ended_at
        info = info_of(live, trio.current_time() if ended is None else ended)
        self.resources.ledger.record(info, live.extra)
        return info

    def _record_changed(self) -> None:
        self._record_all(self._changed)

    def _record_all(self, runs: set[RunId]) -> list[Live]:
        """Record those of the runs that are live, and forget all."""
        lives = [live for run in runs if (live := self.catalogue.live.get(run)) is not None]
        runs.clear()
        for live in lives:
            self._record(live)
        return lives

    def _keep(self, call: CallInfo) -> None:
        """Save the call with its run, whose account has it now, until its row is in the file."""
        if (live := self.catalogue.live.get(call.run_id)) is not None:
            live.unrecorded_calls.add(call)

    def record_call(self, call: CallInfo, lineage: tuple[RunId, ...]) -> None:
        live = self.catalogue.live.get(call.run_id)
        if live is not None and call.state != "ended":
            call = live.unrecorded_calls.add_not_made(call, trio.current_time())
        self.resources.counts.call_recorded(call)
        self.resources.ledger.record_call(call)
        self.watchers.called(call, lineage)

    def calls_recorded(self, calls: Iterable[CallKey]) -> None:
        for run, time, number in calls:
            if (live := self.catalogue.live.get(run)) is not None and live.calls is not None:
                live.calls.recorded(time, number)

    def refuse(self, live: Live) -> None:
        info = info_of(live, live.run.birth.created_at)
        self.resources.spool.numbers.skip_run(live.run.birth.number)
        self.resources.ledger.refuse(info, live.extra)
        self.catalogue.refuse(live, info)
        self.run_feed.changed([info.id])

    def retire(self, live: Live) -> None:
        """An ended run leaves the live ones. Clients are told when that is recorded, or at once if
        the ledger cannot be written."""
        recorded = live.end
        info = recorded or info_of(live, trio.current_time())
        self.catalogue.retire(live, info, admitted=recorded is not None)
        self.run_feed.changed([info.id])
        # it was never admitted: a request with the same key is to get another run
        if recorded is None:
            self.catalogue.forget_requests([info.id])
            self.resources.spool.ended.forget([info.id])
            for tell in self.parts.never_admitted:
                tell(info.id)
            self._tell_ends([info.id])
        elif self.resources.ledger.trouble is not None:
            self._tell_ends([info.id])
        if info.reason is None or info.reason.kind != ReasonKind.DAEMON:
            self.resources.spool.continued_with.forget(info.id)
        if recorded is not None:
            self.resources.counts.run_ended(info)
        live.close()

    def save_feature_soon(self, feature: str) -> None:
        """Save what a feature keeps within a second, like the use that it has looked at."""
        if ("save", feature) not in self.resources.timers:
            self.resources.timers.arm(
                ("save", feature),
                trio.current_time() + SAVE_USE_WITHIN,
                lambda: self.resources.spool.values.write_soon(self.parts.state(feature)),
            )

    def _note_use(self, runs: Iterable[RunId]) -> None:
        if not self._used:
            self.resources.timers.arm(
                "save use", trio.current_time() + SAVE_USE_WITHIN, self._save_use
            )
        self._used.update(runs)

    def _save_use(self) -> None:
        lives = self._record_all(self._used)
        self.resources.spool.journal.save(lives, self.metering.position)

    def _tell_ends(self, runs: Iterable[RunId]) -> None:
        for run in runs:
            info = self.catalogue.take_recorded(run)
            if info is not None:
                self.watchers.ended(info)
                for tell in self.parts.recorded:
                    tell(info)

    def committed(self, runs: Iterable[RunId]) -> None:
        runs = list(runs)
        for run in runs:
            live = self.catalogue.live.get(run)
            if live is not None and live.run.asked.continues is not None:
                self.catalogue.continued(live.run.asked.continues, by=run)
                self.run_feed.changed([live.run.asked.continues])
        self.feed(e.Committed(trio.current_time(), tuple(runs)))

    def commit_failed(self, runs: Iterable[RunId], error: str) -> None:
        runs = list(runs)
        self.resources.spool.numbers.skip_run(max(map(run_number, runs)))
        self.resources.log.error(f"an admission could not be recorded: {error}", runs=runs)
        self.feed(e.CommitFailed(trio.current_time(), tuple(runs), error))

    def recorded(self, runs: Iterable[RunId]) -> None:
        """These ends are on record. Clients are not told before: a daemon killed a moment later
        would call a run lost that clients were told is completed."""
        ended = list(runs)
        crash_point("end on record")
        self.resources.spool.ended.recorded(ended)
        crash_point("forgotten")
        self._tell_ends(ended)

    def took(self, seconds: float) -> None:
        """A transaction has taken so long."""
        self.resources.counts.commit.observe(seconds)

    def trouble(self, error: str | None, lost: int) -> None:
        self.resources.counts.unrecorded += lost
        # ends are held in memory while the ledger cannot be written, and clients do not wait for
        # that
        self.storage.ledger_failing(error, lost)
        if error is not None:
            self._tell_ends(self.catalogue.unrecorded)
            self.storage.tell_of_full_disk()

    def was_put_back(self, note: str) -> None:
        self.storage.ledger_put_back(note)

    def checkpointed(self) -> None:
        self.resources.spool.ended.checkpointed()

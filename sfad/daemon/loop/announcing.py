"""Events: numbered, recorded, logged, and pushed to the clients that watch their runs, or follow
all events."""

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import trio
from msgspec import Struct

from ...core.context import EventRate
from ...core.state.access import Scope
from ...host.clock import Timers, wall_clock
from ...host.log import LimitLog
from ...processes.launcher import Footprint, Launcher
from ...protocol.event_types import EventType
from ...protocol.types import Event, RunId, Severity
from ...runs.catalogue import KnownRun, RunCatalogue
from ...runs.live import Watchers
from ...storage.ledger import Ledger
from .resources import Resources
from .status_text import StatusText

# ---- Pushes events to those that follow all of them, once they are on record, or at once while the
# ledger cannot be written
#
# A client that resumes after the last number it has seen must neither miss an event nor get one
# twice, across a daemon that was killed. So it sees nothing that the ledger may not have: not even
# for the 10 ms that an event waits for its transaction.


Follower = Callable[[Event, tuple[RunId, ...]], None]
"""Takes an event, and the lineage of its run."""


class EventFeed:
    def __init__(self, ledger: Ledger, uid_of: Callable[[RunId], int | None]) -> None:
        self._ledger = ledger
        self._uid_of = uid_of
        self.followers: dict[Follower, Callable[[], Scope]] = {}
        """With what they may see. While there are none, `published` need not be called."""
        self._unrecorded: deque[tuple[Event, int | None, tuple[RunId, ...]]] = deque()

    def follow(self, scope: Callable[[], Scope], follower: Follower) -> Callable[[], None]:
        """Call `follower` with each event in the scope from now on. The scope is asked for each: a
        reload may change who is in the admin group. Return how to stop it."""
        self.followers[follower] = scope
        self._ledger.tell_of_events(self._recorded)

        def forget() -> None:
            self.followers.pop(follower, None)
            if not self.followers:
                self._ledger.tell_of_events(None)
                self._unrecorded.clear()

        return forget

    def published(self, event: Event, lineage: tuple[RunId, ...]) -> None:
        self._unrecorded.append((event, self._uid_of(lineage[-1]) if lineage else None, lineage))
        # an operator who watches a full disk must see what happens
        if self._ledger.trouble is not None:
            self._recorded(self._ledger.last_event)

    def _recorded(self, number: int) -> None:
        while self._unrecorded and self._unrecorded[0][0].number <= number:
            event, uid, lineage = self._unrecorded.popleft()
            for follower, scope in list(self.followers.items()):
                if scope().admits(uid, lineage):
                    follower(event, lineage)


# ---- Numbers, records and logs events


RESERVED = 1000
"""Numbers of events that are reserved at once. After a daemon was killed, the next one skips as
many."""


class Announcer:
    def __init__(
        self,
        resources: Resources,
        catalogue: RunCatalogue,
        watchers: Watchers,
        status_text: StatusText,
    ) -> None:
        self._ledger, self._numbers, self._log = (
            resources.ledger,
            resources.spool.numbers,
            resources.log,
        )
        self._limit_log = LimitLog(Path(resources.state_dir), resources.log.warning)
        self._output = resources.output
        self._counts = resources.counts
        self._catalogue = catalogue
        self._watchers = watchers
        self._status_text = status_text
        self.event_feed = EventFeed(resources.ledger, catalogue.uid)
        self._milestones = EventRate()
        self._reserved = 0
        """The highest number that is reserved."""
        self._ledger.skip_events(self._numbers.highest_event)

    def publish_event(self, event: Event, lineage: tuple[RunId, ...]) -> None:
        """Announce an event of the run at the end of `lineage`, or of the daemon."""
        if not lineage:
            self._announce(event, lineage)
            return
        live = self._catalogue.live.get(lineage[-1])
        if live is not None:
            run = live.run
            if run.asked.session is not None:
                event = self._with_output(event, run.id)
            began = run.started_at if run.latest.number == 1 else None
            if event.type is EventType.RUN_STARTED and began is not None:
                self._counts.run_started(run.id, began - run.birth.created_at)
        event = self._announce(event, lineage)
        if self._watchers.watched:
            self._watchers.happened(event, lineage)

    def tell_milestone(self, run: RunId, text: str) -> None:
        """Announce what a live run says that it has reached, unless it says too much."""
        if self._milestones.admits(run, trio.current_time()):
            self.tell_of_run(EventType.RUN_PROGRESS, run, text, "low", by=f"run {run}")

    def tell_of_run(
        self,
        what: EventType,
        run: RunId,
        message: str,
        severity: Severity = "medium",
        *,
        by: str | None = None,
        limit_kind: str | None = None,
    ) -> None:
        """Announce an event of a live run that the core did not decide."""
        live = self._catalogue.live.get(run)
        if live is not None:
            name, root = live.run.name, live.lineage_ids[0]
            event = Event(
                type=what,
                severity=severity,
                run_id=run,
                root_id=root,
                agent_name=name,
                user=live.run.user,
                message=message,
                by=by,
                limit_kind=limit_kind,
                channel=live.run.birth.channel,
            )
            self.publish_event(event, live.lineage_ids)

    def tell(self, what: EventType, message: str, severity: Severity = "low") -> None:
        """Announce an event of the daemon itself."""
        self._announce(Event(type=what, message=message, severity=severity), ())

    def tell_of_ended(
        self, what: EventType, message: str, severity: Severity, run: RunId | None
    ) -> None:
        """Announce an event of a run that has ended, or of the daemon."""
        event = Event(type=what, message=message, severity=severity)
        info = self._catalogue.info(run) if run is not None else None
        if info is None:
            self._announce(event, ())
            return
        event = msgspec.structs.replace(
            event, run_id=info.id, root_id=info.root_id, agent_name=info.name, user=info.user,
            channel=info.channel
        )  # fmt: skip
        self._announce(event, tuple(self._catalogue.lineage(info.id)))

    def _with_output(self, event: Event, run: RunId) -> Event:
        try:
            out, err = self._output.status(run, ".out"), self._output.status(run, ".err")
        except OSError:
            return event
        return msgspec.structs.replace(
            event,
            stdout_bytes=out.st_size if out is not None else None,
            stderr_bytes=err.st_size if err is not None else None,
        )

    def _log_breach(self, event: Event, run: RunId) -> None:
        info = self._catalogue.info(run)
        if info is not None:
            self._limit_log.breach(event, info)

    def close(self) -> None:
        self._numbers.reserve_events(self._ledger.last_event)

    def _announce(self, event: Event, lineage: tuple[RunId, ...]) -> Event:
        now = wall_clock()
        event = self._ledger.record_event(event, now)
        self._counts.published(event, now.timestamp())
        if self._ledger.last_event > self._reserved:
            # events are pushed before they are on record, and the next daemon must not give their
            # numbers to others
            self._reserved = self._ledger.last_event + RESERVED
            self._numbers.reserve_events(self._reserved)
        if (event.type, event.severity) not in self._log.quiet:
            self._log.event(event)
        if event.type == EventType.LIMIT_EXCEEDED and lineage:
            self._log_breach(event, lineage[-1])
        if self.event_feed.followers:
            self.event_feed.published(event, lineage)
        if not self._status_text.is_outdated:
            self._status_text.outdated()
        return event


# ---- Tells followers which runs have changed, several times a second at most, with what the kernel
# counts of live ones
#
# Without a follower nothing is noted or measured: a change costs one look at an empty set.

INTERVAL = 0.25
"""Seconds between two pushes at least. A run that changes more often is pushed as it is then."""
LOOKS = 2.0
"""Seconds in which each live run is looked at once, if that takes little."""
SLICE = 64
"""Runs that are looked at in one go, 5 ms where each has a cgroup: everything else of the daemon
waits meanwhile."""
SHARE = 9
"""A pause is at least so many times as long as the work before it, so pushes, and looks, take at
most a tenth of a CPU each."""
_MEMORY_STEP, _LEAST_STEP = 0.02, 1 << 20
"""The change of memory that is worth a push, as a share and in bytes. Sizes are shown with two or
three digits."""
_CPU_STEP = 0.05
_HEARD_STEP = 5.0
"""Seconds. A run that prints all the time must not be pushed for that more often."""

RunFollower = Callable[[list[KnownRun] | None], None]
"""Takes runs in its scope that have changed, each as it is now; `None` if it must read all of them
again: some have left the daemon's memory meanwhile."""


class Load(Struct, frozen=True):
    """What a run and its descendants have."""

    footprint: Footprint
    cpu: float | None = None
    """Cores that they used on average between the last two looks; `None` after the first."""
    at: float = 0.0
    heard: float | None = None
    """When they gave a sign of life last."""

    def after(self, footprint: Footprint, now: float, heard: float | None = None) -> "Load":
        """Return the load at the next look."""
        before, used = self.footprint.cpu_s, footprint.cpu_s
        # without cgroups the sum is of the processes that are alive, so it falls when one ends
        cpu = (
            max(0.0, used - before) / (now - self.at)
            if used is not None and before is not None and now > self.at
            else None
        )
        return Load(footprint, cpu, now, heard)

    def differs(self, before: "Load") -> bool:
        """Return whether a person would see another figure."""
        new, old = self.footprint, before.footprint
        step = max(_LEAST_STEP, _MEMORY_STEP * old.memory_bytes)
        unlike = new.processes != old.processes or abs(new.memory_bytes - old.memory_bytes) >= step
        unlike = unlike or abs((self.heard or 0) - (before.heard or 0)) >= _HEARD_STEP
        return (
            unlike
            or (self.cpu is None) != (before.cpu is None)
            or abs((self.cpu or 0) - (before.cpu or 0)) >= _CPU_STEP
        )


class RunFeed:
    def __init__(self, catalogue: RunCatalogue, launcher: Launcher, timers: Timers) -> None:
        self._catalogue, self._launcher, self._timers = catalogue, launcher, timers
        self.followers: dict[RunFollower, Callable[[], Scope]] = {}
        """With what they may see. While there are none, `changed` need not be called."""
        self._changed: set[RunId] = set()
        self._earliest = 0.0
        """When the next push may be."""
        self._looked: dict[RunId, Load] = {}
        """Of live runs, at the last look."""
        self._told: dict[RunId, Load] = {}
        """Of live runs, as followers were told last."""
        self._followed = trio.Event()

    def follow(self, scope: Callable[[], Scope], follower: RunFollower) -> Callable[[], None]:
        """Call `follower` with runs in the scope that change from now on. The scope is asked for
        each push: a reload may change who is in the admin group. Return how to stop it."""
        self.followers[follower] = scope
        self._followed.set()

        def forget() -> None:
            self.followers.pop(follower, None)
            if not self.followers:
                self._followed = trio.Event()
                self._timers.disarm("run feed")
                for known in (self._changed, self._looked, self._told):
                    known.clear()

        return forget

    def changed(self, runs: Iterable[RunId]) -> None:
        """Note that these runs are not as they were told."""
        if not self.followers:
            return
        if not self._changed:
            self._timers.arm("run feed", max(self._earliest, trio.current_time()), self._push)
        for run in runs:
            live = self._catalogue.live.get(run)  # sums of its ancestors may have changed with it
            self._changed.update(live.lineage_ids if live is not None else (run,))

    def _push(self) -> None:
        now = trio.current_time()
        changed, self._changed = sorted(self._changed), set()
        found = [self.known(run) for run in changed]
        runs = [run for run in found if run is not None]
        for follower, scope_now in list(self.followers.items()):
            scope = scope_now()
            admitted = [run for run in runs if scope.admits(run.uid, run.lineage_ids)]
            if len(runs) < len(found):
                follower(None)
            elif admitted:
                follower(admitted)
        took = trio.current_time() - now
        self._earliest = now + max(INTERVAL, SHARE * took)

    def known(self, run: RunId) -> KnownRun | None:
        """Return a run that is in memory, with its load if there are followers."""
        load = self._told.get(run)
        return (
            self._catalogue.in_memory(run, load.footprint, load.cpu)
            if load is not None
            else self._catalogue.in_memory(run)
        )

    async def serve(self) -> None:
        """Look at live runs again and again while there are followers."""
        while True:
            await self._followed.wait()
            for gone in self._looked.keys() - self._catalogue.live.keys():
                self._looked.pop(gone)
                self._told.pop(gone, None)
            runs = list(self._catalogue.live)
            # one look at many runs takes as long as at one where processes are found by their tags
            size = SLICE if self._launcher.containment == "cgroup" else max(1, len(runs))
            parts = [runs[at : at + size] for at in range(0, len(runs), size)] or [[]]
            for part in parts:
                began = trio.current_time()
                self._look(part, began)
                await trio.sleep(max(LOOKS / len(parts), SHARE * (trio.current_time() - began)))
                if not self.followers:
                    break

    def _look(self, runs: list[RunId], now: float) -> None:
        news = []
        for run, footprint in self._launcher.footprints(runs, cpu=True).items():
            before, live = self._looked.get(run), self._catalogue.live.get(run)
            heard = self._catalogue.heard(live, now) if live is not None else None
            load = (
                before.after(footprint, now, heard)
                if before is not None
                else Load(footprint, at=now, heard=heard)
            )
            self._looked[run] = load
            told = self._told.get(run)
            if told is None or load.differs(told):
                self._told[run] = load
                news.append(run)
        if news:
            self.changed(news)

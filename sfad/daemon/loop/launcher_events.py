"""What the launcher and the timers tell of runs. An end waits until it is known what its run has
used."""

from collections import deque

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from ...core import events as e
from ...core.state.run import Run
from ...core.state.tree import Tree
from ...core.state.vocabulary import Timer
from ...durable.adoption import StoredPidfds
from ...host.clock import Timers, wall_clock
from ...host.tasks import Background
from ...processes.contained_commands import ContainedCommands
from ...protocol.types import RunId
from ...usage.metering import Metering
from ...usage.pricing import PRICES_WAIT
from ...usage.sessions import LAST_LOOK_WAIT
from .leading import Leading
from .own_servers import ServerWatch
from .seam import Parts

ENDS_WAIT = PRICES_WAIT + LAST_LOOK_WAIT
"""Seconds that a re-execution waits at most for pending ends. An end that is fed sooner stays
without a price."""

CALLS_WAIT = 2.0
"""Seconds that an end waits for what its model calls have used. The gateway tells when it sees that
its caller is gone."""

End = e.MainExited | e.Emptied


class _PendingTree(Struct, frozen=True):
    learning: trio.CancelScope
    """For all runs of the tree together: 1 000 waits in a row would let it exceed its time, or a
    stop its grace."""
    events: deque[End | e.TimerFired] = field(default_factory=deque)


class LauncherEvents(Struct):
    """Feeds the core with what the launcher and the timers tell.

    The end of a run waits while the price list is being loaded, or a session file may still grow.
    The ends of a tree are fed in their order."""

    tree: Tree
    timers: Timers
    metering: Metering
    pidfds: StoredPidfds
    background: Background
    feed: e.Feed
    commands: ContainedCommands
    leading: Leading
    server_watch: ServerWatch
    parts: Parts
    _pending: dict[RunId, _PendingTree] = field(default_factory=dict)
    """By root."""
    _settled: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    _none_pending: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def arrived(self, event: e.Event) -> None:
        """Take what the launcher tells. Before the core decides about an end, everything is learnt
        that the run wrote or used."""
        match event:
            case e.OfRun(run=run_id) if run_id in self.commands.names:
                self.commands.arrived(event)
            case e.LaunchSucceeded(run=run_id) if (run := self.tree.get(run_id)) is not None:
                if self.pidfds.there:
                    self.pidfds.keep(run, event.pid)
                self.feed(event)
                self.leading.launched(run_id)
            case e.AgentSeen():
                self.leading.agent_seen(event.run, event.process)
                self.metering.agent_seen(event.run, event.process)
                self.feed(event)
                self.server_watch.agent_seen(event.run, event.process)
            case e.MainExited(run=run_id) | e.Emptied(run=run_id) if (
                run := self.tree.get(run_id)
            ) is not None:
                self._ended(run, event)
            case _:
                self.feed(event)

    def arm(self, run: RunId, timer: Timer, at: float) -> None:
        self.timers.arm(
            (run, timer), at, lambda: self._fired(e.TimerFired(trio.current_time(), run, timer))
        )

    def remind(self, feature: str, key: str, at: float | None) -> None:
        """Feed `Reminded` then, or not any more."""
        if at is None:
            self.timers.disarm((feature, key))
        else:
            self.timers.arm(
                (feature, key),
                at,
                lambda: self.feed(
                    e.Reminded(trio.current_time(), feature, key, wall_clock().astimezone())
                ),
            )

    def _ended(self, run: Run, event: End) -> None:
        """Feed that a run or its main process has ended, now or later."""
        root = run.root.id
        if root not in self._pending:
            alone = not run.children and not run.account.reservations
            may_wait = self.metering.may_wait(run) or (not alone and _calls(run))
            if not (may_wait or (self.parts.empties and self._has_more(run))):
                self._feed_now(event)
                return
            self._pending[root] = _PendingTree(
                trio.CancelScope(deadline=trio.current_time() + PRICES_WAIT)
            )
            self.background.start_soon(self._feed_later, root)
        self._pending[root].events.append(event)

    def _has_more(self, run: Run) -> bool:
        return any(each(run) is not None for each in self.parts.empties)

    def _fired(self, event: e.TimerFired) -> None:
        """Feed that a timer has fired. A run with a pending end must not exceed its time."""
        run = self.tree.get(event.run)
        pending = self._pending.get(run.root.id) if run is not None else None
        if pending is None:
            self._feed_now(event)
        else:
            pending.events.append(event)
            pending.learning.deadline = min(
                pending.learning.deadline, trio.current_time() + LAST_LOOK_WAIT
            )

    def call_settled(self) -> None:
        """Note that a model call was settled."""
        self._settled.unpark_all()

    async def _calls_settled(self, run: Run) -> None:
        with trio.move_on_after(CALLS_WAIT):
            while _calls(run):
                await self._settled.park()

    async def _emptied(self, run: Run) -> None:
        for each in self.parts.empties:
            if (wait := each(run)) is not None:
                await wait()

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
        try:
            with pending.learning:
                while pending.events:
                    first = pending.events[0]
                    run = self.tree.get(first.run)
                    if run is not None:
                        await self.metering.learn_use(
                            run, succeeded=isinstance(first, e.MainExited) and first.code == 0
                        )
                        if isinstance(first, e.Emptied) or (
                            isinstance(first, e.MainExited) and first.empty
                        ):
                            await self._calls_settled(run)
                            await self._emptied(run)
                    if pending.events:  # else `feed_all` was called in the meantime
                        self._feed_now(pending.events.popleft())
        finally:  # a run ends even if its use cannot be learned
            self._feed_tree(pending)
            del self._pending[root]
            if not self._pending:
                self._none_pending.unpark_all()

    def _feed_tree(self, pending: _PendingTree) -> None:
        while pending.events:
            self._feed_now(pending.events.popleft())

    def _feed_now(self, event: End | e.TimerFired) -> None:
        run = self.tree.get(event.run)
        if isinstance(event, e.TimerFired):
            if event.timer is Timer.AT:
                event = replace(event, unix_time=wall_clock().timestamp())
            elif run is not None and run.latest.stage_until is not None:
                event = replace(event, last_lines=self.parts.last_lines(run))
        elif run is not None:
            self.metering.catch_up(run, event.signal if isinstance(event, e.MainExited) else None)
            if isinstance(event, e.MainExited):
                if self.pidfds.there:
                    self.pidfds.forget(run)
                if run.latest.stage:
                    event = replace(event, last_lines=self.parts.last_lines(run))
                elif event.code:
                    event = replace(event, last_line=self.metering.last_line(run.id))
        self.feed(event)


def _calls(run: Run) -> bool:
    """Return whether model calls are under way in the run or below it."""
    if not run.children:
        return bool(run.account.reserved_by_gateway)
    return any(each.account.reserved_by_gateway for each in run.subtree())

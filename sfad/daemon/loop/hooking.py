"""The hooks of a daemon: wires them to the config, the events, the ends of runs and the next
daemon."""

import os
import sqlite3
from collections.abc import Callable, Mapping
from typing import Literal

from msgspec.structs import replace

from ...config import Hook
from ...core.state.access import EVERYTHING, Peer
from ...durable.saved import kept_variables
from ...hooks.end_hooks import EndHooks
from ...hooks.event_hooks import CHANNEL, EventHooks
from ...hooks.reports import HookReports
from ...host.clock import wall_clock
from ...host.tasks import Background
from ...processes.contained_commands import ContainedCommands
from ...protocol.errors import bad_request, check_most
from ...protocol.messages import Events
from ...protocol.types import Event, RunId, RunInfo
from ...runs.catalogue import RunCatalogue
from ...runs.live import MAX_ON_END
from ...start.prepared import Prepared
from ...start.surroundings import Surroundings
from ...storage.ledger import LedgerError
from ...storage.ledger.records import EventFilter, read_event_page
from .announcing import Announcer
from .isolating import Isolating
from .resources import Resources

PAGE, PAGES = 500, 20
"""Events of the ledger that are read at once, and how often, to find those that an earlier daemon
had not finished."""

LAST_HOOKS = 5.0
"""Seconds that hooks have when the daemon ends. The next daemon starts what was not finished."""
BEFORE_REEXECUTION = 2.0


class Hooking:
    def __init__(
        self,
        resources: Resources,
        announcer: Announcer,
        catalogue: RunCatalogue,
        background: Background,
        isolating: Isolating,
    ) -> None:
        self._resources = resources
        self._announcer = announcer
        self._catalogue = catalogue
        self._spool = resources.spool.hooks
        self._unfollow: Callable[[], None] | None = None
        self.processes = ContainedCommands(resources.launcher)
        reports = HookReports(resources.log, announcer.tell_of_hook, resources.counts)
        env = kept_variables(key + b"=" + value for key, value in os.environb.items())
        self.on_events = EventHooks(
            self.processes, reports, background, env, resources.socket, self._spool.save_done,
            catalogue.uid
        )  # fmt: skip
        self.end_hooks = EndHooks(
            self.processes,
            reports,
            background,
            resources.socket,
            self._spool.forget,
            isolating.sandbox_of,
        )

    def begin(self, hooks: Mapping[str, Hook]) -> None:
        """Follow the config, and continue with the events that an earlier daemon had not
        finished."""
        self.configure(hooks)
        if hooks:
            try:
                self._replay()
            except (sqlite3.Error, LedgerError) as error:
                self._resources.log.error(
                    f"events that hooks have missed cannot be read from the ledger: {error}"
                )

    def _replay(self) -> None:
        for _ in range(PAGES):
            request = Events(id=0, after=self.on_events.oldest)
            page = read_event_page(
                self._resources.ledger.file.directory, EventFilter(EVERYTHING), request, PAGE
            )
            for event in page.events:
                self.on_events.take(event)
            if not page.more:
                return

    def configure(self, hooks: Mapping[str, Hook]) -> None:
        self.on_events.configure(hooks, self._resources.ledger.last_event, self._spool.done())
        if hooks and self._unfollow is None:
            self._unfollow = self._announcer.event_feed.follow(
                lambda: EVERYTHING, self.on_events.take
            )
        elif not hooks and self._unfollow is not None:
            self._unfollow()
            self._unfollow = None

    def begin_on_ends(self) -> None:
        """Execute the commands of runs that an earlier daemon has ended, or that have ended without
        one."""
        for run, hook in self._spool.on_ends().items():
            if run in self._catalogue.live:
                continue
            info = self._catalogue.info(run)
            if info is None:
                self._resources.log.error(
                    f"--on-end of run {run} is not executed: the ledger does not know the run"
                )
                self._spool.forget([run])
            elif info.status.terminal:
                self.end_hooks.ended(info, hook)

    def run_ended(self, info: RunInfo) -> None:
        """The end of a run is on record."""
        hook = self._spool.on_end(info.id)
        if hook is not None:
            self.end_hooks.ended(info, hook)

    def never_admitted(self, run: RunId) -> None:
        self._spool.forget([run])

    def peer(self, peer: Peer) -> Peer:
        """Return who a peer is that may be in a hook. A hook of the config acts for the operator.
        The command of `--on-end` stays what it is, in a run that the core does not know: it may do
        nothing."""
        return replace(peer, run=None, hook=True) if self.processes.is_operators(peer.run) else peer

    def test_event(self, what: str) -> Event:
        """Return an event of this type as hooks get them: with the name of a run, and with the
        state of an alert."""
        state: Literal["raised"] | None = "raised" if what.startswith("alert_") else None
        number = self._resources.ledger.last_event
        return Event(
            type=what,
            seq=number,
            time=wall_clock(),
            agent_name="test",
            message="a test of this hook",
            state=state,
        )

    async def finish(self) -> None:
        """Let hooks do what the end of the daemon gives them to do."""
        await self.on_events.rest(LAST_HOOKS, queued=True)
        await self.end_hooks.rest(LAST_HOOKS, queued=True)
        await self.processes.rest()

    async def rest(self) -> None:
        """Start no more, and end what runs, before a re-execution."""
        await self.on_events.rest(BEFORE_REEXECUTION, queued=False)
        await self.end_hooks.rest(BEFORE_REEXECUTION, queued=False)
        await self.processes.rest()

    def go_on(self) -> None:
        """Undo `rest`."""
        self.processes.go_on()
        self.on_events.go_on()
        self.end_hooks.go_on()


# ---- Steps of `start.prepare`


def mark_hooks(p: Prepared, around: Surroundings) -> None:
    """Give runs that a hook starts, and what is started in them, the channel of hooks: their events
    start no hook. No other client may hide its runs so."""
    caller = around.caller
    if around.peer.hook or (caller is not None and caller.run.birth.channel == CHANNEL):
        p.identity = replace(p.identity, channel=CHANNEL)
    elif p.identity.channel == CHANNEL:
        raise bad_request(
            f"the channel '{CHANNEL}' is that of runs which a hook starts; choose another"
        )


def check_on_end(_: Prepared, around: Surroundings) -> None:
    """Refuse a command for the end of a run that a run asks for."""
    on_end = around.order.on_end
    if on_end is None:
        return
    if around.peer.run is not None:
        raise bad_request(
            "--on-end is for runs that are started from outside any run: "
            "leave it out, and wait for the run instead"
        )
    check_most("characters of --on-end", len(on_end), MAX_ON_END)
    if "\0" in on_end:
        raise bad_request("a NUL character in --on-end")

"""The part in a daemon: wires hooks to the config, the events, the ends of runs and the next
daemon."""

import os
import sqlite3
from collections.abc import Callable
from typing import Literal

from msgspec.structs import replace

from ...core.state.access import EVERYTHING, Peer, Scope
from ...daemon.loop.seam import Heart, Part
from ...daemon.server.asker import Asker
from ...host.clock import wall_clock
from ...processes.contained_commands import CommandResult
from ...protocol.errors import bad_request, check_most, unavailable
from ...protocol.messages import Events
from ...protocol.texts.sanitise import clean
from ...protocol.types import Event, RunId, RunInfo
from ...start.prepared import Prepared, Surroundings
from ...storage.ledger import LedgerError
from ...storage.ledger.records import EventFilter, read_event_page
from .end_hooks import EndHooks
from .event_hooks import EventHooks
from .feature import CHANNEL, Hooks
from .messages import HookTested, TryHook
from .reports import OUTPUT, HookReports
from .saved import MAX_ON_END, HookSpool, kept_variables, on_end_changes

PAGE, PAGES = 500, 20
"""Events of the ledger that are read at once, and how often, to find those that an earlier daemon
had not finished."""

LAST_HOOKS = 5.0
"""Seconds that hooks have when the daemon ends. The next daemon starts what was not finished."""
BEFORE_REEXECUTION = 2.0


class Hooking:
    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        resources, catalogue = heart.resources, heart.catalogue
        self._spool = HookSpool(resources.spool.values)
        self._unfollow: Callable[[], None] | None = None
        reports = HookReports(resources.log, heart.announcer.tell_of_ended, resources.counts)
        env = kept_variables(key + b"=" + value for key, value in os.environb.items())
        self._on_events = EventHooks(
            heart.commands, reports, heart.background, env, resources.socket,
            self._spool.save_done, catalogue.uid, resting=True,
        )  # fmt: skip
        self._on_ends = EndHooks(
            heart.commands, reports, heart.background, resources.socket, self._spool.forget,
            lambda isolation: heart.parts().sandbox_of(isolation), resting=True,
        )  # fmt: skip
        self.configure()
        if self._on_events:
            try:
                self._replay()
            except (sqlite3.Error, LedgerError) as error:
                resources.log.error(
                    f"events that hooks have missed cannot be read from the ledger: {error}"
                )

    def _replay(self) -> None:
        """Take the events that an earlier daemon had not finished."""
        for _ in range(PAGES):
            request = Events(id=0, after=self._on_events.oldest)
            directory = self._heart.resources.ledger.file.directory
            page = read_event_page(directory, EventFilter(EVERYTHING), request, PAGE)
            for event in page.events:
                self._on_events.take(event)
            if not page.more:
                return

    def configure(self) -> None:
        """Follow the config."""
        hooks = self._heart.section("hooks", Hooks)
        self._on_events.configure(
            hooks, self._heart.resources.ledger.last_event, self._spool.done()
        )
        if hooks and self._unfollow is None:
            self._unfollow = self._heart.announcer.event_feed.follow(
                lambda: EVERYTHING, self._on_events.take
            )
        elif not hooks and self._unfollow is not None:
            self._unfollow()
            self._unfollow = None

    def begin(self) -> None:
        """Execute the commands of runs that an earlier daemon has ended, or that have ended without
        one, and start hooks from now on."""
        for run, hook in self._spool.on_ends().items():
            if run in self._heart.catalogue.live:
                continue
            info = self._heart.catalogue.info(run)
            if info is None:
                self._heart.resources.log.error(
                    f"--on-end of run {run} is not executed: the ledger does not know the run"
                )
                self._spool.forget([run])
            elif info.status.terminal:
                self._on_ends.ended(info, hook)
        self.go_on()

    def recorded(self, info: RunInfo) -> None:
        hook = self._spool.on_end(info.id)
        if hook is not None:
            self._on_ends.ended(info, hook)

    def never_admitted(self, run: RunId) -> None:
        self._spool.forget([run])

    def stopped(self, run: RunId) -> None:
        self._on_ends.cancel(run)

    def peer(self, peer: Peer) -> Peer:
        """Return who a peer is that may be in a hook. A hook of the config acts for the operator.
        The command of `--on-end` stays what it is, in a run that the core does not know: it may do
        nothing."""
        if not self._heart.commands.is_operators(peer.run):
            return peer
        return replace(peer, run=None, channel=CHANNEL)

    def status(self, _peer: Peer, scope: Scope) -> dict[str, object]:
        return {
            "hooks": self._on_events.states() if scope == EVERYTHING else [],
            "on_ends": [
                each
                for each in self._on_ends.states()
                if self._heart.catalogue.knows(each.run_id, scope)
            ],
        }

    async def finish(self) -> None:
        """Let hooks do what the end of the daemon gives them to do."""
        await self._on_events.rest(LAST_HOOKS, queued=True)
        await self._on_ends.rest(LAST_HOOKS, queued=True)

    async def rest(self) -> None:
        """Start no more, and end what runs, before a re-execution."""
        await self._on_events.rest(BEFORE_REEXECUTION, queued=False)
        await self._on_ends.rest(BEFORE_REEXECUTION, queued=False)

    def go_on(self) -> None:
        """Undo `rest`."""
        self._on_events.go_on()
        self._on_ends.go_on()

    def test_hook(self, asker: Asker, request: TryHook) -> None:
        """Execute a hook of the config for an invented event."""
        hooks = self._on_events
        check_most("characters of an event's type", len(request.event), 64)
        if request.name not in hooks.names:
            known = ", ".join(hooks.names) or "none"
            raise bad_request(f"no hook is called {request.name[:80]!r}; in the config: {known}")
        types = hooks.types_of(request.name)
        event = request.event or ("run_failed" if "run_failed" in types else types[0])
        if event not in types:
            raise bad_request(
                f"{event!r} does not start hook '{request.name}'; "
                f"its 'on' matches: {', '.join(types)}"
            )

        async def execute() -> CommandResult:
            result = await hooks.test(request.name, self._test_event(event))
            if result is None:
                raise unavailable(
                    f"hook '{request.name}' is being tested by several clients; try again later"
                )
            return result

        def reply(result: CommandResult) -> HookTested:
            output = clean(result.output)[-OUTPUT:]
            return HookTested(
                id=asker.id, how=result.how, ok=result.ok, output=output, elapsed_s=result.elapsed_s
            )

        asker.later(execute, reply)

    def _test_event(self, what: str) -> Event:
        """Return an event of this type as hooks get them: with the name of a run, and with the
        state of an alert."""
        state: Literal["raised"] | None = "raised" if what.startswith("alert_") else None
        number = self._heart.resources.ledger.last_event
        return Event(
            type=what,
            seq=number,
            time=wall_clock(),
            agent_name="test",
            message="a test of this hook",
            state=state,
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


def part(heart: Heart) -> Part:
    hooking = Hooking(heart)
    return Part(
        verbs={TryHook: hooking.test_hook},
        begin=hooking.begin,
        reconfigure=hooking.configure,
        status=hooking.status,
        peer=hooking.peer,
        check=check_on_end,
        saves=on_end_changes,
        never_admitted=hooking.never_admitted,
        stopped=hooking.stopped,
        recorded=hooking.recorded,
        finish=hooking.finish,
        rest=hooking.rest,
        go_on=hooking.go_on,
    )

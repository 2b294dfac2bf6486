"""`TrioDaemon` and `TrioRun`: the daemon and its runs, for trio. Each method does what that of
`blocking` does, and may be cancelled."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from functools import partial
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import trio
from msgspec.structs import replace

from sfad.protocol.requests.daemon import Change, DaemonStatus, Pruned
from sfad.protocol.requests.listing import List
from sfad.protocol.requests.starting import AgentInfo, Spawn
from sfad.protocol.requests.steering import Stopped
from sfad.protocol.requests.summary import By, Summary
from sfad.protocol.requests.windows import SubscriptionInfo
from sfad.protocol.types import CallInfo, ErrorCode, Event, RunId, RunInfo, Severity

from ..client import Sfad
from ..connecting.connection import AGAIN, ConnectionLost, DaemonError, check
from ..errors import of_quit
from ..exits import Quit
from . import asking, home
from .asking import Call, Following, FollowingRun, Outcome
from .asking import Stream as OutputStream
from .attending import admission
from .options import AdmitOptions, Amount, Limits, StartOptions, Word, spawn_of
from .pool import KEPT, opener
from .streaming import Stream

if TYPE_CHECKING:
    from .check_logs import Printed
    from .trio_agents import TrioAgent, TrioAttendant

R = TypeVar("R")


class TrioDaemon:
    """`Daemon` for trio: `async with TrioDaemon() as daemon`. Any task may use it, and several at
    once."""

    def __init__(
        self, socket: str | None = None, *, start: bool = True, fleet: bool = False
    ) -> None:
        self._opener, self.socket = opener(socket, start=start, fleet=fleet), socket
        self._opening = trio.Lock()
        self._attendant: TrioAttendant | None = None
        self._idle: list[Stream] = []
        self._closed = False

    async def __aenter__(self) -> TrioDaemon:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Runs go on, but agents within this program end."""
        self._closed = True
        if self._attendant is not None:
            self._attendant.close()
            self._attendant = None
        while self._idle:
            self._idle.pop().close()

    async def ask(self, call: Call[R]) -> R:
        """Carry a call out."""
        try:
            async with self._stream() as stream:
                reply = await stream.ask(call.request, call.expected)
        except Quit as error:
            raise of_quit(error) from None
        return call.result(reply)

    @asynccontextmanager
    async def _stream(self) -> AsyncGenerator[Stream]:
        stream = self._idle.pop() if self._idle else await Stream.opened(self._opener)
        try:
            if stream.client.closed_by_daemon():
                await stream.reconnect("nothing was sent")
            yield stream
        except DaemonError:
            self._give_back(stream)
            raise
        except BaseException:
            stream.close()  # its reply may still come
            raise
        self._give_back(stream)

    def _give_back(self, stream: Stream) -> None:
        if self._closed or stream.client.closed or len(self._idle) >= KEPT:
            stream.close()
        else:
            self._idle.append(stream)

    async def run_id(self) -> RunId | None:
        """Return the run in which the daemon finds this process; `None` outside any run."""
        try:
            async with self._stream() as stream:
                return stream.client.welcome.run
        except Quit as error:
            raise of_quit(error) from None

    # ---- Starting

    async def spawn(
        self,
        command: Sequence[Word] = (),
        *,
        agent: str | None = None,
        **options: Unpack[StartOptions],
    ) -> TrioRun:
        return TrioRun(self, (await self.ask(asking.spawn(spawn_of(command, agent, options)))).id)

    def admit(
        self, name: str, **options: Unpack[AdmitOptions]
    ) -> AbstractAsyncContextManager[TrioAgent]:
        """Have an agent within this program for a block: `async with daemon.admit(…) as agent`. A
        stop, a breach or a passed deadline cancels the block, which is left without an
        exception."""
        return self._block(admission(name, options, None))

    def _block(self, request: Spawn) -> AbstractAsyncContextManager[TrioAgent]:
        from .trio_agents import block  # a feature, which may not be there

        return block(lambda: self._admitted(request), lambda run: self.stop(run))

    async def _admitted(self, request: Spawn) -> TrioAgent:
        from .trio_agents import TrioAgent, TrioAttendant

        try:
            async with self._opening:
                if self._attendant is None:
                    stream = Stream.opened(self._opener)
                    self._attendant = await TrioAttendant.opened(stream)
                attendant = self._attendant
        except Quit as error:
            raise of_quit(error) from None
        return TrioAgent(self, attendant, await attendant.admit(request))

    async def _spawned(self, request: Spawn, below: RunId) -> TrioRun:
        started = await self.ask(asking.spawn(replace(request, below=below)))
        return TrioRun(self, started.id)

    def _sfad(self, run: RunId) -> Sfad:
        return Sfad(run=run, socket=self.socket)

    async def go_on(
        self, run: RunId, task: str | None = None, *, rest: bool = False, fresh: bool = False
    ) -> TrioRun:
        started = await self.ask(asking.go_on(run, task, rest=rest, fresh=fresh))
        return TrioRun(self, started.id)

    async def rerun(
        self,
        run: RunId,
        *,
        env: Mapping[str, str] | None = None,
        check: Sequence[str] | None = None,
        group: str | None = None,
    ) -> TrioRun:
        found = await self.ask(asking.recall(run))
        started = await self.ask(asking.again(found, env or {}, check, group))
        return TrioRun(self, started.id)

    # ---- Runs

    async def run(self, run: RunId) -> TrioRun:
        return TrioRun(self, (await self.ask(asking.info(run))).id)

    async def runs(self, **filters: Any) -> AsyncIterator[RunInfo]:
        wanted: List | None = asking.run_pages(filters)
        while wanted is not None:
            page = await self.ask(asking.runs(wanted))
            for run in page.runs:
                yield run
            wanted = page.next

    async def stop(
        self,
        *runs: RunId,
        everything: bool = False,
        name: str | None = None,
        labels: dict[str, str] | None = None,
        grace: float | None = None,
        signal: int = SIGTERM,
    ) -> Stopped:
        chosen = {"everything": everything, "name": name, "labels": labels or {}}
        return await self.ask(asking.stop(runs, grace=grace, signal=signal, **chosen))

    def events(
        self,
        *,
        runs: Sequence[RunId] = (),
        types: Sequence[str] = (),
        severity: Severity = "low",
        after: int | None = None,
        since: datetime | None = None,
        follow: bool = False,
    ) -> AsyncIterator[Event]:
        wanted = asking.events(runs, types, severity, after, since, follow=follow)
        return self.follow(Following(wanted))

    async def follow(self, following: Following) -> AsyncIterator[Event]:
        """Yield events until there are no more."""
        stream: Stream | None = None
        try:
            stream = await Stream.opened(self._opener)
            while not following.ended:
                try:
                    await stream.send(following.wanted)
                    async for event in _answered(stream, following):
                        yield event
                except ConnectionLost:
                    await stream.reconnect("events go on where they were read to")
                except DaemonError as error:
                    if error.error is not ErrorCode.UNAVAILABLE or not following.may_retry():
                        raise
                    await trio.sleep(AGAIN)
        except Quit as error:
            raise of_quit(error) from None
        finally:
            if stream is not None:
                stream.close()

    async def summary(
        self,
        since: datetime | float | None = None,
        *,
        by: By = "name",
        name: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Summary:
        return await self.ask(asking.summary(since, by, labels, name=name, user=user))

    # ---- The daemon

    async def status(self) -> DaemonStatus:
        return await self.ask(asking.status())

    async def reload(self) -> list[Change]:
        return await self.ask(asking.reload())

    async def agents(self) -> list[AgentInfo]:
        return await self.ask(asking.agents())

    async def plans(self) -> list[SubscriptionInfo]:
        return await self.ask(asking.plans())

    async def prune(
        self, older_than: float | None = None, *, keep: int = 0, dry_run: bool = False
    ) -> Pruned:
        return await self.ask(asking.prune(older_than, keep, dry_run=dry_run))


async def _answered(stream: Stream, following: Following) -> AsyncIterator[Event]:
    while True:
        for reply in await stream.arrived():
            check(reply)
            found, more = following.take(reply)
            if more:
                await stream.send(following.wanted)
            for event in found:
                yield event
            if following.ended:
                return


class TrioRun:
    """`Run` for trio."""

    def __init__(self, daemon: TrioDaemon, run: RunId) -> None:
        self.daemon = daemon
        self.id = run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def info(self) -> RunInfo:
        return await self.daemon.ask(asking.info(self.id))

    async def wait(self) -> Outcome:
        """Return how the run has ended, once it has. Bound it with `trio.fail_after`."""
        return await self.daemon.ask(asking.wait(self.id, None))

    async def stop(self, *, grace: float | None = None, signal: int = SIGTERM) -> Stopped:
        return await self.daemon.ask(asking.stop([self.id], grace=grace, signal=signal))

    async def pause(self) -> RunInfo:
        return await self.daemon.ask(asking.pause(self.id))

    async def resume(self, limits: Limits | None = None) -> RunInfo:
        return await self.daemon.ask(asking.resume(self.id, limits or {}))

    async def approve(self, limits: Limits | None = None) -> RunInfo:
        return await self.daemon.ask(asking.approve(self.id, limits or {}))

    async def deny(self) -> RunInfo:
        return await self.daemon.ask(asking.deny(self.id))

    async def limit(self, **limits: Amount) -> RunInfo:
        return await self.daemon.ask(asking.limit(self.id, limits))

    async def send(self, data: bytes | str, *, eof: bool = False) -> None:
        await self.daemon.ask(asking.send(self.id, data, eof=eof))

    async def signal(self, number: int) -> None:
        await self.daemon.ask(asking.signal(self.id, number))

    def events(
        self, *, types: Sequence[str] = (), severity: Severity = "low"
    ) -> AsyncIterator[Event]:
        return self.daemon.follow(FollowingRun(self.id, types, severity))

    async def logs(
        self, stream: OutputStream = "stdout", *, follow: bool = False
    ) -> AsyncIterator[bytes]:
        offset = 0
        while True:
            piece = await self.daemon.ask(asking.output(self.id, stream, offset))
            if piece.data:
                yield piece.data
            elif piece.last or not follow:
                return
            else:
                await trio.sleep(asking.LOOK)
            offset = piece.next

    async def check_logs(self, *, follow: bool = False) -> AsyncIterator[Printed]:
        from .check_logs import Reading  # of a feature, which may not be there

        reading = Reading(self.id, follow=follow)
        while (call := reading.next) is not None:
            if reading.waits:
                await trio.sleep(asking.LOOK)
            for printed in reading.take(await self.daemon.ask(call)):
                yield printed

    async def diff(self, *, stat: bool = False) -> str:
        return await self._in_thread(partial(home.diff, stat=stat))

    async def land(
        self, *, onto: str | None = None, how: home.How | None = None, message: str | None = None
    ) -> home.Landed:
        return await self._in_thread(partial(home.land, onto=onto, how=how, message=message))

    async def _in_thread(self, ask: Callable[[RunId, str | None], R]) -> R:
        return await trio.to_thread.run_sync(ask, self.id, self.daemon.socket)

    async def result(
        self, *, raw: bool = False, wrapped: bool = False, max_bytes: int = 64 * 1024
    ) -> str:
        return await self.daemon.ask(
            asking.result(self.id, raw=raw, wrapped=wrapped, max_bytes=max_bytes)
        )

    async def calls(self) -> AsyncIterator[CallInfo]:
        after: CallInfo | None = None
        while True:
            page = await self.daemon.ask(asking.model_calls(self.id, after))
            for after in page.calls:
                yield after
            if not (page.more and page.calls):
                return

    async def go_on(
        self, task: str | None = None, *, rest: bool = False, fresh: bool = False
    ) -> TrioRun:
        return await self.daemon.go_on(self.id, task, rest=rest, fresh=fresh)

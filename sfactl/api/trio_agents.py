"""`TrioAgent`: an agent within this program, for trio. A stop cancels its block."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeVar, Unpack

import trio

from sfad.protocol.requests.base import Request
from sfad.protocol.requests.starting import Spawn
from sfad.protocol.types import Event, RunId, RunInfo

from ..client import Reservation, Sfad
from ..connecting.connection import ConnectionLost
from ..errors import SfadError, of_quit
from ..exits import Quit
from . import asking
from .agents import Narrowed, address, end, failure, locate, narrow
from .asking import Call, Following, Outcome
from .attending import Admission, Agency, AgentHere, Attendance, admission
from .options import AdmitOptions, Amount, StartOptions, limits_of, spawn_of
from .streaming import Stream

R = TypeVar("R")

LAST = 60.0
"""Seconds that a cancelled block waits for the end of its agent, of which the grace is a part."""


class TrioAttendant:
    """The connection on which the agents of a `TrioDaemon` live. A system task reads it: a nursery
    would wrap what the program's own block raises."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._attendance = Attendance()
        self._sending = trio.Lock()
        self._scope = trio.CancelScope()

    @classmethod
    async def opened(cls, opened: Awaitable[Stream]) -> TrioAttendant:
        """Raise `Quit`."""
        attendant = cls(await opened)
        await attendant._greet()
        trio.lowlevel.spawn_system_task(attendant._read)
        return attendant

    async def _greet(self) -> None:
        for request, waiting in self._attendance.greeting():
            await self._send(request, waiting)

    async def _send(self, request: Request, waiting: Admission | None = None) -> None:
        # the reply cannot be taken before its id is known: no other task runs between
        async with self._sending:
            number, frame = self._stream.client.packed(request)
            self._attendance.sent(number, request, waiting)
            await self._stream.send_frame(frame)

    async def admit(self, request: Spawn) -> Agency:
        """Have an agent admitted. Raise `SfadError`."""
        waiting, answered = Admission(request), trio.Event()
        waiting.answered = answered.set
        self._attendance.expect(waiting)
        with suppress(ConnectionLost):  # then the task that reads sends it again
            await self._send(request, waiting)
        await answered.wait()
        if waiting.error is not None:
            raise waiting.error
        assert waiting.agency is not None
        return waiting.agency

    def forget(self, run: RunId) -> None:
        self._attendance.forget(run)

    async def _read(self) -> None:
        with self._scope:
            while True:
                try:
                    for reply in await self._stream.arrived():
                        if self._attendance.take(reply):
                            await self._send(self._attendance.again())
                except ConnectionLost:
                    try:
                        await self._stream.reconnect("its agents are stopped")
                        await self._greet()
                    except ConnectionLost:
                        continue
                    except Quit as error:
                        self._attendance.lose(of_quit(error))
                        return
                except Quit as error:
                    self._attendance.lose(of_quit(error))
                    return

    def close(self) -> None:
        """Close the connection. The daemon ends the agents that live on it."""
        self._scope.cancel()
        self._stream.close()
        self._attendance.lose(SfadError("its TrioDaemon was closed", "closed"))


class TrioHome(Protocol):
    """What an agent needs of its `TrioDaemon`."""

    async def ask(self, call: Call[R]) -> R: ...

    def follow(self, following: Following) -> AsyncIterator[Event]: ...

    def _block(self, request: Spawn) -> AbstractAsyncContextManager[TrioAgent]: ...

    async def _spawned(self, request: Spawn, below: RunId) -> Any: ...

    def _sfad(self, run: RunId) -> Sfad: ...


class TrioAgent(AgentHere):
    """`Agent` for trio. A stop, a breach or a passed deadline cancels the block of its `admit`,
    which is then left without an exception; `stopped` tells why."""

    def __init__(self, daemon: TrioHome, attendant: TrioAttendant, agency: Agency) -> None:
        super().__init__(agency)
        self.daemon = daemon
        self.cancel_scope = trio.CancelScope()
        """That of its block."""
        self._attendant = attendant
        self._narrowed: list[tuple[set[str], Narrowed, trio.CancelScope]] = []
        self._changed = trio.Event()
        agency.told, agency.breached = self._told, self._breached

    def _told(self) -> None:
        self._changed.set()
        if self._agency.stopped is not None:
            self.cancel_scope.cancel()

    def _breached(self, event: Event) -> None:
        for kinds, narrowed, scope in self._narrowed:
            if event.limit_kind in kinds:
                narrowed.exceeded = True
                scope.cancel()

    async def begin(self) -> None:
        """Wait while its tree is queued."""
        while not self._agency.began and self._agency.stopped is None:
            self._changed = trio.Event()
            await self._changed.wait()
        self._told()

    async def base_url(self, upstream: str = "anthropic") -> str:
        """Return the address to which its model calls go, as `Agent.base_url` does."""
        self.check()
        if self._url is None:
            url = address(await self.daemon.ask(locate(self.id)), upstream, self.id)
            self._url = url.removesuffix(f"/{upstream}")
        return address(self._url, upstream, self.id)

    def admit(
        self, name: str, **options: Unpack[AdmitOptions]
    ) -> AbstractAsyncContextManager[TrioAgent]:
        """Admit an agent below it, as `TrioDaemon.admit` does."""
        self.check()
        return self.daemon._block(admission(name, options, self.id))

    async def spawn(
        self, command: Any = (), *, agent: str | None = None, **options: Unpack[StartOptions]
    ) -> Any:
        """Start a run with processes below it, and return its `TrioRun`. It ends with the agent."""
        self.check()
        return await self.daemon._spawned(spawn_of(command, agent, options), self.id)

    @asynccontextmanager
    async def limit(self, **limits: Amount) -> AsyncGenerator[Narrowed]:
        """Give it less for a block, as `Agent.limit` does. A call that is refused because of it
        cancels the block, which is left without an exception."""
        self.check()
        await self.daemon.ask(narrow(self.id, limits))
        kinds = {limit.kind.value for limit in limits_of(limits, "limit()")}
        block = kinds, Narrowed(), trio.CancelScope()
        self._narrowed.append(block)
        try:
            with block[2]:
                yield block[1]
        finally:
            self._narrowed.remove(block)
            if self._outcome is None and self.stopped is None:
                with trio.move_on_after(LAST, shield=True):
                    await self.daemon.ask(narrow(self.id, None))

    async def info(self) -> RunInfo:
        """Return what the daemon knows of its run now."""
        return await self.daemon.ask(asking.info(self.id))

    def events(self) -> AsyncIterator[Event]:
        """Yield the events of its run and of those below it, until its end."""
        return self.daemon.follow(asking.FollowingRun(self.id, (), "low"))

    async def report(self, **used: Any) -> RunInfo:
        """Tell what it has used, as `Agent.report` does."""
        self.check()
        with self.daemon._sfad(self.id) as sfad:
            return await trio.to_thread.run_sync(partial(sfad.report, **used))

    async def reserve(self, model: str, **most: Any) -> Reservation:
        """Ask before a call, as `Agent.reserve` does. Settle the reservation in a thread."""
        self.check()
        reserve = self.daemon._sfad(self.id).reserve
        return await trio.to_thread.run_sync(partial(reserve, model, **most))

    async def end(self, failed: str | None = None) -> Outcome:
        """End it, and return how it has ended."""
        if self._outcome is None:
            self._agency.ending = True
            with suppress(SfadError):  # it may have ended with its connection
                await self.daemon.ask(end(self.id, failed))
            self._outcome = await self.daemon.ask(asking.wait(self.id, None))
            self._attendant.forget(self.id)
        return self._outcome


@asynccontextmanager
async def block(
    admitted: Callable[[], Awaitable[TrioAgent]], stop: Callable[[RunId], Awaitable[object]]
) -> AsyncGenerator[TrioAgent]:
    """Have an agent for a block. `stop` stops one that is queued."""
    agent, failed = await admitted(), None
    try:
        try:
            await agent.begin()
        except BaseException:
            with trio.move_on_after(LAST, shield=True):
                await stop(agent.id)
            raise
        with agent.cancel_scope:
            yield agent
    except BaseException as error:
        # a nursery has its tasks' exceptions in a group
        rest = BaseExceptionGroup("", [error]).split(trio.Cancelled)[1]
        failed = "its block was cancelled" if rest is None else failure(rest)
        raise
    finally:
        with trio.move_on_after(LAST, shield=True):
            await agent.end(failed)

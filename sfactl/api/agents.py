"""`Agent`: an agent within this program, for threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, Unpack

from sfad.features.admitted.messages import AgentLocated, EndAgent, LocateAgent, NarrowAgent
from sfad.protocol.requests.base import Done, Request, RunReply
from sfad.protocol.requests.starting import Spawn
from sfad.protocol.types import Event, RunId, RunInfo

from ..client import Reservation, Sfad
from ..connecting.connection import Client, ConnectionLost
from ..errors import AgentStopped, SfadError, of_quit
from ..exits import Quit
from . import asking
from .asking import Call, Outcome
from .attending import Admission, Agency, AgentHere, Attendance, admission
from .options import AdmitOptions, Amount, StartOptions, limits_of, spawn_of
from .runs import Home, Run

# ---- What an agent asks


def end(run: RunId, failed: str | None) -> Call[None]:
    return Call(EndAgent(id=0, run=run, failed=failed), Done, lambda _: None)


def locate(run: RunId) -> Call[str | None]:
    return Call(LocateAgent(id=0, run=run), AgentLocated, lambda reply: reply.url)


def narrow(run: RunId, limits: dict[str, Amount] | None) -> Call[RunInfo]:
    given = limits_of(limits, "limit()") if limits is not None else []
    if limits is not None and not given:
        raise ValueError("say which limits, as in: agent.limit(cost=0.2)")
    return Call(NarrowAgent(id=0, run=run, limits=given), RunReply, lambda reply: reply.run)


def address(url: str | None, upstream: str, run: RunId) -> str:
    """Return the address of an upstream. Raise `SfadError` if there is no gateway."""
    if url is None:
        words = f"agent {run} goes without the gateway, so it has no address for '{upstream}'"
        raise SfadError(f"{words}: report what it uses, or leave out gateway=False", "no_gateway")
    return f"{url}/{upstream}"


def failure(error: BaseException | None) -> str | None:
    """Return why an agent has failed that ended with this exception; of a group, with its
    first."""
    if error is None:
        return None
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {words[0][:500]}' if words else ''}"


# ---- The connection on which the agents of a `Daemon` live, read by a thread


class Attendant:
    def __init__(self, opened: Callable[[], Client]) -> None:
        """Raise `Quit`."""
        self._client = opened()
        self._attendance = Attendance()
        self._lock = threading.RLock()
        """Of the connection, and of the attendance."""
        self._closing = False
        self._greet()
        self._thread = threading.Thread(target=self._read, name="sfactl agents", daemon=True)
        self._thread.start()

    def _greet(self) -> None:
        with self._lock:
            for request, waiting in self._attendance.greeting():
                self._send(request, waiting)

    def _send(self, request: Request, waiting: Admission | None = None) -> None:
        with self._lock:
            self._attendance.sent(self._client.send(request), request, waiting)

    def admit(self, waiting: Admission) -> Agency:
        """Have an agent admitted. Raise `SfadError`."""
        answered = threading.Event()
        waiting.answered = answered.set
        with suppress(ConnectionLost), self._lock:  # else the thread that reads sends it again
            self._attendance.expect(waiting)
            self._send(waiting.request, waiting)
        answered.wait()
        if waiting.error is not None:
            raise waiting.error
        assert waiting.agency is not None
        return waiting.agency

    def forget(self, run: RunId) -> None:
        with self._lock:
            self._attendance.forget(run)

    def _read(self) -> None:
        while not self._closing:
            try:
                answers = self._client.arrived()
                with self._lock:
                    for answer in answers:
                        if self._attendance.take(answer.reply):
                            self._send(self._attendance.again())
            except ConnectionLost:
                if not self._come_back():
                    return
            except Quit as error:
                self._lose(of_quit(error))
                return

    def _come_back(self) -> bool:
        """Connect to the next daemon, which has these runs."""
        try:
            with self._lock:
                if self._closing:
                    return False
                self._client.reconnect("its agents are stopped")
                self._greet()
        except ConnectionLost:
            return True
        except Quit as error:
            self._lose(of_quit(error))
            return False
        return True

    def _lose(self, error: Exception) -> None:
        with self._lock:
            self._attendance.lose(error)

    def close(self) -> None:
        """Close the connection. The daemon ends the agents that live on it."""
        self._closing = True
        with suppress(OSError):
            self._client.sock.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._client.close()
        self._lose(SfadError("its Daemon was closed", "closed"))


# ---- One agent


class Narrowed:
    """A block in which an agent has less of a limit."""

    exceeded = False
    """A call was refused because of it."""


class Admitting(Home, Protocol):
    """What an agent needs of its `Daemon`."""

    def _admitted(
        self, request: Spawn, on_stop: Callable[[AgentStopped], object] | None
    ) -> Agent: ...

    def _spawned(self, request: Spawn, below: RunId) -> Run: ...

    def _sfad(self, run: RunId) -> Sfad: ...


class Agent(AgentHere):
    """An agent within this program: a run without a process. Leave its block, or call `end`, when
    it has done its work. From other threads, each method but `end` may be called at any time.

    A stop, a breach or a passed deadline cannot interrupt a function. `stopped` tells it, `check`
    and most methods raise it, `on_stop` is called, and the gateway makes no further call for it."""

    def __init__(
        self,
        daemon: Admitting,
        attendant: Attendant,
        agency: Agency,
        on_stop: Callable[[AgentStopped], object] | None,
    ) -> None:
        super().__init__(agency)
        self.daemon = daemon
        self._attendant = attendant
        self._on_stop = on_stop
        self._narrowed: list[tuple[set[str], Narrowed]] = []
        self._changed = threading.Event()
        agency.told, agency.breached = self._told, self._breached
        self._told()

    def _told(self) -> None:
        self._changed.set()
        stopped, on_stop = self._agency.stopped, self._on_stop
        if stopped is not None and on_stop is not None and self._outcome is None:
            self._on_stop = None
            on_stop(stopped)

    def _breached(self, event: Event) -> None:
        for kinds, narrowed in self._narrowed:
            narrowed.exceeded |= event.limit_kind in kinds

    def _begin(self) -> None:
        """Wait while its tree is queued. Raise `AgentStopped`."""
        while not self._agency.began and self._agency.stopped is None:
            self._changed.wait()
            self._changed.clear()

    def base_url(self, upstream: str = "anthropic") -> str:
        """Return the address to which its model calls go: `anthropic`, `openai` or `gemini`, or an
        upstream of the config (docs/gateway.md). Only this process may call it."""
        self.check()
        if self._url is None:
            self._url = address(self.daemon.ask(locate(self.id)), upstream, self.id)
            self._url = self._url.removesuffix(f"/{upstream}")
        return address(self._url, upstream, self.id)

    def admit(
        self,
        name: str,
        *,
        on_stop: Callable[[AgentStopped], object] | None = None,
        **options: Unpack[AdmitOptions],
    ) -> Agent:
        """Admit an agent below it, as `Daemon.admit` does."""
        self.check()
        return self.daemon._admitted(admission(name, options, self.id), on_stop)

    def spawn(
        self, command: Any = (), *, agent: str | None = None, **options: Unpack[StartOptions]
    ) -> Run:
        """Start a run with processes below it, as `Daemon.spawn` does. It ends with the agent."""
        self.check()
        return self.daemon._spawned(spawn_of(command, agent, options), self.id)

    @contextmanager
    def limit(self, **limits: Amount) -> Iterator[Narrowed]:
        """Give it less for a block: `with agent.limit(cost=0.2)`. What is used counts from the
        beginning of the block. A call above that is refused, and the agent goes on."""
        self.check()
        self.daemon.ask(narrow(self.id, limits))
        block = {limit.kind.value for limit in limits_of(limits, "limit()")}, Narrowed()
        self._narrowed.append(block)
        try:
            yield block[1]
        finally:
            self._narrowed.remove(block)
            if self._outcome is None and self.stopped is None:
                self.daemon.ask(narrow(self.id, None))

    def info(self) -> RunInfo:
        """Return what the daemon knows of its run now."""
        return self.daemon.ask(asking.info(self.id))

    def events(self) -> Iterator[Event]:
        """Yield the events of its run and of those below it, until its end."""
        return self.daemon.follow(asking.FollowingRun(self.id, (), "low"))

    def report(self, **used: Any) -> RunInfo:
        """Tell what it has used, as `sfactl.client.Sfad.report` does: where it goes without the
        gateway, or makes calls that do not go through it."""
        self.check()
        with self.daemon._sfad(self.id) as sfad:
            return sfad.report(**used)

    def reserve(self, model: str, **most: Any) -> Reservation:
        """Ask before a call whether it may use so much, as `sfactl.client.Sfad.reserve` does. Raise
        `LimitReached`."""
        self.check()
        return self.daemon._sfad(self.id).reserve(model, **most)

    def end(self, failed: str | None = None) -> Outcome:
        """End it, and return how it has ended. `failed`: why it failed; it is completed otherwise,
        unless something else has ended it."""
        if self._outcome is None:
            self._agency.ending = True
            with suppress(SfadError):  # it may have ended with its connection
                self.daemon.ask(end(self.id, failed))
            self._outcome = self.daemon.ask(asking.wait(self.id, None))
            self._attendant.forget(self.id)
        return self._outcome

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            self.end(failure(error))
        except SfadError:
            if error is None:
                raise

"""`Daemon`, for threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from msgspec.structs import replace

from sfad.protocol.requests.daemon import Change, DaemonStatus, Pruned
from sfad.protocol.requests.listing import List
from sfad.protocol.requests.starting import AgentInfo, Spawn
from sfad.protocol.requests.steering import Stopped
from sfad.protocol.requests.summary import By, Summary
from sfad.protocol.requests.windows import SubscriptionInfo
from sfad.protocol.types import ErrorCode, Event, RunId, RunInfo, Severity

from ..client import Sfad
from ..connecting.connection import AGAIN, Client, ConnectionLost, DaemonError, check
from ..errors import AgentStopped, of_quit
from ..exits import Quit
from . import asking
from .asking import Call, Following
from .attending import Admission, admission
from .options import AdmitOptions, StartOptions, Word, spawn_of
from .pool import Pool, opener
from .runs import Run

if TYPE_CHECKING:
    from .agents import Agent, Attendant

R = TypeVar("R")


class Daemon:
    """The daemon, for a program. Any thread may use it, and several at once; from asyncio, call its
    methods with `asyncio.to_thread`. `TrioDaemon` is the same for trio.

    The connection is made at the first call: to the daemon that `sfactl` would speak to, which is
    started if none is running, but not inside a run. `socket`: that of another daemon. `start`:
    false to start none. `fleet`: have it answer for all nodes of its fleet.

    All methods raise `SfadError` (docs/python.md#what-can-go-wrong), and `ValueError` for a wrong
    argument. If the daemon restarts, they wait for it, and ask again what may be asked twice."""

    def __init__(
        self, socket: str | None = None, *, start: bool = True, fleet: bool = False
    ) -> None:
        self._opener, self.socket = opener(socket, start=start, fleet=fleet), socket
        self._pool = Pool(self._opener)
        self._lock = threading.Lock()
        self._attendant: Attendant | None = None

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Runs go on, but agents within this program end."""
        with self._lock:
            attendant, self._attendant = self._attendant, None
        if attendant is not None:
            attendant.close()
        self._pool.close()

    def ask(self, call: Call[R], patience: float | None = None) -> R:
        """Carry a call out."""
        return self._pool.carry_out(call, patience)

    @property
    def run_id(self) -> RunId | None:
        """The run in which the daemon finds this process; `None` outside any run."""
        try:
            with self._pool.client() as client:
                return client.welcome.run
        except Quit as error:
            raise of_quit(error) from None

    # ---- Starting

    def spawn(
        self,
        command: Sequence[Word] = (),
        *,
        agent: str | None = None,
        **options: Unpack[StartOptions],
    ) -> Run:
        """Start a run, and return it once it has begun, or is queued. `command`: its words; with
        `agent`, the name of a registered agent, the words after that. `options`: see
        `StartOptions`. Raise `Refused` if the guard says no."""
        return Run(self, self.ask(asking.spawn(spawn_of(command, agent, options))).id)

    def admit(
        self,
        name: str,
        *,
        on_stop: Callable[[AgentStopped], object] | None = None,
        **options: Unpack[AdmitOptions],
    ) -> Agent:
        """Start an agent within this program: a run without a process, below the run in which this
        process is, or a root. While its tree is queued, wait. `on_stop` is called in a thread of
        this client once when the agent is to end. Raise `Refused` if the guard says no."""
        return self._admitted(admission(name, options, None), on_stop)

    def _admitted(self, request: Spawn, on_stop: Callable[[AgentStopped], object] | None) -> Agent:
        from .agents import Agent, Attendant  # a feature, which may not be there

        try:
            with self._lock:
                if self._attendant is None:
                    self._attendant = Attendant(self._opener)
                attendant = self._attendant
        except Quit as error:
            raise of_quit(error) from None
        agent = Agent(self, attendant, attendant.admit(Admission(request)), on_stop)
        try:
            agent._begin()
        except BaseException:  # Ctrl-C while it is queued
            self.stop(agent.id)
            raise
        return agent

    def _spawned(self, request: Spawn, below: RunId) -> Run:
        return Run(self, self.ask(asking.spawn(replace(request, below=below))).id)

    def _sfad(self, run: RunId) -> Sfad:
        return Sfad(run=run, socket=self.socket)

    def go_on(
        self, run: RunId, task: str | None = None, *, rest: bool = False, fresh: bool = False
    ) -> Run:
        """Continue the session of an ended agent in a new run (`sfactl continue`). `task`: what its
        agent is told first. `rest`: with what is left of the limits. `fresh`: its worktree may be
        gone."""
        return Run(self, self.ask(asking.go_on(run, task, rest=rest, fresh=fresh)).id)

    def rerun(
        self,
        run: RunId,
        *,
        env: Mapping[str, str] | None = None,
        check: Sequence[str] | None = None,
        group: str | None = None,
    ) -> Run:
        """Start a run again, with the command and the options that it had (`sfactl rerun`). `env`:
        variables beside those of this process. `check`, `group`: others than it had."""
        found = self.ask(asking.recall(run))
        return Run(self, self.ask(asking.again(found, env or {}, check, group)).id)

    # ---- Runs

    def run(self, run: RunId) -> Run:
        """Return a run by its id, name, or a unique prefix of the id."""
        return Run(self, self.ask(asking.info(run)).id)

    def runs(self, **filters: Any) -> Iterator[RunInfo]:
        """Yield runs, oldest first. `filters`: `status`, `name`, `user`, `root`, `since` (a time,
        or Unix seconds), `labels`, `group`, `type`, `channel`, `model`; `live` fills in processes
        and memory."""
        wanted: List | None = asking.run_pages(filters)
        while wanted is not None:
            found, wanted = self.ask(asking.runs(wanted))
            yield from found

    def stop(
        self,
        *runs: RunId,
        everything: bool = False,
        name: str | None = None,
        labels: dict[str, str] | None = None,
        grace: float | None = None,
        signal: int = SIGTERM,
    ) -> Stopped:
        """Stop runs, and return when no process of them is alive, or something survived."""
        chosen = {"everything": everything, "name": name, "labels": labels or {}}
        return self.ask(asking.stop(runs, grace=grace, signal=signal, **chosen))

    def events(
        self,
        *,
        runs: Sequence[RunId] = (),
        types: Sequence[str] = (),
        severity: Severity = "low",
        after: int | None = None,
        since: datetime | None = None,
        follow: bool = False,
    ) -> Iterator[Event]:
        """Yield events: those after a number, or since a time, else the newest; with `follow` then
        each that happens, without end. `types` are patterns as `alert_*`."""
        wanted = asking.events(runs, types, severity, after, since, follow=follow)
        return self.follow(Following(wanted))

    def follow(self, following: Following) -> Iterator[Event]:
        """Yield events until there are no more."""
        try:
            # a reader has the connection alone: the events that it does not read would be replies
            with self._pool.alone() as client:
                while not following.ended:
                    try:
                        client.send(following.wanted)
                        yield from _answered(client, following)
                    except ConnectionLost:
                        client.reconnect("events go on where they were read to")
                    except DaemonError as error:
                        if error.error is not ErrorCode.UNAVAILABLE or not following.may_retry():
                            raise
                        time.sleep(AGAIN)
        except Quit as error:
            raise of_quit(error) from None

    def summary(
        self,
        since: datetime | float | None = None,
        *,
        by: By = "name",
        name: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Summary:
        """Summarise how the runs since then (default: 12 hours ago) have ended, and what they have
        used, by `name`, `label`, `user`, `model` or `type`."""
        return self.ask(asking.summary(since, by, labels, name=name, user=user))

    # ---- The daemon

    def status(self) -> DaemonStatus:
        """Return the daemon's state."""
        return self.ask(asking.status())

    def reload(self) -> list[Change]:
        """Have the daemon read its config again. Return what has changed."""
        return self.ask(asking.reload())

    def agents(self) -> list[AgentInfo]:
        """Return the registered agents."""
        return self.ask(asking.agents())

    def plans(self) -> list[SubscriptionInfo]:
        """Return the subscriptions whose windows are known."""
        return self.ask(asking.plans())

    def prune(
        self, older_than: float | None = None, *, keep: int = 0, dry_run: bool = False
    ) -> Pruned:
        """Remove ended trees from the ledger: those whose last run ended so many seconds ago."""
        return self.ask(asking.prune(older_than, keep, dry_run=dry_run))


def _answered(client: Client, following: Following) -> Iterator[Event]:
    while True:
        for answer in client.arrived():
            check(answer.reply)
            found, more = following.take(answer.reply)
            if more:
                client.send(following.wanted)
            yield from found
            if following.ended:
                return

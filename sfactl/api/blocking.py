"""`Daemon` and `Run`: the daemon and its runs, for threads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from signal import SIGTERM
from typing import Any, TypeVar, Unpack

from sfad.protocol.requests.daemon import AgentInfo, DaemonStatus, Pruned
from sfad.protocol.requests.steering import Stopped
from sfad.protocol.requests.subscriptions import SubscriptionInfo
from sfad.protocol.types import CallInfo, ErrorCode, Event, RunId, RunInfo, Severity

from ..connecting.connection import AGAIN, Client, ConnectionLost, DaemonError, check
from ..exits import Quit
from . import asking
from .asking import Call, Following, FollowingRun, Outcome, Stream
from .errors import of_quit
from .options import Amount, Limits, StartOptions, Word, spawn_of
from .pool import Pool, opener

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
        self._pool = Pool(opener(socket, start=start, fleet=fleet))

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Runs go on."""
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

    def go_on(
        self, run: RunId, task: str | None = None, *, rest: bool = False, fresh: bool = False
    ) -> Run:
        """Continue the session of an ended agent in a new run (`sfactl continue`). `task`: what its
        agent is told first. `rest`: with what is left of the limits. `fresh`: its worktree may be
        gone."""
        return Run(self, self.ask(asking.go_on(run, task, rest=rest, fresh=fresh)).id)

    # ---- Runs

    def run(self, run: RunId) -> Run:
        """Return a run by its id, name, or a unique prefix of the id."""
        return Run(self, self.ask(asking.info(run)).id)

    def runs(self, **filters: Any) -> Iterator[RunInfo]:
        """Yield runs, oldest first. `filters`: `status`, `name`, `user`, `root`, `since` (a time,
        or Unix seconds), `labels`, `group`, `type`, `channel`, `model`; `live` fills in processes
        and memory."""
        wanted = asking.run_pages(filters)
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

    # ---- The daemon

    def status(self) -> DaemonStatus:
        """Return the daemon's state."""
        return self.ask(asking.status())

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
    while not following.ended:
        for answer in client.arrived():
            check(answer.reply)
            found, more = following.take(answer.reply)
            if more:
                client.send(following.wanted)
            yield from found
            if following.ended:
                return


class Run:
    """A run. Its methods ask the daemon each time; nothing is kept here but its id."""

    def __init__(self, daemon: Daemon, run: RunId) -> None:
        self.daemon = daemon
        self.id = run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def info(self) -> RunInfo:
        """Return what the daemon knows of the run now."""
        return self.daemon.ask(asking.info(self.id))

    def wait(self, timeout: float | None = None) -> Outcome:
        """Return how the run has ended, once it has. Raise `TimeoutError` after `timeout`
        seconds."""
        return self.daemon.ask(asking.wait(self.id, timeout))

    def stop(self, *, grace: float | None = None, signal: int = SIGTERM) -> Stopped:
        """Stop it with everything below it, and return when no process of it is alive, or something
        survived."""
        return self.daemon.ask(asking.stop([self.id], grace=grace, signal=signal))

    def pause(self) -> RunInfo:
        """Freeze it and everything below it."""
        return self.daemon.ask(asking.pause(self.id))

    def resume(self, limits: Limits | None = None) -> RunInfo:
        """Thaw it. `limits`: new values of the limits that hold it."""
        return self.daemon.ask(asking.resume(self.id, limits or {}))

    def approve(self, limits: Limits | None = None) -> RunInfo:
        """Grant the increase that it waits for."""
        return self.daemon.ask(asking.approve(self.id, limits or {}))

    def deny(self) -> RunInfo:
        """Refuse the increase that it waits for, and stop it."""
        return self.daemon.ask(asking.deny(self.id))

    def limit(self, **limits: Amount) -> RunInfo:
        """Change its limits, up or down: `run.limit(cost=5, turns="80:pause")`."""
        return self.daemon.ask(asking.limit(self.id, limits))

    def send(self, data: bytes | str, *, eof: bool = False) -> None:
        """Write to its stdin, which it must have been started with (`stdin=True`). `eof`: close it
        then."""
        self.daemon.ask(asking.send(self.id, data, eof=eof))

    def signal(self, number: int) -> None:
        """Send a signal to its main process alone."""
        self.daemon.ask(asking.signal(self.id, number))

    def events(self, *, types: Sequence[str] = (), severity: Severity = "low") -> Iterator[Event]:
        """Yield the events of the run and of those below it from its start on, until its end."""
        return self.daemon.follow(FollowingRun(self.id, types, severity))

    def logs(self, stream: Stream = "stdout", *, follow: bool = False) -> Iterator[bytes]:
        """Yield its output as it is kept, and with `follow` what it writes until its end."""
        offset = 0
        while True:
            piece = self.daemon.ask(asking.output(self.id, stream, offset))
            if piece.data:
                yield piece.data
            elif piece.last or not follow:
                return
            else:
                time.sleep(asking.LOOK)
            offset = piece.next

    def result(
        self, *, raw: bool = False, wrapped: bool = False, max_bytes: int = 64 * 1024
    ) -> str:
        """Return the final answer of a run that has ended; if its meter knows none, its stdout.
        `wrapped`: made safe for a language model."""
        return self.daemon.ask(
            asking.result(self.id, raw=raw, wrapped=wrapped, max_bytes=max_bytes)
        )

    def calls(self) -> Iterator[CallInfo]:
        """Yield the model calls that it has made through the gateway."""
        after, more = None, True
        while more:
            found, more = self.daemon.ask(asking.model_calls(self.id, after))
            yield from found
            after = found[-1] if found else after
            more = more and bool(found)

    def go_on(self, task: str | None = None, *, rest: bool = False, fresh: bool = False) -> Run:
        """Continue its agent's session in a new run, as `Daemon.go_on` does."""
        return self.daemon.go_on(self.id, task, rest=rest, fresh=fresh)

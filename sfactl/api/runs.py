"""`Run`, for threads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from signal import SIGTERM
from typing import TYPE_CHECKING, Protocol, TypeVar

from sfad.protocol.requests.steering import Stopped
from sfad.protocol.types import CallInfo, Event, RunId, RunInfo, Severity

from . import asking, home
from .asking import Call, Following, FollowingRun, Outcome, Stream
from .options import Amount, Limits

if TYPE_CHECKING:
    from .check_logs import Printed

R = TypeVar("R")


class Home(Protocol):
    """What a run needs of its `Daemon`."""

    socket: str | None

    def ask(self, call: Call[R], patience: float | None = None) -> R: ...

    def follow(self, following: Following) -> Iterator[Event]: ...

    def go_on(
        self, run: RunId, task: str | None = None, *, rest: bool = False, fresh: bool = False
    ) -> Run: ...


class Run:
    """A run. Its methods ask the daemon each time; nothing is kept here but its id."""

    def __init__(self, daemon: Home, run: RunId) -> None:
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

    def check_logs(self, *, follow: bool = False) -> Iterator[Printed]:
        """Yield what its checks, and its setup, have printed: the command, and a piece of bytes.
        With `follow`, until the run has ended."""
        from .check_logs import Reading  # of a feature, which may not be there

        reading = Reading(self.id, follow=follow)
        while (call := reading.next) is not None:
            if reading.waits:
                time.sleep(asking.LOOK)
            yield from reading.take(self.daemon.ask(call))

    def diff(self, *, stat: bool = False) -> str:
        """Return what it has changed in its worktree, as a patch (`sfactl diff`)."""
        return home.diff(self.id, self.daemon.socket, stat=stat)

    def land(
        self, *, onto: str | None = None, how: home.How | None = None, message: str | None = None
    ) -> home.Landed:
        """Bring its work to the branch of this process's directory, or to `onto` (`sfactl land`).
        Raise `SfadError` if that is refused, as for a conflict."""
        return home.land(self.id, self.daemon.socket, onto=onto, how=how, message=message)

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
        after: CallInfo | None = None
        while True:
            page = self.daemon.ask(asking.model_calls(self.id, after))
            for after in page.calls:
                yield after
            if not (page.more and page.calls):
                return

    def go_on(self, task: str | None = None, *, rest: bool = False, fresh: bool = False) -> Run:
        """Continue its agent's session in a new run, as `Daemon.go_on` does."""
        return self.daemon.go_on(self.id, task, rest=rest, fresh=fresh)

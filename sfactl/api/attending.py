"""The agents within a program, and the one connection that they live on: what is sent on it, and
what comes. No I/O.

The runs are tied to that connection: they end with it. After a restart of the daemon they are tied
to the next one. One stream of events tells of all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from sfad.protocol.requests.base import Error, Reply, Request, RunReply
from sfad.protocol.requests.following import EventPush, Wait
from sfad.protocol.requests.records import EventPage, Events
from sfad.protocol.requests.starting import Refused as StartRefused
from sfad.protocol.requests.starting import Spawn
from sfad.protocol.types import Admitted, Event, Reason, RunId, RunInfo, Status

from ..connecting.connection import DaemonError
from ..errors import AgentStopped, Refused, SfadError, of_quit
from .asking import ENDS, Outcome
from .options import AdmitOptions, spawn_of

TYPES = ["run_started", "run_stopping", "limit_exceeded", *sorted(ENDS)]
TERMINATES = "terminate_process"
"""The word for `on_limit` with which a stop ends the process."""


def admission(name: str, options: AdmitOptions, below: RunId | None) -> Spawn:
    """Return the request for an agent within this program. Raise `ValueError`, `TypeError`."""
    given: dict[str, Any] = dict(options)
    stop = given.get("on_limit") == TERMINATES
    if stop:
        del given["on_limit"]
    unknown = given.keys() - AdmitOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"admit has no option {', '.join(map(repr, sorted(unknown)))}")
    words = [*sys.orig_argv] or [sys.executable]
    given |= {"name": name, "meter": "report", "log": False}
    spawn = spawn_of(words, None, given, "admit")
    admitted = Admitted(stop="terminate_process" if stop else "tell")
    return replace(spawn, admit=admitted, below=below, tied=True)


class Agency:
    """What is known of an agent: its run, and whether it is to end."""

    def __init__(self, run: RunInfo) -> None:
        self.run = run
        self.began = run.status is not Status.QUEUED
        self.ending = False
        """Its program ends it."""
        self.stopped: AgentStopped | None = None
        self.told: Callable[[], object] = lambda: None
        """Called, in the thread that reads, when something here has changed."""
        self.breached: Callable[[Event], object] = lambda _: None
        """Called with each breach of a limit of it."""
        self.learn(run)

    def learn(self, run: RunInfo) -> None:
        """Take what a reply tells of the run."""
        self.began |= run.started_at is not None
        if run.status is Status.STOPPING or run.status.terminal:
            self._stop(run.reason)

    def take(self, event: Event) -> None:
        if event.type == "run_started":
            self.began = True
        elif event.type == "limit_exceeded":
            self.breached(event)
        elif event.type == "run_stopping" or event.type in ENDS:
            kind = "limit" if event.limit_kind is not None else "stop"
            reason = Reason(kind=kind, message=event.message, limit_kind=event.limit_kind)
            self._stop(reason)
        self.told()

    def lose(self, why: str) -> None:
        """Its connection is lost for good, so the daemon ends its run."""
        self._stop(Reason(kind="unreachable", message=why))
        self.told()

    def _stop(self, reason: Reason | None) -> None:
        if self.stopped is None and not self.ending:
            self.stopped = AgentStopped(self.run.id, self.run.name, reason)


class AgentHere:
    """An agent within this program, for threads and for trio."""

    def __init__(self, agency: Agency) -> None:
        self.id = agency.run.id
        self.name = agency.run.name
        self._agency = agency
        self._outcome: Outcome | None = None
        self._url: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name!r}>"

    @property
    def outcome(self) -> Outcome:
        """How it has ended. Raise `SfadError` before."""
        if self._outcome is None:
            raise SfadError(f"agent {self.id} has not ended", "live")
        return self._outcome

    @property
    def stopped(self) -> AgentStopped | None:
        """Why it is to end; `None` while it may go on."""
        return self._agency.stopped

    def check(self) -> None:
        """Raise `AgentStopped` if it is to end."""
        if self._agency.stopped is not None:
            raise self._agency.stopped


@dataclass(slots=True, eq=False)
class Admission:
    """A request for an agent that is not answered."""

    request: Spawn
    agency: Agency | None = None
    error: Exception | None = None
    answered: Callable[[], object] = lambda: None
    """Called, in the thread that reads, once one of these is known."""


class Attendance:
    def __init__(self) -> None:
        self.agents: dict[RunId, Agency] = {}
        self._admissions: dict[int, Admission] = {}
        """By the ids of their requests."""
        self._unsent: list[Admission] = []
        self._after: int | None = None
        self._events = 0
        """The id of the request for events."""

    def greeting(self) -> list[tuple[Request, Admission | None]]:
        """Return what a new connection begins with, and what was not answered on the one before."""
        admissions = [*self._admissions.values(), *self._unsent]
        self._admissions = {}
        rows = 500 if self._after is not None else 1
        events = Events(id=0, after=self._after, rows=rows, types=TYPES, follow=True)
        ties = [Wait(id=0, run=run, tie=True, timeout=0) for run in self.agents]
        return [
            (events, None),
            *((tie, None) for tie in ties),
            *((each.request, each) for each in admissions),
        ]

    def expect(self, admission: Admission) -> None:
        """A request is about to be sent: the next connection sends it if this one does not."""
        self._unsent.append(admission)

    def sent(self, number: int, request: Request, admission: Admission | None = None) -> None:
        """Note the id of a request."""
        if admission is not None:
            self._admissions[number] = admission
            if admission in self._unsent:
                self._unsent.remove(admission)
        elif isinstance(request, Events):
            self._events = number

    def take(self, reply: Reply) -> bool:
        """Take what has come. Return whether the events are to be asked for again."""
        admission = self._admissions.pop(reply.id, None)
        match reply:
            case EventPush(event=event):
                self._after = event.number
                if (agency := self.agents.get(event.run_id or "")) is not None:
                    agency.take(event)
            case EventPage(reached=reached, more=more, events=events):
                self._after = reached
                self._take_all(events)
                return more
            case RunReply(run=run) if admission is not None:
                admission.agency = self.agents[run.id] = Agency(run)
            case RunReply(run=run) if run.id in self.agents:
                self.agents[run.id].learn(run)
                self.agents[run.id].told()
            case StartRefused(refused=refused) if admission is not None:
                admission.error = Refused(refused)
            case Error(code=code, message=message) if admission is not None:
                admission.error = of_quit(DaemonError(code, message))
            case Error() if reply.id == self._events:
                return True
            case _:
                pass
        if admission is not None:
            admission.answered()
        return False

    def _take_all(self, events: Sequence[Event]) -> None:
        for event in events:
            if (agency := self.agents.get(event.run_id or "")) is not None:
                agency.take(event)

    def again(self) -> Events:
        """Return the request for the next events."""
        return Events(id=0, after=self._after, rows=500, types=TYPES, follow=True)

    def forget(self, run: RunId) -> None:
        self.agents.pop(run, None)

    def lose(self, error: Exception) -> None:
        """The connection is lost for good."""
        for admission in (*self._admissions.values(), *self._unsent):
            admission.error = error
            admission.answered()
        self._admissions.clear()
        self._unsent.clear()
        for agency in list(self.agents.values()):
            agency.lose(str(error))
        self.agents.clear()

"""One request while it is being answered, and the registry of the functions that answer.

A verb's file in `verbs/` registers its function with `answers` or `answers_about_run`. The
dispatcher calls it once the peer is permitted to use the verb and the run is resolved.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Sized
from concurrent.futures import CancelledError
from typing import Concatenate, ParamSpec, Protocol, TypeVar, assert_never

import trio
from msgspec import Struct, field

from ...core import commands as c
from ...core import events as e
from ...core.admission.candidate import lowered
from ...core.state.access import Peer, Scope, unknown_run
from ...core.state.money import to_usd
from ...core.state.run import Run
from ...protocol import messages as m
from ...protocol.errors import RequestError, unavailable
from ...protocol.types import ErrorCode, LimitRefusal, Lowered, RunId, RunInfo
from ...storage.ledger.database import LedgerError
from ..lookup import find_run
from ..loop.pending_requests import PendingRequests
from ..loop.runtime import Runtime
from .connection import Connection, Looks, RunRow, RunRows
from .shares import ClientBounds, Shares

INTERNAL = "internal error; the daemon's log has the traceback"

EXPECTED = (RequestError, OSError, sqlite3.Error, LedgerError, CancelledError)
"""What work in a thread raises if the request, the machine, the disk or the ledger does not allow
it."""

T = TypeVar("T")
Fields = ParamSpec("Fields")
Function = TypeVar("Function", bound=Callable[..., "Answering"])

Answering = Coroutine[object, None, None] | None
"""What is left to do of a verb that may have to wait."""


class NamesRun(Protocol):
    id: int
    run: str


class Services(Struct, frozen=True):
    runtime: Runtime
    bounds: ClientBounds
    connections: Sized
    """The open ones."""
    looks: Looks
    _threads: dict[int, trio.CapacityLimiter] = field(default_factory=dict)

    def threads_of(self, uid: int) -> trio.CapacityLimiter:
        """Return what bounds the threads that look for the sessions of a user's ended runs: a
        user's file system may not answer."""
        return self._threads.setdefault(uid, trio.CapacityLimiter(2))


class Asker:
    """Who waits for the answer to one request. The core calls this object with it."""

    __slots__ = (
        "answered",
        "connection",
        "id",
        "is_aside",
        "peer",
        "permission",
        "runtime",
        "services",
        "waits",
    )

    def __init__(
        self,
        services: Services,
        connection: Connection,
        request_id: int,
        permission: str | None = None,
        *,
        waits: bool = False,
    ) -> None:
        self.services = services
        self.runtime = services.runtime
        self.connection = connection
        self.peer = connection.peer
        self.id = request_id
        self.permission = permission
        """The verb that the peer must be permitted to use; `None` where the core, or the function
        that answers, checks that."""
        self.waits = waits
        """Whether it is counted as a request that is not answered. One that is answered at once
        never is."""
        self.answered = False
        self.is_aside = False
        """Its reply comes later."""

    @property
    def scope(self) -> Scope:
        """The runs that the peer may know of now."""
        return self.runtime.machine.scope(self.peer)

    def check_permitted(self, verb: str, lineage: list[RunId] | None = None) -> None:
        """Raise `RequestError` unless the peer may use `verb`, on the run at the end of `lineage`
        if one is given."""
        refused = self.runtime.machine.why_refused(self.peer, verb, lineage)
        if refused is not None:
            raise RequestError(ErrorCode.NOT_PERMITTED, refused)

    def resolve(self, handle: str, verb: str | None = None) -> RunInfo:
        """Return the run that an id, a name or a unique prefix means, if the peer may use the
        request's verb, or `verb`, on it. Raise `RequestError`."""
        return self.known(self.find(handle, verb))

    def known(self, run: RunId) -> RunInfo:
        """Return what is known of a run. Raise `RequestError` if it was deleted just now."""
        info = self.runtime.catalogue.info(run)
        if info is None:
            raise RequestError(ErrorCode.NO_SUCH_RUN, unknown_run(run))
        return info

    def find(self, handle: str, verb: str | None = None) -> RunId:
        """Return the id of that run."""
        catalogue, used = self.runtime.catalogue, verb or self.permission
        assert used is not None
        run = find_run(catalogue, handle, self.scope)
        # else the dispatcher has checked all there is to check
        if self.peer.run is not None or used != self.permission:
            self.check_permitted(used, catalogue.lineage(run))
        return run

    def check_share(self, shares: Shares, more: int) -> None:
        """Raise `RequestError` if the peer's share does not allow `more`."""
        refusal = shares.refusal(self.connection.groups, more)
        if refusal is not None:
            raise unavailable(refusal)

    def reply(self, reply: m.Reply | RunRow | RunRows, descriptors: Sequence[int] = ()) -> None:
        """Send the one reply to the request. `descriptors` are closed."""
        self.end()
        self.connection.send(reply, descriptors)

    def show(self, run: RunInfo) -> None:
        """Reply with a run and what it has used together with its descendants."""
        self.reply(m.RunReply(id=self.id, run=self.runtime.catalogue.with_total(run)))

    def fail(self, code: ErrorCode, message: str) -> None:
        self.reply(m.Error(id=self.id, code=code, message=message))

    def end(self) -> None:
        """Count the request as answered, without a reply."""
        self.answered = True
        if self.waits:
            self.waits = False
            self.services.bounds.requests.add(self.connection.groups, -1)

    def count_open(self) -> None:
        """Count the request as one that is not answered."""
        self.waits = True
        self.services.bounds.requests.add(self.connection.groups, 1)

    def ask(
        self,
        event: Callable[Concatenate[float, int, Peer, Fields], e.Event],
        *args: Fields.args,
        **kwargs: Fields.kwargs,
    ) -> None:
        """Put an event with these fields to the core, and reply with its answer."""
        self.runtime.requests.ask(
            self, lambda token, now: event(now, token, self.peer, *args, **kwargs)
        )

    def tell(self, what: object) -> None:
        """Tell a feature's half in the core something, and reply with its answer."""
        self.runtime.requests.ask(self, lambda token, now: e.Told(now, what, token))

    def __call__(self, answer: c.Answer) -> None:
        match answer:
            case c.SpawnDone(run) if run.asked.session is not None:
                self._reply_with(self.runtime.catalogue.begun(run.id), lowered(run))
            case c.SpawnDone(run):
                self._reply_with(self.runtime.catalogue.begun(run.id))
            case c.Changed(run):
                self._reply_with(self.runtime.catalogue.info(run.id))
            case c.Known(known):
                live = self.runtime.catalogue.live.get(known)
                self._reply_with(
                    self.runtime.catalogue.info(known),
                    lowered(live.run) if live is not None else (),
                )
            case c.SpawnRefused(refusal, recorded):
                self.reply(m.Refused(id=self.id, refused=refusal, run=recorded))
            case c.ReserveAnswer(run, reservation, limit_refusal):
                self.reply(_reserved(self.id, run, reservation, limit_refusal))
            case m.CallDecision():
                self.reply(answer)
            case c.OnRecord(reply, failing):
                # what was to be saved with snapshots, because there may be none
                self.runtime.resources.spool.values.write_soon({})
                assert isinstance(reply, m.Reply)
                if self.runtime.resources.spool.values.failing:
                    self.fail(ErrorCode.UNAVAILABLE, failing)
                else:
                    self.reply(reply)
            case c.StopDone(stopped, survivors, elapsed, ended, unreached):
                gone, alive = list(stopped), list(survivors)
                self.reply(
                    m.Stopped(
                        id=self.id,
                        stopped=gone,
                        survivors=alive,
                        elapsed_s=round(elapsed, 4),
                        ended=list(ended),
                        unreached=list(unreached),
                    )
                )
            case c.ErrorAnswer(code, message):
                self.fail(code, message)
            case _:
                assert_never(answer)

    def _reply_with(self, info: RunInfo | None, less: Sequence[Lowered] = ()) -> None:
        assert info is not None
        self.reply(m.RunReply(id=self.id, run=info, lowered=list(less)))

    def put_off(self) -> None:
        """Before the first thing that a verb waits for: its reply comes later. All such requests
        fail before a re-execution."""
        if not self.is_aside:  # a request that has failed since would be wanted again
            self.connection.deferred.add(self.id)
            self.is_aside = True

    async def aside(self) -> None:
        """The same, and the rest of the verb is a task."""
        self.put_off()
        await self.runtime.background.aside()

    def still_wanted(self) -> bool:
        """Return whether somebody still waits for the answer. While the verb waited, the request
        may have failed, or its client may have gone."""
        if not self.is_aside:
            return True
        self.is_aside = False
        if self.id not in self.connection.deferred:
            return False
        self.connection.deferred.discard(self.id)
        if self.connection.closed:
            self.end()
            return False
        return True

    def defer(self) -> Callable[[], bool]:
        """Note that the reply comes later, from another thread's work. Return a function that says,
        once, whether it is still wanted: all deferred requests fail before a re-execution."""
        waiting = self.connection.deferred
        waiting.add(self.id)

        def is_wanted() -> bool:
            wanted = self.id in waiting
            waiting.discard(self.id)
            return wanted

        return is_wanted

    def later(
        self, work: Callable[[], Awaitable[T]], reply: Callable[[T], m.Reply], *, failing: str = ""
    ) -> None:
        """Run `work` in the background, then send `reply(result)`. `failing`: how the message
        begins if `work` raises an error."""
        is_wanted = self.defer()

        def done(found: T) -> None:
            message = reply(found)
            if is_wanted():
                self.reply(message)

        def failed(error: Exception) -> None:
            code, said = told(error)
            if is_wanted():
                self.fail(code, f"{failing}{said}")

        self.runtime.background.run_then(work, done, failed, EXPECTED)


def withdraw_calls(
    requests: PendingRequests, connection: Connection, number: int | None, why: str | None
) -> None:
    """Forget the model calls that wait for an answer on the gateway's connection: one of them, or
    all. `why`: see `CallWithdrawn`."""
    for token, askers in list(requests.askers.items()):
        for asker in list(askers):
            if (
                isinstance(asker, Asker)
                and asker.connection is connection
                and number in {None, asker.id}
            ):
                asker.end()
                requests.withdraw(asker, token, why)


def told(error: Exception) -> tuple[ErrorCode, str]:
    """Return what a client is told of an error."""
    if isinstance(error, RequestError):
        return error.code, str(error)
    if isinstance(error, EXPECTED):
        return ErrorCode.UNAVAILABLE, str(error) or type(error).__name__
    return ErrorCode.INTERNAL, INTERNAL


def _reserved(
    request: int, run: Run, reservation: str | None, refusal: LimitRefusal | None
) -> m.Reserved:
    cost = run.account.reservations[reservation].cost if reservation is not None else None
    return m.Reserved(
        id=request, run=run.id, reservation=reservation, cost_usd=to_usd(cost), refused=refusal
    )


class Verb(Struct, frozen=True):
    """How a kind of request is answered."""

    answer: Callable[..., Answering]
    permission: str | None
    """The verb that the peer must be permitted to use, or `None` if `answer`, or the core, checks
    that."""
    about_run: bool
    """Whether the request names one run, which `answer` is given."""


REGISTRY: dict[type, Verb] = {}
"""By kind of request. Complete once `sfad.daemon.server.verbs` is imported."""


def answers(
    kind: type[m.Request], *, checked_later: bool = False
) -> Callable[[Function], Function]:
    """Register the decorated function for requests of this kind. `checked_later`: it, or the core,
    checks the permission."""
    return _register(kind, about_run=False, checked_later=checked_later)


def answers_about_run(kind: type[NamesRun]) -> Callable[[Function], Function]:
    """Register the decorated function for requests of this kind, which name one run."""
    return _register(kind, about_run=True)


def _register(
    kind: type, *, about_run: bool, checked_later: bool = False
) -> Callable[[Function], Function]:
    def register(answer: Function) -> Function:
        verb = m.tag(kind)
        REGISTRY[kind] = Verb(answer, None if checked_later else verb, about_run)
        return answer

    return register

"""What the gateway asks of the daemon about each call, and what it tells after it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import trio
from msgspec import Struct, field

from ....host import streams
from ....host.linux.callers import Caller
from ....protocol import messages as m
from ....protocol.conversation import Conversation, hello, rights
from ....protocol.framing import ProtocolError
from ....protocol.requests.gateway import (
    AdmitCall,
    CallDecision,
    EndCall,
    SeeWindows,
)
from ....protocol.texts.destinations import Destination, destination
from ....protocol.types import Tokens
from ..messages import (
    CallerFound,
    FindCaller,
    GatewaySettings,
    RefusedEgress,
    ServeGateway,
    SilentCall,
    UnaskedRequest,
    UpstreamInfo,
    WithdrawCall,
)
from .call_journal import Journal
from .upstreams import Upstream


class RefusedError(Exception):
    """The daemon refuses a caller or a call; the text says why and what to do."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        """`retry_after`: seconds after which a call may be asked for again."""
        super().__init__(message)
        self.retry_after = retry_after


class CallerRun(Struct, frozen=True):
    """The run that a caller is in."""

    run: str
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    """What the setups of the run's tree say, beside the gateway's upstreams, or instead of those of
    the same name."""
    certificates: Sequence[str] = ()
    """Files of certificates to trust, beside those of the gateway's environment."""
    egress: tuple[Destination, ...] = ()
    """What the run reaches beside its model."""
    keyed_only: bool = False
    """It may be routed to upstreams with a key of the operator's only."""
    token: str | None = None
    """Names the run to the gateway that has the operator's keys."""


class Daemon(Protocol):
    """The daemon. It takes messages of the protocol without an `id`, which is the connection's to
    give."""

    async def find_run(self, caller: Caller | None, token: str | None) -> CallerRun:
        """Return the run of a caller. Raises `RefusedError`."""

    async def admit(self, asked: AdmitCall) -> CallDecision:
        """Wait until the call may be made: the answer has a reservation. Raises `RefusedError`. If
        the caller hangs up, this is cancelled."""

    def ended(self, call: EndCall) -> None:
        """Tell what a call has used."""

    def note(self, call: EndCall) -> None:
        """Note what a call has used by now, in case this process is killed."""

    def silent(self, call: SilentCall) -> None:
        """Tell that a call gets no answer, or gets one after that was told."""

    def subscription_seen(self, seen: SeeWindows) -> None:
        """Tell what a reply says of a subscription's windows."""

    def unasked(self, request: UnaskedRequest) -> None:
        """Have a request recorded that was not asked for."""

    def egress_refused(self, run: str, host: str, port: int, why: str) -> None:
        """Tell that a run may not reach a host."""


# ---- The gateway's connection to its daemon: requests, their answers, and a new connection when
# the daemon was restarted


RETRY, RETRY_MAX = 0.02, 1.0
"""Seconds between two tries to connect: doubled each time."""
ALONE_MAX = 60.0
"""Seconds without a daemon after which a gateway without calls ends. A daemon that crashed is back
within seconds."""

MOST_SUBSCRIPTIONS = 64
"""Subscriptions whose windows are told to a daemon that was restarted."""

_PIECE = 64 << 10

_HUNG_UP = "its caller hung up before it was made"

R = TypeVar("R", bound=m.Reply)
Q = TypeVar("Q", bound=m.Request)


class _Open(Struct, eq=False):
    """A request that is not answered yet."""

    request: m.Request
    answered: trio.Event = field(default_factory=trio.Event)
    reply: m.Reply | None = None


class DaemonLink:
    """Implements `Daemon`. Requests that were not answered when a connection was lost are sent
    again on the next."""

    def __init__(self, path: str, listener: int, journal: Journal) -> None:
        """`listener`: the descriptor that the daemon keeps for the next gateway."""
        self._journal = journal
        self._path = path
        self._listener = listener
        self.upstreams: dict[str, Upstream] = {}
        self.ungated = False
        self.alone_since: float | None = None
        """Since when there is no connection."""
        self.ready = trio.Event()
        """The daemon has told where calls go."""
        self._open: dict[int, _Open] = {}
        self._withdrawn: dict[int, m.AdmitCall] = {}
        """Whose withdrawal is not answered yet, by the number of the request."""
        self._reservations: set[str] = set()
        """Of calls whose end the daemon has not answered yet."""
        self._subscriptions: dict[tuple[str, str, str | None], SeeWindows] = {}
        """What was last seen of each subscription. A daemon that was killed may have heard of it,
        and not have saved it."""
        self._last = 0
        self._stream: trio.SocketStream | None = None
        self._unsent = bytearray()
        """What the daemon has not taken."""
        self._waiting = trio.lowlevel.ParkingLot()

    async def serve(self) -> None:
        """Keep a connection, until cancelled."""
        pause = RETRY
        while True:
            self.alone_since = trio.current_time() if self.alone_since is None else self.alone_since
            try:
                stream = await trio.open_unix_socket(self._path)
                async with stream:
                    await self._converse(stream)
                pause = RETRY
            except (OSError, trio.BrokenResourceError, ProtocolError):
                pass
            await trio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX)

    # ---- Daemon

    async def find_run(self, caller: Caller | None, token: str | None) -> CallerRun:
        if caller is None:
            raise RefusedError("the connection was closed before its caller could be found out")
        found_run = await self._ask(
            CallerFound,
            FindCaller(
                id=self._number(),
                uid=caller.uid,
                cgroup=caller.cgroup,
                token=token,
                inode=caller.inode or None,
            ),
        )
        egress = tuple(map(destination, found_run.egress))
        return CallerRun(
            found_run.run,
            _upstreams(found_run.upstreams),
            found_run.certificates,
            egress,
            found_run.keyed_only,
            found_run.token,
        )

    async def admit(self, asked: m.AdmitCall) -> m.CallDecision:
        answer = await self._ask(m.CallDecision, self._numbered(asked))
        if answer.reservation is None:
            raise RefusedError(answer.refused or "the daemon refuses the call", answer.retry_after)
        return answer

    def ended(self, call: m.EndCall) -> None:
        # it may be killed before the daemon has heard of it
        self._journal.note(self._numbered(call))
        self._send(_Open(call))

    def note(self, call: m.EndCall) -> None:
        self._journal.note(call)

    def silent(self, call: SilentCall) -> None:
        self._send(_Open(self._numbered(call)))

    def subscription_seen(self, seen: SeeWindows) -> None:
        key = seen.provider, seen.login, seen.organization
        self._subscriptions.pop(key, None)
        self._subscriptions[key] = self._numbered(seen)
        if len(self._subscriptions) > MOST_SUBSCRIPTIONS:
            del self._subscriptions[next(iter(self._subscriptions))]
        self._send(_Open(seen))

    def unasked(self, request: UnaskedRequest) -> None:
        request.number = self._numbered(request).id
        self._send(_Open(request))

    def egress_refused(self, run: str, host: str, port: int, why: str) -> None:
        self._send(_Open(RefusedEgress(id=self._number(), run=run, host=host, port=port, why=why)))

    async def settled(self) -> None:
        """Return when the daemon knows of each call that has ended."""
        for each in list(self._open.values()):
            if isinstance(each.request, m.EndCall | UnaskedRequest):
                await each.answered.wait()

    def learn_settings(self) -> None:
        """Ask the daemon again where calls go, because its config has changed."""
        self._send(_Open(ServeGateway(id=self._number())))

    # ---- requests

    async def _ask(self, wanted: type[R], request: m.Request) -> R:
        open_ = _Open(request)
        self._send(open_)
        try:
            await open_.answered.wait()
        except trio.Cancelled:
            if self._open.pop(open_.request.id, None) is not None and isinstance(
                open_.request, m.AdmitCall
            ):
                self._withdrawn[open_.request.id] = open_.request
                self._send(_Open(WithdrawCall(id=self._number(), call=open_.request.id)))
            raise
        reply = open_.reply
        if isinstance(reply, m.Error):
            raise RefusedError(reply.message)
        if not isinstance(reply, wanted):
            raise RefusedError(f"the daemon answered with {type(reply).__name__}")
        return reply

    def _number(self) -> int:
        self._last += 1
        return self._last

    def _numbered(self, request: Q) -> Q:
        request.id = self._number()
        return request

    def _send(self, open_: _Open) -> None:
        self._open[open_.request.id] = open_
        if self.alone_since is None:
            self._write(m.pack_message(open_.request))

    def _write(self, frame: bytes) -> None:
        """Send what the daemon takes at once, which is mostly all, and leave the rest to
        `_send_rest`. Without a switch of tasks: three messages are sent for each call."""
        sent = 0
        if not self._unsent and self._stream is not None:
            sent = streams.write(self._stream.socket, frame)
        if sent < len(frame):
            self._unsent += frame[sent:]
            self._waiting.unpark_all()

    # ---- the connection

    async def _converse(self, stream: trio.SocketStream) -> None:
        """Send requests and take replies, until the connection is lost."""
        conversation, settings = Conversation(), self._number()
        await stream.send_all(hello("gateway"))
        serve = ServeGateway(id=settings, descriptors=1, reservations=sorted(self._reservations))
        await _send_with(stream, m.pack_message(serve), self._listener)
        # first, because calls that wait are asked for again, and must not be made for want of this
        told = {seen.id: _Open(seen) for seen in self._subscriptions.values()}
        told |= {
            number: open_
            for number, open_ in self._open.items()
            if isinstance(open_.request, SeeWindows)
        }
        self._open = {
            **dict(sorted(told.items())),
            **{number: open_ for number, open_ in self._open.items() if number not in told},
        }
        again = dict(self._open)
        self._stream, self.alone_since = stream, None
        self._unsent.clear()
        self._withdrawn.clear()  # the daemon has forgotten what it did not answer
        for open_ in again.values():
            if isinstance(open_.request, WithdrawCall):
                del self._open[open_.request.id]
            else:
                self._write(m.pack_message(open_.request))
        receive = partial(streams.read, stream.socket, _PIECE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_rest, stream, nursery.cancel_scope)
            try:
                while True:
                    for reply in await conversation.arrived(receive):
                        self._take(reply)
            except (OSError, trio.BrokenResourceError, ProtocolError):
                pass
            self._stream, self.alone_since = None, trio.current_time()
            nursery.cancel_scope.cancel()

    async def _send_rest(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            while True:
                while self._unsent:
                    # in pieces: more may be added meanwhile
                    piece = bytes(self._unsent[:_PIECE])
                    await stream.send_all(piece)
                    del self._unsent[: len(piece)]
                await self._waiting.park()
        except trio.BrokenResourceError:
            scope.cancel()

    def _take(self, reply: m.Reply) -> None:
        if isinstance(reply, GatewaySettings):
            self.upstreams = _upstreams(reply.upstreams)
            self.ungated = reply.ungated
            self.ready.set()
        if isinstance(reply, m.CallDecision) and reply.reservation is not None:
            self._reservations.add(reply.reservation)
        if (open_ := self._open.pop(reply.id, None)) is not None:
            open_.reply = reply
            open_.answered.set()
            if isinstance(open_.request, WithdrawCall):
                self._withdrawn.pop(open_.request.call, None)
            elif isinstance(open_.request, m.EndCall):
                self._reservations.discard(open_.request.reservation)
                self._journal.forget(open_.request.reservation)
        elif (
            isinstance(reply, m.CallDecision)
            and reply.reservation is not None
            and reply.id in self._withdrawn
        ):
            # it was admitted before the daemon knew that it was withdrawn
            asked = self._withdrawn[reply.id]
            unused = m.EndCall(
                id=self._number(),
                run=asked.run,
                reservation=reply.reservation,
                model=asked.model,
                tokens=Tokens(),
                error=_HUNG_UP,
            )
            self._send(_Open(unused))


def _upstreams(told: Mapping[str, UpstreamInfo]) -> dict[str, Upstream]:
    return {
        name: Upstream(
            name, each.url, each.api, each.key_env, each.key_file, each.through, each.free
        )
        for name, each in told.items()
    }


async def _send_with(stream: trio.SocketStream, data: bytes, descriptor: int) -> None:
    """Send `data`, and the descriptor with its first byte."""
    sent = await stream.socket.sendmsg([data], [rights([descriptor])])
    await stream.send_all(data[sent:])

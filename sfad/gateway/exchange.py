"""One request of an agent: whose it is, whether its tree can pay for it, and the reply as it comes."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import unquote

import h11
import httpx2
import trio

from ..protocol.types import Tokens
from .apis import Api, ModelCall, Paid, most_output
from .callers import Caller
from .coding import Coding, UnreadableBodyError
from .estimate import InputEstimates, text_size
from .gate import CallAdmitted, CallAsked, CallEnded, CallRefusedError, Gate, Placed
from .http_server import ClientGoneError, HttpServer
from .upstreams import Upstream, downward, upward

MAX_BODY = 64 << 20
"""Bytes of a call's body. The providers take 32 MiB at most, or 100 MiB of which nearly all is an uploaded file."""
MAX_BODIES = 512 << 20
"""Bytes of the bodies of all calls together."""
CLOSE_TIMEOUT = 5.0
"""Seconds to say goodbye to an upstream."""
T = TypeVar("T")
_JSON = (b"content-type", b"application/json")


class _AnsweredError(Exception):
    """The gateway answers by itself."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Memory:
    """The bodies that are held in memory."""

    def __init__(self) -> None:
        self.held = 0

    @contextmanager
    def space(self) -> Iterator["Space"]:
        """Give room for the bodies of one request."""
        space = Space(self)
        try:
            yield space
        finally:
            self.held -= space.size


class Space:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.size = 0

    def grow(self, more: int) -> None:
        if self._memory.held + more > MAX_BODIES:
            raise _AnsweredError(503, f"the gateway holds {MAX_BODIES >> 20} MiB of requests already; try again")
        self._memory.held += more
        self.size += more


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections share."""

    gate: Gate
    client: httpx2.AsyncClient
    upstreams: Callable[[], Mapping[str, Upstream]]
    ungated: Callable[[], bool]
    estimates: InputEstimates
    memory: Memory


def new_client() -> httpx2.AsyncClient:
    """Return what makes the requests of all calls. It has no timeouts: how long a model may think is the provider's and the agent's
    business.

    HTTP/1.1 only: over HTTP/2, httpcore2 does not reset the stream of a call whose caller hangs up. The provider would go on, bill
    it, and use up the window of the connection that other calls share."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=60.0)
    return httpx2.AsyncClient(http1=True, http2=False, timeout=None, limits=limits, follow_redirects=False)


@dataclass(frozen=True, slots=True)
class Route:
    """Where the path of a request leads: `/run/TOKEN/UPSTREAM/REST`, the first two only where runs have no cgroup."""

    token: str | None
    upstream: str
    rest: str
    query: str

    @property
    def path(self) -> str:
        """As the provider reads it."""
        return unquote(self.rest)


def route_of(target: str) -> Route | None:
    """Return where a request goes, or `None` if it leads to no upstream."""
    path, _, query = target.partition("?")
    if "#" in target or not {".", ".."}.isdisjoint(unquote(path).split("/")):
        return None  # the provider would see another path than the one that was judged here
    parts = path.split("/", 4)
    if len(parts) == 5 and parts[1] == "run":
        return Route(parts[2], unquote(parts[3]), f"/{parts[4]}", query)
    parts = path.split("/", 2)
    return Route(None, unquote(parts[1]), f"/{parts[2]}", query) if len(parts) == 3 else None


class Exchange:
    def __init__(self, shared: Shared, http: HttpServer, request: h11.Request, caller: Caller | None) -> None:
        self._shared = shared
        self._http = http
        self._request = request
        self._caller = caller
        self._method = request.method.decode("ascii")
        self._headers = request.headers.raw_items()

    async def run(self) -> None:
        """Answer the request. Raises `ClientGoneError`."""
        api: Api | None = None
        try:
            route = route_of(self._request.target.decode("ascii", "replace"))
            upstream = self._shared.upstreams().get(route.upstream) if route is not None else None
            if route is None or upstream is None:
                raise _AnsweredError(404, f"no upstream is at this address; there are {', '.join(self._shared.upstreams())}")
            api = upstream.api_of(route.path)
            if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in self._request.headers):
                raise _AnsweredError(426, "the gateway speaks HTTP only; use a POST")
            placed = await self._place(route)
            own = placed.upstreams.get(upstream.name)
            if own is not None:
                upstream = Upstream(upstream.name, own, upstream.api)
            await self._forward(placed, upstream, api, route)
        except _AnsweredError as answer:
            await self._say(answer.status, str(answer), api)
        except CallRefusedError as refusal:
            await self._say(400, str(refusal), api)

    async def _place(self, route: Route) -> Placed:
        try:
            return await self._shared.gate.place(self._caller, route.token)
        except CallRefusedError as refusal:
            raise _AnsweredError(403, str(refusal)) from refusal

    async def _say(self, status: int, message: str, api: Api | None) -> None:
        if self._http.answering:
            raise ClientGoneError(message)
        body = api.refusal(message) if api is not None else message.encode() + b"\n"
        await self._http.answer(status, [_JSON if api is not None else (b"content-type", b"text/plain")], body)

    async def _forward(self, placed: Placed, upstream: Upstream, api: Api, route: Route) -> None:
        with self._shared.memory.space() as space:
            raw = await self._body(space)
            await self._forward_whole(placed, upstream, api, route, raw, space)

    async def _body(self, space: "Space") -> bytes:
        pieces, size = [], 0
        while piece := await self._http.body():
            size += len(piece)
            if size > MAX_BODY:
                raise _AnsweredError(413, f"the request has more than {MAX_BODY >> 20} MiB")
            space.grow(len(piece))
            pieces.append(piece)
        return b"".join(pieces)

    async def _forward_whole(self, placed: Placed, upstream: Upstream, api: Api, route: Route, raw: bytes, space: Space) -> None:
        plain = self._plain(raw)
        if plain is not raw:
            space.grow(len(plain))
        call = self._call(api, route, plain)
        if call is None:
            await self._pass(upstream, route, raw, self._headers, None)
            return
        size = text_size(plain)
        asked = CallAsked(
            run=placed.run,
            upstream=upstream.name,
            model=call.model,
            input_tokens=self._shared.estimates.tokens(placed.run, call, size),
            caches=call.caches,
            max_output=call.max_output or most_output(call.model),
            fixed=call.fixed,
            choices=call.choices,
        )
        admitted = await self._while_there(partial(self._shared.gate.admit, asked))
        record = CallRecord(self._shared, asked, admitted, api, call, size)
        try:
            sent, headers = raw, self._headers
            changed = self._changed(api, plain, admitted.max_output)
            if changed is not plain:
                space.grow(len(changed))
                sent, headers = changed, [(name, value) for name, value in headers if name.lower() != b"content-encoding"]
            await self._pass(upstream, route, sent, headers, record)
        except BaseException as error:
            record.broken(error)
            raise
        finally:
            record.close()

    def _plain(self, raw: bytes) -> bytes:
        """Return the body without its encoding."""
        encodings = b",".join(value for name, value in self._headers if name.lower() == b"content-encoding")
        if not encodings:
            return raw
        try:
            return Coding(encodings.decode("ascii", "replace")).feed(raw, MAX_BODY)
        except UnreadableBodyError as error:
            raise _AnsweredError(400, f"the gateway cannot read the request: {error}") from error

    def _call(self, api: Api, route: Route, plain: bytes) -> ModelCall | None:
        """Return what the body asks a model for, or `None` if the request may pass because it is something else."""
        path = api.path(route.path)
        try:
            call = api.call(path, plain) if self._method == "POST" else None
        except (ValueError, RecursionError) as error:
            raise _AnsweredError(400, f"the gateway cannot read the request: {error}") from error
        if call is None and api.paid(self._method, path, plain) is Paid.UNGATED and not self._shared.ungated():
            raise _AnsweredError(
                400, f"{self._method} {path} costs money that the gateway cannot bound; set gateway.ungated to let it pass"
            )
        return call

    def _changed(self, api: Api, plain: bytes, max_output: int | None) -> bytes:
        try:
            completed = api.completed(plain)
            return completed if max_output is None else api.lowered(completed, max_output)
        except (ValueError, RecursionError) as error:
            raise _AnsweredError(400, f"the gateway cannot change the request: {error}") from error

    async def _while_there(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what `work` returns, and cancel it when the client hangs up. Raises `ClientGoneError` then."""
        done: list[T] = []
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_gone, nursery.cancel_scope)
            try:
                done.append(await work())
            except Exception as error:  # noqa: BLE001 - raised below, not as a group of one
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if not done:
            raise ClientGoneError("it hung up")
        return done[0]

    async def _cancel_when_gone(self, scope: trio.CancelScope) -> None:
        await self._http.gone()
        scope.cancel()

    async def _pass(
        self,
        upstream: Upstream,
        route: Route,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        record: "CallRecord | None",
    ) -> None:
        try:
            key = upstream.key()
        except (OSError, LookupError) as error:
            raise _AnsweredError(502, f"the key of upstream '{upstream.name}' cannot be read: {error}") from error
        request = httpx2.Request(
            self._method,
            upstream.target(route.rest, route.query, keyed=key is not None),
            headers=upward(headers, key, upstream.api),
            content=body if body or self._method in {"POST", "PUT", "PATCH"} else None,
        )
        await self._while_there(partial(self._relay, upstream, request, record))

    async def _relay(self, upstream: Upstream, request: httpx2.Request, record: "CallRecord | None") -> None:
        if record is not None:
            record.sent = True
        try:
            response = await self._shared.client.send(request, stream=True)
        except httpx2.HTTPError as error:
            what = str(error) or type(error).__name__
            if record is not None:
                record.error, record.sent = what, not isinstance(error, httpx2.ConnectError)
            raise _AnsweredError(502, f"upstream '{upstream.name}' ({upstream.url}) does not answer: {what}") from error
        try:
            if record is not None:
                record.begun(response)
            await self._http.head(response.status_code, downward(response.headers.raw), response.reason_phrase.encode())
            gone: ClientGoneError | None = None
            with trio.CancelScope() as reading:
                async for piece in response.aiter_raw():
                    if record is not None:
                        record.piece(piece)
                    try:
                        await self._http.piece(piece)
                    except ClientGoneError as error:  # raised here, it would leave generators of httpx2 to the garbage collector
                        gone = error
                        reading.cancel()
            if gone is not None:
                raise gone
            if record is not None:
                record.whole = True
            await self._http.end()
        except httpx2.HTTPError as error:
            # the client sees what it would have seen without the gateway: the connection ends in the middle
            raise ClientGoneError(f"upstream '{upstream.name}' broke off its reply: {error}") from error
        finally:
            with trio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await response.aclose()


class CallRecord:
    """What is known of a call, until it is told to the daemon."""

    def __init__(self, shared: Shared, asked: CallAsked, admitted: CallAdmitted, api: Api, call: ModelCall, size: int) -> None:
        self._shared = shared
        self._asked = asked
        self._admitted = admitted
        self._api = api
        self._call = call
        self._size = size
        self._reply = api.reply(streamed=call.streams)
        self._began = time.monotonic()
        self._first_byte: float | None = None
        self._status: int | None = None
        self._coding: Coding | None = None
        self._unreadable = False
        self.error: str | None = None
        self.sent = False
        """The provider may have the request."""
        self.whole = False

    def begun(self, response: httpx2.Response) -> None:
        self._status = response.status_code
        self._first_byte = time.monotonic() - self._began
        kind = response.headers.get("content-type", "")
        if kind:  # servers that cannot stream answer in one piece, and Gemini streams one JSON array if it is not asked for events
            self._reply = self._api.reply(streamed="text/event-stream" in kind.lower())
        try:
            self._coding = Coding(response.headers.get("content-encoding", ""))
        except UnreadableBodyError as error:
            self._stop_reading(error)

    def piece(self, data: bytes) -> None:
        if self._coding is None:
            return
        try:
            self._reply.feed(self._coding.feed(data, MAX_BODY))
        except UnreadableBodyError as error:
            self._stop_reading(error)

    def _stop_reading(self, error: UnreadableBodyError) -> None:
        self._coding, self._unreadable, self.error = None, True, f"the reply cannot be read: {error}"

    def broken(self, error: BaseException) -> None:
        self.error = self.error or str(error) or type(error).__name__

    def close(self) -> None:
        """Tell the daemon."""
        if self.whole:
            self._reply.end()
        tokens, partial = self._used()
        if tokens is not None and not partial:
            self._shared.estimates.learn(self._asked.run, self._call, self._size, tokens)
        self._shared.gate.ended(
            CallEnded(
                run=self._asked.run,
                model=self._asked.model,
                reservation=self._admitted.reservation,
                status=self._status,
                tokens=tokens,
                partial=partial,
                tools=tuple(self._reply.tools),
                first_byte_s=self._first_byte,
                seconds=time.monotonic() - self._began,
                error=self.error,
            )
        )

    def _used(self) -> tuple[Tokens | None, bool]:
        """Return the tokens to charge, `None` for those that were reserved, and whether more may have been used."""
        reply = self._reply
        if not self.sent or (self._status is not None and not 200 <= self._status < 300):
            return Tokens(), False  # providers do not bill a call that they answered with an error
        if self._unreadable or reply.unknown:
            return None, True
        if reply.told and reply.tokens is not None:
            return reply.tokens, False
        known = reply.tokens or Tokens(input=self._asked.input_tokens)
        output = max(known.output, reply.estimated_output)
        return Tokens(input=known.input, output=output, cached=known.cached, cache_write=known.cache_write), True

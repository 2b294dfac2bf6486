"""One request of an agent: whose it is, whether its tree can pay for it, and the reply as it comes."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import unquote

import h11
import httpx2
import trio

from ..protocol.types import Tokens
from .apis import Api, ModelCall, Paid, ReplyReader, most_output
from .callers import Caller
from .coding import Coding, UnreadableBodyError
from .estimate import InputEstimates
from .gate import CallAdmitted, CallAsked, CallEnded, CallRefusedError, Gate, Placed
from .http_server import ClientGoneError, HttpServer
from .upstreams import Upstream, downward, upward

MAX_BODY = 64 << 20
"""Bytes of a call's body. The providers take 32 MiB at most, or 100 MiB of which nearly all is an uploaded file."""
MAX_BODIES = 512 << 20
"""Bytes of the bodies of all calls together."""
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
        self._held = 0

    def hold(self, more: int) -> None:
        if self._held + more > MAX_BODIES:
            raise _AnsweredError(503, f"the gateway holds {MAX_BODIES >> 20} MiB of requests already; try again")
        self._held += more

    def release(self, size: int) -> None:
        self._held -= size


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections share."""

    gate: Gate
    client: httpx2.AsyncClient
    upstreams: Callable[[], Mapping[str, Upstream]]
    ungated: Callable[[], bool]
    estimates: InputEstimates
    memory: Memory


@dataclass(frozen=True, slots=True)
class Route:
    """Where the path of a request leads: `/run/TOKEN/UPSTREAM/REST`, the first two only where runs have no cgroup."""

    token: str | None
    upstream: str
    rest: str
    query: str


def route_of(target: str) -> Route | None:
    path, _, query = target.partition("?")
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
            api = upstream.api_of(route.rest)
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
        held = 0
        body = bytearray()
        try:
            async for piece in self._http.body():
                if len(body) + len(piece) > MAX_BODY:
                    raise _AnsweredError(413, f"the request has more than {MAX_BODY >> 20} MiB")
                self._shared.memory.hold(len(piece))
                held += len(piece)
                body += piece
            await self._forward_whole(placed, upstream, api, route, bytes(body))
        finally:
            self._shared.memory.release(held)

    async def _forward_whole(self, placed: Placed, upstream: Upstream, api: Api, route: Route, raw: bytes) -> None:
        call, plain = self._call(api, route, raw)
        if call is None:
            if plain is not None and api.paid(self._method, route.rest, plain) is Paid.UNGATED and not self._shared.ungated():
                raise _AnsweredError(
                    400,
                    f"{self._method} {route.rest} costs money that the gateway cannot bound; set gateway.ungated to let it pass",
                )
            await self._pass(upstream, route, raw, self._headers, None)
            return
        assert plain is not None
        asked = CallAsked(
            run=placed.run,
            upstream=upstream.name,
            model=call.model,
            input_tokens=self._shared.estimates.tokens(placed.run, call.model, len(plain)),
            caches=call.caches,
            max_output=call.max_output or most_output(call.model),
            fixed=call.fixed,
            choices=call.choices,
        )
        admitted = await self._while_there(partial(self._shared.gate.admit, asked))
        record = CallRecord(self._shared, asked, admitted, api.reply(streamed=call.streams), len(plain))
        try:
            sent, headers = raw, self._headers
            changed = api.completed(plain)
            if admitted.max_output is not None:
                changed = api.lowered(changed, admitted.max_output)
            if changed is not plain:
                sent, headers = changed, [(name, value) for name, value in headers if name.lower() != b"content-encoding"]
            await self._pass(upstream, route, sent, headers, record)
        except BaseException as error:
            record.broken(error)
            raise
        finally:
            record.close()

    def _call(self, api: Api, route: Route, raw: bytes) -> tuple[ModelCall | None, bytes | None]:
        """Return what the body asks a model for, and the body without its encoding."""
        if self._method != "POST":
            return None, raw
        encodings = b",".join(value for name, value in self._headers if name.lower() == b"content-encoding")
        try:
            plain = Coding(encodings.decode("ascii", "replace")).feed(raw, MAX_BODY) if encodings else raw
            return api.call(route.rest, plain), plain
        except (UnreadableBodyError, ValueError, RecursionError) as error:
            raise _AnsweredError(400, f"the gateway cannot read the request: {error}") from error

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
        self, upstream: Upstream, route: Route, body: bytes, headers: list[tuple[bytes, bytes]], record: "CallRecord | None"
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
        try:
            response = await self._shared.client.send(request, stream=True)
        except httpx2.HTTPError as error:
            what = str(error) or type(error).__name__
            if record is not None:
                record.error = what
            raise _AnsweredError(502, f"upstream '{upstream.name}' ({upstream.url}) does not answer: {what}") from error
        try:
            if record is not None:
                record.begun(response)
            await self._http.head(response.status_code, downward(response.headers.raw), response.reason_phrase.encode())
            async for piece in response.aiter_raw():
                if record is not None:
                    record.piece(piece)
                await self._http.piece(piece)
            if record is not None:
                record.whole = True
            await self._http.end()
        except httpx2.HTTPError as error:
            # the client sees what it would have seen without the gateway: the connection ends in the middle
            raise ClientGoneError(f"upstream '{upstream.name}' broke off its reply: {error}") from error
        finally:
            with trio.CancelScope(shield=True):
                await response.aclose()


class CallRecord:
    """What is known of a call, until it is told to the daemon."""

    def __init__(self, shared: Shared, asked: CallAsked, admitted: CallAdmitted, reply: ReplyReader, size: int) -> None:
        self._shared = shared
        self._asked = asked
        self._admitted = admitted
        self._reply = reply
        self._size = size
        self._began = time.monotonic()
        self._first_byte: float | None = None
        self._status: int | None = None
        self._coding: Coding | None = None
        self.error: str | None = None
        self.whole = False

    def begun(self, response: httpx2.Response) -> None:
        self._status = response.status_code
        self._first_byte = time.monotonic() - self._began
        try:
            self._coding = Coding(response.headers.get("content-encoding", ""))
        except UnreadableBodyError as error:
            self.error = f"the reply cannot be read: {error}"

    def piece(self, data: bytes) -> None:
        if self._coding is None:
            return
        try:
            self._reply.feed(self._coding.feed(data, MAX_BODY))
        except UnreadableBodyError as error:
            self._coding, self.error = None, f"the reply cannot be read: {error}"

    def broken(self, error: BaseException) -> None:
        self.error = self.error or str(error) or type(error).__name__

    def close(self) -> None:
        """Tell the daemon."""
        if self.whole:
            self._reply.end()
        tokens, partial = self._used()
        if tokens is not None and not partial and tokens.input:
            self._shared.estimates.learn(self._asked.run, self._asked.model, self._size, tokens.input)
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
        if self._status is None or self._status >= 400:
            return Tokens(), False  # providers do not bill a call that they answered with an error
        if self._coding is None or reply.overlong:
            return None, True
        if reply.told and reply.tokens is not None:
            return reply.tokens, False
        known = reply.tokens or Tokens(input=self._asked.input_tokens)
        output = max(known.output, reply.estimated_output)
        return Tokens(input=known.input, output=output, cached=known.cached, cache_write=known.cache_write), True

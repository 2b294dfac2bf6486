"""One request of an agent: whose it is, whether its tree can pay for it, and the reply as it
comes."""

import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from math import ceil
from typing import Any
from urllib.parse import urlsplit

import h11
import httpcore2
import httpx2
import trio
from msgspec import Struct
from msgspec.structs import replace

from ....host.http_connection import ClientGoneError, HttpConnection
from ....host.linux.callers import Caller
from ....protocol.known import provider_of
from ....protocol.requests.gateway import AdmitCall
from ....protocol.requests.windows import Provider
from ....protocol.types import SILENT_AFTER
from .apis import Api, ModelCall, most_output
from .bodies.coding import Coding, UnreadableBodyError
from .bodies.estimate import Estimates, InputEstimate, within
from .bodies.reader import BodyReader
from .bodies.reading import MAX_BODY, BodyAnswer, BodyQuestion
from .bodies.usage_chunks import UsageChunks
from .call_tally import (
    MAX_PIECE,
    BodyMemory,
    BodySpace,
    CallTally,
    NoMemoryError,
    RequestRecord,
    UnaskedTally,
)
from .daemon_link import CallerRun, Daemon, RefusedError
from .egress import Egress, NoWayError, is_outward, target_of
from .egress_rules import EgressRefusedError, plain
from .local_models import LocalModels
from .subscription_reading import MOST_READ, login_of, place_of, seen_subscription
from .upstream_connections import (
    FAILURES,
    NOT_SENT,
    Address,
    OpenReply,
    Reply,
    UpstreamConnections,
    address_of,
)
from .upstreams import (
    RawHeaders,
    Route,
    Trust,
    Upstream,
    downward,
    proxy_token,
    proxy_variable,
    route_of,
    upward,
)

# ---- What `sfactl doctor` asks the gateway: whether upstreams answer, their keys can be read, and
# the kernel tells who calls


CHECKUP_SECONDS = 5.0
"""Seconds that an upstream may take to answer."""


async def checkup(
    client: httpx2.AsyncClient, upstreams: Mapping[str, Upstream], caller: Caller | None
) -> bytes:
    """Return what was found, as JSON. Upstreams that another gateway calls are left out."""
    own = {name: upstream for name, upstream in upstreams.items() if upstream.through is None}
    found: dict[str, dict[str, Any]] = {name: {} for name in own}
    async with trio.open_nursery() as nursery:
        for name, upstream in own.items():
            nursery.start_soon(_look_at, client, upstream, found[name])
    return json.dumps(
        {"cgroup": caller.cgroup if caller is not None else None, "upstreams": found}
    ).encode()


async def _look_at(client: httpx2.AsyncClient, upstream: Upstream, found: dict[str, Any]) -> None:
    found |= {
        "url": upstream.shown,
        "status": None,
        "error": None,
        "keyed": None,
        "key_error": None,
        "exposed": None,
    }
    try:
        found["keyed"] = upstream.key() is not None
        found["exposed"] = upstream.exposed()
    except (OSError, LookupError) as error:
        found["key_error"] = str(error)
    with trio.move_on_after(CHECKUP_SECONDS) as waiting:
        try:
            found["status"] = (await client.head(upstream.url)).status_code
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            found["error"] = str(error) or type(error).__name__
    if waiting.cancelled_caught:
        found["error"] = f"no answer within {CHECKUP_SECONDS:g} s"


# ---- One request of an agent


_METHODS = {"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"}
"""Others do what the gateway does not know. Above all, the reply to TRACE holds the key."""
MAX_UNSENT = 64 << 20
"""Bytes of a reply that are kept for a client that takes none, as a paused agent. Beyond that the
provider is held back."""
ENCODED_PIECE = 4 << 10
"""Bytes of an encoded reply that are read at a time: they can become 250 times as many, and other
calls wait meanwhile."""
MAX_PATH = 200
"""Characters of a path that are recorded."""
MAX_URL = 500
"""Characters of an upstream's URL that the daemon is told; those that tell its provider are short.
"""
REJECTED_AGAIN = 1.0
"""Seconds. A call that was refused, and is admitted again sooner, was not held: what refuses it
next is passed on."""
_JSON = (b"content-type", b"application/json")
_NO_RETRY = [(b"x-should-retry", b"false")]
_HUNG_UP = "it hung up"


class _AnsweredError(Exception):
    """The gateway answers by itself."""

    def __init__(self, status: int, message: str, headers: RawHeaders = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class _RejectedError(Exception):
    """The provider has refused a call because a window is used up, and it is to wait for the reset.
    Its agent learns nothing: it would end."""


class _UnknownOptionError(Exception):
    """The upstream refuses the option with which it would tell the usage of a stream."""


class _BrokenOffError(Exception):
    """The upstream's reply has ended in the middle."""


class SilenceWatch:
    """Tells of calls to which no byte of a reply has come for a while. One task for all: each that
    sleeps for a call costs as much as a message to the daemon."""

    def __init__(self) -> None:
        self._due: dict[RequestRecord, float] = {}
        """When to look at each call; the first one is due first."""
        self._some = trio.Event()

    @contextmanager
    def over(self, record: RequestRecord) -> Iterator[None]:
        """Look at a call, as long as it waits for its reply."""
        self._due[record] = trio.current_time() + SILENT_AFTER
        self._some.set()
        try:
            yield
        finally:
            self._due.pop(record, None)

    async def serve(self) -> None:
        while True:
            if not self._due:
                self._some = trio.Event()
                await self._some.wait()
            await trio.sleep_until(next(iter(self._due.values()), 0.0))
            now = trio.current_time()
            for record in [each for each, due in self._due.items() if due <= now]:
                del self._due[record]
                record.silent()


class KnownRun(Struct, frozen=True):
    """The run that was found for a request."""

    asked: tuple[Caller | None, str | None]
    settings: Mapping[str, Upstream]
    """What the daemon had told then of where calls go."""
    run: CallerRun


class Shared(Struct, frozen=True):
    """What all connections share."""

    daemon: Daemon
    client: httpx2.AsyncClient
    """Asks upstreams how they are."""
    connections: UpstreamConnections
    """Take the requests to upstreams."""
    passing: UpstreamConnections
    """Take those to the gateway that has the operator's keys, through no proxy."""
    upstreams: Callable[[], Mapping[str, Upstream]]
    ungated: Callable[[], bool]
    estimates: Estimates
    local_models: LocalModels
    memory: BodyMemory
    trust: Trust
    egress: Egress
    reader: BodyReader
    silence: SilenceWatch


async def _take(record: RequestRecord, data: bytes, at_a_time: int) -> None:
    for at in range(0, len(data), at_a_time):
        record.piece(data[at : at + at_a_time])
        if at + at_a_time < len(data):
            await trio.lowlevel.cancel_shielded_checkpoint()


_UNKNOWN = {400, 422}
"""Statuses of servers that refuse a field, such as older versions of Azure's API
(https://github.com/openai/openai-python/issues/1469)."""


async def _refusal_of(pieces: AsyncIterator[bytes]) -> list[bytes]:
    """Return the beginning of a reply's body, which is mostly all of it."""
    early, size = list[bytes](), 0
    async for piece in pieces:
        early.append(piece)
        size += len(piece)
        if size >= MOST_READ:
            break
    return early


def _decoded(body: bytes, encodings: str) -> bytes:
    """Return the beginning of a body; empty if it cannot be decoded."""
    try:
        return Coding(encodings).feed(body, MAX_PIECE)
    except UnreadableBodyError:
        return b""


RESOLVE_AGAIN = (0.5, 1.0, 2.0)
"""Seconds between the tries to resolve a name. A laptop that wakes up has no network for a moment,
and a call that fails then may end a run."""


class _Body:
    """The body of a call. A request without its body is none, so the call is noted as sent when it
    is asked for: then a connection is there, and the head was written."""

    def __init__(self, body: bytes, record: RequestRecord) -> None:
        self._body, self._record = body, record

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._record.sending()
        yield self._body


async def _sent(send: Callable[[], Awaitable[OpenReply]]) -> OpenReply:
    for pause in RESOLVE_AGAIN:
        try:
            return await send()
        except httpcore2.ConnectError as error:
            if not _is_unresolved(error):
                raise
        await trio.sleep(pause)
    return await send()


def _is_unresolved(error: BaseException) -> bool:
    at: BaseException | None = error
    while at is not None and not isinstance(at, socket.gaierror):
        at = at.__cause__ or at.__context__
    return at is not None


def _text_of(error: BaseException) -> str:
    # trio tells why TLS failed in the cause of the cause
    at: BaseException | None = error
    while at is not None and not str(at):
        at = at.__cause__ or at.__context__
    return str(at) if at is not None else type(error).__name__


def _unanswered(upstream: Upstream, what: str, *, is_sent: bool) -> _AnsweredError:
    if upstream.through is not None:
        return _AnsweredError(
            502,
            f"the gateway that has the key of upstream '{upstream.name}' does not answer: {what}",
        )
    where = f"upstream '{upstream.name}' ({upstream.shown})"
    proxy = None if is_sent else proxy_variable(upstream.url)
    if proxy is None:
        return _AnsweredError(502, f"{where} does not answer: {what}")
    # with the header, Claude Code makes one attempt instead of eleven in three minutes
    where += f" cannot be reached through the proxy that {proxy} of the daemon's environment names"
    return _AnsweredError(502, f"{where}: {what}", _NO_RETRY)


def _redirected(upstream: Upstream, response: Reply) -> _AnsweredError:
    """Return the answer to a call whose upstream has moved. A program would follow, with its key,
    around the gateway."""
    try:
        to = urlsplit(response.headers["location"])
        place = f"{to.scheme}://{to.netloc.rpartition('@')[2]}{to.path}" if to.netloc else to.path
    except ValueError:
        place = "what is no URL"
    where = f"upstream '{upstream.name}' ({upstream.shown})"
    return _AnsweredError(
        502,
        f"{where} redirects calls to {place[:MAX_PATH]}: set an address that does not",
        _NO_RETRY,
    )


def _check_size(size: int) -> None:
    if size > MAX_BODY:
        raise _AnsweredError(413, f"the request has more than {MAX_BODY >> 20} MiB")


def _admission(
    run: str, upstream: Upstream, api: Api, call: ModelCall, estimate: InputEstimate
) -> AdmitCall:
    """Return what the daemon is asked about a call."""
    return AdmitCall(
        id=0,
        run=run,
        upstream=upstream.name,
        model=call.model,
        input_tokens=estimate.tokens,
        more_input=estimate.more,
        likely_more=estimate.likely_more,
        media=within(call.media, estimate.tokens),
        most_media=within({**call.media, **call.most_media}, estimate.tokens + estimate.more),
        text_only=call.text_only,
        caches=call.caches,
        max_output=call.max_output or most_output(call.model),
        fixed=call.fixed,
        choices=call.choices,
        factor=api.factor(call.model, call.tiers, {}),
        long_cache=call.long_cache,
        fees_usd=call.fees_usd,
        streamed=call.streams,
        others=list(call.others),
        api=api.name,
        url=upstream.shown[:MAX_URL],
    )


def _without(headers: list[tuple[bytes, bytes]], *names: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in names]


class _Relay:
    """A reply as its client gets it: as it comes."""

    def __init__(self, response: Reply) -> None:
        self.headers = downward(response.raw_headers)

    def feed(self, piece: bytes) -> bytes:
        return piece

    def end(self) -> bytes:
        return b""


class _WithoutUsage(_Relay):
    """A reply without the chunks of usage that its client has not asked for. Raises
    `UnreadableBodyError`."""

    def __init__(self, response: Reply, coding: Coding) -> None:
        super().__init__(response)
        self.headers = _without(self.headers, b"content-encoding", b"content-length")
        self._coding, self._chunks = coding, UsageChunks()

    def feed(self, piece: bytes) -> bytes:
        parts = (piece[at : at + ENCODED_PIECE] for at in range(0, len(piece), ENCODED_PIECE))
        return b"".join(self._chunks.feed(self._coding.feed(part, MAX_PIECE)) for part in parts)

    def end(self) -> bytes:
        return self._chunks.end()


class Exchange:
    def __init__(
        self,
        shared: Shared,
        http: HttpConnection,
        request: h11.Request,
        caller: Caller | None,
        scope: trio.CancelScope,
        nursery: trio.Nursery,
    ) -> None:
        """`scope`: that of the connection. `nursery`: of what goes on meanwhile, such as to give
        the client the rest of a piece."""
        self._shared = shared
        self._http = http
        self._request = request
        self._caller = caller
        self._scope = scope
        self._nursery = nursery
        self._method = request.method.decode("ascii")
        self._headers = request.headers.raw_items()
        self._rejected = False
        """The provider has refused this call before."""
        self._takes_out_usage = False
        """The reply tells its usage only because the gateway has asked for it."""
        self._room = 0
        """Bytes of memory that what the client has not taken may fill."""
        self._flushing = False
        self._is_known = False
        """The run was found for an earlier request of the connection."""

    @property
    def _user(self) -> int | None:
        return self._caller.uid if self._caller is not None else None

    async def run(self) -> None:
        """Answer the request. Raises `ClientGoneError`."""
        api: Api | None = None
        try:
            if self._request.target == b"/" and self._method == "GET":
                await self._check_up()
                return
            if is_outward(self._request):
                await self._lead_out()
                return
            if self._method not in _METHODS:
                allowed = ", ".join(sorted(_METHODS))
                raise _AnsweredError(
                    405,
                    f"{self._method[:20]} is not one of {allowed}",
                    [(b"allow", allowed.encode())],
                )
            route = route_of(self._request.target.decode("ascii", "replace"))
            if any(
                name == b"upgrade" and b"websocket" in value.lower()
                for name, value in self._request.headers
            ):
                raise _AnsweredError(426, "the gateway speaks HTTP only; use a POST")
            upstream = self._shared.upstreams().get(route.upstream) if route is not None else None
            api = (
                upstream.api_of(route.path) if route is not None and upstream is not None else None
            )
            found_run = await self._known_run(route.token) if route is not None else None
            upstreams = {
                **self._shared.upstreams(),
                **(found_run.upstreams if found_run is not None else {}),
            }
            for path in found_run.certificates if found_run is not None else ():
                await self._shared.trust.add(path)
            if route is None or found_run is None or route.upstream not in upstreams:
                raise _AnsweredError(
                    404, f"no upstream is at this address; there are {', '.join(upstreams)}"
                )
            upstream = upstreams[route.upstream]
            if found_run.keyed_only and not upstream.keyed:
                raise _AnsweredError(
                    404,
                    (
                        f"upstream '{upstream.name}' is not at this address, "
                        "but at that of your own gateway"
                    ),
                )
            api = upstream.api_of(route.path)
            try:
                await self._with_body(found_run, upstream, api, route)
            except (_AnsweredError, RefusedError):
                if self._is_known:
                    await self._find_run(route.token)  # that it has ended is the better reason
                raise
        except _AnsweredError as answer:
            await self._say(answer.status, str(answer), api, headers=answer.headers)
        except RefusedError as refusal:
            await self._say(
                400 if refusal.retry_after is None else 429, str(refusal), api, refusal.retry_after
            )
        except NoMemoryError as full:
            await self._say(503, str(full), api)

    async def _check_up(self) -> None:
        if self._caller is None or self._caller.uid not in {0, os.geteuid()}:
            raise _AnsweredError(403, "only the daemon's own user may ask how the gateway is")
        await self._http.answer(
            200, [_JSON], await checkup(self._shared.client, self._shared.upstreams(), self._caller)
        )

    async def _find_run(self, token: str | None) -> CallerRun:
        try:
            return await self._shared.daemon.find_run(self._caller, token)
        except RefusedError as refusal:
            raise _AnsweredError(403, str(refusal)) from refusal

    async def _known_run(self, token: str | None) -> CallerRun:
        """Return the run that was found for an earlier request of the connection, which may have
        ended since; else find it."""
        asked, settings = (self._caller, token), self._shared.upstreams()
        known: KnownRun | None = self._http.known
        if known is not None and known.asked == asked and known.settings is settings:
            self._is_known = True
            return known.run
        found = await self._find_run(token)
        self._http.known = KnownRun(asked, settings, found)
        return found

    async def _lead_out(self) -> None:
        """Serve as the proxy of an isolated run."""
        token = proxy_token(self._request.headers)
        try:
            found_run = await self._find_run(token)
        except _AnsweredError as error:
            # git tells its name after it was asked for it
            raise (
                _AnsweredError(HTTPStatus.PROXY_AUTHENTICATION_REQUIRED, str(error))
                if token is None
                else error
            ) from error
        known = [*self._shared.upstreams().values(), *found_run.upstreams.values()]
        upstreams = {endpoint for each in known for endpoint in each.endpoints}
        try:
            target = target_of(self._request)
            await self._shared.egress.serve(self._http, self._request, target, found_run, upstreams)
        except EgressRefusedError as refusal:
            self._shared.daemon.egress_refused(
                found_run.run, target.host, target.port, str(refusal)
            )
            raise _AnsweredError(403, f"sfad refuses {target.shown}: {refusal}") from refusal
        except NoWayError as error:
            raise _AnsweredError(error.status, str(error)) from error

    async def _say(
        self,
        status: int,
        message: str,
        api: Api | None,
        retry_after: float | None = None,
        *,
        headers: RawHeaders = (),
    ) -> None:
        if self._http.answering:
            raise ClientGoneError(message)
        seconds = None if retry_after is None else ceil(retry_after)
        body = (
            api.refusal(message, seconds, status) if api is not None else message.encode() + b"\n"
        )
        headers = [_JSON if api is not None else (b"content-type", b"text/plain"), *headers]
        if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            headers.append((b"proxy-authenticate", b'Basic realm="sfad"'))
        if seconds is not None:
            headers.append((b"retry-after", b"%d" % seconds))
        # programs print the reason of a refused CONNECT, and not its body
        reason = message.encode("ascii", "replace") if self._method == "CONNECT" else b""
        await self._http.answer(status, headers, body, reason)

    async def _with_body(
        self, found_run: CallerRun, upstream: Upstream, api: Api, route: Route
    ) -> None:
        with self._shared.memory.space(found_run.run, self._user) as space:
            raw = await self._body(space)
            self._end_when_gone()
            try:
                await self._answer(found_run, upstream, api, route, raw, space)
            finally:
                self._http.working = None

    def _end_when_gone(self) -> None:
        """End the connection, and what is done for it, when the client hangs up."""
        self._http.working = self._scope
        if self._http.hung_up:
            self._scope.cancel()

    async def _answer(
        self,
        found_run: CallerRun,
        upstream: Upstream,
        api: Api,
        route: Route,
        raw: bytes,
        space: BodySpace,
    ) -> None:
        try:
            await self._make_call(found_run, upstream, api, route, raw, space)
        except _BrokenOffError as error:
            # the client sees what it would have seen without the gateway: the connection ends in
            # the middle
            await self._http.flush()
            raise ClientGoneError(str(error)) from error
        # the call is told already: a paused client takes the rest later
        self._end_when_gone()
        await self._http.end()

    async def _body(self, space: BodySpace) -> bytes:
        _check_size(
            next(
                (int(value) for name, value in self._request.headers if name == b"content-length"),
                0,
            )
        )
        # a list of thousands of pieces would leave the allocator with holes that it never gives
        # back
        body = bytearray()
        while piece := await self._http.body():
            _check_size(len(body) + len(piece))
            space.grow(len(piece))
            body += piece
        return bytes(body)

    async def _make_call(
        self,
        found_run: CallerRun,
        upstream: Upstream,
        api: Api,
        route: Route,
        raw: bytes,
        space: BodySpace,
    ) -> None:
        path = api.path(route.path)
        is_call = self._method == "POST" and api.calls.search(path) is not None
        if self._is_known and (upstream.through is not None or not is_call):
            await self._find_run(route.token)  # nothing else asks whether it has ended
        if upstream.through is not None:  # the gateway there asks about the call
            await self._forward(found_run, upstream, route, raw, self._headers, None, space)
            return
        if not is_call:
            unasked = self._unasked(found_run, upstream, api, path)
            with self._settling(unasked):
                await self._forward(found_run, upstream, route, raw, self._headers, unasked, space)
            return
        encodings = b",".join(
            value for name, value in self._headers if name.lower() == b"content-encoding"
        ).decode("latin-1")
        question = BodyQuestion(api.name, path, encodings, host=upstream.host)
        found, _ = await self._read_and_change(found_run, question, raw)
        call = found.call
        estimate = self._shared.estimates.input(found_run.run, call)
        asked = _admission(found_run.run, upstream, api, call, estimate)
        asked.free = await self._shared.local_models.why_free(upstream, call.model)
        provider = provider_of(api.name)
        place = (
            place_of(provider, upstream, self._shared.upstreams().values())
            if provider is not None
            else None
        )
        if place is not None:
            with suppress(OSError, LookupError):  # `_forward` tells of it
                asked.login = login_of(self._headers, upstream.key(), place)
        while True:
            began = trio.current_time()
            admitted = await self._shared.daemon.admit(replace(asked))
            waited = trio.current_time() - began
            holds = admitted.holds_rejected and (not self._rejected or waited >= REJECTED_AGAIN)
            subscription = (
                partial(
                    self._subscription_seen,
                    provider,
                    place,
                    asked,
                    keyed=upstream.keyed,
                    holds=holds,
                )
                if provider is not None and place is not None
                else None
            )
            record = CallTally(
                self._shared.daemon,
                self._shared.estimates,
                asked,
                admitted,
                api,
                call,
                upstream.host,
                space,
                subscription,
            )
            with suppress(_RejectedError), self._settling(record):
                question = replace(
                    question, change=True, max_output=admitted.max_output, last=admitted.last
                )
                forward = partial(
                    self._forward_changed, found_run, upstream, route, raw, record, space
                )
                try:
                    await forward(question, asks=found.incomplete)
                except _UnknownOptionError:
                    await forward(replace(question, completes=False), asks=False)
                return

    def _subscription_seen(
        self, provider: Provider, place: str, asked: AdmitCall, response: Reply,
        body: bytes, *, keyed: bool, holds: bool,
    ) -> None:  # fmt: skip
        """Tell what a reply says of the caller's subscription. Raises `_RejectedError` if the call
        is to wait for a reset."""
        status, headers = response.status, response.headers
        body = _decoded(body, headers.get("content-encoding", ""))
        seen = seen_subscription(
            provider, asked.run, asked.login, headers, status, body, time.time(), place
        )
        if seen is None:
            return
        seen.keyed = keyed
        self._shared.daemon.subscription_seen(seen)
        if (
            holds
            and status == HTTPStatus.TOO_MANY_REQUESTS
            and any(window.rejected for window in seen.windows)
        ):
            self._rejected = True
            raise _RejectedError(
                "the provider refuses calls until a window is reset; it is made again then"
            )

    async def _forward_changed(
        self, found_run: CallerRun, upstream: Upstream, route: Route, raw: bytes,
        record: RequestRecord, space: BodySpace, question: BodyQuestion, *, asks: bool,
    ) -> None:  # fmt: skip
        """Forward a call. `asks`: its body is changed so that the reply tells the usage."""
        sent, headers = raw, self._headers
        if question.max_output is not None or question.last is not None or asks:
            _, sent = await self._read_and_change(found_run, question, raw)
            space.grow(len(sent))
            headers = _without(headers, b"content-encoding")
        self._takes_out_usage = asks
        if asks:  # what is taken out of would have to be encoded again
            headers = [
                *_without(headers, b"accept-encoding"),
                (b"accept-encoding", b"identity"),
            ]
        await self._forward(found_run, upstream, route, sent, headers, record, space)

    async def _read_and_change(
        self, found_run: CallerRun, question: BodyQuestion, raw: bytes
    ) -> tuple[BodyAnswer, bytes]:
        try:
            return await self._shared.reader.ask(found_run.run, self._user, question, raw)
        except ValueError as error:
            raise _AnsweredError(400, f"the gateway cannot read the request: {error}") from error

    def _unasked(
        self, found_run: CallerRun, upstream: Upstream, api: Api, path: str
    ) -> UnaskedTally | None:
        """Return the record of a request that is not a model call, if it may cost money."""
        if api.is_free(self._method, path) or upstream.free is True:
            return None
        record = UnaskedTally(self._shared.daemon, found_run.run, upstream.name, path[:MAX_PATH])
        if not self._shared.ungated():
            why = (
                f"{self._method} {path[:MAX_PATH]} may cost money that the gateway cannot bound; "
                "set gateway.ungated to let it pass"
            )
            record.settle(refused=why)
            raise _AnsweredError(400, why)
        return record

    @contextmanager
    def _settling(self, record: RequestRecord | None) -> Iterator[None]:
        """Settle the record, whatever happens."""
        try:
            yield
        except BaseException as error:
            if record is not None:
                # what is cancelled may be several tasks of trio's, as while a connection is made
                hung_up = self._http.hung_up and not isinstance(error, Exception)
                record.broken(ClientGoneError(_HUNG_UP) if hung_up else error)
            raise
        finally:
            if record is not None:
                record.settle()

    def _flush_meanwhile(self) -> None:
        """Have the client given what it has not taken, as soon as it takes it."""
        if self._http.unsent and not self._flushing:
            self._flushing = True
            self._nursery.start_soon(self._flush)

    async def _flush(self) -> None:
        try:
            await self._http.flush()
            self._flushing = False
        except ClientGoneError:
            self._http.hang_up()

    async def _forward(
        self,
        found_run: CallerRun,
        upstream: Upstream,
        route: Route,
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        record: RequestRecord | None,
        space: BodySpace,
    ) -> None:
        try:
            key = upstream.key()
        except (OSError, LookupError) as error:
            raise _AnsweredError(
                502, f"the key of upstream '{upstream.name}' cannot be read: {error}"
            ) from error
        url = (
            upstream.target(route.rest, route.query, keyed=key is not None)
            if upstream.through is None
            else upstream.passage(route.rest, route.query, found_run.token)
        )
        try:
            address = address_of(url)
        except httpx2.InvalidURL as error:
            raise _AnsweredError(
                502,
                f"no request can be sent to upstream '{upstream.name}' ({upstream.shown}): {error}",
            ) from error
        if await self._leads_back(address):
            raise _AnsweredError(
                400,
                (
                    f"upstream '{upstream.name}' ({upstream.shown}) is this gateway itself; "
                    "set another url"
                ),
            )
        has_body = bool(body) or self._method in {"POST", "PUT", "PATCH"}
        own = [(b"Host", address.authority)]
        own += [(b"Content-Length", b"%d" % len(body))] if has_body else []
        connections = self._shared.connections if upstream.through is None else self._shared.passing
        send = partial(
            connections.send,
            self._method,
            address,
            own + upward(headers, key, upstream.api),
            _Body(body, record) if has_body and record is not None else body,
        )
        with self._shared.silence.over(record) if record is not None else nullcontext():
            await self._send_and_relay(upstream, send, record, space)

    async def _leads_back(self, address: Address) -> bool:
        """Return whether an address is this gateway's, in whatever spelling."""
        own = self._http.stream.socket.getsockname()[1]
        if address.port != own:
            return False
        try:
            found = await trio.socket.getaddrinfo(address.host, own, type=trio.socket.SOCK_STREAM)
        except OSError:
            return False  # the connection will fail, too
        addresses = [plain(ip_address(address[0])) for *_, address in found]
        return any(address.is_loopback or address.is_unspecified for address in addresses)

    async def _send_and_relay(
        self,
        upstream: Upstream,
        send: Callable[[], Awaitable[OpenReply]],
        record: RequestRecord | None,
        space: BodySpace,
    ) -> None:
        """Send the request, and pass the reply on as it comes, but for its end. A paused client
        takes nothing, and the provider goes on and bills: so the reply is read all the same."""
        try:
            response = await _sent(send)
        except FAILURES as error:
            what = _text_of(error)
            if record is not None:
                record.error, record.sent = what, not isinstance(error, NOT_SENT)
            raise _unanswered(upstream, what, is_sent=not isinstance(error, NOT_SENT)) from error
        pieces, early, relay = response.pieces, list[bytes](), self._relay(response)
        try:
            if record is not None:
                record.begun(response)
                asks = self._takes_out_usage and response.status in _UNKNOWN
                holds = record.reads_subscriptions and response.status == 429
                early = await _refusal_of(pieces) if asks or holds else []
                if asks and b"stream_options" in b"".join(early):
                    raise _UnknownOptionError
                record.look_at_subscription(response, b"".join(early))
                if response.redirects:
                    raise _redirected(upstream, response)
            await self._http.head(response.status, relay.headers, response.reason)
            encoded = "content-encoding" in response.headers

            async def pass_on(piece: bytes) -> None:
                self._http.put(relay.feed(piece))
                self._flush_meanwhile()
                if record is not None:
                    await _take(record, piece, ENCODED_PIECE if encoded else len(piece))
                if not self._keeps(space):
                    # what ends this task is raised again with the next piece, inside of httpcore2:
                    # only that closes its generators
                    with suppress(ClientGoneError, trio.Cancelled):
                        await self._http.flush()

            for piece in early:
                await pass_on(piece)
            async for piece in pieces:
                await pass_on(piece)
            # clients hang up when they have the last byte; the connection is of use all the same
            self._http.working = None
            self._http.put(relay.end())
            if record is not None:
                record.whole = True
        except (*FAILURES, UnreadableBodyError) as error:
            self._http.put(relay.end())
            raise _BrokenOffError(
                f"upstream '{upstream.name}' broke off its reply: {_text_of(error)}"
            ) from error
        finally:
            await response.aclose()

    def _relay(self, response: Reply) -> "_Relay":
        coding = response.headers.get("content-encoding", "")
        if self._takes_out_usage and 200 <= response.status < 300:
            with suppress(UnreadableBodyError):  # an encoding that the gateway does not know
                return _WithoutUsage(response, Coding(coding))
        return _Relay(response)

    def _keeps(self, space: BodySpace) -> bool:
        """Return whether there is memory for what the client has not taken."""
        more = self._http.unsent - self._room
        if more > 0:
            try:
                space.grow(more)
            except NoMemoryError:
                return False
            self._room += more
        return self._http.unsent <= MAX_UNSENT

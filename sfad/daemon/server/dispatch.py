"""What clients send: frames are read, and each request goes to the function that answers it, if the
peer may use the verb."""

import os
import time
from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import Any

from msgspec.structs import replace

from ... import __version__
from ...host.linux import descriptors
from ...host.linux.descriptors import close_soon
from ...host.tasks import ROUND_REQUESTS
from ...processes.launcher import Unidentifiable
from ...protocol import messages as m
from ...protocol.errors import RequestError, bad_request, unavailable
from ...protocol.framing import SUPPORTED, BadMessage, ProtocolError, request_id
from ...protocol.messages import Error, unpack_request
from ...protocol.types import ErrorCode, RunId
from ..loop.resources import Resources
from . import verbs  # noqa: F401 - each file registers its verb
from .asker import EXPECTED, INTERNAL, REGISTRY, Answering, Asker, Services, Verb
from .clients import ClientTable
from .connection import LOOKS, Connection, DescriptorsLost
from .peers import run_of
from .shares import ClientBounds, ShareGroup

# ---- Requests to the functions that answer them: the handshake, the permission, the verb's
# function, and what it raised


class Dispatcher:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._resources = services.runtime.resources
        self._of_features: dict[type[m.Request], Verb] = {}
        """Verbs of features that were used."""

    def greet(self, connection: Connection, request: m.Request) -> None:
        peer = connection.peer
        if not isinstance(request, m.Hello):
            message = "the first message must be 'hello'"
            connection.send(m.Error(id=request.id, code=ErrorCode.BAD_REQUEST, message=message))
            return
        self._resources.log.debug("client", name=request.client[:100], user=peer.user, run=peer.run)
        common = set(request.versions) & set(SUPPORTED)
        if not common:
            spoken, supported = request.versions[:16], list(SUPPORTED)
            message = (
                f"client speaks protocol versions {spoken}, this daemon {supported}; "
                "update the older one"
            )
            connection.send(
                m.Error(id=request.id, code=ErrorCode.UNSUPPORTED_VERSION, message=message)
            )
            return
        connection.welcome(
            m.Welcome(
                id=request.id,
                version=max(common),
                daemon=__version__,
                pid=os.getpid(),
                state_dir=str(self._resources.state_dir),
                run=peer.run,
            )
        )

    def handle(self, connection: Connection, request: m.Request) -> None:
        verb = REGISTRY.get(type(request)) or self._of_feature(type(request))
        asker = Asker(
            self._services, connection, request.id, verb.permission if verb is not None else None
        )
        if not isinstance(request, LOOKS):
            self._services.looks.forget()  # what it changes must be seen by the requests after it
        try:
            self._check(asker, request)
            if verb is None:
                raise bad_request(
                    "'hello' is sent only once"
                    if isinstance(request, m.Hello)
                    else f"this sfad has no feature that answers '{m.tag(type(request))}'"
                )
            if (instead := connection.instead) is None:
                answering = _answer(verb, asker, request)
            else:
                answering = instead.answer(asker, request, partial(_answer, verb, asker))
            if answering is not None:
                self._services.runtime.background.begin(self._rest(asker, request, answering))
        except Exception as error:  # noqa: BLE001 - a bug in one request must not leave every tree without a supervisor
            self._fail(asker, request, error)
        if not asker.answered:
            asker.count_open()

    def _of_feature(self, kind: type[m.Request]) -> Verb | None:
        """Return the verb of a feature, whose part is loaded now if it was not before."""
        if (known := self._of_features.get(kind)) is not None:
            return known
        runtime, tag = self._services.runtime, m.tag(kind)
        if (answer := runtime.parts.answer(kind)) is None:
            return None
        later = runtime.machine.policy.access.features[tag].checked_later
        verb = self._of_features[kind] = Verb(answer, None if later else tag, about_run=False)
        return verb

    async def _rest(self, asker: Asker, request: m.Request, answering: Answering) -> None:
        """Do what is left of a verb that may have to wait."""
        assert answering is not None
        try:
            await answering
        except Exception as error:  # noqa: BLE001 - see `handle`
            self._fail(asker, request, error)

    def _fail(self, asker: Asker, request: m.Request, error: Exception) -> None:
        expected = isinstance(error, EXPECTED)
        if not expected:
            has_env = "env" in request.__struct_fields__  # which may hold secrets
            self._resources.log.internal_error(replace(request, env=[]) if has_env else request)
        if not asker.still_wanted():
            return
        if isinstance(error, RequestError):
            asker.fail(error.code, str(error))
        elif expected:
            asker.fail(ErrorCode.UNAVAILABLE, f"the daemon could not do it: {error}")
        else:
            asker.fail(ErrorCode.INTERNAL, INTERNAL)

    def open(self, connection: Connection, request: int) -> Asker:
        """Count a request that is to be answered."""
        asker = Asker(self._services, connection, request)
        asker.count_open()
        return asker

    def _check(self, asker: Asker, request: m.Request) -> None:
        try:
            if request.id in asker.connection.waits or request.id in asker.connection.deferred:
                raise bad_request(f"request id {request.id} is still in use on this connection")
            requests = self._services.bounds.requests
            if (refusal := requests.refusal(asker.connection.groups, 1)) is not None:
                raise unavailable(refusal)
        except RequestError:
            if isinstance(request, m.Spawn):
                close_soon(
                    asker.connection.take(request.descriptors) or (), asker.connection.sender_group
                )
            raise


def _check_user(asker: Asker, request: Any) -> None:
    """Raise `RequestError` if a user's gateway asks about a run of another user."""
    live = asker.runtime.catalogue.live.get(getattr(request, "run", ""))
    if live is not None and live.uid != asker.peer.gateway_uid:
        raise RequestError(
            ErrorCode.NOT_PERMITTED, f"run {live.run.id} is of another user than this gateway"
        )


def _answer(verb: Verb, asker: Asker, request: Any) -> Answering:
    """Check the permission and find the run of a request. The core checks again what it decides
    about: meanwhile a run may have ended. The guard checks a `spawn` itself, so that its refusal is
    recorded."""
    if verb.permission is not None:
        asker.check_permitted(verb.permission)
    if asker.peer.gateway_uid is not None:
        _check_user(asker, request)
    if verb.about_run:
        run = asker.resolve(request.run)
        there = run.executes_on is not None
        if there and asker.runtime.parts.answer_there(asker, request, run):
            return None
        return verb.answer(asker, request, run)
    return verb.answer(asker, request)


# ---- What clients send: frames are read, and the requests in them are handled in turns


TURN_TIME = 0.01
"""Seconds of requests of one tree, or of one user outside any run, before the next one has a
turn."""

MAY_HANG = (
    "stdin, stdout or stderr is a file of a FUSE file system of a user, which could keep the "
    "daemon waiting; use a pipe, as in cat FILE | sfactl run …, or another file system"
)


class Turns:
    """Which client's requests are handled next: trees and users take turns, and so do the clients
    of each."""

    def __init__(self, handle: Callable[[Connection], None]) -> None:
        """`handle` handles some requests of a connection, and adds it again if there are more."""
        self._handle = handle
        self.waiting: dict[ShareGroup, deque[Connection]] = {}

    def add(self, connection: Connection) -> None:
        """Queue a connection behind the others of its group."""
        self.waiting.setdefault(connection.groups.lane, deque()).append(connection)

    def take(self) -> None:
        """Handle requests of each group for a while. A group with many clients waits as long as one
        with few."""
        for lane in list(self.waiting):
            self._take(lane)

    def _take(self, lane: ShareGroup) -> None:
        waiting = self.waiting.pop(lane)
        until = time.perf_counter() + TURN_TIME
        while waiting:
            self._handle(waiting.popleft())
            if time.perf_counter() > until:
                break
        if waiting:
            # in front of those that have had a turn now
            waiting.extend(self.waiting.pop(lane, ()))
            self.waiting[lane] = waiting


class Receiver:
    """Reads from each client that has sent something, and dispatches its requests when its turn
    comes."""

    def __init__(
        self,
        resources: Resources,
        live: Container[RunId],
        bounds: ClientBounds,
        clients: ClientTable,
        dispatcher: Dispatcher,
    ) -> None:
        self._resources = resources
        self._live = live
        self._bounds = bounds
        self._clients = clients
        self._dispatcher = dispatcher
        self.turns = Turns(self._take_turn)

    def read(self, connection: Connection) -> None:
        # what it sends with descriptors would stay open
        if (refusal := descriptors.refusal(connection.sender_group)) is not None:
            self._clients.drop_with_error(connection, ErrorCode.UNAVAILABLE, refusal)
            return
        before, received = connection.decoder.pending, len(connection.received)
        try:
            connection.read()
        except ProtocolError as error:
            self._clients.drop_with_error(connection, ErrorCode.BAD_REQUEST, str(error))
            return
        except DescriptorsLost as lost:
            self._clients.drop_with_error(connection, ErrorCode.UNAVAILABLE, str(lost))
            return
        if connection.may_hang:
            self._clients.drop_with_error(connection, ErrorCode.NOT_PERMITTED, MAY_HANG)
            return
        connection.count_load(self._bounds)
        if (refusal := self.why_sender_refused(connection)) is not None:
            self._clients.drop_with_error(connection, ErrorCode.NOT_PERMITTED, refusal)
            return
        if connection.bodies:
            # the rest of a frame is read after these; until then its time does not run
            self.turns.add(connection)
            if before or not connection.greeted:
                self._resources.timers.disarm(("connection", connection.number))
        elif connection.decoder.pending and not before:
            self._clients.give_time(connection)
        if (
            len(connection.received) > received
            and (refusal := self._bounds.refusal(connection.groups)) is not None
        ):
            self._clients.drop_with_error(connection, ErrorCode.UNAVAILABLE, refusal)
        if connection.counted.input:
            self._clients.relieve_input(connection)
        if connection.ended and not connection.bodies:
            self._clients.drop(connection)

    def why_sender_refused(self, connection: Connection) -> str | None:
        """Say why the sender may not use a connection that another process made: it would have that
        one's rights."""
        peer = connection.peer
        if connection.sender_uid != peer.uid and not peer.unidentified:
            return (
                f"this connection was made by uid {peer.uid} and is used by uid "
                f"{connection.sender_uid}; after a change of user, connect again"
            )
        if connection.sender == connection.maker:
            return None
        try:
            run = run_of(connection.sender, self._resources.launcher)
        except (Unidentifiable, OSError) as error:
            return (
                f"process {connection.sender}, which did not make this connection, "
                f"could not be identified: {error}"
            )
        if run == connection.peer.run:
            return None
        made_in, sent_in = (
            f"run {each}" if each is not None else "no run" for each in (connection.peer.run, run)
        )
        return (
            f"this connection was made by a process in {made_in} and used by process "
            f"{connection.sender} in {sent_in}; each process must make its own"
        )

    def _take_turn(self, connection: Connection) -> None:
        try:
            self._handle_some(connection)
        except Exception:  # noqa: BLE001 - a bug in one connection must not end the others
            self._clients.drop_for_bug(connection)

    def _handle_some(self, connection: Connection) -> None:
        if connection.peer.run is not None and connection.peer.run not in self._live:
            # no process of an ended run is alive to read the answers, and its requests may take
            # minutes
            self._clients.drop(connection)
            return
        for _ in range(min(ROUND_REQUESTS, len(connection.bodies))):
            if connection.closed:
                return
            self._handle(connection, connection.next_body())
        connection.count_load(self._bounds)
        if connection.bodies:
            self.turns.add(connection)
        elif connection.ended:
            self._clients.drop(connection)
        elif connection.decoder.pending and not connection.closed:
            self._clients.give_time(connection)

    def _handle(self, connection: Connection, body: bytes) -> None:
        try:
            request = unpack_request(body)
        except BadMessage as error:
            connection.send(
                Error(id=request_id(body), code=ErrorCode.BAD_REQUEST, message=str(error))
            )
            if not connection.greeted or connection.received:
                # which of the descriptors belong to this request is unknown: the next one would be
                # given the wrong ones
                self._clients.drop(connection)
            return
        if connection.greeted:
            self._dispatcher.handle(connection, request)
            return
        self._dispatcher.greet(connection, request)
        if not connection.greeted:
            self._clients.drop(connection)

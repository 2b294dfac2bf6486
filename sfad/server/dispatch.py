"""Requests to the functions that answer them: the handshake, the permission, the verb's function, and what it raised."""

import os
from typing import Any

from .. import __version__
from ..host.closing import close_soon
from ..protocol import messages as m
from ..protocol.framing import SUPPORTED
from ..protocol.types import ErrorCode
from . import verbs  # noqa: F401 - each file registers its verb
from .call import EXPECTED, INTERNAL, REGISTRY, Call, Services, Verb
from .checks import RequestError, bad_request
from .connection import Connection
from .encoded import LOOKS


class Dispatcher:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._runtime = services.runtime

    def greet(self, connection: Connection, request: m.Request) -> None:
        peer = connection.peer
        if not isinstance(request, m.Hello):
            message = "the first message must be 'hello'"
            connection.send(m.Error(id=request.id, code=ErrorCode.BAD_REQUEST, message=message))
            return
        self._runtime.log.debug("client", name=request.client[:100], user=peer.user, run=peer.run)
        common = set(request.versions) & set(SUPPORTED)
        if not common:
            spoken, supported = request.versions[:16], list(SUPPORTED)
            message = f"client speaks protocol versions {spoken}, this daemon {supported}; update the older one"
            connection.send(m.Error(id=request.id, code=ErrorCode.UNSUPPORTED_VERSION, message=message))
            return
        connection.welcome(
            m.Welcome(
                id=request.id,
                version=max(common),
                daemon=__version__,
                pid=os.getpid(),
                state_dir=str(self._runtime.state_dir),
                run=peer.run,
            )
        )

    def handle(self, connection: Connection, request: m.Request) -> None:
        verb = REGISTRY.get(type(request))
        call = Call(self._services, connection, request.id, verb.permission if verb is not None else None)
        if not isinstance(request, LOOKS):
            self._services.looks.forget()  # what it changes must be seen by the requests after it
        try:
            self._check(call, request)
            if verb is None:
                raise bad_request("'hello' is sent only once")
            _answer(verb, call, request)
        except RequestError as error:
            call.fail(error.code, str(error))
        except EXPECTED as error:
            call.fail(ErrorCode.UNAVAILABLE, f"the daemon could not do it: {error}")
        except Exception:  # noqa: BLE001 - a bug in one request must not leave every tree without a supervisor
            self._runtime.log.internal_error(request)
            call.fail(ErrorCode.INTERNAL, INTERNAL)
        if not call.answered:
            call.wait()

    def open(self, connection: Connection, request: int) -> Call:
        """Count a request that is to be answered."""
        call = Call(self._services, connection, request)
        call.wait()
        return call

    def _check(self, call: Call, request: m.Request) -> None:
        try:
            if request.id in call.connection.pending:
                raise bad_request(f"request id {request.id} is still in use on this connection")
            call.demand(self._services.bounds.requests, 1)
        except RequestError:
            if isinstance(request, m.Spawn):
                close_soon(call.connection.take(request.descriptors) or (), call.connection.sender_group)
            raise


def _check_user(call: Call, request: Any) -> None:
    """Raise `RequestError` if a user's gateway asks about a run of another user."""
    live = call.runtime.catalogue.live.get(getattr(request, "run", ""))
    if live is not None and live.uid != call.peer.gateway_of:
        raise RequestError(ErrorCode.NOT_PERMITTED, f"run {live.run.id} is of another user than this gateway")


def _answer(verb: Verb, call: Call, request: Any) -> None:
    """Check the permission and find the run of a request. The core checks again what it decides about: meanwhile a run may have
    ended. The guard checks a `spawn` itself, so that its refusal is recorded."""
    if verb.permission is not None:
        call.permit(verb.permission)
    if call.peer.gateway_of is not None:
        _check_user(call, request)
    if verb.about_run:
        verb.answer(call, request, call.resolve(request.run))
    else:
        verb.answer(call, request)

"""`serve_gateway`: what the gateway needs to know of the config, and its listener, which its next process needs."""

import trio

from ...core import events as e
from ...protocol.messages import GatewaySettings, ServeGateway
from ..call import Call, answers


@answers(ServeGateway)
def serve_gateway(call: Call, request: ServeGateway) -> None:
    runtime, user = call.runtime, call.peer.gateway_of
    gateway = runtime.gateways.own if user is None else runtime.gateways.of(user)
    for listener in call.connection.take(request.descriptors) or []:
        gateway.keep(listener)
    gateway.serves()
    if request.reservations is not None:
        runtime.feed(e.GatewayConnected(trio.current_time(), frozenset(request.reservations), user))
    ungated = runtime.config.gateway.ungated
    call.reply(GatewaySettings(id=request.id, upstreams=runtime.gateways.settings(user), ungated=ungated))

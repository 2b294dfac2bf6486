"""`serve_gateway`: what the gateway needs to know of the config, and its listener, which its next process needs."""

import trio

from ...core import events as e
from ...protocol.messages import GatewaySettings, ServeGateway, UpstreamInfo
from ..call import Call, answers


@answers(ServeGateway)
def serve_gateway(call: Call, request: ServeGateway) -> None:
    for listener in call.connection.take(request.descriptors) or []:
        call.runtime.gateway.keep(listener)
    call.runtime.gateway.serves()
    if request.reservations is not None:
        call.runtime.feed(e.GatewayConnected(trio.current_time(), frozenset(request.reservations)))
    config = call.runtime.config.gateway
    upstreams = {
        name: UpstreamInfo(url=each.url, api=each.api, key_env=each.key_env, key_file=each.key_file)
        for name, each in config.upstreams.items()
    }
    call.reply(GatewaySettings(id=request.id, upstreams=upstreams, ungated=config.ungated))

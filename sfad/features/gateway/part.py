"""The part in a daemon: it keeps gateways running, leads runs to them, and answers them."""

import os
from collections.abc import Iterable, Mapping

import trio

from ...agents.setup_reader import SetupReader
from ...core.state.access import Peer, Scope
from ...daemon.loop.leading import Leading
from ...daemon.loop.seam import Heart, Part
from ...host.probe import user_name
from ...host.tasks import keep_serving
from ...protocol.messages import GatewayInfo
from .calls import Calls
from .connection_watch import ConnectionWatch
from .feature import NAME, GatewayConfig
from .gateways import Gateways
from .lost import LostCalls
from .program.egress_rules import is_model_api
from .routing import GatewaySteps
from .verbs import verbs_of


def part(heart: Heart) -> Part:
    assert isinstance(heart.machine.calls(), Calls)
    resources, live = heart.resources, heart.catalogue.live
    lost = LostCalls(heart, lambda: gateways)
    gateways = Gateways(
        heart.section(NAME, GatewayConfig), resources.launcher, resources.log, heart.announcer.tell,
        lost.settle, live.values, resources.damages,
        sock=resources.socket, state_dir=resources.state_dir,
    )  # fmt: skip
    steps = GatewaySteps(gateways, SetupReader(), heart.background)
    watch = ConnectionWatch(
        live,
        resources.launcher,
        lambda: [each.url for each in gateways.upstreams.values()],
        heart.feed,
    )

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            for each in (gateways.serve, watch.serve):
                nursery.start_soon(keep_serving, each, resources.log.internal_error)

    def key_files() -> Iterable[str]:
        upstreams = heart.section(NAME, GatewayConfig).upstreams.values()
        return [each.key_file for each in upstreams if each.key_file is not None]

    def status(peer: Peer, _scope: Scope) -> Mapping[str, object]:
        own = gateways.known(peer.uid)
        shown: dict[str, object] = {
            "gateway": own.url if own is not None else None,
            "gateway_pid": own.pid if own is not None else None,
        }
        if peer.uid in (0, os.geteuid()):
            shown["gateways"] = [
                GatewayInfo(user=user_name(each.uid), url=each.base, pid=each.pid)
                for each in gateways
                if each.uid is not None and each.pid is not None
            ]
        return shown

    return Part(
        verbs=verbs_of(heart, gateways),
        leading=Leading(
            look=steps.read_setups,
            decide=steps.decide,
            look_again=steps.read_settings,
            lead=steps.route,
            have=steps.have,
            beside=gateways.ports,
            own_command=steps.own_command,
            named=gateways.named,
            launched=watch.run_began,
            agent_seen=watch.agent_seen,
            leads=gateways.lead,
            caller_at=gateways.at,
            ready=gateways.ready,
            address=gateways.address,
            port=lambda uid: gateways.of(uid).port,
            token=gateways.token,
            is_model=is_model_api,
            key_files=key_files,
            has_gone=lost.has_gone,
            calls_of=lost.calls_of,
            tell_gone=lost.tell_gone,
            close=gateways.close,
        ),
        reconfigure=lambda: gateways.reconfigure(heart.section(NAME, GatewayConfig)),
        serve=serve,
        status=status,
        finish=gateways.stop,
    )

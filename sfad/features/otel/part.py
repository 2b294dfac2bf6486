"""The part in a daemon: it keeps the exporter running."""

from ...daemon.loop.seam import Heart, Part
from .feature import OtelConfig
from .process import OtelProcess


def part(heart: Heart) -> Part:
    resources = heart.resources
    process = OtelProcess(
        heart.section("otel", OtelConfig), resources.launcher, resources.log, sock=resources.socket
    )
    return Part(
        serve=process.serve,
        reconfigure=lambda: process.reconfigure(heart.section("otel", OtelConfig)),
        status=lambda peer, _scope: (
            {"otel": process.endpoint, "otel_trouble": process.trouble} if peer.owner else {}
        ),
        is_own=process.is_process,
    )

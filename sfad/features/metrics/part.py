"""The part in a daemon: `sfactl metrics`, and the endpoint."""

from ...daemon.loop.seam import Heart, Part
from ...daemon.server.asker import Asker
from .endpoint import MetricsEndpoint
from .feature import MetricsConfig
from .measuring import Measuring
from .messages import Metrics, MetricsText


def part(heart: Heart) -> Part:
    measuring = Measuring(heart)
    endpoint = MetricsEndpoint(
        heart.section("metrics", MetricsConfig), measuring.recent_text, heart.resources.log
    )

    def metrics(asker: Asker, _request: Metrics) -> None:
        asker.later(measuring.text, lambda text: MetricsText(id=asker.id, text=text))

    return Part(
        verbs={Metrics: metrics},
        serve=endpoint.serve,
        reconfigure=lambda: endpoint.reconfigure(heart.section("metrics", MetricsConfig)),
        status=lambda peer, _scope: (
            {"metrics": endpoint.listen, "metrics_trouble": endpoint.trouble} if peer.owner else {}
        ),
    )

"""The request of `sfactl metrics`."""

from ...protocol.requests.base import Reply, Request


class Metrics(Request, tag="metrics"):
    """Return the daemon's metrics (docs/metrics.md). Answered by `MetricsText`."""

    repeats = 1


class MetricsText(Reply, tag="metrics_text"):
    text: str
    """The text format of Prometheus, version 0.0.4."""

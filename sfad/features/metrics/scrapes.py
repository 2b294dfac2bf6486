"""Metrics in the text format of Prometheus, and one request for them by HTTP. Imported when they
are asked for."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress

import h11
import trio
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from ...host.counts import Histogram, Labels, Values
from ...host.http_connection import ClientGoneError, HttpConnection
from .table import METRICS, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text_of(values: Values) -> str:
    """Return `values`, and the figures of this process under their usual names (`process_…`), as
    text."""
    registry = CollectorRegistry()
    registry.register(_Collector(values))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


class _Collector(Collector):
    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            yield _family(metric, self._values.get(metric.name, {}))


def _family(metric: Metric, values: Mapping[Labels, float | Histogram]) -> Family:
    histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    numbers = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        if isinstance(value, Histogram):
            histograms.add_metric(labels, list(_cumulative(value)), sum_value=value.total)
        else:
            numbers.add_metric(labels, value)
    return histograms if metric.kind == "histogram" else numbers


def _cumulative(histogram: Histogram) -> Iterator[tuple[str, int]]:
    below = 0
    for bound, count in zip(
        (*map(_bound, histogram.bounds), "+Inf"), histogram.counts, strict=True
    ):
        below += count
        yield bound, below


def _bound(value: float) -> str:
    return repr(float(value))


_LOCAL = re.compile(rb"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?", re.IGNORECASE)
"""The hosts by which a loopback address is reached. A page in a browser reaches it by a name of its
own (DNS rebinding)."""

Text = Callable[[], Awaitable[str]]
"""Returns the metrics. Raises `OSError`."""


async def answer_scrape(stream: trio.SocketStream, text: Text, *, local: bool) -> None:
    """Answer one request. `local`: it came by TCP, so that its host must be a loopback address."""
    http = HttpConnection(stream)
    with suppress(ClientGoneError):
        request = await http.request()
        if request is None:
            return
        status, body = await _reply(request, text, local)
        kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"
        await http.answer(
            status, [(b"content-type", kind.encode()), (b"connection", b"close")], body.encode()
        )


async def _reply(request: h11.Request, text: Text, local: bool) -> tuple[int, str]:
    hosts = [value for name, value in request.headers if name == b"host"]
    if local and not all(_LOCAL.fullmatch(host) for host in hosts):
        return 403, "the host must be localhost, 127.0.0.1 or [::1]\n"
    if request.method not in {b"GET", b"HEAD"}:
        return 405, "only GET is answered here\n"
    if request.target.partition(b"?")[0] != b"/metrics":
        return 404, "the metrics are at /metrics\n"
    try:
        return 200, await text()
    except OSError as error:
        return 503, f"the daemon could not do it: {error}\n"

"""Metrics in the text format of Prometheus."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from .metrics import METRICS, Histogram, Labels, Metric, Values

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text_of(values: Values) -> str:
    """Return `values`, and the figures of this process under their usual names (`process_…`), as text."""
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
    for bound, count in zip((*map(_bound, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        below += count
        yield bound, below


def _bound(value: float) -> str:
    return repr(float(value))

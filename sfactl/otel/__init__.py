"""The exporter of spans, `sfactl otel` (docs/metrics.md): a span for each ended run and each of its calls, by OTLP.

`exporter`  where spans go; follows the ends of runs and hands their spans to the collector, each once
`spans`     what a run, or a call, is as a span
`starting`  by hand, or as the daemon's
`__main__`  as the daemon starts it

Only `exporter` and `spans` import the SDK (the extra `otel`).
"""

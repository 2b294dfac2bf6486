"""The exporter of spans, `sfactl otel` (docs/metrics.md): a span for each ended run and each of its
calls, by OTLP.

`exporter`  what a run, or a call, is as a span; hands the spans of ended runs to the collector,
            each once
`starting`  by hand, or as the daemon's
`__main__`  as the daemon starts it

Only `exporter` imports the SDK (the extra `otel`).
"""

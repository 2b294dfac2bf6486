"""The exporter of spans, `sfactl otel` (docs/opentelemetry.md): a span for each ended run and each of its calls, by OTLP.

`exporter`  follows the ends of runs, and hands their spans to the collector
`spans`     what a run, or a call, is as a span
`settings`  where spans go and with which headers, from the daemon's config
`bounded`   a bound of time for a whole request
`position`  the file that says which ends were exported
`starting`  by hand, or as the daemon's
`__main__`  as the daemon starts it

Only `exporter` and `spans` import the SDK (the extra `otel`).
"""

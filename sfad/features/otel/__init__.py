"""Spans of runs and calls go to a collector of OpenTelemetry (docs/metrics.md): `sfactl otel`, as a
process of the daemon's.

`process` starts and watches the exporter
`feature` the declaration
`part`    what of this a daemon does
"""

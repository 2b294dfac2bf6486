"""The daemon's figures as Prometheus reads them (docs/metrics.md).

`feature`   the declaration
`messages`  the request of `sfactl metrics`
`table`     each metric: its name, what it is, its labels
`measuring` the figures as they are now
`scrapes`   them as text, and one request for that by HTTP
`endpoint`  serves it where `metrics.listen` is set
`part`      what of this a daemon does
"""

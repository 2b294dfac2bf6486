"""The Python client: `from sfactl import Daemon` (docs/python.md).

`errors`    the exceptions of the client, each with kind, detail and message
`options`   what `spawn` takes, and the request that it makes
`asking`    what each method asks of the daemon and makes of the reply; no I/O
`pool`      connections that threads take turns with
`blocking`  `Daemon` and `Run`, for threads
`streaming` a connection that a trio task has to itself
`awaited`   `TrioDaemon` and `TrioRun`, for trio
"""

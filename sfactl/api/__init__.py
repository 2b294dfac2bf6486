"""The Python client: `from sfactl import Daemon` (docs/python.md).

`options`   what `spawn` takes, and the request that it makes
`asking`    what each method asks of the daemon and makes of the reply; no I/O
`check_logs` what checks have printed; no I/O
`home`      what a run has changed, and how it lands
`pool`      connections that threads take turns with
`runs`      `Run`, for threads
`attending` the agents within a program, and the connection that they live on; no I/O
`agents`    `Agent`, for threads
`blocking`  `Daemon`, for threads
`streaming` a connection that a trio task has to itself
`trio_agents` `TrioAgent`, for trio
`awaited`   `TrioDaemon` and `TrioRun`, for trio
"""

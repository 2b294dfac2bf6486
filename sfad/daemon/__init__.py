"""The daemon: from its socket to the core, and back.

`server`     the Unix socket: handshake, frames, back-pressure, the verbs
`loop`       the trio shell: events go in, commands are applied
`history`    answers from the ledger alone, where no daemon is running
`lookup`     which run an id, a name or a prefix means
`reloading`  the config of a running daemon: read again, checked against this machine, kept for the
             next daemon
`startup`    opens everything that a daemon needs, and adopts what an earlier one left
`daemon`     a daemon from its start to its end, what it does on signals, and how it becomes the
             installed program in place
`serving`    what `sfad serve` does first: paths, config, exit codes
"""

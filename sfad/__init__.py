"""sfad: a daemon that owns trees of agent processes.

A pure core decides; a thin trio shell does.

    client ─ frames ─▶ server ─ event ─▶ ┌──────────────┐ ─ Admit/Record/Publish ─▶ journal, then ledger
                                         │     core     │ ─ Launch/Terminate/Kill/Freeze ─▶ launch
    launch ─ LaunchSucceeded/MainExited ▶│  one machine │ ─ Arm/Disarm ─▶ timers
    timers ─ TimerFired ───────────────▶ │   (no I/O)   │ ─ AnswerRequest ─▶ server ─▶ client
                                         └──────────────┘

A package imports only packages above it:

`protocol`  what client and daemon say to each other; shared with `sfactl`, imports msgspec only
`core`      every decision: events in, commands out, no clock and no I/O
`launch`    how a run becomes processes, how they are contained, signalled and reaped
`meters`    what agent programs print about their use
`ledger`    SQLite: every admission committed before its process starts, every end recorded
`spool`     files that survive the death of the daemon, not of the machine
`output`    the files that runs write their output to
`observe`   the log
`runs`      what is known of runs
`gateway`   a process of its own between agents and the API of a model
`metering`  what runs use: output, session files, prices, samples
`durable`   what outlives a daemon: journal, adoption, handover, budgets, maintenance
`hooks`     commands that are executed at events
`loop`      the trio shell: events go in, commands are applied
`server`    the Unix socket: handshake, frames, back-pressure, one file a verb

`daemon`    a daemon from its start to its end, and what it does on signals
`startup`   opens everything that a daemon needs, and adopts what an earlier one left
`reloading` the config of a running daemon, read again
`usable_config` whether a daemon can use a config on this machine
`kept_config` the config of a live daemon, kept for the next one
`reexec`    a daemon becomes the installed program in place
`__main__`  the command `sfad`
`serving`   serving without a parser of command lines
`cli`       the command line of `sfad`
`history`   answers from the ledger alone, where no daemon is running
`install`   systemd units of this installation

Every package but `protocol` and `core` may use these:

`host`      what this machine is and lends: systemd, paths, descriptors, clocks, threads
`config`    layered TOML → frozen Structs
`config_values` the types of values in the config, and their errors
`exits`     exit codes of `sfad`
`agents`    known agent programs, and how they are started
`setups`    where agent programs take the address of their model from, and how the gateway gets their calls
`tool_scoping` which tools an agent program may use, in its own options
`faults`    ends the process at a chosen effect, for the crash test
"""

__version__ = "0.1.0"

"""sfad: a daemon that owns trees of agent processes.

A pure core decides; a thin trio shell does.

client ─ frames ─▶ server ─ event ───▶ ┌─────────────┐ ─ Admit/Record ─▶ journal, then ledger
                                       │    core     │ ─ Launch/Terminate/Kill/Freeze ─▶ processes
processes ─ LaunchSucceeded/MainExited ▶ one machine │ ─ Arm/Disarm ─▶ timers
timers ─ TimerFired ─────────────────▶ │  (no I/O)   │ ─ AnswerRequest ─▶ server ─▶ client
                                       └─────────────┘

A package imports only packages above it:

`protocol`  what client and daemon say to each other; shared with `sfactl`, imports msgspec only
`core`      every decision: events in, commands out, no clock and no I/O
`processes` how a run becomes processes, how they are contained, signalled and reaped
`storage`   what is kept on disk: ledger, output, and the file of the spool
`runs`      what is known of runs
`usage`     what runs use: output, session files, prices, samples
`durable`   what outlives a daemon: journal, adoption, handover, maintenance
`start`     what is decided about a request before the core is asked: steps and checks
`daemon`    the socket, the verbs and the trio shell; a daemon from its start to its end
`features`  what sfad does beside that: each a folder that can be deleted

`__main__`  the command `sfad`
`cli`       the command line of `sfad`
`installing` systemd units of this installation

Every package but `protocol` and `core` may use these:

`host`      what this machine is and lends: systemd, paths, descriptors, clocks, threads, log
`config`    layered TOML → frozen Structs
`config_values` the types of values in the config, and their errors
`feature`   what a feature declares; `features.listed` is the list of them
`exits`     exit codes of `sfad`
`agents`    a file for each agent program: what it prints, where its calls go, how it is started
`git`       how git is invoked, and what it executes
"""

__version__ = "0.1.0"

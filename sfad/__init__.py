"""sfad: a daemon that owns trees of agent processes.

A pure core decides; a thin trio shell does.

    client ─ frames ─▶ server ─ event ─▶ ┌──────────────┐ ─ Admit/Save/Publish ─▶ ledger (commit first)
                                         │     core     │ ─ Launch/Terminate/Kill/Freeze ─▶ launch
    launch ─ LaunchSucceeded/MainExited ▶│  one machine │ ─ Arm/Disarm ─▶ runtime's timers
    timers ─ TimerFired ───────────────▶ │   (no I/O)   │ ─ Reply ─▶ server ─▶ client
                                         └──────────────┘

`protocol`  what client and daemon say to each other; shared with `sfactl`, imports msgspec only
`core`      guard, tree, transition table, stop ladder, retry, access: events in, commands out, no clock and no I/O
`launch`    how a run becomes processes, how they are contained, signalled and reaped
`peers`     who is at the other end of a socket, from the kernel
`ledger`    SQLite: every admission committed before its process starts, every end recorded
`output`    the files a run writes its output to; making that output safe for a model
`runtime`   the trio nursery: event → machine → commands applied; timers, signals, reaping
`server`    the Unix socket: handshake, frames, back-pressure, one handler a verb
`daemon`    start-up, signals, shutdown: ties all of this together
`config`    layered TOML → frozen Structs
"""

__version__ = "0.1.0"

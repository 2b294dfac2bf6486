"""The trio shell: turns what happens into events, and the core's commands into effects.

server ─ pending_requests ─────────▶ ┌───────────┐
launcher, timers ─ launcher_events ▶ │ core_loop │ ─▶ event ─▶ core ─▶ commands ─┐
metering ──────────────────────────▶ └───────────┘                               │
           saving: journal, then ledger ◀────────────────────────────────────────┤
                    launching, launcher ◀────────────────────────────────────────┤
        announcing, answers to requests ◀────────────────────────────────────────┘

`runtime`          makes the parts, serves them, has them follow the config
`succession`       takes over the runs of an earlier daemon, and hands them over to the next
`core_loop`        feeds the machine with events, and applies its commands
`launcher_events`  what launcher and timers tell; an end waits until it is known what its run has
                   used
`pending_requests` requests that wait for the core's answer
`policy`           the config that is in force; what it says, in the core's terms
`seam`             where features take part in a daemon
`status_text`      the line that `systemctl status` shows
`starting`         the way of a request to start a run: steps, checks, what is kept for equal ones
`launching`        launches the attempts of runs, each with its environment
`saving`           journal and ledger follow the core; waiting clients are told of ends
`storage_watch`    watches over the state directory and its disk
`announcing`       events: numbered, saved, logged, pushed to those that follow them, as are runs
                   that have changed
`own_servers`      sees work that programs hand to servers of their own outside of their runs
`leading`          how runs are led to their models
`resources`        what a daemon opens before its loop begins, and what the launcher tells until
                   then
"""

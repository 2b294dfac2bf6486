"""The trio shell: turns what happens into events, and the core's commands into effects. It decides nothing.

server ─ requests ─▶ ┌───────────┐ ─▶ event ─▶ core ─▶ commands ─▶ applier ─┬─▶ saver: journal, then ledger
launcher ─ reports ─▶│  runtime  │                                          ├─▶ starter, launcher
metering, timers ──▶ └───────────┘                                          └─▶ announcer, answers to requests

`runtime`      the loop, and the parts that it consists of
`applying`     one line for each command of the core
`requests`     requests that wait for the core's answer
`starting`     launches the attempts of runs
`saving`       journal and ledger follow the core; waiting clients are told of ends
`announcing`   events: numbered, saved, logged, pushed
`reports`      what the launcher reports, kept back until the core knows the runs
`ends`         ends that wait until it is known what their runs have used
`state_dir`    watches over the state directory
`advising`     limits that are suggested from past runs
`translate`    what clients and config say, in the core's terms
`environment`  the environment of a run
`resources`    what a daemon opens before its loop begins
"""

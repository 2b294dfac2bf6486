"""The trio shell: turns what happens into events, and the core's commands into effects. It decides nothing.

server ─ requests ─▶ ┌─────────┐ ─▶ event ─▶ core ─▶ commands ─┬─▶ saver: journal, then ledger
launcher ─ reports ─▶│ runtime │                                ├─▶ starter, launcher
metering, timers ──▶ └─────────┘                                └─▶ announcer, answers to requests

`runtime`          the loop, and the parts that it consists of
`pending_requests` requests that wait for the core's answer
`launching`        launches the attempts of runs
`saving`           journal and ledger follow the core; waiting clients are told of ends
`announcing`       events: numbered, saved, logged, pushed
`ends`             ends that wait until it is known what their runs have used
`storage`          watches over the state directory, the ledger and the disk
`advising`         limits that are suggested from past runs
`translate`        what clients and config say, in the core's terms
`run_environment`  the environment of a run
`resources`        what a daemon opens before its loop begins, and what the launcher reports until then
"""

"""The trio shell around the core: events go in, commands are applied. It decides nothing.

`runtime`      feeds the machine and applies its commands
`asking`       what clients and config say, in the core's terms
`memory`       what the spool holds of live runs, and of budgets
`recovery`     takes over what an earlier daemon held
`handover`     what a daemon hands to itself when it executes itself anew
`maintenance`  retention, compaction, backups
`clock`        the core's clock: CLOCK_MONOTONIC, so that the next daemon can read its times
`metering`     what runs use, in the core's terms (`following`, `metered`, `sessions`, `sampling`)
`budgets`      calendar periods of money budgets
`advising`     what the ledger teaches about limits
`live`         what the shell keeps of a live run: what was asked, descriptors, wall-clock times
`environment`  the environment a run gets
`stdin`        the pipe behind `--stdin`
`timers`       deadlines, one heap and one task
"""

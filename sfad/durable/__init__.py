"""What outlives a daemon: how its runs are saved, found again and kept in bounds.

`spool`         the spool as a whole: its parts, opened, put back and closed together
`journal`       snapshots of live runs, saved before what they say is done
`snapshots`     the form of a snapshot in the spool
`accounts`      accounts of runs as they are saved
`saved_spawns`  the requests of runs that may start again
`ended`         how long the spool keeps what it has of ended runs
`numbers`       numbers of runs and events that the next daemon must not use
`earlier`       what an earlier daemon has saved
`retrying`      writes to the spool, tried again while the disk has no room
`adoption`      what an earlier daemon left, and what of it is alive
`handover`      what a daemon hands to the program that it becomes on re-execution
`pidfds`        pidfds of main processes, which systemd keeps while no daemon is there
`alerts`        alerts that are about no single run, as they are saved
`hooks`         how far hooks have come, and commands of `--on-end`, as they are saved
`budgets`       money budgets between config, ledger, spool and core
`maintenance`   when the jobs are due that keep the state directory within bounds
`session_archive` deletes the output of sessions that ended a while ago
`jobs`          old output and rows deleted, pages given back, backups made
"""

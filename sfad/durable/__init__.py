"""What outlives a daemon: how its runs are saved, found again and kept in bounds.

`journal`      snapshots of live runs, saved before what they say is done
`snapshots`    the form of a snapshot in the spool
`legacy`       the form of version 0.1.0
`retrying`     writes to the spool, tried again where the disk has no room
`accounts`     accounts of runs as they are saved
`adoption`     what an earlier daemon left, and what of it is alive
`handover`     what a daemon hands to the program that it becomes on re-execution
`pidfds`       pidfds of main processes, which systemd keeps while no daemon is there
`budgets`      money budgets between config, ledger, journal and core
`maintenance`  old output and rows deleted, backups made
"""

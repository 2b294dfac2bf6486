"""What outlives a daemon: how its runs are saved, found again and kept in bounds.

`snapshots`     the form of a snapshot in the spool, and writes to it, tried again while the disk
                has no room
`spool`         the spool as a whole: opened, put back and closed; snapshots of live runs, saved
                before what they say is done; what else is saved: requests that may start again,
                ended runs, numbers
`adoption`      what an earlier daemon left, and what of it is alive
`handover`      what a daemon hands to the program that it becomes on re-execution
`maintenance`   the jobs that keep the state directory within bounds: old output and rows, pages
                given back, backups
"""

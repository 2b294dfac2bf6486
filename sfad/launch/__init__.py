"""How a run becomes processes, and how these are contained, signalled, counted and reaped.

`choice`           the choice of a containment: cgroups where that is possible, else tags
`local_launcher`   the launcher of this machine, put together from the parts below
`command_starter`  starts one attempt: enters the containment, spawns a trampoline, and opens its gate when it is saved
`adopter`          adopts the runs of an earlier daemon
`handing_over`     hands runs over to the process that this one becomes
`footprints`       the processes and memory of runs
`agent_watch`      notices agent programs that are started within runs
`sweep`            kills what a dead daemon left

`contain`          keeps the processes of a run together: by cgroups, or by tags
`watch`            reads what trampolines report, reaps, and notices that a run is empty
`launched_runs`    the runs from their first launch to their release, and which run carries which mark
`isolation`        runs in sandboxes of their own, by bubblewrap
`trampoline`       the process that becomes a run's command, and how it is started
`emitter`          sends events to the loop
`complaints`       tells the log what failed and is tried again
`credentials`      the user that a run executes as, when root's daemon starts it for another user
`marks`            the cookie and the tag that the processes of a run inherit
`sealed_environment`  a run's environment, for programs that must not obey it
`pidfd`            signals to exactly one process, and what is known of it when it has ended
`procfs`           what /proc tells of processes
`launcher`         what the loop needs of a launcher: it names runs, not pids
`child_signals`    SIGCHLD as a descriptor

Each imports only what is below it.
"""

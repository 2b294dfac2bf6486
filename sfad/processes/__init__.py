"""How a run becomes processes, and how these are contained, signalled, counted and reaped.

`local_launcher`   the launcher of this machine, put together from the parts below; the choice of a
                   containment
`command_starter`  starts one attempt: enters the containment, spawns a trampoline, opens its gate
                   when it is saved; adopts runs
`agent_watch`      notices agent programs that are started within runs
`executed_files` which agent program a process executes, whatever its command line says
`sweep`            kills what a dead daemon left

`own_processes`    processes of the daemon's own that are no runs, such as gateways
`contained_commands` executes commands that are not runs, such as the daemon's own git

`contain`          keeps the processes of a run together: by cgroups, or by tags
`watch`            reads what trampolines report, reaps, and notices that a run is empty
`launched_runs`    the runs from their first launch to their release, and which run carries which
                   mark
`trampoline`       the process that becomes a run's command, and how it is started
`helper`           programs that are executed as the run's user: helpers, and first steps
`launcher`         what the loop needs of a launcher: it names runs, not pids
`credentials`      the user that a run executes as, and an environment for programs that must not
                   obey the run's
`observed`         processes as psutil shows them: found, walked, sampled
`kernel`           what psutil does not have, or takes too long for; signals to exactly one process,
                   by pidfd

Each imports only what is below it.
"""

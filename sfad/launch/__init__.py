"""How a run becomes processes, and how these are contained, signalled, counted and reaped.

`base`      what the loop needs of a launcher; it names runs, not pids
`local`     the launcher of this machine, put together from the parts below, and the choice of its containment
`runs`      the runs that the launcher holds, and who is whose by their marks
`start`     spawns a trampoline into the run's containment, which becomes the command
`contain`   holds the processes of a run together: by cgroups, or by tags
`watch`     reads what trampolines report, reaps, and notices that a run is empty
`adopt`     takes over the runs of an earlier daemon, and hands runs over to the next
`loads`     counts the processes and memory of runs
`news`      events to the loop, among them that a run is empty or stands still; complaints to the log
`procfs`    what /proc tells of processes
`pidfd`     what a pidfd tells of a process that has ended
`sweep`     ends what a dead daemon left
"""

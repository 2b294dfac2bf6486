"""Creating the process that becomes a run's command.

`executable`     what a trampoline does; which of the two is executed, and how it is recognised
`image`          the trampoline for x86_64: trampoline.c, compiled by `make trampoline`
`in_python`      the trampoline for other machines, and for commands with a terminal
`creating`       starts a child that executes one, by clone3(2) into a cgroup or posix_spawn(3), and
                 the search of execvp(3)
"""

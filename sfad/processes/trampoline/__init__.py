"""Creating the process that becomes a run's command.

`executable`     what a trampoline does; which of the two is executed, and how it is recognised
`image`          the trampoline for x86_64: trampoline.c, compiled by `make trampoline`
`in_python`      the trampoline for other machines, and for commands with a terminal
`spawner`        starts a child that executes one, and the search of execvp(3)
`clone`          clone3(2) into a cgroup, with machine code that is in the image
"""

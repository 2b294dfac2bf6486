"""Creating the process that becomes a run's command.

`contract`       what a trampoline does, its arguments and descriptors, and how it reports failure
`elf_image`      the trampoline for x86_64
`in_python`      the trampoline for other machines, and for commands with a terminal
`executable`     which of the two is executed, and how it is recognised
`spawner`        starts a child that executes one, and the search of execvp(3)
`clone`          clone3(2) into a cgroup, with machine code that is in the image
"""

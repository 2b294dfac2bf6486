"""Starting a run's command.

`starter`        one attempt: the containment is entered, a trampoline is spawned, and held until it is saved
`spawn`          posix_spawn(3) with what Python's lacks, and the search of execvp(3)
`trampoline`     what is spawned: it contains itself, then becomes the command
`trampoline_py`  the same in Python, for other machines and for commands with a terminal
"""

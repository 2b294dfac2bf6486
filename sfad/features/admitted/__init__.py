"""Runs without a process: agents that are functions of a program (docs/python.md).

`feature`   the declaration
`messages`  what their program asks
`programs`  carries such runs out: tells their programs of a stop, and takes them for ended
`narrowing` limits that hold for a block of the program
`part`      its part in a daemon

The program asks for a run with `Spawn.admit`, and for what is below it with `Spawn.below`. To the
core such a run was launched like any other: it has begun when it is known, and its main process
"exits" when the program ends it. `Launcher.enter` makes it a run in which others are contained, and
which is not empty before that.
"""

"""Terminals of runs, which outlive clients and daemons (docs/terminals.md).

`feature`    the declaration
`part`       what of this a daemon does
`holding`    a terminal and its holder: makes, tells and ends them
`messages`   the requests of those who type, and of programs that wait for that
`waiting`    which runs wait for a person
`notices`    what programs tell a person through a terminal: the bell, notifications, titles
`reading`    whether a process reads a terminal
`recorded`   the record of a terminal: when its output was shown, and its sizes
`screen`     what a terminal shows, and what of that a person's terminal may be given
`image`      the holder, compiled from holder.c
`in_python`  the holder for machines that cannot execute the image

A bare interpreter executes the last one, which imports `screen`. `sfactl` imports `messages`,
`recorded` and `screen`.
"""

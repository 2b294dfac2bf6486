"""Shims: programs that come first in the PATH of runs, and have what a run starts by an agent
program's name be a child run (docs/agents.md).

`files`       shims as files
`directories` those that a person has installed, and those that the daemon makes
`in_path`     what a run finds of them
`answering`   what a shim is answered where its program is to be no child run
`feature`     the declaration
`part`        what of this a daemon does
"""

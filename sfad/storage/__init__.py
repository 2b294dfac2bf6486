"""What is kept on disk, whichever daemon reads it.

`ledger`   SQLite: every admission committed before its process starts, every end recorded
`store`    what survives the death of the daemon, not of the machine
`output`   the files that runs write their output to
"""

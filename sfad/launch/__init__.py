"""How a run becomes processes, how they are contained, signalled and reaped.

`base`      what the runtime needs of a launcher; handles, not pids
"""

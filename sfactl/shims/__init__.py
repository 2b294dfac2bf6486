"""Stand-ins for agent programs.

`shimmed_run`   inside a run, starts the program as a child run and ends as that ends
`own_server`    child runs in place of what a program would hand to a server of its own
`real_program`  the program that a shim stands in for
"""

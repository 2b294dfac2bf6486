"""A run in the foreground.

`foreground`  a run that this process stands for: output, exit code, what signals do
`progress`    its progress lines on stderr
`terminal`    pseudo-terminals between the user's terminal and a run
`fleet_run`   output of runs on other nodes; `run --fleet`
"""

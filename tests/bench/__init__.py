"""Performance: measured here, never asserted as a time in a test. docs/performance.md tells what is
measured.

`rows`           what is measured of each peer, and of the floor
`ours`, `peers`  the daemon, and other supervisors
`floor.c`        bare system calls; and the programs that all run
`counts`         system calls, calls, allocations and bytes for each run
`gateway`, `lists`, `meters`, `top`, `web`   what has no peers
"""

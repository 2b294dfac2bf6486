"""The steps of every run's life. A component knows only those above it:

`stages`         what is executed in a run beside its command: which follows, and how it is told
`spending`       accounts of runs and of those above them
`lifecycle`      launch, clock, end
`stopping`       decides ends, and climbs the stop ladder; `stop`, the daemon's end, and clients
                 that were lost
`pausing`        pause and resume
`attempts`       what the launcher tells of an attempt, and what its agent prints
"""

"""Containment without cgroups.

`containment`  by descent and marks
`stopping`     signals every process of a run until nothing is left
`pausing`      stops and continues every process of a run
`census`       the processes of runs
`membership`   the run of a process
`adopted`      processes of adopted runs, which are not below the daemon
"""

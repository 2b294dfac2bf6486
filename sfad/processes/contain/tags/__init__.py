"""Containment without cgroups.

`containment`  by descent and marks: stops and continues every process of a run, and signals until nothing is left
`membership`   the run of a process; the processes of runs, those of adopted runs too, which are not below the daemon
"""

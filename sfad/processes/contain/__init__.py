"""Keeping the processes of a run together, whatever they do to get away.

`interface`    what the launcher needs of a containment
`cgroup`       containment in cgroup v2
`tags`         containment by descent and inherited marks, where there is no cgroup
`mark_scan`    one look at all processes for the marks of runs
`membership`   which run a process is in, by its ancestors and its cookie; binding runs to CPUs
"""

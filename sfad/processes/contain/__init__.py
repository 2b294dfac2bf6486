"""Keeping the processes of a run together, whatever they do to get away.

`interface`    what the launcher needs of a containment
`cgroup`       containment in cgroup v2
`tags`         containment by descent and inherited marks, where there is no cgroup
`membership`   which run a process is in, by its ancestors and its cookie; looks for the marks of
               runs; binding runs to CPUs
"""

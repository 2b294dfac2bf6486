"""Holding the processes of a run together, whatever they do to get away.

`interface`  what the launcher needs of a containment
`cgroup`     containment in cgroup v2
`tags`       containment by descent and inherited marks, where there is no cgroup
`marks`      the cookie and the tag that the processes of a run inherit, and looks for them
`lineage`    which run a process is in, by its ancestors and its cookie
`affinity`   binding runs to CPUs, where no controller can throttle them
"""

"""Containment in cgroup v2.

`containment`      one cgroup a run: entering, leaving, what is in it; freezing it, and signals until nothing is left
`making`           makes, adopts and removes the cgroups of runs, with their bounds
`cgroups`          the cgroups of runs, found by run, path or inode
`escapes`          what `cgroup.events` tells, and processes that have left their run's cgroup
`controllers`      enabling the controllers
`probing`          whether runs can be contained in cgroups here
`location`         where this instance's cgroups are
`cgroupfs`         control files, and trees of cgroups
"""

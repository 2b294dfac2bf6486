"""Containment in cgroup v2.

`containment`      one cgroup a run: entering, leaving, what is in it
`stopping`         signals every process of a run until nothing is left
`pausing`          freezes and thaws runs
`freeze_and_kill`  control files that act on a whole cgroup
`making`           makes and removes the cgroups of runs
`cgroups`          the cgroups of runs, found by run, path or inode
`events`           what `cgroup.events` tells
`escapes`          processes that have left their run's cgroup
`membership`       which run a process is in
`adopted`          runs of an earlier daemon
`limits`           the bounds of runs, in the files of their cgroups
`controllers`      enabling the controllers
`probing`          whether runs can be contained in cgroups here
`location`         where this instance's cgroups are
`cgroupfs`         control files, and trees of cgroups
"""

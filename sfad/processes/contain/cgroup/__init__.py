"""Containment in cgroup v2.

`containment`      one cgroup a run: entering, what is in it and what has left it; freezing it;
                   signals until nothing is left
`making`           makes, adopts and removes the cgroups of runs, with their bounds
`controllers`      enabling the controllers; whether runs can be contained in cgroups here
`cgroupfs`         where the cgroups of this instance are; control files; the cgroups of runs, by
                   run, path or inode
"""

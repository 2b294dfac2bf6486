"""Containment without cgroups.

`containment`  by descent and marks: stopping and pausing
`census`       which processes are in which run
`adopted`      processes of adopted runs, which are not below the daemon
"""

"""Exit codes of the command `sfad`; docs/states.md has their meanings."""

USAGE = 2
SURVIVED = 5
"""A process of a run could not be killed."""
UNAVAILABLE = 69
IO = 74
NOT_PERMITTED = 77

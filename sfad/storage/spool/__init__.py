"""What lets a daemon that was killed at any instruction find its runs again, without the ledger.

`store`   small values by key in one file, changed in batches that are there whole or not at all
`spawns`  what it takes to start a run that has not had its last attempt, secrets included

Nothing here waits for a disk: these files guard against the death of the daemon, not of the machine. What the kernel has taken
outlives the process that wrote it, and when the machine dies so does every run.
"""

from .spawns import Spawns
from .store import Store, StoreError

__all__ = ["Spawns", "Store", "StoreError"]

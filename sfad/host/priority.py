"""A supervisor has to get on when its runs leave nothing of the processors to anybody.

Measured with twenty lineages that fork without pause on two cores, each in a session of its own, and no cgroups: as one among
equals the daemon got a tenth of a core, zombies came faster than it reaped them, and the machine was out of pids after ten
seconds. Ahead of them it ends them in 0.4 s.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_NICE = -10
"""Before everything of ordinary importance, behind what a machine cannot do without."""
_AUTOGROUP = Path("/proc/self/autogroup")


def raise_priority() -> None:
    """Schedules this process before those it starts, as far as it may (root, CAP_SYS_NICE) and nobody has chosen otherwise.

    What it starts is at 0, by SCHED_RESET_ON_FORK. Where the kernel shares the processors among sessions first (sched(7):
    autogroup), the nice value of the session counts; it is the daemon's to set if it leads the session.
    """
    with suppress(OSError):
        if os.sched_getscheduler(0) != os.SCHED_OTHER or os.getpriority(os.PRIO_PROCESS, 0) != 0:
            return
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        if os.getsid(0) == os.getpid():
            _AUTOGROUP.write_text(str(_NICE))

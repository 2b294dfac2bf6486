"""Descriptors are reserved, in two ways: without one the daemon can neither be reached nor stop a run.

What takes descriptors is refused while some are still free: first clients, then new runs, last the owner of the daemon
(`Descriptors`). The very last are kept back for stopping (`keep_back`): the daemon's soft RLIMIT_NOFILE is a little below
the hard one, and the launcher lifts it while it signals, kills and looks. So no descriptor is held ready for that.
"""

import os
import resource
from collections.abc import Callable
from enum import IntEnum

from .loop_turns import LoopTurns

RESERVE, LEAST_RESERVE = 32, 4
"""Descriptors in one reserve, and what it has at least where the limit is low. A launch takes eight for some milliseconds; the
ledger, the spool and the price list take a few each."""
KEPT_BACK = 24
"""Descriptors for stopping. A stop needs four at a time: a directory that is listed, a control file, `/proc`, and a pidfd."""
_limits: tuple[int, int] | None = None
"""The soft and the hard limit of this process, while it keeps some back."""


class Need(IntEnum):
    """Who wants descriptors, and how many reserves must stay free."""

    OWNER = 1
    RUN = 2
    CLIENT = 3


def count() -> int:
    # 1 us from Linux 6.2 on; earlier kernels say 0
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))


class Descriptors:
    """What this process may open. The limit is the soft one at the start: the launcher lifts it while it stops runs.

    They are counted once a turn of the loop. What has been granted in it is taken to be open since."""

    def __init__(self, turns: LoopTurns, count: Callable[[], int] = count) -> None:
        self._turns = turns
        self._count = count
        self._counted = -1
        """The turn of the last count."""
        self._open = 0
        self.limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def refusal(self, need: Need, more: int = 0) -> str | None:
        """Say why `more` descriptors cannot be had for `need`, or return `None`."""
        limit = min(self.limit, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        reserved = need * min(RESERVE, max(LEAST_RESERVE, limit // 16))
        if self._counted != self._turns.number:
            self._counted, self._open = self._turns.number, self._count()
        free = limit - self._open
        if free - more >= reserved:
            self._open += more
            return None
        return (
            f"only {free} of {limit} descriptors are left, {more} are needed and {reserved} are reserved; end some runs or "
            "clients, or raise LimitNOFILE= of the daemon's unit (ulimit -n)"
        )


def soft_of(hard: int) -> int:
    """Return the soft limit under a hard one: `KEPT_BACK` less, but at least three quarters of it."""
    return max(hard - KEPT_BACK, hard * 3 // 4)


def keep_back() -> None:
    global _limits
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    _limits = soft_of(hard), hard
    resource.setrlimit(resource.RLIMIT_NOFILE, _limits)


class lifted:  # noqa: N801 - as `contextlib.suppress` is named: it reads like a word in `with lifted():`
    """Allow the descriptors that are kept back. The limit is the whole process's, so nothing in the block may wait.

    A class, because it is entered at each turn, and a generator would take four calls more."""

    def __enter__(self) -> None:
        if _limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_limits[1], _limits[1]))

    def __exit__(self, *_: object) -> None:
        if _limits is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, _limits)

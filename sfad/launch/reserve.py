"""Descriptors that are kept back for stopping runs: what clients or agents do cannot take the last ones.

The daemon's soft RLIMIT_NOFILE is a little below the hard one, and the launcher lifts it while it signals, kills and looks. No
descriptor has to be held ready for that.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

SIZE = 24
"""Descriptors. A stop needs four at a time: a directory that is listed, a control file, `/proc`, and a pidfd."""

_limits: tuple[int, int] | None = None
"""The soft and the hard limit of this process, while it keeps a reserve."""


def soft_of(hard: int) -> int:
    """The soft limit under a hard one: less the reserve, which is at most a quarter."""
    return max(hard - SIZE, hard * 3 // 4)


def hold_back() -> int:
    """Sets the soft limit; returns what it was."""
    global _limits
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _limits = soft_of(hard), hard
    resource.setrlimit(resource.RLIMIT_NOFILE, _limits)
    return soft


@contextmanager
def lifted() -> Iterator[None]:
    """Within the block the reserve can be used. The limit is the whole process's, so nothing in the block may wait."""
    if _limits is None:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (_limits[1], _limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, _limits)

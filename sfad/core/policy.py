"""The configured numbers that the core decides by. The shell fills them in from the config."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.types import Bound, Limit

MIN_TIME = 1.0
"""Seconds: the shortest `time` limit (SPEC section 3)."""

MAX_ATTEMPTS = 100
"""Attempts one run may ask for. Back-off grows to its cap, so this many take hours; more is a scheduler's work."""

MAX_RETRY_DELAY = 3600.0
"""Seconds before the second attempt at most: a run that waits holds its slot, and no clock of its own ends it."""


DEFAULT_DEPTH = Bound(value=5, source="default")
DEFAULT_DESCENDANTS = Bound(value=64, source="default")
DEFAULT_TIMEOUT = Limit(kind="time", threshold=120.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """Defaults are SPEC's. Times are in seconds."""

    enabled: bool = True
    max_depth: Bound = DEFAULT_DEPTH
    max_descendants: Bound = DEFAULT_DESCENDANTS
    depth_ceiling: int = 32
    descendants_ceiling: int = 1024
    allow_detach: bool = False
    timeout: Limit = DEFAULT_TIMEOUT
    max_time: float = 3600.0
    grace: float = 5.0
    kill_wait: float = 10.0
    trees_per_user: int = 32
    trees: int = 64
    spawns_per_hour: int = 600
    retry_delay: float = 1.0
    retry_delay_max: float = 60.0

"""Back-off between attempts."""

from __future__ import annotations

import hashlib

from ..protocol.types import RunId


def backoff(run: RunId, attempt: int, *, first: float, cap: float) -> float:
    """Return the seconds to wait after the failure of attempt number `attempt` (1 is the first).

    They double each time up to `cap`; of that, between half and all is taken, so that runs that failed together do not start
    together. The jitter is a hash of run and attempt, so that the core stays reproducible.
    """
    ceiling = min(cap, first * 2.0 ** min(attempt - 1, 60))
    digest = hashlib.blake2b(f"{run}:{attempt}".encode(), digest_size=8).digest()
    return ceiling * (0.5 + 0.5 * int.from_bytes(digest, "big") / 2**64)

"""Back-off between attempts (SPEC section 4)."""

from __future__ import annotations

import hashlib

from ..protocol.types import RunId


def backoff(run: RunId, attempt: int, *, first: float, cap: float) -> float:
    """Seconds to wait after the failure of attempt number `attempt` (1 is the first).

    Doubles each time up to `cap`, then takes between half and all of it, so that a fleet that failed together does not
    come back together. The jitter is a hash of run and attempt: the core stays reproducible.
    """
    ceiling = min(cap, first * 2.0 ** min(attempt - 1, 60))
    digest = hashlib.blake2b(f"{run}:{attempt}".encode(), digest_size=8).digest()
    return ceiling * (0.5 + 0.5 * int.from_bytes(digest, "big") / 2**64)

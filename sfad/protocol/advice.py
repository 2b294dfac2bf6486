"""What `recommend` answers: limits that successful runs would have been content with."""

from __future__ import annotations

from msgspec import Struct


class Advice(Struct, frozen=True, kw_only=True):
    """Advice about one kind of limit (SPEC section 3)."""

    kind: str
    runs: int
    """Successful runs whose use of it is known."""
    p95: float | None
    """What 95 in 100 of them used at most; `None` where they are too few to tell."""
    suggested: float | None
    """`p95` with head-room, within the range of the kind."""
    failed_share: float
    """Of all ended runs, those that ended on a breach of it: 0 to 1."""

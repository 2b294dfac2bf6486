"""The answer to `recommend`: limits suggested from past successful runs."""

from __future__ import annotations

from msgspec import Struct

from .types import LimitKind


class Advice(Struct, frozen=True, kw_only=True):
    """Advice about one kind of limit. The unit is that of `Limit.threshold`: seconds, USD, else a number."""

    kind: LimitKind
    runs: int
    """Successful runs whose use of it is known."""
    p95: float | None
    """What 95 in 100 of them used at most; `None` if they are too few."""
    suggested: float | None
    """`p95` and a quarter, rounded up, within the range of the kind; `None` if `p95` is."""
    failed_share: float | None
    """The share of all ended runs that ended by a breach of it, 0 to 1; `None` if none has ended."""
    ended: int = 0
    """All ended runs that were read. Refused runs are not among them."""
    limit: float | None = None
    """The threshold of the newest run that had such a limit; `None` if none had one."""
    least: float | None = None
    """The lower end of the range. `most` is the upper end; `None` if there is none."""
    most: float | None = None
    note: str = ""
    """Why there is no suggestion, or that the range changed it."""

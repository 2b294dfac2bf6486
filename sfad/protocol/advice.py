"""What `recommend` answers: limits that successful runs would have been content with (SPEC section 3)."""

from __future__ import annotations

from msgspec import Struct

from .types import LimitKind


class Advice(Struct, frozen=True, kw_only=True):
    """Advice about one kind of limit. The unit is that of `Limit.threshold`: seconds, USD, else a number."""

    kind: LimitKind
    runs: int
    """Successful runs whose use of it is known: what the advice rests on."""
    p95: float | None
    """What 95 in 100 of them used at most; `None` where they are too few to tell."""
    suggested: float | None
    """`p95` with head-room, rounded up, within the range of the kind; `None` where `p95` is."""
    failed_share: float | None
    """Of all ended runs, those that ended on a breach of it: 0 to 1; `None` if there are none."""
    ended: int = 0
    """Runs looked at, however they ended; refused ones are not among them."""
    limit: float | None = None
    """What the newest run that had such a limit was allowed; `None` if none had one."""
    least: float | None = None
    """The range of such a limit; `most` is `None` where it has no upper end."""
    most: float | None = None
    note: str = ""
    """Why there is no suggestion, or that the range cut it."""

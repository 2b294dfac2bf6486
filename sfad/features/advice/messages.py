"""The request of `sfactl recommend`."""

from msgspec import Struct

from ...protocol.requests.base import Reply, Request
from ...protocol.types import Limit, LimitKind


class Advice(Struct, frozen=True, kw_only=True):
    """Advice about one kind of limit, in the unit of `Limit.threshold`."""

    kind: LimitKind
    runs: int
    """Successful runs with known use."""
    p95: float | None
    """What 95 in 100 of them used at most; `None` for fewer than 20 runs."""
    suggested: float | None
    """`p95` and a quarter."""
    failed_share: float | None
    """The share of all ended runs that ended by a breach of it, 0 to 1; `None` if none has
    ended."""
    ended: int = 0
    """Ended runs, successful or not."""
    limit: float | None = None
    """The limit of the newest run that had one."""
    least: float | None = None
    """The lower end of the range. `most` is the upper end; `None` if there is none."""
    most: float | None = None
    note: str = ""
    """Why there is no suggestion."""


class Recommend(Request, tag="recommend"):
    """Suggest limits from past successful runs. Answered by `Recommended`."""

    repeats = 1

    run_type: str | None = None
    """Only runs of this type."""
    name: str | None = None
    """Only runs with this name."""


class Recommended(Reply, tag="recommended"):
    """Advice for each kind of limit, and the limits in force for a run of this type that sets none
    itself."""

    runs: int
    """The successful runs that the advice is based on."""
    advice: list[Advice]
    """For time, tool calls, messages, tokens and cost."""
    in_force: list[Limit]
    """The limits of a run of this type that asks for none."""

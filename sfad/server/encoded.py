"""Replies with runs that are encoded already, and requests that share one."""

from collections.abc import Callable

from msgspec import Raw, Struct

from ..protocol.messages import Info, List
from ..protocol.types import RunId

LOOKS = (Info, List)
"""Requests that change nothing, and whose answers are shared."""


class RunRow(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="run"):
    """What a client reads as `RunReply`."""

    id: int
    run: Raw


class RunRows(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="runs"):
    """What a client reads as `RunList`."""

    id: int
    runs: Raw
    next: RunId | None = None


Look = tuple[Raw, RunId | None]
"""A run, or the runs of a page, and `RunList.next`."""


class Looks:
    """Looks at runs that requests share which have arrived together: the first one looks, and the others get what it has seen. All
    had been received by then, so none is answered with something older than itself."""

    def __init__(self) -> None:
        self._seen: dict[object, Look] = {}

    def of(self, key: object, look: Callable[[], Look]) -> Look:
        """Return what `look` returns, or has returned for a request with the same key. The key has whatever makes a difference."""
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = look()
        return seen

    def forget(self) -> None:
        """The next request may come after a change."""
        self._seen.clear()

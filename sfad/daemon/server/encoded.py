"""Replies with runs that are encoded already, and requests that share one."""

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Raw, Struct
from msgspec.msgpack import Encoder

from ...protocol.framing import HEADER
from ...protocol.messages import Info, List
from ...protocol.requests.base import Reply
from ...protocol.types import RunId

T = TypeVar("T")
_encoder = Encoder()

LOOKS = (Info, List)
"""Requests that change nothing, and whose answers are shared."""


class RunRow(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="run"):
    """What a client reads as `RunReply`."""

    id: int
    run: Raw


class RunRows(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="runs"):
    """What a client reads as `RunList`."""

    id: int
    runs: list[Raw]
    next: RunId | None = None


class Looks:
    """Looks at runs that requests share which have arrived together: the first one looks, and the others get what it has seen. All
    had been received by then, so none is answered with something older than itself."""

    def __init__(self) -> None:
        self._seen: dict[object, Any] = {}

    def of(self, key: object, look: Callable[[], T]) -> T:
        """Return what `look` returns, or has returned for a request with the same key. The key has whatever makes a difference."""
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = look()
        found: T = seen
        return found

    def forget(self) -> None:
        """The next request may come after a change."""
        self._seen.clear()


def framed(reply: Reply | RunRow | RunRows) -> bytearray:
    """Return the frame of a reply. It is written once: to copy a list of 1 000 runs takes longer than to encode it."""
    frame = bytearray(HEADER)
    _encoder.encode_into(reply, frame, HEADER)
    frame[:HEADER] = (len(frame) - HEADER).to_bytes(HEADER, "big")
    return frame

"""Replies with runs that are encoded already. Clients read them as `RunList`."""

from msgspec import Raw, Struct

from ..protocol.types import RunId, RunInfo


class RunRows(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="runs"):
    """A `RunList`."""

    id: int
    runs: list[Raw | RunInfo]
    next: RunId | None = None

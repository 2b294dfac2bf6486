"""All requests and replies, those of features too."""

from __future__ import annotations

from sfad.features import listed  # noqa: F401 - they declare theirs
from sfad.protocol import messages  # noqa: F401 - the heart's
from sfad.protocol.requests.base import Reply, Request

REQUESTS: tuple[type[Request], ...] = tuple(Request.__subclasses__())
REPLIES: tuple[type[Reply], ...] = tuple(Reply.__subclasses__())


def is_of_feature(kind: type) -> bool:
    return kind.__module__.startswith("sfad.features.")

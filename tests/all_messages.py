"""All requests and replies, those of features too."""

from __future__ import annotations

from typing import TypeVar

from sfad.features import listed  # noqa: F401 - they declare theirs
from sfad.protocol import messages  # noqa: F401 - the heart's
from sfad.protocol.requests.base import Reply, Request

T = TypeVar("T")


def _of(base: type[T]) -> tuple[type[T], ...]:
    # the modules of features may be imported in any order
    return tuple(sorted(base.__subclasses__(), key=lambda kind: kind.__module__))


REQUESTS, REPLIES = _of(Request), _of(Reply)


def is_of_feature(kind: type) -> bool:
    return kind.__module__.startswith("sfad.features.")

"""What a run was started with, as the ledger keeps it for `recall`. Never its environment, which
may hold secrets."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ..host.files import UNDECODABLE
from ..protocol.messages import Spawn
from ..protocol.requests.starting import OF_CLIENT
from ..protocol.types import Claim
from ..runs.live import Live
from .prepared import Prepared

MOST_RECALLED = 64 << 10
"""Bytes of a request that are kept. A command may have megabytes, and each row of the ledger would
be as large."""


def to_recall(
    order: Spawn, p: Prepared, above: Live | None, inherited: Mapping[str, Any]
) -> bytes | None:
    """Return what is to be kept of a request, or `None` if that is too large. A run that is started
    again as a root has no way to more than it had below `above`. `inherited`: what features say of
    that."""
    if sum(map(len, order.argv)) > MOST_RECALLED:
        return None
    own: dict[str, Any] = {}
    if above is not None:
        models, terms = above.run.birth.models, p.terms
        own = {
            "gateway": p.parts.gateway,
            "allowed_tools": list(terms.allowed_tools),
            "blocked_tools": list(terms.blocked_tools),
            "allowed_models": list(terms.allowed_models or (models[-1].patterns if models else ())),
            **inherited,
        }
    kept = replace(
        order, id=0, env=[], umask=0o022, key=None, claim=Claim(), watch=False, continues=None,
        copies=None, below=None, **dict.fromkeys(OF_CLIENT, False), **own,
    )  # fmt: skip
    encoded = msgspec.msgpack.encode(kept)
    return encoded if len(encoded) <= MOST_RECALLED else None


def recalled(kept: bytes) -> Spawn | None:
    """Return the request that was kept; `None` if it cannot be read."""
    try:
        return msgspec.msgpack.decode(kept, type=Spawn)
    except UNDECODABLE:
        return None

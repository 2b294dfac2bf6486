"""What a run was started with, as the ledger keeps it for `recall`. Never its environment, which may hold secrets."""

import msgspec
from msgspec.structs import replace

from ..host.damage import UNDECODABLE
from ..protocol.messages import Spawn
from ..protocol.types import Claim, Isolation
from .live import Live

MOST = 64 << 10
"""Bytes of a request that are kept. A command may have megabytes, and each row of the ledger would be as large."""


def to_recall(asked: Spawn, decided: Spawn, above: Live | None) -> bytes | None:
    """Return what is to be kept of a request, or `None` if it is larger than `MOST`. `decided`: what the daemon has made of it;
    `above`: the run that the new one inherits from."""
    if sum(map(len, asked.argv)) > MOST:
        return None
    kept = replace(asked, id=0, env=[], umask=0o022, key=None, claim=Claim(), watch=False, shim=False, automatic=False, direct=None)
    if above is not None:
        own = above.run.birth.models
        kept = replace(
            kept,
            gateway=decided.gateway,
            allowed_tools=decided.allowed_tools,
            blocked_tools=decided.blocked_tools,
            allowed_models=decided.allowed_models or (list(own[-1].patterns) if own else []),
            isolation=_as_asked(decided),
        )
    encoded = msgspec.msgpack.encode(kept)
    return encoded if len(encoded) <= MOST else None


def _as_asked(decided: Spawn) -> Isolation | None:
    """Return the sandbox as a client asks for one: what it has inherited of it is a part of the request."""
    inherited = decided.isolation
    if inherited is None:
        return None
    writable = [*inherited.writable, *([inherited.directory] if inherited.directory not in (b"", decided.cwd) else [])]
    return Isolation(network=inherited.network, writable=writable, readable=inherited.readable, egress=inherited.egress)


def recalled(kept: bytes) -> Spawn | None:
    """Return the request that was kept; `None` if it cannot be read."""
    try:
        return msgspec.msgpack.decode(kept, type=Spawn)
    except UNDECODABLE:
        return None

"""The part in a daemon: it decides how a run is isolated, and launches it in a sandbox."""

from collections.abc import Mapping
from typing import Any

from ...daemon.loop.seam import Heart, Part
from ...protocol.errors import bad_request, too_many
from ...protocol.types import Isolation
from ...start.prepared import Prepared, Surroundings
from .feature import ISOLATION
from .isolating import Isolating


def check(p: Prepared, _: Surroundings) -> None:
    """Bound what the daemon keeps, and refuse paths that mean nothing."""
    isolation: Isolation = p.parts.of(ISOLATION)
    for kind, paths in (("writable", isolation.writable), ("readable", isolation.readable)):
        for path in paths:
            if b"\0" in path:
                raise bad_request(f"a NUL byte in a {kind} path: {path[:80]!r}")
            if not path.startswith(b"/"):
                raise bad_request(f"each {kind} path must be absolute")
    size = sum(len(path) + 1 for path in (*isolation.writable, *isolation.readable))
    if size > 65536:
        raise too_many("bytes of writable and readable paths, with 1 more for each", size, 65536)
    size = sum(len(text) + 1 for text in isolation.egress)
    if size > 16384:
        raise too_many("characters of --egress, with 1 more for each", size, 16384)


def inherited(p: Prepared) -> Mapping[str, Any]:
    """Return the sandbox as a client asks for one: what the run has inherited of it is a part of
    the request."""
    isolation: Isolation = p.parts.of(ISOLATION)
    own = [isolation.directory] if isolation.directory not in (b"", p.command.cwd) else []
    asked = Isolation(
        network=isolation.network,
        writable=[*isolation.writable, *own],
        readable=isolation.readable,
        egress=isolation.egress,
    )
    return {ISOLATION: asked}


def part(heart: Heart) -> Part:
    isolating = Isolating(heart)
    return Part(
        reconfigure=isolating.reconfigure,
        decide=isolating.isolate,
        check=check,
        inherited=inherited,
        launch=isolating.launch,
        sandbox_of=isolating.sandbox_of,
    )

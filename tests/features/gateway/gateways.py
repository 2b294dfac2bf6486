"""The gateways of a runtime."""

from __future__ import annotations

from sfad.daemon.loop.runtime import Runtime
from sfad.features.gateway.gateways import Gateways


def gateways_of(runtime: Runtime) -> Gateways:
    """Return them: what names runs to them is one of their methods."""
    found = getattr(runtime.leading.named, "__self__", None)
    assert isinstance(found, Gateways)
    return found

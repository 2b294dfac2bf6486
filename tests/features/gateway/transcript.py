"""A transcript of a machine that a gateway asks."""

from __future__ import annotations

from typing import Any

from sfad.features.gateway.calls import Calls
from sfad.features.gateway.feature import NAME, GatewayConfig
from tests.core.transcript import Transcript


class Gated(Transcript):
    """A transcript in which calls are asked for."""

    def __init__(self, *args: Any, gateway: GatewayConfig | None = None, **more: Any) -> None:
        sections = {NAME: gateway or GatewayConfig(), **more.pop("sections", {})}
        super().__init__(*args, calls=Calls, sections=sections, **more)
        self.machine.calls()

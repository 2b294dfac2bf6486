"""Whether a run is isolated, and what its sandbox is given."""

import os
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from ..config import Configuration
from ..core.naming import program_name
from ..launch.isolation.sandbox import Sandbox, impossible
from ..launch.isolation.visible import AGENT_FILES, AGENT_VARIABLES
from ..protocol.messages import Spawn
from ..protocol.types import Isolation
from ..runs.live import Live
from .gateway_process import GatewayProcess

Least = Literal["off", "on", "net"]
_AGENT_PLACES = tuple(f"{name}=/".encode() for name in AGENT_VARIABLES.values())


class IsolationError(Exception):
    """A request asks for less isolation than it may have."""


class IsolationImpossible(Exception):
    """This machine cannot isolate the run. The message says why, and what to do."""


class Isolating:
    def __init__(self, config: Configuration, gateway: GatewayProcess, *, sock: str, state_dir: str) -> None:
        self._gateway = gateway
        self._socket = sock
        self._state_dir = state_dir
        self.reconfigure(config)

    def reconfigure(self, config: Configuration) -> None:
        self._config = config.isolation
        keys = (upstream.key_file for upstream in config.gateway.upstreams.values())
        self._hidden = [self._state_dir, *(path for path in keys if path is not None)]

    def decided(self, request: Spawn, above: Live | None, uid: int) -> Spawn:
        """Return the request of a user with its decision about isolation. `above`: the run that asks, whose isolation is the least.
        Raise `IsolationError`, `IsolationImpossible`."""
        least: Least = self._config.default
        inherited = above.spawn.isolation if above is not None else None
        asked = request.isolation
        if asked is None and inherited is None and least == "off":
            return request
        if (why := impossible(uid)) is not None:
            raise IsolationImpossible(f"the run cannot be isolated: {why}")
        network = least != "net" and (asked is None or asked.network) and (inherited is None or inherited.network)
        if inherited is None:
            return replace(request, isolation=self._first(request, asked.writable if asked is not None else [], network))
        if above is not None and asked is not None and asked.writable:
            raise IsolationError(
                f"run {above.run.id} is isolated, so what it starts can write only where it can itself: leave out --writable"
            )
        return replace(request, isolation=replace(inherited, network=network))

    def _first(self, request: Spawn, writable: list[bytes], network: bool) -> Isolation:
        home = next((item[5:] for item in request.env if item.startswith(b"HOME=/")), b"")
        program = program_name([os.fsdecode(word) for word in request.argv])
        more = [os.fsencode(path) for path in self._config.writable]
        return Isolation(
            network=network,
            writable=[*writable, *(home + path[1:] if path.startswith(b"~/") else path for path in more)],
            directory=request.cwd,
            home=home,
            agent=program if program in AGENT_FILES else "",
            variables=[item for item in request.env if item.startswith(_AGENT_PLACES)],
        )

    def sandbox(self, spawn: Spawn, *, terminal: bool, shims: Sequence[bytes]) -> list[bytes] | None:
        """Return `LaunchSpec.sandbox` of a run; `None` if it is not isolated. Raises `OSError`."""
        if spawn.isolation is None:
            return None
        gateway = self._gateway.port if spawn.gateway and not spawn.isolation.network else None
        return self.sandbox_of(spawn.isolation, gateway=gateway, terminal=terminal, shims=shims)

    def sandbox_of(
        self, isolation: Isolation, *, gateway: int | None = None, terminal: bool = False, shims: Sequence[bytes] = ()
    ) -> list[bytes]:
        """Return `LaunchSpec.sandbox` of a command with this isolation. Raises `OSError`."""
        return Sandbox(
            socket=self._socket,
            hidden=self._hidden,
            directory=isolation.directory,
            writable=isolation.writable,
            home=isolation.home,
            agent=isolation.agent,
            variables=isolation.variables,
            network=isolation.network,
            gateway=gateway,
            terminal=terminal,
            shims=shims,
        ).words()

"""The way from a request to the core: what is prepared for all doors, in its order, and how it is
asked for."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...agents.registered import Registered
from ...core.machine import Machine
from ...core.state.access import Peer
from ...processes.credentials import Credentials
from ...protocol.messages import Spawn
from ...protocol.types import RunInfo
from ...runs.catalogue import RunCatalogue
from ...start.checks import check_bounds, check_characters, check_meter, check_size, check_values
from ...start.continuing import find_agent_session, resumable_program
from ...start.prepare import Check, Memory, Step, Way, prepare
from ...start.prepared import Prepared, Surroundings
from ...start.recalling import to_recall
from ...start.steps import (
    fill_in_agent,
    forget_told_time,
    keep_channel,
    narrow_tools,
    resume_command,
)
from ..gateway.gateways import Gateways
from ..lookup import find_run
from .gateway_routing import GatewaySteps
from .own_servers import ServerWatch, keep_alone
from .seam import Parts


class Starting:
    """Four doors lead here: a client's request (`server.verbs.starting`), a session's tool
    (`server.verbs.sessions`), a lost run that is continued (`server.lost_runs`), and a run that
    was to execute on another machine (`Heart.prepare`)."""

    def __init__(
        self,
        machine: Machine,
        catalogue: RunCatalogue,
        gateway: GatewaySteps,
        gateways: Gateways,
        servers: ServerWatch,
        parts: Parts,
        agents: Callable[[], Mapping[str, Registered]],
        continue_lost: Callable[[], bool],
    ) -> None:
        """`agents`, `continue_lost`: what the config says now."""
        self._machine = machine
        self._catalogue = catalogue
        self._agents = agents
        self._continue_lost = continue_lost
        self._parts = parts
        steps: tuple[Step, ...] = (
            parts.load,
            find_agent_session,
            parts.look,
            gateway.decide,
            narrow_tools,
            forget_told_time,  # before an agent's own limits are left out because of it
            fill_in_agent,  # with options for its tools, and the address of the gateway
            resume_command,
            gateway.read_settings,  # of the command
            gateway.route,
            keep_alone,
            parts.decide,
            keep_channel,
            self._keep_for_recall,
            self._note_if_continued,
        )
        placed_steps: tuple[Step, ...] = (
            parts.load,
            parts.prepare_elsewhere,
            narrow_tools,
            forget_told_time,
            keep_channel,
            self._keep_for_recall,
            self._note_if_continued,
        )
        """For a run that is to execute on another machine: the daemon there takes the others."""
        checks: tuple[Check, ...] = (
            check_size,
            check_characters,
            check_bounds,
            check_values,
            check_meter,
            parts.check,
            servers.check,
        )
        self._way = Way(gateway.read_setups, steps, checks, gateway.have)
        self._placed_way = replace(self._way, steps=placed_steps)
        self._memory = Memory(
            lambda peer: (parts.version, *gateways.ports(peer.uid)), parts.decides_about
        )

    def around(
        self,
        order: Spawn,
        peer: Peer,
        user: Credentials | None,
        client: int | None = None,
        **more: Any,
    ) -> Surroundings:
        """Return what is around a request. `client`: the process that asks; the daemon itself, if
        there is none. `more`: further fields of `Surroundings`."""
        return Surroundings(
            order=order,
            peer=peer,
            user=user,
            client=os.getpid() if client is None else client,
            live=self._catalogue.live,
            agents=self._agents(),
            find=lambda handle: self._find(handle, peer),
            **more,
        )

    def _find(self, handle: str, peer: Peer) -> RunInfo | None:
        run = find_run(self._catalogue, handle, self._machine.scope(peer))
        return self._catalogue.info(run)

    async def prepare(self, around: Surroundings) -> Prepared:
        """Return what is decided about a request, once all that its run may not start without is
        there. Raise `Invalid`, `RequestError`, `OSError`."""
        way = self._way if around.order.placing is None else self._placed_way
        return await prepare(around, way, self._memory)

    async def prepare_here(
        self, order: Spawn, peer: Peer, user: Credentials | None
    ) -> tuple[Prepared, Surroundings]:
        """As `Heart.prepare`."""
        around = self.around(order, peer, user)
        return await self.prepare(around), around

    def _keep_for_recall(self, p: Prepared, around: Surroundings) -> None:
        if around.order.admit is not None:  # no command would start it again
            return
        inherited = {} if around.caller is None else self._parts.inherited(p)
        p.for_recall = to_recall(around.order, p, around.caller, inherited)

    def _note_if_continued(self, p: Prepared, around: Surroundings) -> None:
        """Note whether a run is continued if the daemon or the machine ends it. A run below another
        is left to that one, which knows of its end."""
        p.continued_if_lost = (
            self._continue_lost()
            and around.session is None
            and around.peer.run is None
            and p.output.stdio == "files"
            and (
                bool(p.command.resume_argv)
                or resumable_program([os.fsdecode(word) for word in p.command.argv]) is not None
            )
        )

"""The one way from a request to the core: what its door reads around it, then steps and checks,
from top to bottom, and what is kept for equal requests.

A step that has to wait returns what is awaited. Until the first one does, all is done in one go, in
the order in which the requests came.
"""

import os
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, msgpack
from msgspec.structs import replace

from ...core.machine import Machine
from ...core.state.access import Peer
from ...processes.credentials import Credentials
from ...protocol.errors import wrong_state
from ...protocol.messages import Spawn
from ...protocol.types import RunInfo
from ...runs.catalogue import RunCatalogue
from ...start.asking import fill_in_asked
from ...start.checks import (
    LARGE,
    check_bounds,
    check_characters,
    check_key,
    check_meter,
    check_size,
    check_values,
)
from ...start.continuing import find_agent_session, resumable_program
from ...start.prepared import Check, Prepared, Step, Surroundings
from ...start.recalling import recalled, to_recall
from ...start.steps import (
    fill_in_agent,
    forget_told_time,
    keep_channel,
    narrow_tools,
    resume_command,
)
from ..lookup import find_run
from .leading import Leading, Look
from .own_servers import ServerWatch, keep_alone
from .policy import InForce
from .seam import Parts

MOST_KNOWN = 64
"""Requests of which is kept what was decided. Each has at most `LARGE` bytes of words and variables
as it was sent and as it was prepared, and is small enough for `recall`."""


class Way(Struct, frozen=True):
    """What a request passes, from top to bottom."""

    look: Look
    steps: Sequence[Step]
    checks: Sequence[Check]
    last: Step
    """What waits for what a run may not start without; then the checks are made again."""


class Starting:
    """Four doors lead here: a client's request (`server.verbs.starting`), a session's tool
    (`features.session`), a lost run that is continued (`server.lost_runs`), and a run that
    was to execute on another machine (`Heart.prepare`)."""

    def __init__(
        self,
        machine: Machine,
        catalogue: RunCatalogue,
        leading: Leading,
        servers: ServerWatch,
        parts: Parts,
        in_force: InForce,
    ) -> None:
        self._machine = machine
        self._catalogue = catalogue
        self._leading = leading
        self._in_force, self._agents = in_force, lambda: in_force.agents
        self._parts = parts
        self._known: dict[tuple[int, bytes], tuple[object, Prepared]] = {}
        self.way = Way(
            leading.look,
            (
                parts.load,
                find_agent_session,
                parts.look,
                leading.decide,
                narrow_tools,
                forget_told_time,  # before an agent's own limits are left out because of it
                fill_in_agent,  # with options for its tools, and the address of the gateway
                resume_command,
                leading.look_again,  # of the command
                leading.lead,
                keep_alone,
                parts.decide,
                keep_channel,
                self._keep_for_recall,
                self._note_if_continued,
            ),
            (
                check_size,
                check_characters,
                check_bounds,
                check_values,
                check_meter,
                parts.check,
                servers.check,
            ),
            leading.have,
        )
        self.placed_way = replace(
            self.way,
            steps=(
                parts.load,
                parts.prepare_elsewhere,
                narrow_tools,
                forget_told_time,
                keep_channel,
                self._keep_for_recall,
                self._note_if_continued,
            ),
        )
        """For a run that is to execute on another machine: the daemon there takes the others."""

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
        live, caller = self._catalogue.live, None
        if peer.run is not None and (caller := live.get(peer.run)) is not None:
            more["setups"] = live[caller.run.root.id].setups
        return Surroundings(
            order=order,
            peer=peer,
            user=user,
            client=os.getpid() if client is None else client,
            live=live,
            agents=self._agents,
            find=lambda handle: self._find(handle, peer),
            caller=caller,
            **more,
        )

    def _find(self, handle: str, peer: Peer) -> RunInfo | None:
        run = find_run(self._catalogue, handle, self._machine.scope(peer))
        return self._catalogue.info(run)

    async def prepare(self, around: Surroundings) -> Prepared:
        """Return what is decided about a request, once all that its run may not start without is
        there. Nothing changes it afterwards: an equal request may get the same. Raise `Invalid`,
        `RequestError`, `OSError`."""
        order = around.order
        way = self.way if order.placing is None else self.placed_way
        if order.key is not None:  # equal requests differ in that
            check_key(order.key)
        if (looks := way.look(around)) is not None:
            around.setups = await looks
        same = self._same(around)
        p = self._decided_before(around, same)
        if p is None:
            p, has_waited = Prepared.of(order), False
            for step in way.steps:
                if (waits := step(p, around)) is not None:
                    has_waited = True
                    await waits
            for check in way.checks:
                check(p, around)
            fill_in_asked(p, around)
            if not has_waited:
                self._keep(around, same, p)
        if (waits := way.last(p, around)) is not None:
            await waits
            for check in way.checks:
                check(p, around)
        return p

    def started_with(self, run: RunInfo) -> Spawn:
        """Return what an ended run was started with, to be started again or continued. Raise
        `RequestError`."""
        kept = self._catalogue.request(run.id)
        order = recalled(kept) if kept is not None else None
        if order is None:
            raise wrong_state(
                f"what run {run.id} was started with is not kept: "
                "its command was longer than 64 KiB, or its row in the ledger is damaged; "
                "start it again with: sfactl spawn"
            )
        return self._parts.again(order, run)

    async def prepare_here(
        self, order: Spawn, peer: Peer, user: Credentials | None
    ) -> tuple[Prepared, Surroundings]:
        """As `Heart.prepare`."""
        around = self.around(order, peer, user)
        return await self.prepare(around), around

    # ---- Steps

    def _keep_for_recall(self, p: Prepared, around: Surroundings) -> None:
        if around.order.admit is not None:  # no command would start it again
            return
        inherited = {} if around.caller is None else self._parts.inherited(p)
        p.for_recall = to_recall(around.order, p, around.caller, inherited)

    def _note_if_continued(self, p: Prepared, around: Surroundings) -> None:
        """Note whether a run is continued if the daemon or the machine ends it. A run below another
        is left to that one, which knows of its end."""
        p.continued_if_lost = (
            self._in_force.config.service.continue_lost
            and around.session is None
            and around.peer.run is None
            and p.output.stdio == "files"
            and (
                bool(p.command.resume_argv)
                or resumable_program([os.fsdecode(word) for word in p.command.argv]) is not None
            )
        )

    # ---- What is the same is not worked out again: a shell loop, or a program that starts run
    # after run, asks for the same command, in the same directory, with the same environment
    #
    # What was decided is kept for persons and their programs, outside of any run. It is found again
    # for the same user only, by an equal request, and as long as all that was decided by is equal:
    # the setups, which are read as often as without it, the parts, and where gateways listen. A
    # request for which more is looked at, or made, is not kept.

    def _same(self, around: Surroundings) -> tuple[int, bytes] | None:
        """Return what equal requests have in common: user and words. `None`: nothing is kept of
        this one."""
        if around.caller is not None or around.session is not None:
            return None
        return around.peer.uid, msgpack.encode(replace(around.order, id=0, key=None))

    def _beside(self, around: Surroundings) -> object:
        """Return what a request is decided by beside its words."""
        peer = around.peer
        return peer, around.setups, self._parts.version, self._leading.beside(peer.uid)

    def _decided_before(
        self, around: Surroundings, same: tuple[int, bytes] | None
    ) -> Prepared | None:
        beside, p = self._known.get(same, (None, None)) if same is not None else (None, None)
        if p is None or beside != self._beside(around):
            return None
        if around.order.tied:  # each to its own connection
            return replace(p, asked=replace(p.asked, tied_to=around.connection))
        return p

    def _keep(self, around: Surroundings, same: tuple[int, bytes] | None, p: Prepared) -> None:
        """Keep what was decided without waiting."""
        order = around.order
        # an agent's sessions have random ids
        more = order.agent, order.continues, order.placing, order.grant, order.ship
        if (
            same is None
            or any(each is not None for each in more)
            or self._parts.decides_about(order)
            or p.for_recall is None
            or max(p.command.size, len(same[1])) > LARGE
        ):
            return
        self._known.pop(same, None)
        self._known[same] = self._beside(around), p
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

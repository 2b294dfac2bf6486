"""The one way from a request to the core: what its door reads around it, then steps and checks,
from top to bottom, and what is kept for equal requests.

A step that has to wait returns what is awaited. Until the first one does, all is done in one go, in
the order in which the requests came.
"""

import os
from collections.abc import Sequence
from typing import Any

from msgspec import msgpack
from msgspec.structs import force_setattr, replace

from ...core.state.access import Peer
from ...processes.credentials import Credentials
from ...protocol.errors import wrong_state
from ...protocol.messages import Spawn
from ...protocol.types import RunInfo
from ...runs.catalogue import RunCatalogue
from ...runs.live import Environments
from ...start.asking import fill_in_asked
from ...start.checks import CHECKS, LARGE
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
from .leading import Leading
from .own_servers import ServerWatch, keep_alone
from .policy import InForce
from .seam import Parts

_Asked = tuple[Peer, bytes, int]
"""Who asks, the request without its environment, and the identity of that."""

MOST_KNOWN = 64
"""Requests of which is kept what was decided. Each has at most `LARGE` bytes of words and variables
as it was sent and as it was prepared, and is small enough for `recall`."""


class Starting:
    """Four doors lead here: a client's request (`server.verbs.starting`), a session's tool
    (`features.session`), a lost run that is continued (`server.lost_runs`), and a run that
    was to execute on another machine (`Heart.prepare`)."""

    def __init__(
        self,
        catalogue: RunCatalogue,
        leading: Leading,
        servers: ServerWatch,
        parts: Parts,
        in_force: InForce,
    ) -> None:
        self._catalogue = catalogue
        self.leading = leading
        self._in_force, self._agents = in_force, lambda: in_force.agents
        self._parts = parts
        self._known: dict[_Asked, tuple[object, Prepared, list[bytes]]] = {}
        """The environment is kept, so that no other one has its identity."""
        self._environments = Environments(MOST_KNOWN, LARGE)
        last = keep_channel, self._keep_for_recall, self._note_if_continued
        self.steps: Sequence[Step] = (
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
            *last,
        )
        self.steps_elsewhere: Sequence[Step] = (
            parts.load, parts.prepare_elsewhere, narrow_tools, forget_told_time, *last,
        )  # fmt: skip
        """For a run that is to execute on another machine: the daemon there takes the others."""
        self.checks: Sequence[Check] = (*CHECKS, parts.check, servers.check)

    def around(
        self, order: Spawn, peer: Peer, user: Credentials | None, **more: Any
    ) -> Surroundings:
        """Return what is around a request. `more`: further fields of `Surroundings`."""
        live, caller = self._catalogue.live, None
        if peer.run is not None and (caller := live.get(peer.run)) is not None:
            more["setups"] = live[caller.run.root.id].setups
        return Surroundings(
            order=order,
            peer=peer,
            user=user,
            live=live,
            agents=self._agents,
            caller=caller,
            **more,
        )

    async def prepare(self, around: Surroundings) -> Prepared:
        """Return what is decided about a request, once all that its run may not start without is
        there. Nothing changes it afterwards: an equal request may get the same. Raise `Invalid`,
        `RequestError`, `OSError`."""
        order = around.order
        force_setattr(order, "env", self._environments.same(order.env))
        if (looks := self.leading.look(around)) is not None:
            around.setups = await looks
        asked = _asked(around)
        known = self._known.get(asked) if asked is not None else None
        if known is None or known[0] != self._beside(around):
            p = await self._decide(around, asked)
        elif order.tied:  # each to its own connection
            p = replace(known[1], asked=replace(known[1].asked, tied_to=around.connection))
        else:
            p = known[1]
        if (waits := self.leading.have(p, around)) is not None:
            await waits
            for check in self.checks:
                check(p, around)
        return p

    async def _decide(self, around: Surroundings, asked: _Asked | None) -> Prepared:
        p, has_waited = Prepared.of(around.order), False
        for step in self.steps if around.order.placing is None else self.steps_elsewhere:
            if (waits := step(p, around)) is not None:
                has_waited = True
                await waits
        for check in self.checks:
            check(p, around)
        fill_in_asked(p, around)
        if asked is not None and not has_waited and self._may_be_kept(p, around.order, asked):
            self._known.pop(asked, None)
            # only now: to decide may have begun a gateway
            self._known[asked] = self._beside(around), p, around.order.env
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]
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

    def _beside(self, around: Surroundings) -> object:
        """Return what a request is decided by beside its words."""
        return around.setups, self._parts.version, self.leading.beside(around.peer.uid)

    def _may_be_kept(self, p: Prepared, order: Spawn, asked: _Asked) -> bool:
        return (
            not self._parts.decides_about(order)
            and p.for_recall is not None
            and max(p.command.size, len(asked[1])) <= LARGE
        )


def _asked(around: Surroundings) -> _Asked | None:
    """Return what equal requests have in common. `None`: nothing is kept of this one."""
    order = around.order
    if (
        around.caller is not None
        or around.session is not None
        or order.agent is not None  # its sessions have random ids
        or order.continues is not None
        or order.placing is not None
        or order.grant is not None
    ):
        return None
    return around.peer, msgpack.encode(replace(order, id=0, key=None, env=[])), id(order.env)

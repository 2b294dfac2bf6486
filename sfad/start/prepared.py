"""What the daemon reads around a request to start a run, and what it decides about it."""

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

import trio
from msgspec import Struct, convert, field

from ..agents import AgentProgram
from ..agents.command import Command
from ..agents.program import AgentSessions
from ..agents.registered import Registered
from ..agents.setup_reader import NO_SETUPS, TreeSetups
from ..core.state.access import Peer
from ..core.state.request import (
    Asked,
    Identity,
    Queueing,
    Retries,
    SessionAsked,
    Shown,
    Stage,
    Terms,
)
from ..processes.credentials import Credentials
from ..protocol.messages import Spawn
from ..protocol.types import RunId, RunInfo
from ..runs.live import Live, Output, Parts

Step = Callable[["Prepared", "Surroundings"], Awaitable[None] | None]
"""A step of `daemon.loop.starting`. It returns what is awaited, if anything."""
Check = Callable[["Prepared", "Surroundings"], None]


async def _at_once() -> None:
    """Do nothing: what is prepared in a task of its own may wait."""


class Surroundings(Struct, kw_only=True, eq=False):
    order: Spawn
    """What was asked."""
    peer: Peer
    """On whose behalf: who has asked, or the live run above the one that is continued."""
    user: Credentials | None
    """Who executes the command (`LaunchSpec.user`)."""
    client: int = field(default_factory=os.getpid)
    """The process that asks; the daemon itself, where there is none."""
    connection: int = 0
    """Its connection."""
    session: SessionAsked | None = None
    """What makes the run a session."""
    earlier: RunInfo | None = None
    """The ended run whose agent's session is continued."""
    threads: trio.CapacityLimiter | None = None
    """For the search of that session: a user's file system may not answer."""
    prints_in: RunId | None = None
    """The run above whose stdout holds what the run to be prints."""
    printed_as_text: bool = False
    """It holds the text alone of an agent whose events the meter knows."""
    waits: Callable[[], object] = lambda: None
    """Called before anything is awaited: the answer comes later."""
    aside: Callable[[], Awaitable[None]] = _at_once
    """The same, and what follows is a task (`Background.begin`). What waits in a `Line` is none."""
    live: Mapping[RunId, Live]
    agents: Callable[[], Mapping[str, Registered]]
    """Returns those of the config."""
    caller: Live | None = None
    """The run that the peer is in."""
    setups: TreeSetups = NO_SETUPS
    """How the agent programs of the tree are led to their models. A new tree's are read."""


class Prepared(Struct):
    """It begins as what was asked. The steps of `prepare` fill it in, and nothing changes it
    afterwards."""

    command: Command
    output: Output
    parts: Parts
    identity: Identity
    terms: Terms
    queueing: Queueing
    retries: Retries
    task: str | None
    """What the agent of a run is told that continues another."""
    gateway_address: str | None = None
    """Of the gateway, if the run uses it."""
    asked: Asked = Asked(Shown(()))
    """What the core decides about."""
    program: AgentProgram | None = None
    """The program whose output a meter reads."""
    session_files: AgentSessions | None = None
    """How its program keeps its sessions, of which a meter reads."""
    for_recall: bytes | None = None
    """The request as the ledger keeps it; `None` if that is too large."""
    stages: tuple[Stage, ...] = ()
    """What features have executed in the run beside its command, those before it first."""
    continued_if_lost: bool = False
    """Whether the run is continued if the daemon or the machine ends it."""

    @classmethod
    def of(cls, order: Spawn) -> Self:
        """Return what nothing was decided about."""
        command = convert(order, Command, from_attributes=True)
        command.env = order.env  # no copy: nothing changes it
        continues = order.continues
        return cls(
            command,
            convert(order, Output, from_attributes=True),
            convert(order, Parts, from_attributes=True),
            convert(order, Identity, from_attributes=True),
            convert(order, Terms, from_attributes=True),
            convert(order, Queueing, from_attributes=True),
            convert(order, Retries, from_attributes=True),
            continues.task if continues is not None else None,
        )

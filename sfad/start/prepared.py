"""What the daemon decides about a request."""

from typing import Self

from msgspec import Struct, convert

from ..agents import AgentProgram
from ..agents.command import Command
from ..core.state.request import Asked, Identity, Queueing, Retries, Shown, Terms
from ..protocol.messages import Spawn
from ..runs.decided import Output, Parts


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
    for_recall: bytes | None = None
    """The request as the ledger keeps it; `None` if that is too large."""
    continued_if_lost: bool = False
    """Whether the run is continued if the daemon or the machine ends it."""

    @classmethod
    def of(cls, order: Spawn) -> Self:
        """Return what nothing was decided about."""
        continues = order.continues
        return cls(
            convert(order, Command, from_attributes=True),
            convert(order, Output, from_attributes=True),
            convert(order, Parts, from_attributes=True),
            convert(order, Identity, from_attributes=True),
            convert(order, Terms, from_attributes=True),
            convert(order, Queueing, from_attributes=True),
            convert(order, Retries, from_attributes=True),
            continues.task if continues is not None else None,
        )

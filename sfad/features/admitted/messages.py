"""What a program asks about the runs that it carries out."""

from ...protocol.requests.base import Reply, Request
from ...protocol.types import Limit, RunId


class EndAgent(Request, tag="end_agent"):
    """End a run that is an agent within the calling program. Answered by `Done`; `Wait` tells how
    it has ended. `not_permitted` from any other process."""

    repeats = 1

    run: RunId
    failed: str | None = None
    """Why it failed; `None`: it is completed, unless something else has ended it."""


class LocateAgent(Request, tag="locate_agent"):
    """Say where the model calls of an agent within the calling program are to go, once the gateway
    serves there. Answered by `AgentLocated`."""

    repeats = 1

    run: RunId


class AgentLocated(Reply, tag="agent_located"):
    url: str | None = None
    """Upstreams are below it, each at a path of its name. Only the program itself may call it.
    `None`: the run goes without the gateway."""


class NarrowAgent(Request, tag="narrow_agent"):
    """Give an agent within the calling program less of its limits of turns, messages, tokens or
    cost, until the next request without `limits` undoes that. Answered by `RunReply`.

    A threshold counts from what is used now. More is refused, and the run goes on."""

    run: RunId
    limits: list[Limit] = []

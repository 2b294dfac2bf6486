"""The keeper of a fleet: the node that the others ask where something is shared by all."""

import trio

from ...protocol.errors import unavailable
from ...protocol.requests.base import Reply, Request

_NONE = "this daemon is in no fleet"


class Keeper:
    """What is known of it. This one is that of a daemon in no fleet: the fleet's part has its
    own."""

    enabled = False
    """There is a fleet."""
    here = ""
    """This node."""
    interval = 60.0
    """Seconds after which it is asked again, whatever happens."""
    node: str | None = None
    """The keeper."""
    trouble: str | None = None
    """Why it has not answered."""

    def __init__(self) -> None:
        self.known = trio.Event()
        """Which node it is, is known."""

    def check_here(self) -> str:
        """Return this node, which is the keeper. Raise `RequestError` if it is not."""
        raise unavailable(_NONE)

    async def ask(self, _request: Request) -> Reply:
        """Ask it something. Raise `OSError`."""
        raise OSError(_NONE)

"""What was decided about a run before it starts, as far as the core does not have it."""

from msgspec import Struct

from ..protocol.requests.starting import Spawn, Stdin, Stdio
from ..protocol.types import Isolation, Ship, Worktree


class Output(Struct, omit_defaults=True):
    """What a run reads and writes, and who reads that."""

    stdin: Stdin = "null"
    stdio: Stdio = "files"
    log: bool = True
    quiet: bool = False
    meter: str | None = None
    """The meter that was asked for; `None`: that of the command."""

    @property
    def kept(self) -> bool:
        """Whether its output goes to files."""
        return self.log and self.stdio == "files"


def descriptors_of(request: Spawn | Output) -> int:
    """Return how many descriptors come with a request."""
    return 3 if request.stdio == "inherit" else 1 if request.stdin == "descriptor" else 0


class Parts(Struct, omit_defaults=True):
    """What each capability has decided. The code around it does not look into them."""

    gateway: bool | None = None
    """Whether its model calls go through the gateway; `None`: nothing was decided."""
    direct: str | None = None
    """Why its program goes without the gateway although the run may use it."""
    isolation: Isolation | None = None
    worktree: Worktree | None = None
    ship: Ship | None = None
    on_end: str | None = None

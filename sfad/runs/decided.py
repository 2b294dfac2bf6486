"""What was decided about a run before it starts, as far as the core does not have it."""

from typing import TYPE_CHECKING, Any

from msgspec import Struct, defstruct

from ..features.listed import FEATURES
from ..protocol.requests.starting import Spawn, Stdin, Stdio


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


_KINDS = {name: kind for each in FEATURES.values() for name, kind in each.decides.items()}
_SANDBOXES = [name for each in FEATURES.values() if each.sandboxes for name in each.decides]


class _Parts(Struct, omit_defaults=True):
    """What each capability has decided. The code around it does not look into them."""

    gateway: bool | None = None
    """Whether its model calls go through the gateway; `None`: nothing was decided."""
    direct: str | None = None
    """Why its program goes without the gateway although the run may use it."""

    def of(self, name: str) -> Any:
        """Return what a feature has decided under a name of its `Feature.decides`, or what was
        asked of it; `None` if it does nothing for the run, or is not there."""
        return getattr(self, name, None)

    def decide(self, name: str, decided: object) -> None:
        setattr(self, name, decided)

    @property
    def sandbox(self) -> Any:
        """What was decided about the sandbox in which the main process keeps the command; `None` if
        it is the command itself."""
        return next((found for name in _SANDBOXES if (found := self.of(name)) is not None), None)

    @sandbox.setter
    def sandbox(self, decided: object) -> None:
        for name in _SANDBOXES:
            self.decide(name, decided)


if TYPE_CHECKING:
    Parts = _Parts
else:
    Parts = defstruct(
        "Parts",
        [(name, kind | None, None) for name, kind in _KINDS.items()],
        bases=(_Parts,),
        omit_defaults=True,
    )
    """With what features decide, each under its name."""

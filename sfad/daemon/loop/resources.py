"""What a daemon opens before its loop begins."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from msgspec import Struct

from ...core.events import Event
from ...durable.spool import Spool
from ...host.clock import Timers
from ...host.counts import Counts
from ...host.files import Damages
from ...host.log import Log
from ...host.tasks import LoopRounds
from ...processes.launcher import Launcher
from ...storage.ledger import Ledger
from ...storage.output.files import OutputFiles


class EarlyEvents:
    """Keeps the launcher's events until the core knows the runs that they are about, then passes
    each on at once."""

    def __init__(self) -> None:
        self._waiting: list[Event] = []
        self._deliver: Callable[[Event], None] = self._waiting.append
        self.together: AbstractContextManager[object] = nullcontext()
        """Is entered around events that the launcher tells in one go."""

    def in_one_go(self) -> AbstractContextManager[object]:
        """Return what is entered now: the launcher is made before the loop sets it."""
        return self.together

    def put(self, event: Event) -> None:
        self._deliver(event)

    def pass_on(self, deliver: Callable[[Event], None]) -> None:
        """Pass on what was told until now, and whatever is told from now on."""
        self._deliver = deliver
        for event in self._waiting:
            deliver(event)
        self._waiting.clear()


class Resources(Struct, frozen=True):
    """The daemon's files, its launcher and its timers. They are closed by the caller of the loop,
    but for `spool`."""

    log: Log
    timers: Timers
    rounds: LoopRounds
    spool: Spool
    ledger: Ledger
    output: OutputFiles
    launcher: Launcher
    early_events: EarlyEvents
    """What `launcher` tells."""
    socket: str
    state_dir: str
    state_dir_lost: Callable[[], str | None]
    """Returns why `state_dir` does not lead to the directory that was opened; `None` while it
    does."""
    counts: Counts
    damages: Damages
    """Is told of what is damaged in the state directory."""
    everyone: bool = False
    """Whether the daemon serves every user of the machine, each run as its submitter; else only its
    owner and root."""

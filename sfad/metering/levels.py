"""What the kernel counts of runs that have a limit of it, memory and processes, told to the core."""

import trio

from ..core import events as e
from ..core.run import Run
from ..launch.launcher import Launcher
from ..protocol.kinds import BY_KERNEL, KINDS
from ..protocol.types import LimitKind, RunId
from .metered_run import Feed
from .sampling import Sampler

_WATCHED = tuple(kind for kind in BY_KERNEL if KINDS[kind].acts)


class KernelLevels:
    def __init__(self, launcher: Launcher, feed: Feed, *, nearing: float) -> None:
        self.sampler = Sampler(launcher, self._seen, nearing=nearing)
        self._launcher = launcher
        self._feed = feed

    def watch(self, run: Run, *, fresh: bool = False) -> None:
        """Watch what a run has limits of now. `fresh`: it uses next to nothing yet."""
        for kind in _WATCHED:
            bound = run.limits.get(kind)
            if bound is not None:
                self.sampler.watch(run.id, kind.value, bound.limit.threshold, fresh=fresh)

    def killed(self, run: Run) -> None:
        """SIGKILL has ended its main process. The kernel may have sent it because of a limit of the run or of an ancestor."""
        for above in run.lineage:
            for kind in self._launcher.breaches(above.id):
                self._seen(above.id, kind, 0, True)

    def _seen(self, run: RunId, kind: str, used: int, refused: bool) -> None:
        self._feed(e.LevelSeen(trio.current_time(), run, LimitKind(kind), used, refused))

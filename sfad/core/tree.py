"""The live runs by id and by ancestry, and the bounds that a lineage shares."""

from collections.abc import Iterator

from ..protocol.types import Bound, RunId
from .limits import NEED_COUNTING, ActiveLimit
from .run import Run


class Tree:
    """All live runs. A run leaves when it is terminal; its ancestors' counters keep it."""

    def __init__(self) -> None:
        self._runs: dict[RunId, Run] = {}
        self.get = self._runs.get
        """Returns the live run of an id, or `None`."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def roots(self) -> list[Run]:
        return [run for run in self if run.parent is None]

    def add(self, run: Run) -> None:
        """Attach an admitted run, and count it as a descendant of each ancestor."""
        self.put(run)
        for above in run.ancestors:
            above.admitted += 1

    def put(self, run: Run) -> None:
        """Attach a run that was counted before, by the daemon that admitted it."""
        self._runs[run.id] = run
        if run.parent is not None:
            run.parent.children[run.id] = run

    def refund(self, run: Run) -> None:
        """Undo the count of `add`, because the run could not be recorded."""
        for above in run.ancestors:
            above.admitted -= 1

    def remove(self, run: Run) -> None:
        """Detach a terminal run. Its descendants have left before it."""
        assert not run.children, f"run {run.id} left the tree before its children"
        del self._runs[run.id]
        if run.parent is not None:
            del run.parent.children[run.id]


def full_ancestor(parent: Run | None) -> tuple[Run, Bound] | None:
    """Return the outermost ancestor that may have no more descendants, and its bound."""
    if parent is None:
        return None
    for run in parent.lineage:
        if run.admitted >= run.birth.max_descendants.value:
            return run, run.birth.max_descendants
    return None


def typed_bounds(run: Run) -> Iterator[tuple[Run, ActiveLimit]]:
    """Yield the limits of money or tokens that bind a run and that a person has typed, with the run that each is of: the run
    itself, then those above it."""
    for each in reversed(run.lineage):
        typed = {limit.kind for limit in each.asked.limits if limit.typed}
        found = (each.limits[kind] for kind in NEED_COUNTING if kind in typed and kind in each.limits)
        yield from ((each, active) for active in found if active.binds)


def narrower(asked: Bound | None, inherited: Bound) -> Bound:
    """Return the bound of a run below a root: it only narrows. Of equal ones the inherited one is named."""
    if asked is None or asked.value <= 0 or asked.value >= inherited.value:
        return inherited
    return asked

"""Ancestry and budgets: the live runs, and what a chain of them adds up to."""

from __future__ import annotations

from collections.abc import Iterator

from ..protocol.types import Bound, RunId
from .run import Run


class Tree:
    """All live runs by id. A run leaves when it is terminal; a parent's counters keep what its descendants used up."""

    def __init__(self) -> None:
        self._runs: dict[RunId, Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def get(self, run: RunId) -> Run | None:
        """The live run of this id."""
        return self._runs.get(run)

    def roots(self) -> list[Run]:
        """Live runs without a parent."""
        return [run for run in self if run.parent is None]

    def add(self, run: Run) -> None:
        """Attaches an admitted run and charges one descendant to every ancestor."""
        self.put(run)
        ancestor = run.parent
        while ancestor is not None:
            ancestor.admitted += 1
            ancestor = ancestor.parent

    def put(self, run: Run) -> None:
        """Attaches a run that was charged for before: by the daemon that admitted it."""
        self._runs[run.id] = run
        if run.parent is not None:
            run.parent.children[run.id] = run

    def refund(self, run: Run) -> None:
        """Takes the charge of `add` back: the run could not be recorded, and what never was costs nothing."""
        ancestor = run.parent
        while ancestor is not None:
            ancestor.admitted -= 1
            ancestor = ancestor.parent

    def remove(self, run: Run) -> None:
        """Detaches a terminal run. Its descendants have left before it."""
        assert not run.children, f"run {run.id} left the tree before its children"
        del self._runs[run.id]
        if run.parent is not None:
            del run.parent.children[run.id]


def spent_budget(parent: Run | None) -> tuple[Run, Bound] | None:
    """The outermost ancestor whose budget of descendants is used up, and that budget."""
    if parent is None:
        return None
    for run in parent.lineage:
        if run.admitted >= run.birth.max_descendants.value:
            return run, run.birth.max_descendants
    return None


def narrower(asked: Bound | None, inherited: Bound) -> Bound:
    """Below a root a bound only narrows; where both say the same, the inherited one keeps the credit."""
    if asked is None or asked.value <= 0 or asked.value >= inherited.value:
        return inherited
    return asked

"""Which line of the tree is chosen, and which part of the tree is seen."""

from collections.abc import Sequence

from sfad.protocol.types import RunId

from .ranking import ENDED, NEARING, QUIET
from .table import Row


class RunCursor:
    """It stays on its run while lines come and go. Until a person moves it, it is where the trouble is."""

    def __init__(self) -> None:
        self.run: RunId | None = None
        self.at = 0
        self.top = 0
        """The first line that is seen."""
        self.moved = False

    def place(self, rows: Sequence[Row], height: int) -> None:
        """Find the chosen run among these lines, and have it seen in `height` lines."""
        if not self.moved and (worst := self._worst(rows)) is not None:
            self.run = worst
        found = next((at for at, row in enumerate(rows) if row.run.id == self.run), None)
        self.at = min(self.at, max(len(rows) - 1, 0)) if found is None else found
        self.run = rows[self.at].run.id if rows else None
        self.top = min(max(self.top, self.at - height + 1), self.at, max(len(rows) - height, 0))

    @staticmethod
    def _worst(rows: Sequence[Row]) -> RunId | None:
        def need(row: Row) -> tuple[int, bool]:
            return row.rank if row.rank > ENDED else QUIET, not row.run.status.terminal

        worst = max(rows, key=need, default=None)
        return worst.run.id if worst is not None else None

    def move(self, rows: Sequence[Row], lines: int) -> None:
        self.go(rows, self.at + lines)

    def go(self, rows: Sequence[Row], at: int) -> None:
        """Choose a line, or the nearest that there is."""
        self.moved = True
        if rows:
            self.at = min(max(at, 0), len(rows) - 1)
            self.run = rows[self.at].run.id

    def choose(self, rows: Sequence[Row], run: RunId) -> None:
        """Choose the line of this run, which is among these."""
        self.go(rows, next(at for at, row in enumerate(rows) if row.run.id == run))

    def next_in_trouble(self, unfolded: Sequence[Row]) -> RunId | None:
        """Return the next run below the chosen one that needs a person, from the top again after the last. If no run needs one:
        the next that ended badly."""
        start = next((at + 1 for at, row in enumerate(unfolded) if row.run.id == self.run), 0)
        after = [*unfolded[start:], *unfolded[:start]]
        least = NEARING if any(row.rank >= NEARING for row in after) else ENDED
        return next((row.run.id for row in after if row.rank >= least), None)

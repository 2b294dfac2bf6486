"""Sums over the last hour, or another span, in bounded memory."""

from collections import deque
from collections.abc import Iterable

PARTS = 60
"""Parts of a window: an amount leaves it up to one part late."""


class SummedWindow:
    """The sum of what was added within the last `span` seconds."""

    __slots__ = ("_parts", "_total", "span")

    def __init__(self, span: float, parts: Iterable[tuple[float, int]] = ()) -> None:
        """`parts`: what `parts` of an earlier window had, of whatever span."""
        self.span = span
        self._parts: deque[tuple[float, int]] = deque(parts)
        """For each part of the span in which something was added: when it was added last, and the sum."""
        self._total = sum(amount for _, amount in self._parts)

    @property
    def parts(self) -> tuple[tuple[float, int], ...]:
        return tuple(self._parts)

    def add(self, amount: int, at: float) -> None:
        width = self.span / PARTS
        self._total += amount
        if self._parts and self._parts[-1][0] // width == at // width:
            amount += self._parts.pop()[1]
        self._parts.append((at, amount))

    def total(self, at: float) -> int:
        """Return the sum of the window that ends at `at`."""
        while self._parts and self._parts[0][0] + self.span <= at:
            self._total -= self._parts.popleft()[1]
        return self._total

    def changes_at(self) -> float | None:
        """Return when the sum becomes smaller if nothing is added; `None` if it is 0."""
        return self._parts[0][0] + self.span if self._parts else None

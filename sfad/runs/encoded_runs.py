"""Ended runs as they are sent to clients. An ended run does not change, so its row is read and encoded once for many lists."""

from collections import OrderedDict, deque
from collections.abc import Sequence

from msgspec import Raw

MAX_BYTES = 8 * 1024 * 1024
"""Bytes of rows that are held, some 6000 rows."""


class EncodedRuns:
    """The rows that were asked for last, by the numbers of their runs."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, Raw] = OrderedDict()
        self.size = 0
        """Bytes of all rows."""

    def of(self, numbers: Sequence[int]) -> dict[int, Raw]:
        """Return the rows that are held of these runs."""
        found = {number: row for number, row in zip(numbers, map(self._rows.get, numbers), strict=True) if row is not None}
        deque(map(self._rows.move_to_end, found), maxlen=0)
        return found

    def add(self, number: int, row: Raw) -> None:
        """Hold a row, and drop those that were asked for longest ago where there are too many."""
        self.forget(number)
        self._rows[number] = row
        self.size += _size(row)
        while self.size > MAX_BYTES:
            self.forget(next(iter(self._rows)))

    def forget(self, number: int) -> None:
        """Drop the row of a run that was deleted."""
        row = self._rows.pop(number, None)
        if row is not None:
            self.size -= _size(row)


def _size(row: Raw) -> int:
    return memoryview(row).nbytes

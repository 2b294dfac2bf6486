"""Runs as rows of a list. An ended run does not change, so its row is read and encoded once for many lists."""

from collections import OrderedDict, deque
from collections.abc import Sequence

from msgspec import Raw
from msgspec.structs import replace

from ..protocol.encoding import lean
from ..protocol.messages import pack
from ..protocol.types import RunInfo, Usage

MAX_BYTES = 6 * 1024 * 1024
"""Bytes of rows of one kind that are held: 6 000 with limits, or 20 000 without."""


_lean_run, _lean_usage = lean(RunInfo), lean(Usage)


def row_of(info: RunInfo, *, limits: bool) -> Raw:
    """Return a run as a row. Without `limits`, an ended run has none, and what is nil or as its default is left out: a client that
    reads a long list spends half of its time on each of the two."""
    if limits:
        return Raw(pack(info))
    kept = [] if info.status.terminal else info.limits
    return Raw(pack(_lean_run(replace(info, usage=_lean_usage(info.usage), limits=kept))))


class EncodedRuns:
    """The rows that were asked for last, by the numbers of their runs."""

    def __init__(self) -> None:
        self._rows: OrderedDict[int, Raw] = OrderedDict()
        self.size = 0
        """Bytes of all rows."""

    def of(self, numbers: Sequence[int]) -> dict[int, Raw]:
        """Return the rows that are held of these runs."""
        held = self._rows.get
        found = {number: row for number in numbers if (row := held(number)) is not None}
        if self.size > MAX_BYTES // 2:  # until then no row has to make room soon, whenever it was asked for
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

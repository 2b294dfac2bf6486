"""The record of a terminal: entries of 24 bytes, each a time (milliseconds since the epoch) and an
offset of the output file (8 bytes each), rows and columns (4 bytes each): what follows there was
shown then, on a terminal of this size.

The holder makes an entry at most every 10 ms, and whenever the size changes.
"""

import os
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

ENTRY = Struct("=qqII")
_PIECE = 1 << 20


class Shown(NamedTuple):
    milliseconds: int
    offset: int
    rows: int
    columns: int


def entries(record: int) -> Iterator[Shown]:
    """Yield what an open record has."""
    at = 0
    while data := os.pread(record, _PIECE // ENTRY.size * ENTRY.size, at):
        whole = len(data) // ENTRY.size * ENTRY.size
        yield from map(Shown._make, ENTRY.iter_unpack(data[:whole]))
        at += whole
        if whole < len(data):
            return


def sizes(record: int) -> list[Shown]:
    """Return the entries at which the size changes; the first one always."""
    found: list[Shown] = []
    for each in entries(record):
        if not found or each[2:] != found[-1][2:]:
            found.append(each)
    return found

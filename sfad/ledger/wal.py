"""What SQLite did not use of a write-ahead log. It ignores a frame whose checksum is wrong, and all that follow, without a word
(https://www.sqlite.org/walformat.html)."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

from ..host.private_files import create, free_name

_MAGIC = (0x377F0682, 0x377F0683)
_HEAD = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAX_FRAME = struct.Struct("16xI")
"""Of the index of the log: how many frames SQLite has found valid, up to the last commit."""

_STALE = 1 << 16
"""The first salt grows by one whenever the log is begun again. What lies beyond its end is of so many beginnings before."""


def keep_if_damaged(path: Path) -> str | None:
    """Copy the log of the ledger `path` under a new name if a part of it was not used. Return a line about it; `None` if nothing
    that was committed is missing. To be called when SQLite has read the ledger, and nobody has it open. Raises `OSError`.

    Damage to nothing but the last transaction is not told: a daemon killed within one leaves the same behind."""
    wal, index = (path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))
    try:
        lost, size = _unused(wal, _MAX_FRAME.unpack_from(index.read_bytes())[0]), wal.stat().st_size
    except (FileNotFoundError, struct.error):
        return None
    if not lost:
        return None
    kept = free_name(wal, "corrupt")
    with wal.open("rb") as source, open(create(kept), "wb") as target:
        shutil.copyfileobj(source, target)
    return (
        f"{lost} of {size} bytes of the ledger's log are damaged and were not used; the log was copied to {kept.name}. Runs are "
        "restored from the spool, but events and refusals may be missing"
    )


def _unused(wal: Path, used: int) -> int:
    """Return how many bytes of the log were committed, or are none of SQLite's, and come after the first `used` frames."""
    with wal.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return 0
        head = os.pread(file.fileno(), _HEAD.size, 0)
        if len(head) < _HEAD.size or _HEAD.unpack(head)[0] not in _MAGIC:
            return size
        _, _, page, _, *salts, _, _ = _HEAD.unpack(head)
        step = _FRAME.size + page
        frames = range(_HEAD.size + used * step, size - step + 1, step)
        return _committed(file.fileno(), frames, salts)


def _committed(descriptor: int, frames: range, salts: list[int]) -> int:
    lost, after_commit, beyond = 0, False, False
    for offset in frames:
        _, commit, *found, _, _ = _FRAME.unpack(os.pread(descriptor, _FRAME.size, offset))
        if found == salts:
            lost = offset + frames.step - frames.start if after_commit else lost
            after_commit = after_commit or commit > 0
        elif not beyond:
            beyond = True
            if not 0 < (salts[0] - found[0]) % (1 << 32) < _STALE:
                return frames.stop - frames.start
    return lost

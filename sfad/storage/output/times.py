"""When a run's output was written: an index beside its two files, `ID.times`, which is deleted with
them.

An entry says that at a time a file had so many bytes. What a run writes within `SPAN` is one entry,
which is appended when the run writes again later. So a run that writes for a second, or nothing,
has no index: the time of the last write, which the file has, is that of all lines. An index has at
most `MAX_ENTRIES` entries: then each two become one.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct, field

from ...protocol.requests.following import OutputTime
from ...protocol.types import RunInfo
from .files import SUFFIXES, TIMES, OutputFiles, Suffix

SPAN = 1.0
"""Seconds of output that have one time."""
MAX_ENTRIES = 4096
"""Entries of an index: 64 KiB, an hour of a run that writes without pause."""

_ENTRY = struct.Struct("<QQ")
# O_NOFOLLOW and O_NONBLOCK: a run of the daemon's own user may put anything in its place
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


class Mark(NamedTuple):
    """The bytes before `offset`, and after the mark before, were written by `time`, in seconds
    since the epoch. `exact`: within `SPAN` before it."""

    offset: int
    time: float
    exact: bool


class _Group(Struct):
    """Output that is not in the index yet."""

    begin: float | None
    """`None` until there is some."""
    end: float
    size: int


class WriteTimes(Struct):
    """Notes when a live run writes. Nothing raises `OSError`: what cannot be noted has no exact
    time."""

    path: str
    begun: dict[Suffix, float] = field(default_factory=dict)
    """When the run began with a file, which was empty."""
    _groups: dict[Suffix, _Group] = field(default_factory=dict)
    _missing: bool = False
    """An entry could not be written."""

    def note(self, suffix: Suffix, status: os.stat_result) -> None:
        """Take note of the status of a file. Call it whenever the file may have grown."""
        size, at = status.st_size, status.st_mtime
        group = self._groups.get(suffix)
        if group is None and (began := self.begun.get(suffix)) is not None:
            group = self._groups[suffix] = _Group(began, began, 0)
        if group is None or size < group.size:
            # written while no daemon looked, or the run has truncated its file
            unseen = group is not None or size > 0
            self._groups[suffix] = _Group(None if unseen else at, at, size)
            if unseen:
                self._append(suffix, Mark(size, at, exact=False))
        elif size > group.size:
            if group.begin is None:
                group.begin = at
            elif at - group.begin >= SPAN:
                self._append(suffix, Mark(group.size, group.end, exact=not self._missing))
                group.begin = at
            group.end, group.size = at, size

    def blur(self, suffix: Suffix, status: os.stat_result) -> None:
        """Forget when the parts of a file were written: others have come before them."""
        for size in (0, status.st_size):
            self._append(suffix, Mark(size, status.st_mtime, exact=False))

    def _append(self, suffix: Suffix, mark: Mark) -> None:
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _OPEN, 0o600)
            try:
                os.write(file, _packed(suffix, mark))
                full = os.fstat(file).st_size > MAX_ENTRIES * _ENTRY.size
            finally:
                os.close(file)
            if full:
                self._halve()
            self._missing = False
        except OSError:
            self._missing = True

    def _halve(self) -> None:
        halves = {suffix: _halved(marks) for suffix, marks in read(self.path).items()}
        # in its place: a crash in between costs exact times, and a file of another name would have
        # to be found and deleted
        file = os.open(self.path, os.O_WRONLY | os.O_TRUNC | _OPEN)
        try:
            os.write(
                file,
                b"".join(
                    _packed(suffix, mark) for suffix, marks in halves.items() for mark in marks
                ),
            )
        finally:
            os.close(file)


def read(path: str) -> dict[Suffix, list[Mark]]:
    """Return the marks of an index, by file, as far as it can be read: an unreadable index is
    none."""
    marks: dict[Suffix, list[Mark]] = {suffix: [] for suffix in SUFFIXES}
    try:
        file = os.open(path, os.O_RDONLY | _OPEN)
    except OSError:
        return marks
    try:
        data = os.read(file, (MAX_ENTRIES + 1) * _ENTRY.size)
    except OSError:
        return marks
    finally:
        os.close(file)
    for suffix, mark in _unpacked(data):
        found = marks[suffix]
        if found and mark.offset < found[-1].offset:
            found.clear()  # the run has truncated its file
        found.append(mark)
    return marks


def told(
    output: OutputFiles, run: RunInfo, files: Sequence[int]
) -> tuple[list[OutputTime], list[OutputTime]]:
    """Return when the output of a run was written, given the descriptors of stdout and stderr. The
    last time of each is that of all that the file has now. Raises `OSError`."""
    found = read(f"{output.directory}/{run.id}{TIMES}")
    began = run.started_at.timestamp() if run.started_at is not None else 0.0
    for marks, file in zip(found.values(), files, strict=True):
        status = os.fstat(file)
        marks.append(Mark(status.st_size, _possible(status.st_mtime), exact=bool(marks)))
    out, err = (list(_told(marks, began)) for marks in found.values())
    return out, err


def _told(marks: list[Mark], began: float) -> Iterator[OutputTime]:
    """Yield what clients are told of marks. One that comes soon after another, or after the run
    began, is exact in any case."""
    for mark in marks:
        yield OutputTime(
            mark.offset,
            datetime.fromtimestamp(mark.time, UTC),
            mark.exact or mark.time - began <= SPAN,
        )
        began = mark.time


def _possible(moment: float) -> float:
    """Return a time that clients can show: a run sets the times of its files as it likes."""
    return min(max(moment, 0.0), _LATEST)


def _packed(suffix: Suffix, mark: Mark) -> bytes:
    return _ENTRY.pack(
        mark.offset << 1 | SUFFIXES.index(suffix),
        int(_possible(mark.time) * 1000) << 1 | mark.exact,
    )


def _unpacked(data: bytes) -> Iterator[tuple[Suffix, Mark]]:
    for offset, moment in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        yield (
            SUFFIXES[offset & 1],
            Mark(offset >> 1, _possible((moment >> 1) / 1000), bool(moment & 1)),
        )


def _halved(marks: list[Mark]) -> list[Mark]:
    """Return each second mark, and the last one."""
    pairs = zip(marks[::2], marks[1::2], strict=False)
    kept = [
        Mark(two.offset, two.time, two.exact and two.time - one.time < SPAN) for one, two in pairs
    ]
    return kept if len(marks) % 2 == 0 else [*kept, marks[-1]]

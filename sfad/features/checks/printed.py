"""What checks and setups print: `RUN/ATTEMPT.NUMBER` in a directory of their own, a file for each
time that one is executed. Agents of the daemon's own user can put anything there."""

import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...core.state.run import number_or_zero
from ...protocol.texts.redaction import redacted
from ...protocol.texts.sanitise import clean
from ...protocol.texts.units import counted
from ...protocol.types import RunId
from ...storage.output import holes

LINES, MOST_IN_LINE = 40, 400
"""Lines that are told of a command which has failed, and characters of one."""
_PIECE = 128 << 10
"""Bytes that are read at once."""
_READ = 64 << 10
"""Bytes in which they are looked for."""
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK

Key = tuple[int, int]
"""Attempt, and number of the check; 0 is the setup."""


class Printed:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def new(self, run: RunId, key: Key, owner: tuple[int, int] | None) -> int:
        """Return a descriptor for all that a command prints, the caller's to close. `owner`: uid
        and gid of another user who executes it, and who may open /dev/stdout again. Raises
        `OSError`."""
        path = self._path(run, key)
        os.makedirs(path.parent, mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            path.unlink()
        descriptor = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _OPEN, 0o600
        )
        try:
            os.set_blocking(descriptor, True)
            if owner is not None:
                os.fchown(descriptor, *owner)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def open(self, run: RunId, key: Key) -> int:
        """Return a descriptor for reading, the caller's to close. Raises `OSError`."""
        return _regular(os.open(self._path(run, key), os.O_RDONLY | _OPEN))

    def piece(self, run: RunId, key: Key, offset: int) -> tuple[int, bytes]:
        """Return what a command has printed from `offset` on, or from so many bytes before the end
        if that is negative, and where it begins: later, if the bytes before it were freed. It is
        empty at the end. Raises `OSError`."""
        descriptor = self.open(run, key)
        try:
            size = os.fstat(descriptor).st_size
            start = offset if offset >= 0 else max(0, size + offset)
            buffer = memoryview(bytearray(max(0, min(_PIECE, size - start))))
            at, part = holes.read_into(descriptor, buffer, start)
            return at, bytes(part)
        finally:
            os.close(descriptor)

    def keys(self, run: RunId) -> list[Key]:
        """Return what there is of a run, the oldest first. Raises `OSError`."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(_keys(os.listdir(self._directory / run)))
        return []

    def last_lines(self, run: RunId, key: Key) -> tuple[str, ...]:
        """Return the last lines that a command has printed: without control characters, secrets
        hidden. Nothing, where they cannot be read."""
        try:
            descriptor = self.open(run, key)
        except OSError:
            return ()
        try:
            size = os.fstat(descriptor).st_size
            start = max(0, size - _READ)
            data = os.pread(descriptor, size - start, start)
        except OSError:
            return ()
        finally:
            os.close(descriptor)
        lines = redacted(clean(data)).splitlines()[start > 0 :]
        while lines and not lines[-1].strip():
            lines.pop()
        return tuple(map(_shortened, lines[-LINES:]))

    def free(self, run: RunId, key: Key, keep: int) -> int:
        """Free all but the newest `keep` bytes. Return how many were printed. For a thread. Raises
        `OSError`."""
        try:
            descriptor = _regular(os.open(self._path(run, key), os.O_WRONLY | _OPEN))
        except FileNotFoundError:
            return 0
        try:
            size = os.fstat(descriptor).st_size
            if size > keep:
                holes.free(descriptor, keep, size)
            return size
        finally:
            os.close(descriptor)

    # ---- as `durable.maintenance.Kept`

    def remove(self, runs: Collection[RunId], *, dry: bool) -> int:
        """Delete what is kept of runs, or only count it. Return the bytes. Raises `OSError`."""
        return sum(self._remove(run, dry=dry) for run in runs)

    def remove_old(
        self,
        cutoff: float | None,
        *,
        ends: Callable[[Sequence[RunId]], Mapping[RunId, float | None]],
        live: Collection[RunId],
        now: float,
        between: Callable[[], object],
    ) -> str:
        """Delete what is kept of runs that ended before `cutoff`, as `Kept` says."""
        del now
        if cutoff is None:
            return ""
        there = [run for run in self._runs() if run not in live]
        known, count = ends(there), 0
        for run in there:
            with suppress(FileNotFoundError):
                ended = known[run] if run in known else (self._directory / run).lstat().st_mtime
                if ended is not None and ended < cutoff:
                    self._remove(run, dry=False)
                    count += 1
            between()
        return f"deleted the output of checks of {counted(count, 'run')}" if count else ""

    def _runs(self) -> list[RunId]:
        with suppress(FileNotFoundError):
            return [name for name in os.listdir(self._directory) if number_or_zero(name)]
        return []

    def _remove(self, run: RunId, *, dry: bool) -> int:
        directory = self._directory / run
        if not number_or_zero(run) or not directory.is_dir() or directory.is_symlink():
            return 0
        taken = sum(each.lstat().st_blocks * 512 for each in directory.iterdir())
        if not dry:
            shutil.rmtree(directory)
        return taken

    def _path(self, run: RunId, key: Key) -> Path:
        return self._directory / run / f"{key[0]}.{key[1]}"


def _keys(names: Sequence[str]) -> Iterator[Key]:
    for name in names:
        attempt, _, number = name.partition(".")
        if attempt.isdecimal() and number.isdecimal():
            yield int(attempt), int(number)


def _regular(descriptor: int) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError("not a regular file")
    os.set_blocking(descriptor, True)
    return descriptor


def _shortened(line: str) -> str:
    return line if len(line) <= MOST_IN_LINE else f"{line[: MOST_IN_LINE - 1]}…"

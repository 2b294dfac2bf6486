"""What checks and setups print: `RUN/ATTEMPT.NUMBER` in a directory of their own, a file for each
time that one is executed. Agents of the daemon's own user can put anything there.

A command may truncate its file (`storage.output.truncated`). What it had printed before is then in
`ATTEMPT.NUMBER.kept`, at the same offsets, and is read as if it stood before the rest.
"""

import os
import shutil
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ...core.state.run import number_or_zero
from ...durable.maintenance import Old
from ...protocol.texts.redaction import redacted
from ...protocol.texts.sanitise import clean
from ...protocol.texts.units import counted
from ...protocol.types import RunId
from ...storage.output import holes
from ...storage.output.truncated import KEPT, MOST, Truncation

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
        for earlier in (path, _kept(path)):
            earlier.unlink(missing_ok=True)
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
        if that is negative, and where it begins: later, if the bytes before it are gone. It is
        empty at the end. Raises `OSError`."""
        with ExitStack() as opened:
            parts, first = list[tuple[int, int, int]](), 0
            for path in (_kept(self._path(run, key)), self._path(run, key)):
                try:
                    descriptor = _regular(os.open(path, os.O_RDONLY | _OPEN))
                except FileNotFoundError:
                    continue
                opened.callback(os.close, descriptor)
                size = os.fstat(descriptor).st_size
                parts.append((descriptor, first, size))
                first += size
            if not parts:
                raise FileNotFoundError(f"nothing is kept of check {key[1]}, attempt {key[0]}")
            start = offset if offset >= 0 else max(0, first + offset)
            for descriptor, begin, size in parts:
                within = max(0, start - begin)
                buffer = memoryview(bytearray(max(0, min(_PIECE, size - within))))
                at, part = holes.read_into(descriptor, buffer, within)
                if part:
                    return begin + at, bytes(part)
        return start, b""

    def save(self, run: RunId, key: Key, found: Truncation) -> None:
        """Keep what a command had printed before it truncated its file. Raises `OSError`."""
        path = _kept(self._path(run, key))
        descriptor = _regular(os.open(path, os.O_WRONLY | os.O_CREAT | _OPEN, 0o600))
        try:
            status = os.fstat(descriptor)
            end = status.st_size + found.lost + len(found.kept)
            room = max(0, MOST - status.st_blocks * 512)
            kept = found.kept[-room:] if room else b""
            block, gap = status.st_blksize, end - len(kept) > status.st_size
            if gap:
                kept = kept[(len(kept) - end) % block :]  # else the hole before it ended with zeros
            os.ftruncate(descriptor, end)
            os.pwrite(descriptor, kept, end - len(kept))
            if gap and (begun := status.st_size % block):  # and it would begin with zeros
                holes.punch(descriptor, status.st_size - begun, block)
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
            start, data = self.piece(run, key, -_READ)
            while more := self.piece(run, key, start + len(data))[1]:
                data += more
        except OSError:
            return ()
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

    def remove_old(self, old: Old) -> str:
        if old.cutoff is None:
            return ""
        there = [run for run in self._runs() if run not in old.live]
        known, count = old.ends(there), 0
        for run in there:
            with suppress(FileNotFoundError):
                ended = known[run] if run in known else (self._directory / run).lstat().st_mtime
                if ended is not None and ended < old.cutoff:
                    self._remove(run, dry=False)
                    count += 1
            old.between()
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


def _kept(path: Path) -> Path:
    return path.with_name(f"{path.name}{KEPT}")


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

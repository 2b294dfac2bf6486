"""Output files: `ID.out` and `ID.err`, 0600, which the run writes itself (SPEC section 9)."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.ids import run_number
from ..protocol.types import RunId

_SUFFIXES = (".out", ".err")

# O_APPEND: attempts, and the processes of a run, add to the end, whoever wrote last
_WRITE = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_READ = os.O_RDONLY
# a run may put anything where its file was: a link, or a FIFO, on which open(2) would wait for somebody
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes a run's files have been written to; `None` for a file that is not there."""

    stdout: int | None
    stderr: int | None


class OutputStore:
    """The files of all runs in one directory, made 0700 if it is missing. Raises `OSError`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory
        self._prefix = f"{directory}/"

    def open_for_run(self, run_id: RunId) -> tuple[int, int]:
        """Descriptors for the run's stdout and stderr, the caller's to close. Creates the files. Raises `OSError`."""
        return self._both(run_id, _WRITE)

    def open_for_reader(self, run_id: RunId, *, create: bool = False) -> tuple[int, int]:
        """Descriptors for reading stdout and stderr, the caller's to close. `create` is for a live run, whose readers may
        come before its first attempt. Raises `OSError`; `FileNotFoundError` where nothing was kept."""
        flags = _READ | os.O_CREAT if create else _READ
        return self._both(run_id, flags)

    def tail(self, run_id: RunId, max_bytes: int) -> tuple[bytes, bool]:
        """The newest `max_bytes` bytes of stdout, and whether there were more. Nothing kept reads as empty. Raises `OSError`.

        A character that the cut went through is left out, so what comes back is as valid UTF-8 as the file."""
        try:
            descriptor = _open(self._path(run_id, ".out"), _READ)
        except FileNotFoundError:
            return b"", False
        try:
            return _tail(descriptor, max_bytes)
        finally:
            os.close(descriptor)

    def remove(self, run_id: RunId) -> None:
        """Deletes the run's files; one that is missing is no error."""
        for suffix in _SUFFIXES:
            with suppress(FileNotFoundError):
                os.unlink(self._path(run_id, suffix))

    def sizes(self, run_id: RunId) -> Sizes:
        """How much the run has written."""
        return Sizes(*(_size(self._path(run_id, suffix)) for suffix in _SUFFIXES))

    def highest_number(self) -> int:
        """The highest run number that a file here bears, 0 without files: a ledger begun anew goes on above it."""
        return max((_number(entry.name) for entry in os.scandir(self.directory)), default=0)

    def _path(self, run_id: RunId, suffix: str) -> str:
        run_number(run_id)  # raises for anything that is not an id, such as a path
        return f"{self._prefix}{run_id}{suffix}"

    def _both(self, run_id: RunId, flags: int) -> tuple[int, int]:
        out = _open(self._path(run_id, ".out"), flags)
        try:
            return out, _open(self._path(run_id, ".err"), flags)
        except OSError:
            os.close(out)
            raise


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | _ALWAYS, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        os.set_blocking(descriptor, True)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _tail(descriptor: int, max_bytes: int) -> tuple[bytes, bool]:
    size = os.fstat(descriptor).st_size
    start = max(0, size - max(0, max_bytes))
    data = _read_exactly(descriptor, size - start, start)
    return (data[_split_character(data) :], True) if start else (data, False)


def _read_exactly(descriptor: int, length: int, offset: int) -> bytes:
    parts = bytearray()
    # a run may truncate its file meanwhile
    while len(parts) < length and (part := os.pread(descriptor, length - len(parts), offset + len(parts))):
        parts += part
    return bytes(parts)


def _split_character(data: bytes) -> int:
    # at most three continuation bytes belong to a character; more are not UTF-8, and stay
    count = next((i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), len(data[:4]))
    return count if count < 4 else 0


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def _number(name: str) -> int:
    stem, _, _ = name.partition(".")
    try:
        return run_number(stem)
    except ValueError:
        return 0

"""Output files: `ID.out` and `ID.err`, 0600, which the run writes itself (SPEC section 9).

Of a file that is bounded the oldest bytes are a hole (`holes`): its size is what was ever written, not what it holds.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ..core.ids import run_number
from ..protocol.types import RunId
from . import holes

Suffix = Literal[".out", ".err"]
SUFFIXES: tuple[Suffix, Suffix] = (".out", ".err")

# O_APPEND: attempts, and the processes of a run, add to the end, whoever wrote last
_WRITE = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_READ = os.O_RDONLY
# a run may put anything where its file was: a link, or a FIFO, on which open(2) would wait for somebody
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


_CHUNK = 1 << 20


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

    def open_for_meter(self, run_id: RunId) -> int:
        """A descriptor for reading stdout, the caller's to close. Raises `OSError`."""
        return _open(self._path(run_id, ".out"), _READ)

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
        for suffix in SUFFIXES:
            with suppress(FileNotFoundError):
                os.unlink(self._path(run_id, suffix))

    def status(self, run_id: RunId, suffix: Suffix) -> os.stat_result | None:
        """Of what bears the file's name now; `None` for nothing, and for what is no regular file. Costs one system call.
        Raises `OSError`."""
        try:
            status = os.stat(self._path(run_id, suffix), follow_symlinks=False)
        except FileNotFoundError:
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def free(
        self,
        run_id: RunId,
        suffix: Suffix,
        keep: int,
        until: int,
        between: Callable[[], object] = lambda: None,
        *,
        inode: int | None = None,
    ) -> int:
        """Frees the bytes of a file that lie before offset `until` and before its newest `keep`; returns how many.

        It may wait for the disk: call it in a thread. `between` is called every few MiB, and may raise to give up. `inode`: of
        no other file, as of one that the run has linked in its place. Raises `OSError`; `EOPNOTSUPP` where the file system
        cannot."""
        try:
            descriptor = _open(self._path(run_id, suffix), os.O_WRONLY)
        except FileNotFoundError:
            return 0
        try:
            if inode is not None and os.fstat(descriptor).st_ino != inode:
                return 0
            return holes.free(descriptor, keep, until, between)
        finally:
            os.close(descriptor)

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
    wanted = max(0, size - max(0, max_bytes))
    start, data = _read_to(descriptor, wanted, size)
    return (data[_split_character(data) :], True) if start else (data, False)


def _read_to(descriptor: int, start: int, end: int) -> tuple[int, bytes]:
    """What there is of bytes `start` to `end`, and where it begins: not in a hole, also if one grows meanwhile."""
    first, data = start, bytearray()
    buffer = memoryview(bytearray(min(_CHUNK, end - start)))
    while start < end:
        at, part = holes.read_into(descriptor, buffer[: end - start], start)
        if at > start:
            first, data = at, bytearray()  # what was read before has been freed since, too
        if not part:  # a run may truncate its file meanwhile
            break
        data += part
        start = at + len(part)
    return first, bytes(data)


def _split_character(data: bytes) -> int:
    # at most three continuation bytes belong to a character; more are not UTF-8, and stay
    count = next((i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), len(data[:4]))
    return count if count < 4 else 0


def _number(name: str) -> int:
    stem, _, _ = name.partition(".")
    try:
        return run_number(stem)
    except ValueError:
        return 0

"""Lines to a descriptor or a file. Writing never raises and never waits, because neither a full disk nor a pipe without a reader
may stop the daemon."""

import json
import os
import select
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

_STDERR = 2


class LineFile:
    """Appends to `file` (created 0600), else writes to `descriptor`.

    A line is one write(2), so lines of several processes do not mix. Raises `OSError` if the file cannot be opened."""

    def __init__(self, file: Path | None, descriptor: int = _STDERR, most: int | None = None) -> None:
        """`most`: bytes after which the file is renamed to `FILE.1`, in place of the one before, and begun again."""
        self._file = file
        self._descriptor = descriptor if file is None else _open(file)
        self._most = most
        self._torn = False

    @property
    def place(self) -> str:
        """The path of the file, also of one that the descriptor leads to; else `journal`, or `stderr`."""
        if self._file is not None:
            return str(self._file)
        status = os.fstat(self._descriptor)
        if stat.S_ISREG(status.st_mode):
            return os.readlink(f"/proc/self/fd/{self._descriptor}")
        # systemd.exec(5), JOURNAL_STREAM
        return "journal" if os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}" else "stderr"

    def write(self, line: bytes) -> bool:
        """Write a line. Return whether all of it was written."""
        # the rest of a line that a full disk cut off would run into this one
        data = b"\n" + line if self._torn else line
        self._rotate(len(data))
        written = _put(self._descriptor, data)
        if not written:
            return False
        self._torn = written < len(data)
        return not self._torn

    def reopen(self) -> None:
        """Open the file again after it was rotated away. Raises `OSError`, and then continues with the old one."""
        if self._file is not None:
            fresh = _open(self._file)
            os.close(self._descriptor)
            self._descriptor = fresh

    def close(self) -> None:
        if self._file is not None:
            os.close(self._descriptor)
            self._file, self._descriptor = None, _STDERR

    def _rotate(self, more: int) -> None:
        if self._file is None or self._most is None:
            return
        with suppress(OSError):  # a file that cannot be renamed grows on
            status = os.fstat(self._descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_size + more > self._most:
                # not what another process has put in its place
                if os.stat(self._file, follow_symlinks=False).st_ino == status.st_ino:
                    os.replace(self._file, f"{self._file}.1")
                self.reopen()


def line_of(record: dict[str, Any]) -> bytes:
    """Return any record as JSON on a line."""
    try:
        return msgspec.json.encode(record, enc_hook=str) + b"\n"
    except (ValueError, TypeError, RecursionError):  # lone surrogates, integers above 64 bits, keys that are not text
        return json.dumps(record, default=repr, skipkeys=True).encode() + b"\n"


def _open(file: Path) -> int:
    # O_NONBLOCK: open(2) of a FIFO would wait for a reader
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o600)


def _put(descriptor: int, data: bytes) -> int:
    """Write without waiting for a reader. Return how many bytes were written."""
    done = 0
    with suppress(OSError):
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        # a pipe that polls as writable takes PIPE_BUF bytes, and may wait for more; O_NONBLOCK would be set for all its writers
        piece = len(data) if regular else select.PIPE_BUF
        while done < len(data) and (regular or _writable(descriptor)):
            done += os.write(descriptor, data[done : done + piece])
    return done


def _writable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))

"""The log: one JSON object a line, to a descriptor or a file.

Writing never raises and never waits: neither a full disk nor a pipe without a reader may stop the daemon.
"""

import json
import os
import select
import stat
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..protocol.types import Event

LEVELS = ("debug", "info", "warning", "error")

_EVENT_LEVEL = {"low": "debug", "medium": "warning", "high": "error"}

_STDERR = 2

_NOTABLE = ("limit_", "increase_", "run_paused", "run_resumed")
"""Events of low severity that an operator must find in the morning: they are logged as `info`."""


class Log:
    """Writes lines of `level` and above to `file` (created 0600, appended to), else to `descriptor`.

    A line is one write(2), so lines of several processes do not mix. A line that cannot be written is dropped and counted, and
    the next line has the count as `dropped`. Raises `OSError` if the file cannot be opened."""

    def __init__(
        self,
        level: str = "info",
        *,
        file: Path | None = None,
        descriptor: int = _STDERR,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._threshold = LEVELS.index(level)
        self._file = file
        self._descriptor = descriptor if file is None else _open(file)
        self._now = now
        self._torn = False
        self.dropped = 0
        """Lines lost since the last one that was written."""

    def debug(self, message: str, **fields: Any) -> None:
        self._line("debug", {"message": message, **fields})

    def info(self, message: str, **fields: Any) -> None:
        self._line("info", {"message": message, **fields})

    def warning(self, message: str, **fields: Any) -> None:
        self._line("warning", {"message": message, **fields})

    def error(self, message: str, **fields: Any) -> None:
        self._line("error", {"message": message, **fields})

    def internal_error(self, what: object) -> None:
        """Log the exception that is being handled, and what was being done."""
        self.error(
            f"internal error while handling {type(what).__name__}", about=repr(what)[:1000], traceback=traceback.format_exc()
        )

    def event(self, event: Event) -> None:
        """Log an event with its own time and the names of its fields."""
        level = _EVENT_LEVEL[event.severity]
        if level == "debug" and event.type.startswith(_NOTABLE):
            level = "info"
        if LEVELS.index(level) >= self._threshold:
            fields: dict[str, Any] = msgspec.to_builtins(event)
            self._line(level, {"severity": event.severity, **fields})

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

    def _line(self, level: str, fields: dict[str, Any]) -> None:
        if LEVELS.index(level) < self._threshold:
            return
        record = {"time": self._now(), "level": level, **fields}
        if self.dropped:
            record["dropped"] = self.dropped
        self._write(_encode(record) + b"\n")

    def _write(self, line: bytes) -> None:
        # the rest of a line that a full disk cut off would run into this one
        data = b"\n" + line if self._torn else line
        written = _put(self._descriptor, data)
        if not written:
            self.dropped += 1
            return
        self._torn = written < len(data)
        self.dropped = self.dropped + 1 if self._torn else 0


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


def _encode(record: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(record, enc_hook=str)
    except (ValueError, TypeError, RecursionError):  # lone surrogates, integers above 64 bits, keys that are not text
        return json.dumps(record, default=repr, skipkeys=True).encode()

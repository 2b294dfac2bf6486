"""The log: one JSON object a line, to a descriptor or a file, with what looks like a secret hidden."""

import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..protocol.redaction import redacted, redacted_object
from ..protocol.types import Event
from .line_file import LineFile, line_of

LEVELS = ("debug", "info", "warning", "error")

_EVENT_LEVEL = {"low": "debug", "medium": "warning", "high": "error"}

_STDERR = 2

_NOTABLE = ("limit_", "increase_", "run_paused", "run_resumed")
"""Events of low severity that an operator must find in the morning: they are logged as `info`."""

MOST = 64 << 20
"""Bytes of the log's file, twice at most: then it is renamed to `FILE.1`. A rotator that comes first never sees that."""


class Log:
    """Writes lines of `level` and above to `file` (created 0600, appended to), else to `descriptor`.

    A line that cannot be written is dropped and counted, and the next line has the count as `dropped`. Raises `OSError` if the file
    cannot be opened."""

    def __init__(
        self,
        level: str = "info",
        *,
        file: Path | None = None,
        descriptor: int = _STDERR,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._threshold = LEVELS.index(level)
        self._lines = LineFile(file, descriptor, MOST)
        self._now = now
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

    @property
    def place(self) -> str:
        """Where the lines go: a file, or `stderr`, or `journal`."""
        return self._lines.place

    def reopen(self) -> None:
        """Open the file again after it was rotated away. Raises `OSError`, and then continues with the old one."""
        self._lines.reopen()

    def close(self) -> None:
        self._lines.close()

    def _line(self, level: str, fields: dict[str, Any]) -> None:
        if LEVELS.index(level) < self._threshold:
            return
        record = {"time": self._now(), "level": level, **{name: _shown(value) for name, value in fields.items()}}
        if self.dropped:
            record["dropped"] = self.dropped
        self.dropped = 0 if self._lines.write(line_of(record)) else self.dropped + 1


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, int | float | datetime):
        return value
    return redacted_object(value) if isinstance(value, str | dict | list | tuple) else redacted(str(value))

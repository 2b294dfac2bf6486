"""The log: one JSON object a line, to a descriptor or a file, with what looks like a secret
hidden."""

import json
import os
import select
import stat
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..protocol.texts.redaction import redacted, redacted_object
from ..protocol.texts.sanitise import visible_json
from ..protocol.types import Event, RunInfo

# ---- Lines to a descriptor or a file. Writing never raises and never waits, because neither a full
# disk nor a pipe without a
# reader may stop the daemon.


STDERR = 2


class LineFile:
    """Appends to `file` (created 0600), else writes to `descriptor`.

    A line is one write(2), so lines of several processes do not mix. Raises `OSError` if the file
    cannot be opened."""

    def __init__(
        self, file: Path | None, descriptor: int = STDERR, most: int | None = None
    ) -> None:
        """`most`: bytes after which the file is renamed to `FILE.1`, in place of the one before,
        and begun again."""
        self._file = file
        self._descriptor = descriptor if file is None else _open(file)
        self._most = most
        self._torn = False

    @property
    def place(self) -> str:
        """The path of the file, also of one that the descriptor leads to; else `journal`, or
        `stderr`."""
        if self._file is not None:
            return str(self._file)
        status = os.fstat(self._descriptor)
        if stat.S_ISREG(status.st_mode):
            return os.readlink(f"/proc/self/fd/{self._descriptor}")
        # systemd.exec(5), JOURNAL_STREAM
        return (
            "journal"
            if os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
            else "stderr"
        )

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
        """Open the file again after it was rotated away. Raises `OSError`, and then continues with
        the old one."""
        if self._file is not None:
            fresh = _open(self._file)
            os.close(self._descriptor)
            self._descriptor = fresh

    def close(self) -> None:
        if self._file is not None:
            os.close(self._descriptor)
            self._file, self._descriptor = None, STDERR

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
    """Return any record as JSON on a line, which may be shown at a terminal."""
    try:
        return visible_json(msgspec.json.encode(record, enc_hook=str)) + b"\n"
    except (ValueError, TypeError, RecursionError):
        # lone surrogates, integers above 64 bits, keys that are not text
        return json.dumps(record, default=repr, skipkeys=True).encode() + b"\n"


def _open(file: Path) -> int:
    # O_NONBLOCK: open(2) of a FIFO would wait for a reader
    return os.open(
        file,
        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY,
        0o600,
    )


def _put(descriptor: int, data: bytes) -> int:
    """Write without waiting for a reader. Return how many bytes were written."""
    done = 0
    with suppress(OSError):
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        # a pipe that polls as writable takes PIPE_BUF bytes, and may wait for more; O_NONBLOCK
        # would be set for all its writers
        piece = len(data) if regular else select.PIPE_BUF
        while done < len(data) and (regular or _writable(descriptor)):
            done += os.write(descriptor, data[done : done + piece])
    return done


def _writable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


# ---- What is logged


LEVELS = ("debug", "info", "warning", "error")

_EVENT_LEVEL = {"low": "debug", "medium": "warning", "high": "error"}

_LOG_DESCRIPTOR = 2

_NOTABLE = ("limit_", "increase_", "run_paused", "run_resumed")
"""Events of low severity that an operator must find in the morning: they are logged as `info`."""

LOG_MAX = 64 << 20
"""Bytes of the log's file, twice at most: then it is renamed to `FILE.1`. A rotator that comes
first never sees that."""


class Log:
    """Writes lines of `level` and above to `file` (created 0600, appended to), else to
    `descriptor`.

    A line that cannot be written is dropped and counted, and the next line has the count as
    `dropped`. Raises `OSError` if the file cannot be opened."""

    def __init__(
        self,
        level: str = "info",
        *,
        file: Path | None = None,
        descriptor: int = _LOG_DESCRIPTOR,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._threshold = LEVELS.index(level)
        self._lines = LineFile(file, descriptor, LOG_MAX)
        self._now = now
        self.quiet: set[tuple[str, str]] = set()
        """Types and severities of events that are known to be below the level: each run has
        three."""
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
            f"internal error while handling {type(what).__name__}",
            about=repr(what)[:1000],
            traceback=traceback.format_exc(),
        )

    def event(self, event: Event) -> None:
        """Log an event with its own time and the names of its fields."""
        level = _EVENT_LEVEL[event.severity]
        if level == "debug" and event.type.startswith(_NOTABLE):
            level = "info"
        if LEVELS.index(level) < self._threshold:
            self.quiet.add((event.type, event.severity))
        else:
            fields: dict[str, Any] = msgspec.to_builtins(event)
            self._line(level, {"severity": event.severity, **fields})

    @property
    def place(self) -> str:
        """Where the lines go: a file, or `stderr`, or `journal`."""
        return self._lines.place

    def reopen(self) -> None:
        """Open the file again after it was rotated away. Raises `OSError`, and then continues with
        the old one."""
        self._lines.reopen()

    def close(self) -> None:
        self._lines.close()

    def _line(self, level: str, fields: dict[str, Any]) -> None:
        if LEVELS.index(level) < self._threshold:
            return
        record = {
            "time": self._now(),
            "level": level,
            **{name: _shown(value) for name, value in fields.items()},
        }
        if self.dropped:
            record["dropped"] = self.dropped
        self.dropped = 0 if self._lines.write(line_of(record)) else self.dropped + 1


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, int | float | datetime):
        return value
    return (
        redacted_object(value)
        if isinstance(value, str | dict | list | tuple)
        else redacted(str(value))
    )


# ---- `limits.log` in the state directory: a line of JSON for each breach of a limit, with all that
# is known of its run


FILE = "limits.log"
LIMIT_LOG_MAX = 16 << 20
"""Bytes, twice at most: then it is renamed to `limits.log.1`."""


class LimitLog:
    """`trouble` is told once when lines begin to be lost."""

    def __init__(self, directory: Path, trouble: Callable[[str], None]) -> None:
        self._file = directory / FILE
        self._trouble = trouble
        self._losing = False

    def breach(self, event: Event, run: RunInfo) -> None:
        """Write the event's fields and the run, without those that are unknown, secrets hidden.
        Opens the file each time, because breaches are rare and the file may be rotated away at any
        time."""
        record = _known(msgspec.to_builtins(event)) | {"run": _known(msgspec.to_builtins(run))}
        line = line_of(redacted_object(record))
        try:
            with closing(LineFile(self._file, most=LIMIT_LOG_MAX)) as file:
                why = (
                    None
                    if file.write(line)
                    else "the disk is full, or another process truncated the line"
                )
        except OSError as error:
            why = str(error)
        if why is not None and not self._losing:
            self._trouble(f"breaches cannot be written to {self._file} for now: {why}")
        self._losing = why is not None


def _known(value: Any) -> Any:
    """Return an object without the fields that are null."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items() if item is not None}
    return [_known(item) for item in value] if isinstance(value, list) else value

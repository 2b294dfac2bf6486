"""`limits.log` in the state directory: a line of JSON for each breach of a limit, with all that is known of its run."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from ..protocol.redaction import redacted_object
from ..protocol.types import Event, RunInfo
from .line_file import LineFile, line_of

FILE = "limits.log"
MOST = 16 << 20
"""Bytes, twice at most: then it is renamed to `limits.log.1`."""


class LimitLog:
    """`trouble` is told once when lines begin to be lost."""

    def __init__(self, directory: Path, trouble: Callable[[str], None]) -> None:
        self._file = directory / FILE
        self._trouble = trouble
        self._losing = False

    def breach(self, event: Event, run: RunInfo) -> None:
        """Write the event's fields and the run, without those that are unknown, secrets hidden. Opens the file each time, because
        breaches are rare and the file may be rotated away at any time."""
        record = _known(msgspec.to_builtins(event)) | {"run": _known(msgspec.to_builtins(run))}
        line = line_of(redacted_object(record))
        try:
            with closing(LineFile(self._file, most=MOST)) as file:
                why = None if file.write(line) else "the disk is full, or another process truncated the line"
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

"""The milestones of a run: lines `[agent:NAME] text` on its stderr, of which the newest counts.

A run that writes without pause is not read whole: of what came since the last look, the newest `NEWEST` bytes are.
"""

import os
import re
from collections.abc import Callable

from ..protocol.redaction import redacted
from ..protocol.sanitise import clean

NEWEST = 16 << 10
MAX_TEXT = 200
"""Characters of a milestone that are shown."""

_LINE = re.compile(rb"^\[agent:([^\]\n]{1,256})\] ([^\n]*)\n", re.MULTILINE)


class StderrMilestones:
    """`open_stderr` returns a descriptor for reading; `reached` is told of the newest milestone after each look that found one."""

    def __init__(self, name: str, open_stderr: Callable[[], int], reached: Callable[[str], None]) -> None:
        """`name`: the run's, which is left out of its own milestones."""
        self._name = name
        self._open = open_stderr
        self._reached = reached
        self._offset = 0

    def look(self, size: int) -> None:
        """Read on. `size`: of the file now. Raises `OSError`."""
        if size < self._offset:
            self._offset = 0  # it was truncated
        if size == self._offset:
            return
        descriptor = self._open()
        try:
            start = max(self._offset, size - NEWEST)
            data = os.pread(descriptor, size - start, start)
        finally:
            os.close(descriptor)
        first = data.find(b"\n") + 1 if start > self._offset else 0
        lines = data[first : data.rfind(b"\n") + 1]
        # a line that is longer than what is read at once is no milestone
        self._offset = start + (first + len(lines) if lines else len(data) if len(data) >= NEWEST else first)
        found = _LINE.findall(lines)
        if found and (text := self._text(*found[-1])):
            self._reached(text)

    def _text(self, name: bytes, words: bytes) -> str:
        text = " ".join(clean(words).split())
        whose = " ".join(clean(name).split())
        text = redacted(text if whose == self._name or not text else f"{whose}: {text}")  # a secret that is cut is not found
        return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"

"""The last line that a run wrote on its stderr: most programs say there why they failed."""

import os

from ..protocol.redaction import redacted
from ..protocol.sanitise import clean

NEWEST = 4 << 10
"""Bytes that are read. Of a longer line nothing is told, since it may begin within a secret that could not be recognised."""
MAX_TEXT = 200
"""Characters that are told."""


def last_line(descriptor: int, begin: int, end: int) -> str | None:
    """Return the last line with text between two offsets of an open file: on one line, without control characters, secrets hidden.
    Return `None` if there is none. Raises `OSError`."""
    start = max(begin, end - NEWEST)
    data = os.pread(descriptor, end - start, start)
    lines = redacted(clean(data)).splitlines()
    if start > begin:
        del lines[:1]  # cut
    text = next((line for line in map(_plain, reversed(lines)) if line), None)
    return text if text is None or len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _plain(line: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in line).split())

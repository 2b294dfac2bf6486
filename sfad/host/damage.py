"""What is damaged in the state directory: how that shows when it is decoded, where it is kept, and what is told of it."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .private_files import create, free_name

UNDECODABLE = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    MemoryError,
    NotImplementedError,
)
"""What decoding raises for damaged data. msgspec raises `ValidationError` for a wrong type, `DecodeError` for a truncation,
`UnicodeDecodeError` for bad UTF-8 (all are `ValueError`), and `RecursionError` for deep nesting. What is made of the data, such as
a time, raises the others."""


class Damages:
    """Tells of damage: the log at once, and an event from `tell_events` on."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self._log = log
        self._event: Callable[[str], object] | None = None
        self._waiting: list[str] = []

    def __call__(self, message: str) -> None:
        self._log(message)
        if self._event is not None:
            self._event(message)
        else:
            self._waiting.append(message)

    def tell_events(self, event: Callable[[str], object]) -> None:
        self._event = event
        for message in self._waiting:
            event(message)
        self._waiting.clear()


def keep_damaged(path: Path, data: bytes | None = None) -> str:
    """Rename a damaged file, or write a damaged record, to NAME.corrupt-UNIXTIME. Return where it is, as the end of a sentence."""
    try:
        aside = free_name(path, "corrupt")
        if data is None:
            path.rename(aside)
        else:
            with open(create(aside), "wb") as file:
                file.write(data)
    except OSError as error:
        if data is not None:
            with suppress(OSError, UnboundLocalError):
                os.unlink(aside)
        return f"it cannot be set aside: {error}"
    return f"it is kept as {aside}"

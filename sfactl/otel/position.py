"""The number of the last event whose run was exported, in the daemon's state directory."""

import fcntl
import json
import os
import time
from pathlib import Path

from ..exits import ExitCode, Quit

FILE = "otel.json"
LOCK = "otel.lock"
LOCK_WAIT = 2.0
"""Seconds: the exporter of a daemon that has just been replaced is about to end."""


class Position:
    """Locked for as long as this process lives, so that no two exporters send the same spans."""

    def __init__(self, state_dir: Path) -> None:
        """Raise `Quit` if another exporter has it, or it cannot be used."""
        self._path = state_dir / FILE
        try:
            self._lock = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._take(state_dir)
            self.after = self._read()
        except OSError as error:
            why = f"{error.strerror}; only the daemon's user can export its spans"
            raise Quit(ExitCode.NOT_PERMITTED, f"{self._path} cannot be used: {why}") from None

    def _take(self, state_dir: Path) -> None:
        give_up = time.monotonic() + LOCK_WAIT
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up:
                    message = f"another exporter works for the daemon in {state_dir}; 'sfactl status' shows the daemon's own"
                    raise Quit(ExitCode.UNAVAILABLE, message) from None
            time.sleep(0.05)

    def _read(self) -> int | None:
        try:
            after = json.loads(self._path.read_bytes())["after"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return None  # as at the first start: what ended before is not exported
        return after if isinstance(after, int) and after >= 0 else None

    def reached(self, number: int) -> None:
        """Save that the ends up to this event are exported. Raises `OSError`."""
        new = self._path.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            json.dump({"after": number}, file)
        new.replace(self._path)
        self.after = number

    def close(self) -> None:
        os.close(self._lock)

"""`--status-file`: a file that receives the final run as JSON."""

import os
from contextlib import suppress

from msgspec import json

from sfad.protocol.types import RunInfo

from .exits import ExitCode, Quit, UsageError


def clear(path: str) -> None:
    """Check that `path` can be written, and remove the file of an earlier run. Raise `UsageError`."""
    try:
        with open(_temporary(path), "wb") as file:
            os.unlink(file.name)
        with suppress(FileNotFoundError):
            os.unlink(path)
    except OSError as error:
        raise UsageError(f"--status-file {path}: {error.strerror}") from error


def write(path: str, run: RunInfo) -> None:
    """Write the run as JSON to `path`, whole or not at all. Raise `Quit`."""
    try:
        with open(_temporary(path), "wb") as file:
            file.write(json.encode(run) + b"\n")
        os.replace(_temporary(path), path)
    except OSError as error:
        raise Quit(ExitCode.UNAVAILABLE, f"--status-file {path}: {error.strerror}") from error


def _temporary(path: str) -> str:
    return f"{path}.{os.getpid()}.tmp"

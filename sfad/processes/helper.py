"""Programs that a bare interpreter executes as the user of a run: a helper that answers the daemon,
or the first step of an attempt, which becomes the run's command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .credentials import unsealed

_PACKAGES = str(Path(__file__).parents[2])
_START = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from sfad.processes import helper; from {0} import {1}; helper.unwind_at_signals(); "
    "{1}(sys.argv[2:])"
)
NOT_EXECUTABLE, _NOT_FOUND = 126, 127
ANSWER = b"sfad: "
"""Begins the last line that a helper prints."""


def python_words(module: str, function: str) -> list[bytes]:
    """Return the command that calls a function of a module with the words after it."""
    return [os.fsencode(word) for word in bare(_START.format(module, function))]


def bare(code: str) -> list[str]:
    """Return the command of a bare interpreter that executes code, whose first word says where
    packages are."""
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", code, _PACKAGES]


def unwind_at_signals() -> None:
    """From now on end as by an error when the run is stopped, so that no temporary directory is
    left. execve(2) gives the signals their defaults back."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)  # the second one ends the process at once
    raise SystemExit(128 + number)


# ---- The first step of an attempt


def completed(step: Sequence[bytes], files: Sequence[bytes], argv: Sequence[bytes]) -> list[bytes]:
    """Return the command of a first step, or of a sandbox, that becomes or starts another. It
    executes the first of `files` that can be executed."""
    return [*step, *(b"file=" + file for file in files), b"--", *argv]


def understood(words: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Return what a first step was given by name, the files that may be the command, and the
    command."""
    at = words.index("--")
    pairs = [word.partition("=")[::2] for word in words[:at]]
    return dict(pairs), [value for name, value in pairs if name == "file"], words[at + 1 :]


def environment(*, sealed: bool) -> dict[str, str]:
    """Return the environment of the command."""
    found = unsealed(os.environb) if sealed else os.environb
    return {os.fsdecode(name): os.fsdecode(value) for name, value in found.items()}


def become(files: Sequence[str], argv: list[str]) -> NoReturn:
    """Become the command."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        # Python has changed these, and the command would inherit it
        signal.signal(number, signal.SIG_DFL)
    _execute(files, argv)


def _execute(files: Sequence[str], argv: list[str]) -> NoReturn:
    """Execute the command as execvp(3) does."""
    denied = None
    for file in files:
        try:
            os.execve(file, argv, os.environb)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
        except OSError as error:
            fail(NOT_EXECUTABLE, f"cannot execute {file}: {error.strerror}")
    name = argv[0] if argv else "''"
    if denied is not None:
        fail(NOT_EXECUTABLE, f"cannot execute {denied.filename or name}: {denied.strerror}")
    fail(_NOT_FOUND, f"cannot execute {name}: no such file")


def fail(code: int, message: str) -> NoReturn:
    os.write(2, f"sfad: {message}\n".encode(errors="surrogateescape"))
    raise SystemExit(code)

"""Exit codes of `sfactl` (docs/exit-codes.md), and the errors that end it with one of them."""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sfad.protocol.types import ErrorCode, Refusal, Rule, RunInfo


class ExitCode(IntEnum):
    """The exit code, stable from the first release. `else` in the table: the run's own code, or 128 + its signal."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    DONE = 0, "done; the run completed"
    REFUSED = 1, "refused (guard, quota)"
    USAGE = 2, "usage error"
    TIMEOUT = 3, "the run timed out"
    LIMIT = 4, "the run was ended by another limit"
    SURVIVORS = 5, "stop: something survived"
    NO_RUN = 66, "no such run"
    UNREACHABLE = 69, "the daemon cannot be reached"
    LOST = 70, "the run was lost"
    UNAVAILABLE = 75, "short of something (disk, descriptors, processes), or not over yet: try again"
    NOT_PERMITTED = 77, "not permitted"
    NOT_EXECUTABLE = 126, "the command is not executable"
    NOT_FOUND = 127, "the command was not found"
    HANGUP = 129, "cancelled by SIGHUP"
    INTERRUPTED = 130, "cancelled by SIGINT"
    TERMINATED = 143, "cancelled by SIGTERM or by a stop request"


def table() -> str:
    """Return the exit codes as `--help` shows them."""
    lines = [f"{member.value:>5}  {member.meaning}" for member in ExitCode]
    return "\n".join([*lines, " else  the run's own exit code, 128 + n for signal n"])


class Quit(Exception):
    """End the program: `message` on stderr, then exit `code`."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class UsageError(Quit):
    """The command line or the environment has an invalid value. Exit code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.USAGE, message)


class StartRefused(Quit):
    """The guard refused a start, by this rule."""

    def __init__(self, rule: Rule, code: int, message: str = "") -> None:
        super().__init__(code, message)
        self.rule = rule


class OwnProgram(Quit):
    """A shim was not asked for a child run: the command of the run that it is in has led to it."""

    def __init__(self) -> None:
        super().__init__(ExitCode.DONE)


T = TypeVar("T")


def understood(source: str, read: Callable[..., T], *arguments: object) -> T:
    """Return what `read` makes of its arguments. Raise its `ValueError` as a `UsageError`, with `source` in front if given."""
    try:
        return read(*arguments)
    except ValueError as error:
        raise UsageError(f"{source}: {error}" if source else str(error)) from None


def worst(codes: Iterable[int]) -> int:
    """Return the exit code of a command about several runs, given the code of each."""
    return min(codes, key=_FROM_WORST.index, default=ExitCode.DONE)


_FROM_WORST = (5, 70, 69, 75, 77, 66, 2, 1, 0)
"""Survivors first, then bugs, then errors that may not occur the next time, then the others."""


def of_run(run: RunInfo) -> int:
    """Return the exit code for the current state of a run: its outcome if it has ended, else `UNAVAILABLE`."""
    status = run.status.value
    if status == "failed":
        return _of_failed(run)
    return _BY_STATUS.get(status, ExitCode.REFUSED if run.status.rejected else ExitCode.UNAVAILABLE)


_BY_STATUS = {
    "completed": ExitCode.DONE,
    "timeout": ExitCode.TIMEOUT,
    "cancelled": ExitCode.TERMINATED,
    "lost": ExitCode.LOST,
    "rejected_permission": ExitCode.NOT_PERMITTED,
}


def _of_failed(run: RunInfo) -> int:
    why = run.reason.kind if run.reason else "exit"
    if why == "limit":
        return ExitCode.LIMIT
    if why in ("output", "ledger"):
        return ExitCode.UNAVAILABLE
    if why == "launch":
        return _of_launch(run)
    if why in ("agent", "result"):
        return 1  # the agent reported failure, although it exited with 0 or did not exit by itself
    if run.signal is not None:
        return 128 + run.signal
    # An exit status of 0 with the status `failed` must not read as success to a script.
    return run.exit_code or ExitCode.LOST


def _of_launch(run: RunInfo) -> int:
    reason = run.reason
    if reason is not None and reason.errno in _SHORT:
        return ExitCode.UNAVAILABLE
    # ENOENT may also be about the working directory; 127 is only about the command
    missing = reason is not None and reason.errno == errno.ENOENT and reason.about != "directory"
    return ExitCode.NOT_FOUND if missing else ExitCode.NOT_EXECUTABLE


_SHORT = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC})
"""Errors that the command does not cause: the machine or the daemon is short of something."""


def of_refusal(refusal: Refusal) -> int:
    """Return 77 if permission was the rule, else 1."""
    return _BY_STATUS.get(refusal.kind.status.value, ExitCode.REFUSED)


def of_error(code: ErrorCode) -> int:
    return _BY_ERROR.get(code.value, ExitCode.LOST)


_BY_ERROR = {
    "bad_request": ExitCode.USAGE,
    "unsupported_version": ExitCode.UNREACHABLE,
    "no_such_run": ExitCode.NO_RUN,
    "ambiguous_run": ExitCode.NO_RUN,
    "not_permitted": ExitCode.NOT_PERMITTED,
    "wrong_state": ExitCode.REFUSED,
    "unavailable": ExitCode.UNAVAILABLE,
}

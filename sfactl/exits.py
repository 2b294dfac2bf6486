"""Exit codes of `sfactl` (docs/states.md), and the errors that end it with one of them."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterable, Sequence
from shlex import quote
from typing import TypeVar

from sfad.protocol.types import ErrorCode, Refusal, Rule, RunInfo

T = TypeVar("T")


class ExitCode:
    """The exit codes, stable from the first release."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    TIMEOUT = 3
    LIMIT = 4
    SURVIVORS = 5
    CHECK = 6
    NO_RUN = 66
    UNREACHABLE = 69
    LOST = 70
    UNAVAILABLE = 75
    NOT_PERMITTED = 77
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    HANGUP = 129
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    ExitCode.DONE: "done; the run completed",
    ExitCode.REFUSED: "refused (guard, quota)",
    ExitCode.USAGE: "usage error",
    ExitCode.TIMEOUT: "the run timed out",
    ExitCode.LIMIT: "the run was ended by another limit",
    ExitCode.SURVIVORS: "stop: something survived",
    ExitCode.CHECK: "a check of the run failed, or its setup",
    ExitCode.NO_RUN: "no such run",
    ExitCode.UNREACHABLE: "the daemon cannot be reached",
    ExitCode.LOST: "the run was lost",
    ExitCode.UNAVAILABLE: (
        "short of something (disk, descriptors, processes), or not over yet: try again"
    ),
    ExitCode.NOT_PERMITTED: "not permitted",
    ExitCode.NOT_EXECUTABLE: "the command is not executable",
    ExitCode.NOT_FOUND: "the command was not found",
    ExitCode.HANGUP: "cancelled by SIGHUP",
    ExitCode.INTERRUPTED: "cancelled by SIGINT",
    ExitCode.TERMINATED: "cancelled by SIGTERM or by a stop request",
}


def table() -> str:
    """Return the exit codes as `--help` shows them. `else`: the run's own code, or 128 + its
    signal."""
    lines = [f"{code:>5}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\n".join([*lines, " else  the run's own exit code, 128 + n for signal n"])


class Quit(Exception):
    """End the program: `message` on stderr, then exit `code`."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ReaderGone(BaseException):
    """No process reads the output any more. What takes an `OSError` for one of the daemon's
    connection does not take this."""


class UsageError(Quit):
    """The command line or the environment has an invalid value. Exit code 2."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.USAGE, message)


class ExtraMissing(UsageError):
    """A verb needs an extra of sfad that is not installed."""

    def __init__(self, verb: str, extra: str) -> None:
        # a plain `pip` may be that of another environment
        super().__init__(
            f"{verb} needs the extra {extra}, which is not installed; in the checkout: "
            f"{quote(sys.executable)} -m pip install '.[{extra}]'"
        )


class StartRefused(Quit):
    """The guard refused a start, by this rule."""

    def __init__(self, rule: Rule, code: int, message: str = "") -> None:
        super().__init__(code, message)
        self.rule = rule


class NoChildRun(Quit):
    """A shim was not asked for a child run: the command of the run that it is in has led to it.
    `argv`: the program's command."""

    def __init__(self, argv: Sequence[bytes]) -> None:
        super().__init__(ExitCode.DONE)
        self.argv = argv


class OwnServer(Quit):
    """A shim was not asked for a child run, but for what a server of the program does."""

    def __init__(self, act: str, what: str, argv: Sequence[bytes], says: str) -> None:
        """With the fields of `OwnServerAsked`."""
        super().__init__(ExitCode.DONE)
        self.act, self.what, self.argv, self.says = act, what, argv, says


def understood(source: str, read: Callable[..., T], *arguments: object) -> T:
    """Return what `read` makes of its arguments. Raise its `ValueError` as a `UsageError`, with
    `source` in front if given."""
    try:
        return read(*arguments)
    except ValueError as error:
        raise UsageError(f"{source}: {error}" if source else str(error)) from None


def worst(codes: Iterable[int | None]) -> int:
    """Return the exit code of a command about several runs, given the code of each,
    `None` for one that is done."""
    return min(
        (code or ExitCode.DONE for code in codes), key=_FROM_WORST.index, default=ExitCode.DONE
    )


_FROM_WORST = (5, 70, 69, 75, 77, 66, 2, 1, 0)
"""Survivors first, then bugs, then errors that may not occur the next time, then the others."""


def of_run(run: RunInfo) -> int:
    """Return the exit code for the current state of a run: its outcome if it has ended, else
    `UNAVAILABLE`."""
    status = run.status.value
    if status == "failed":
        return _of_failed(run)
    if run.reason is not None and run.reason.kind == "interrupt":
        return ExitCode.INTERRUPTED
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
    if why in ("check", "setup"):
        return ExitCode.CHECK
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

"""The exceptions of the Python clients.

Each has `kind`, a word for programs; `detail`, which has the values, and may be empty; and
`message`, the whole sentence.
"""

from __future__ import annotations

from sfad.protocol.types import ErrorCode, LimitRefusal, Reason, Refusal, RunId, RunInfo

from .connecting.connection import ConnectionLost, DaemonError, Unreachable
from .exits import Quit, UsageError


class SfadError(Exception):
    """Base of all errors of the clients, except `ValueError` and `TypeError` for wrong
    arguments."""

    def __init__(self, message: str, kind: str = "error", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.detail = detail


class DaemonUnreachable(SfadError):
    """No daemon can be reached, and nothing was sent. `kind` is that of
    `sfactl.connecting.connection.Unreachable`: `missing`, `refused`, `denied`, `sandbox`,
    `untrusted`, `silent` or `gone`."""


class NotInARun(SfadError):
    """A daemon is running, but this process is in none of its runs, and no run was named."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "no_run")


class Unanswered(SfadError):
    """The request was sent, but the reply did not come. The daemon may have taken the request; it
    was not sent again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "unanswered")


class RequestFailed(SfadError):
    """The daemon answered with an error. `kind` and `code` say why: `not_permitted`, `no_such_run`,
    `bad_request`, …"""

    def __init__(self, message: str, code: ErrorCode) -> None:
        super().__init__(message, code.value)
        self.code = code


class Refused(SfadError):
    """The guard refused a start. `kind` is its rule (docs/guard.md), `detail` has the value and the
    limit, the message is written for the model or the person that reads it, and `refusal` has the
    numbers."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message, refusal.kind.value, refusal.detail)
        self.refusal = refusal


class LimitReached(SfadError):
    """The daemon refused a reservation, and nothing was charged. The text is written for a model;
    `refusal` has the numbers."""

    def __init__(self, refusal: LimitRefusal) -> None:
        numbers = f"{refusal.used:g} of {refusal.threshold:g} used, {refusal.asked:g} asked for"
        super().__init__(refusal.message, refusal.limit_kind.value, numbers)
        self.refusal = refusal


class RunFailed(SfadError):
    """A run has ended otherwise than `completed`. `kind` is that of its reason (docs/states.md),
    `detail` its status, and `run` the run as it ended."""

    def __init__(self, run: RunInfo) -> None:
        reason = run.reason or Reason(kind=run.status.value, message="")
        words = f": {reason.message}" if reason.message else ""
        super().__init__(f"run {run.id} ('{run.name}') is {run.status.value}{words}", reason.kind)
        self.detail = run.status.value
        self.run = run


class AgentStopped(SfadError):
    """The run of an agent within this program is being stopped, or has ended: it is to end what it
    does. `kind` is that of the reason (docs/states.md), `detail` the kind of limit, and `run` its
    id."""

    def __init__(self, run: RunId, name: str, reason: Reason | None) -> None:
        words = reason.message if reason is not None and reason.message else "it has ended"
        kind = reason.kind if reason is not None else "ended"
        super().__init__(f"agent {run} ('{name}') is stopped: {words}", kind)
        self.detail = (reason.limit_kind or "") if reason is not None else ""
        self.run = run


def of_quit(error: Quit) -> SfadError | ValueError:
    """Return the exception for an error that would end the command."""
    if isinstance(error, DaemonError):
        return RequestFailed(error.message, error.error)
    if isinstance(error, ConnectionLost):
        return Unanswered(error.message)
    if isinstance(error, Unreachable):
        return DaemonUnreachable(error.message, error.kind, error.path)
    if isinstance(error, UsageError):
        return ValueError(error.message)
    return SfadError(error.message)

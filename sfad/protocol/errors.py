"""Errors of the protocol. The code says what went wrong, its class whose fault it is."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """The machine-readable part of an `Error` reply. Stable: a client may switch on it."""

    BAD_REQUEST = "bad_request"
    """The message could not be understood, or a value in it is outside its range: the client's fault."""
    UNSUPPORTED_VERSION = "unsupported_version"
    """No protocol version in common."""
    NO_SUCH_RUN = "no_such_run"
    """No run has this id."""
    AMBIGUOUS_RUN = "ambiguous_run"
    """The prefix fits several runs."""
    NOT_PERMITTED = "not_permitted"
    """Section 7 of the specification says no."""
    WRONG_STATE = "wrong_state"
    """The run exists but cannot do this now (pause a run that is being stopped)."""
    UNAVAILABLE = "unavailable"
    """The daemon is short of something (disk, descriptors, processes), or is stopping: try again."""
    INTERNAL = "internal"
    """A bug in the daemon; its log has the traceback."""


class ProtocolError(Exception):
    """A frame or message breaks the protocol. The connection it came from cannot be trusted to be in step any more."""


class FrameTooLarge(ProtocolError):
    """A frame announces more bytes than its reader accepts."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes was announced; at most {limit} are accepted")
        self.size = size
        self.limit = limit


class BadMessage(ProtocolError):
    """A frame's body is not a message this side knows. The stream itself is still in step."""

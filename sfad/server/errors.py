"""How a request fails."""

from __future__ import annotations

from ..protocol.errors import ErrorCode


class RequestError(Exception):
    """The request ends with an `Error`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code

"""How a request fails."""

from __future__ import annotations

from functools import partial

from ..protocol.types import ErrorCode


class RequestError(Exception):
    """The reply to the request is an `Error`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


bad_request = partial(RequestError, ErrorCode.BAD_REQUEST)
wrong_state = partial(RequestError, ErrorCode.WRONG_STATE)
unavailable = partial(RequestError, ErrorCode.UNAVAILABLE)

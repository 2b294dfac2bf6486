"""How a request fails, and checks of fields that many requests have."""

from collections.abc import Sequence
from functools import partial
from math import isfinite

from .types import ErrorCode, Limit, LimitKind

MAX_SOURCE = 128
"""Characters that say where a limit was set."""


class RequestError(Exception):
    """The reply to the request is an `Error`."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


bad_request = partial(RequestError, ErrorCode.BAD_REQUEST)
wrong_state = partial(RequestError, ErrorCode.WRONG_STATE)
unavailable = partial(RequestError, ErrorCode.UNAVAILABLE)


def check_most(what: str, value: int, most: int) -> None:
    if value > most:
        raise too_many(what, value, most)


def too_many(what: str, value: int, most: int) -> RequestError:
    return bad_request(f"{value} {what}; at most {most}")


def check_limits(limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Return the limits, which must differ in their kinds."""
    kinds = set[LimitKind]()
    for limit in limits:  # no call for each: they are right in nearly every request
        if limit.kind in kinds:
            raise bad_request(f"the limit '{limit.kind}' is given more than once")
        kinds.add(limit.kind)
        if not isfinite(limit.threshold):
            raise bad_request(f"{limit.kind} = {limit.threshold} is not a finite number")
        if len(limit.source) > MAX_SOURCE:
            raise bad_request(f"the source of a limit has more than {MAX_SOURCE} characters")
    return tuple(limits)

"""How a request fails, and checks of fields that several kinds of request have."""

from collections.abc import Iterable, Sequence
from functools import partial
from math import isfinite
from signal import Signals

from ..core.labels import values_of
from ..core.policy import MAX_LABELS
from ..protocol.messages import List, Select, Stop, Summarise, WatchRuns
from ..protocol.types import ErrorCode, Limit

MAX_SECONDS = 36_525 * 86_400.0
"""A hundred years: further back than that nothing was recorded, and beyond some 8 000 years there is no `datetime`."""

MAX_CHOSEN = 1024
"""Runs named in one request; each is looked up."""

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
    kinds = [limit.kind for limit in limits]
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice is not None:
        raise bad_request(f"the limit '{twice}' is given more than once")
    odd = next((limit for limit in limits if not isfinite(limit.threshold)), None)
    if odd is not None:
        raise bad_request(f"{odd.kind} = {odd.threshold} is not a finite number")
    if any(len(limit.source) > MAX_SOURCE for limit in limits):
        raise bad_request(f"the source of a limit has more than {MAX_SOURCE} characters")
    return tuple(limits)


def check_signal(number: int, allowed: Iterable[int]) -> None:
    if number not in allowed:
        names = ", ".join(sorted(Signals(n).name for n in allowed)) if len(list(allowed)) < 16 else "1 to 64"
        raise bad_request(f"signal {number} cannot be sent here; allowed: {names}")


def check_filters(request: Stop | Select | List | Summarise | WatchRuns) -> None:
    check_most("names", len(values_of(request.name or ())), MAX_CHOSEN)
    # a key without a value fits no run, and is still a condition in the query
    check_most("labels", sum(max(1, len(values_of(value))) for value in request.labels.values()), MAX_LABELS)

"""Fields of requests at the edge of what is allowed."""

from __future__ import annotations

import math

import pytest

from sfad.daemon.server.lookup import MAX_CHOSEN, MAX_SOURCE, RequestError, check_filters, check_limits
from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, Limit


def limit(kind: str = "turns", threshold: float = 1, source: str = "") -> Limit:
    return Limit(kind=kind, threshold=threshold, source=source)  # type: ignore[arg-type]


def test_limits_as_long_as_allowed() -> None:
    given = [limit(source="x" * MAX_SOURCE), limit("cost", 0.5)]
    assert check_limits(given) == tuple(given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([limit(), limit("cost"), limit(threshold=2)], "'turns' is given more than once"),
        ([limit(), limit("cost", math.nan)], "cost = nan is not a finite number"),
        ([limit("cost", math.inf)], "cost = inf is not a finite number"),
        ([limit(), limit("cost", source="x" * (MAX_SOURCE + 1))], f"more than {MAX_SOURCE} characters"),
    ],
)
def test_limits_that_are_refused(given: list[Limit], why: str) -> None:
    with pytest.raises(RequestError, match=why) as refused:
        check_limits(given)
    assert refused.value.code is ErrorCode.BAD_REQUEST


def test_filters_as_many_as_allowed() -> None:
    names = [f"n{number}" for number in range(MAX_CHOSEN)]
    check_filters(m.List(id=1, name=names))
    with pytest.raises(RequestError, match=f"{MAX_CHOSEN + 1} names; at most {MAX_CHOSEN}"):
        check_filters(m.List(id=1, name=[*names, "other"]))

"""Fields of requests at the edge of what is allowed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sfad.core.state.request import Asked
from sfad.daemon.server.checks import MAX_CHOSEN, check_filters
from sfad.protocol import messages as m
from sfad.protocol.errors import MAX_SOURCE, RequestError, check_limits
from sfad.protocol.types import (
    Action,
    After,
    Bound,
    Claim,
    ErrorCode,
    Grant,
    Limit,
    LimitKind,
    Placing,
)
from tests.core.asking import GROUP_OF, asked_for, field_of
from tests.loop.shell import bare, undecided


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
        (
            [limit(), limit("cost", source="x" * (MAX_SOURCE + 1))],
            f"more than {MAX_SOURCE} characters",
        ),
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


def test_the_core_is_told_of_each_field_that_it_decides_by() -> None:
    given: dict[str, Any] = {
        "kind": "skill",
        "agent": "reviewer",
        "run_type": "qa",
        "limits": [Limit(kind=LimitKind.TURNS, threshold=3.0)],
        "on_limit": Action.WARN,
        "max_depth": Bound(value=2, source="x"),
        "max_descendants": Bound(value=3, source="x"),
        "attempts": 2,
        "retry_delay": 1.5,
        "grace": 2.5,
        "detach": True,
        "leaf": True,
        "queue": False,
        "priority": 4,
        "labels": {"a": "b"},
        "channel": "web",
        "allow": ["stop"],
        "deny": ["list"],
        "allowed_tools": ["Read"],
        "blocked_tools": ["Bash"],
        "allowed_models": ["claude-*"],
        "claim": Claim(depth=1),
        "nested": True,
        "after": [After(run="a1")],
        "group": "gpu",
        "resume": True,
        "placing": Placing(node="b"),
        "grant": Grant(giver="a", run="a1", root="a/a1", max_depth=4, descendants=8),
    }
    order = m.Spawn(id=0, argv=[b"true"], cwd=b"/", env=[], **given)
    asked = undecided(bare(order)).asked
    decided = {"argv", "cwd", "name", "continues", "direct"}
    told_alike = {*GROUP_OF, *Asked.__struct_fields__} & set(m.Spawn.__struct_fields__)
    assert given.keys() == told_alike - decided
    for name, value in given.items():
        told = field_of(asked, name)
        assert told != field_of(asked_for(()), name), name
        assert type(told)(value) == told if isinstance(value, list) else value == told, name

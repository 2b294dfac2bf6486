"""Lists of tools: a child may use nothing that its caller may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.core.state.policy import Invalid
from sfad.core.state.request import ToolLists, name_of, narrowed

NAMES = st.lists(
    st.sampled_from(["Read", "Bash", "Bash(git:*)", "Bash(ls:*)", "Edit"]), max_size=3, unique=True
).map(tuple)
LISTS = st.builds(ToolLists, NAMES, NAMES)


def allows(lists: ToolLists, tool: str) -> bool:
    """Whether a call of a tool, of a pattern of it, is within the lists."""
    listed = not lists.allowed or tool in lists.allowed or name_of(tool) in lists.allowed
    return listed and tool not in lists.blocked and name_of(tool) not in lists.blocked


@given(above=LISTS, own=LISTS)
def test_a_child_may_use_no_more_than_either_allows(above: ToolLists, own: ToolLists) -> None:
    try:
        found = narrowed(own, above, "run a1")
    except Invalid:
        assert above.allowed
        assert own.allowed
        assert not any(
            allows(above._replace(blocked=()), tool) and allows(own._replace(blocked=()), tool)
            for tool in own.allowed
        )
        return
    assert bool(found.allowed) == bool(above.allowed or own.allowed), "no list would allow all"
    for tool in ("Read", "Bash", "Bash(git:*)", "Bash(ls:*)", "Edit", "Write"):
        assert not allows(found, tool) or (allows(above, tool) and allows(own, tool)), tool
    assert narrowed(found, above, "run a1") == found, (
        "a request that is recalled and started again keeps its lists"
    )


@pytest.mark.parametrize(
    ("own", "above", "allowed"),
    [
        (("Bash", "Read"), ("Bash(git:*)", "Edit"), ("Bash(git:*)",)),
        (("Bash(git:*)",), ("Bash",), ("Bash(git:*)",)),
        ((), ("Read",), ("Read",)),
        (("Read",), (), ("Read",)),
    ],
)
def test_patterns(own: tuple[str, ...], above: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    assert narrowed(ToolLists(own), ToolLists(above), "run a1") == ToolLists(allowed)

"""Lists of tools: a child may use nothing that its caller may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.core import commands as c
from sfad.core.state.policy import Invalid
from sfad.core.state.request import ToolLists, name_of, narrowed
from sfad.protocol.types import ErrorCode
from tests.core.transcript import Transcript, inside

NAMES = st.lists(st.sampled_from(["Read", "Bash", "Bash(git:*)", "Bash(ls:*)", "Edit"]), max_size=3, unique=True).map(tuple)
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
        assert not any(allows(above._replace(blocked=()), tool) and allows(own._replace(blocked=()), tool) for tool in own.allowed)
        return
    assert bool(found.allowed) == bool(above.allowed or own.allowed), "no list would allow all"
    for tool in ("Read", "Bash", "Bash(git:*)", "Bash(ls:*)", "Edit", "Write"):
        assert not allows(found, tool) or (allows(above, tool) and allows(own, tool)), tool
    assert narrowed(found, above, "run a1") == found, "the shell and the core may both do it"


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


def test_the_core_narrows_at_admission_and_detaching_is_no_way_out() -> None:
    t = Transcript(allow_detach=True)
    a = t.start("a", allowed_tools=("Read", "Edit"), blocked_tools=("Bash",))
    b = t.start("b", inside(a), allowed_tools=("Read", "Bash"), blocked_tools=("Edit",))
    assert t.run(b).asked.tools == ToolLists(("Read",), ("Bash", "Edit"))
    detached = t.start("d", inside(b), detach=True)
    assert t.run(detached).asked.tools == ToolLists(("Read",), ("Bash", "Edit"))
    request = t.spawn("e", inside(b), allowed_tools=("Write",))
    (t >> request).skip()
    answer = t.answers[request.token]
    assert isinstance(answer, c.ErrorAnswer)
    assert answer.code is ErrorCode.BAD_REQUEST
    assert f"none of the tools Write is among those of run {b}, which may use Read" in answer.message

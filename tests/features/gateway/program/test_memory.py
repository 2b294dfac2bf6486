"""The memory that the bodies of requests share."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest

from sfad.features.gateway.program.call_tally import MAX_BODIES, BodyMemory, NoMemoryError


def test_a_run_leaves_as_much_as_it_takes() -> None:
    """However many requests it makes, and however many runs there are already."""
    memory = BodyMemory()
    with ExitStack() as stack:
        first, again = (stack.enter_context(memory.space("a1", None)) for _ in range(2))
        first.grow(MAX_BODIES // 4)
        again.grow(MAX_BODIES // 4)
        with pytest.raises(
            NoMemoryError, match=r"run a1 would hold 256 MiB, and 255 of 512 MiB would be left"
        ):
            again.grow(1)
        second = stack.enter_context(memory.space("b2", None))
        second.grow(MAX_BODIES // 4)
        with pytest.raises(NoMemoryError, match="run b2"):
            second.grow(1)
        stack.enter_context(memory.space("c3", None)).grow(MAX_BODIES // 8)
    assert (memory.held, memory.held_by) == (0, {})


def test_what_was_refused_is_not_counted() -> None:
    memory = BodyMemory()
    with memory.space("a1", None) as space:
        with pytest.raises(NoMemoryError):
            space.grow(MAX_BODIES)
        assert (memory.held, space.size) == (0, 0)
        space.grow(MAX_BODIES // 2)


def test_a_user_with_many_runs_leaves_half_to_other_users() -> None:
    """Of the gateway that has the operator's keys, which serves all users."""
    memory = BodyMemory(several_users=True)
    with ExitStack() as stack:

        def hold(user: int) -> int:
            """Have thirty runs of a user hold as much as they get. Return how much that is."""
            held = 0
            for number in range(30):
                space = stack.enter_context(memory.space(f"{user}.{number}", user))
                for more in (MAX_BODIES >> shift for shift in range(1, 20)):
                    with suppress(NoMemoryError):
                        space.grow(more)
                held += space.size
            return held

        first, second = hold(1), hold(2)
        assert MAX_BODIES // 4 < first <= MAX_BODIES // 2
        assert MAX_BODIES // 8 < second <= MAX_BODIES // 4
        stack.enter_context(memory.space("c3", 3)).grow(MAX_BODIES // 16)
    assert (memory.held, memory.held_by) == (0, {})

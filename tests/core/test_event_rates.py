"""How many events an agent may cause."""

from __future__ import annotations

from sfad.core.context import MAX_CAUSES, MAX_EVENTS, WINDOW, EventRate


def test_each_cause_has_its_own_rate() -> None:
    rate = EventRate()
    assert [rate.admits("a", at) for at in range(MAX_EVENTS + 2)] == [True] * MAX_EVENTS + [
        False
    ] * 2
    assert rate.admits("b", MAX_EVENTS)
    assert rate.admits("a", WINDOW)
    assert not rate.admits("a", WINDOW + 0.5)
    assert rate.admits("a", WINDOW + 1)


class Cause:
    """A cause that counts how often it is looked at."""

    looks = 0

    def __hash__(self) -> int:
        Cause.looks += 1
        return id(self)


def test_many_causes_in_one_window_are_looked_at_a_few_times_each() -> None:
    """All of them were, for each new one: half a millisecond for each run that told a milestone, at
    a hundred runs a second."""
    rate = EventRate()
    count = 8 * MAX_CAUSES
    causes = [Cause() for _ in range(count)]
    for cause in causes:
        assert rate.admits(cause, 1.0)
    assert Cause.looks <= 6 * count
    for _ in range(count + 1):
        assert rate.admits(Cause(), 2 * WINDOW)
    assert len(rate) <= 2 * count

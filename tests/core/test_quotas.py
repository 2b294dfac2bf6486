"""Slots and their queue: bounds hold, and no user starves another, whatever the others ask for."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sfad.core.quotas import Slots

USERS = ["ann", "bob", "eve"]

Asks = list[list[tuple[int, int]]]
"""Turn by turn, the users and the priorities of what is asked for."""


class Queue(RuleBasedStateMachine):
    """Beside `Slots`, a plain list of the trees that wait and a dictionary of those that are live."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(per_user=2, total=3)
        self.numbers = count()
        self.live: dict[str, str] = {}
        self.waiting: list[tuple[str, str, int]] = []
        self.moments = count()
        self.since: dict[str, int] = {}

    @rule(user=st.sampled_from(USERS), priority=st.integers(0, 2))
    def start(self, user: str, priority: int) -> None:
        root = f"a{next(self.numbers)}"
        if self.slots.free_for(user):
            self.slots.take(root, user)
            self.live[root] = user
        else:
            self.slots.enqueue(root, user, priority)
            if not any(other == user for _, other, _ in self.waiting):
                self.since[user] = next(self.moments)
            self.waiting.append((root, user, priority))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        root = data.draw(st.sampled_from(sorted(self.live)))
        self.slots.leave(root)
        del self.live[root]
        self.fill()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.waiting))
        self.slots.leave(one[0])
        self.waiting.remove(one)

    @rule(per_user=st.integers(1, 3), total=st.integers(1, 4))
    def resize(self, per_user: int, total: int) -> None:
        self.slots.resize(per_user=per_user, total=total)
        self.fill()

    def fill(self) -> None:
        while (root := self.slots.next_waiting()) is not None:
            held = Counter(self.live.values())
            assert len(self.live) < self.slots.total
            able = {user for _, user, _ in self.waiting if held[user] < self.slots.per_user}
            user = min(able, key=lambda each: (held[each], self.since[each]))
            own = [one for one in self.waiting if one[1] == user]
            expected = max(own, key=lambda one: (one[2], -own.index(one)))
            assert root == expected[0], "the fewest trees, then the longest wait; and within the user by priority"
            self.waiting.remove(expected)
            self.live[root] = user
            self.since[user] = next(self.moments)

    @invariant()
    def counts(self) -> None:
        held, waiting = Counter(self.live.values()), Counter(user for _, user, _ in self.waiting)
        assert (self.slots.count, self.slots.queued) == (len(self.live), len(self.waiting))
        for user in USERS:
            assert (self.slots.user_count(user), self.slots.queued_of(user)) == (held[user], waiting[user])
            if waiting[user]:
                assert not self.slots.free_for(user)

    def teardown(self) -> None:
        for root in [*self.live, *(root for root, _, _ in self.waiting)]:
            self.slots.leave(root)
        assert self.slots.next_waiting() is None
        kept: dict[str, Any] = {name: value for name, value in vars(self.slots).items() if hasattr(value, "__len__")}
        assert not any(kept.values()), "of users without trees nothing is kept"


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(
    total=st.integers(1, 3),
    asks=st.lists(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=4), min_size=20, max_size=20),
    data=st.data(),
)
@settings(deadline=None)
def test_a_user_without_trees_waits_for_each_other_user_once(
    total: int, asks: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    """Four others, who may be one person with four names, ask whenever and for whatever priority they like."""
    slots, numbers = Slots(per_user=total, total=total), count()
    live: list[str] = []
    for _ in range(total):
        live.append(f"a{next(numbers)}")
        slots.take(live[-1], "user-1")
    slots.enqueue("victim", "victim", 0)
    for turn, wishes in enumerate(asks):
        for user, priority in wishes:
            slots.enqueue(f"a{next(numbers)}", f"user-{user}", priority)
        live.remove(ended := data.draw(st.sampled_from(live)))
        slots.leave(ended)
        started = slots.next_waiting()
        assert started is not None
        live.append(started)
        if started == "victim":
            return
        assert turn < 4, "each of the others has got a slot since the victim came"

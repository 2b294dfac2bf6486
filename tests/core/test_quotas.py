"""Slots and their queue: bounds hold, and no user starves another, whatever the others ask for."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sfad.core.state.quotas import Slots
from tests.tiers import examples

USERS = ["ann", "bob", "eve"]
GROUPS = st.sampled_from([None, "g", "h"])

Lane = tuple[str, str | None]
"""A user and a group."""


class Waits(NamedTuple):
    root: str
    user: str
    priority: int
    group: str | None


Asks = list[list[tuple[int, int]]]
"""Turn by turn, the users and the priorities of what is asked for."""


class Queue(RuleBasedStateMachine):
    """Beside `Slots`, a plain list of the trees that wait and a dictionary of those that are
    live."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(per_user=2, total=3, groups={"g": 1})
        self.numbers = count()
        self.live: dict[str, Lane] = {}
        self.waiting: list[Waits] = []
        self.held: dict[str, str] = {}
        self.moments = count()
        self.since: dict[str, int] = {}

    @rule(user=st.sampled_from(USERS), priority=st.integers(0, 2), group=GROUPS)
    def start(self, user: str, priority: int, group: str | None) -> None:
        root = f"a{next(self.numbers)}"
        if self.slots.free_for(user, group):
            self.slots.take(root, user, group)
            self.live[root] = user, group
        else:
            self.enqueue(root, user, priority, group)

    def enqueue(self, root: str, user: str, priority: int, group: str | None) -> None:
        self.slots.enqueue(root, user, priority, group)
        if not any(one.user == user for one in self.waiting):
            self.since[user] = next(self.moments)
        self.waiting.append(Waits(root, user, priority, group))

    @rule(user=st.sampled_from(USERS))
    def hold(self, user: str) -> None:
        """A tree comes that waits for another run."""
        root = f"a{next(self.numbers)}"
        self.slots.wait_outside(root, user)
        self.held[root] = user

    @precondition(lambda self: self.held)
    @rule(data=st.data(), priority=st.integers(0, 2), group=GROUPS)
    def release(self, data: st.DataObject, priority: int, group: str | None) -> None:
        """That run has ended."""
        root = data.draw(st.sampled_from(sorted(self.held)))
        self.slots.end_waiting_outside(root)
        self.enqueue(root, self.held.pop(root), priority, group)
        self.fill()

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
        self.slots.leave(one.root)
        self.waiting.remove(one)

    @rule(
        per_user=st.integers(1, 3),
        total=st.integers(1, 4),
        groups=st.sampled_from([{}, {"g": 1}, {"g": 2}, {"g": 1, "h": 1}]),
    )
    def resize(self, per_user: int, total: int, groups: dict[str, int]) -> None:
        self.slots.resize(per_user=per_user, total=total, groups=groups)
        self.fill()

    def has_room(self, user: str, group: str | None) -> bool:
        """Return whether neither the user nor the user's group is at its bound."""
        held = list(self.live.values())
        in_group = held.count((user, group)) < self.slots.groups.get(group or "", 1000)
        return in_group and sum(whose == user for whose, _ in held) < self.slots.per_user

    def fill(self) -> None:
        while (root := self.slots.give_next()) is not None:
            held = Counter(user for user, _ in self.live.values())
            assert len(self.live) < self.slots.total
            able = [one for one in self.waiting if self.has_room(one.user, one.group)]
            user = min({one.user for one in able}, key=lambda each: (held[each], self.since[each]))
            own = [one for one in able if one.user == user]
            expected = max(own, key=lambda one: (one.priority, -own.index(one)))
            assert root == expected.root, (
                "the fewest trees, then the longest wait; and within the user by priority"
            )
            self.waiting.remove(expected)
            self.live[root] = user, expected.group
            self.since[user] = next(self.moments)

    @invariant()
    def counts(self) -> None:
        held = Counter(user for user, _ in self.live.values())
        waiting = Counter([*(one.user for one in self.waiting), *self.held.values()])
        assert (self.slots.count, self.slots.queued) == (
            len(self.live),
            len(self.waiting) + len(self.held),
        )
        for user in USERS:
            assert (self.slots.user_count(user), self.slots.queued_of(user)) == (
                held[user],
                waiting[user],
            )
        for one in self.waiting:
            assert not self.slots.free_for(one.user, one.group)
            place = self.slots.place_of(one.root)
            assert place is not None
            assert 1 <= place.place <= place.waiting
            assert place.used >= place.limit
            assert place.key.startswith("groups.") == self.slots.group_full(one.user, one.group)
        assert all(self.slots.place_of(root) is None for root in self.held)

    def teardown(self) -> None:
        self.slots.groups = {}
        for root in [*self.live, *(one.root for one in self.waiting), *self.held]:
            self.slots.leave(root)
        assert self.slots.give_next() is None
        kept: dict[str, Any] = {
            name: value for name, value in vars(self.slots).items() if hasattr(value, "__len__")
        }
        assert not any(kept.values()), "of users without trees nothing is kept"


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)


@given(
    total=st.integers(1, 3),
    asks=st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=4),
        min_size=20,
        max_size=20,
    ),
    data=st.data(),
)
@settings(deadline=None)
def test_a_user_without_trees_waits_for_each_other_user_once(
    total: int, asks: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    """Four others, who may be one person with four names, ask whenever and for whatever priority
    they like."""
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
        started = slots.give_next()
        assert started is not None
        live.append(started)
        if started == "victim":
            return
        assert turn < 4, "each of the others has got a slot since the victim came"

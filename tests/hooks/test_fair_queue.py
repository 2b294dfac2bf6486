"""The queue of a hook: bounded, fair to trees, and faithful to what is severe."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sfad.hooks.fair_queue import FairQueue

MOST = 8
PUSHES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=60)


def drained(queue: FairQueue[tuple[int, str, int]]) -> list[tuple[int, str, int]]:
    found = []
    while (item := queue.pop()) is not None:
        found.append(item)
    return found


@given(PUSHES)
def test_nothing_severe_yields_to_something_less_severe(pushes: list[tuple[str, int]]) -> None:
    queue: FairQueue[tuple[int, str, int]] = FairQueue(MOST)
    kept: list[tuple[int, str, int]] = []
    for number, (tree, rank) in enumerate(pushes):
        item = (number, tree, rank)
        dropped = queue.push(tree, rank, item)
        kept.append(item)
        if dropped is not None:
            assert len(kept) == MOST + 1
            assert dropped[2] == min(each[2] for each in kept)
            kept.remove(dropped)
        assert sorted(queue) == sorted(kept)
        assert len(queue) == len(kept) <= MOST
    found = drained(queue)
    assert sorted(found) == sorted(kept)
    for tree in "abc":  # of each tree the most severe first, then the oldest
        own = [(-rank, number) for number, of, rank in found if of == tree]
        assert own == sorted(own)


@given(PUSHES)
def test_trees_take_turns(pushes: list[tuple[str, int]]) -> None:
    queue: FairQueue[tuple[int, str, int]] = FairQueue(1000)
    for number, (tree, rank) in enumerate(pushes):
        queue.push(tree, rank, (number, tree, rank))
    found = [tree for _, tree, _ in drained(queue)]
    for tree in "abc":
        places = [place for place, each in enumerate(found) if each == tree]
        for before, after in pairwise(places):
            assert after - before <= 3


def test_a_flood_of_one_tree_leaves_the_others_in() -> None:
    queue: FairQueue[str] = FairQueue(MOST)
    queue.push("victim", 1, "the end of the victim")
    for number in range(1000):
        queue.push("attacker", 1, f"flood {number}")
    assert "the end of the victim" in list(queue)
    assert queue.pop() == "the end of the victim"


def test_an_item_can_be_removed() -> None:
    queue: FairQueue[int] = FairQueue(MOST)
    for number in range(3):
        queue.push("a", 0, number)
    queue.remove(1)
    assert list(queue) == [0, 2]
    assert len(queue) == 2

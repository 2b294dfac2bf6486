"""The queue of a hook: bounded, fair to users and trees, and faithful to what is severe."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sfad.features.hooks.fair_queue import FairQueue

MOST = 8
PUSHES = st.lists(st.tuples(st.sampled_from(["Ua", "Ub", "Vc"]), st.integers(0, 2)), max_size=60)
"""Of trees of two users, and severities."""


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
        dropped = queue.push(tree[0], tree, rank, item)
        kept.append(item)
        if dropped is not None:
            assert len(kept) == MOST + 1
            assert dropped[2] == min(each[2] for each in kept)
            kept.remove(dropped)
        assert sorted(queue) == sorted(kept)
        assert len(queue) == len(kept) <= MOST
    found = drained(queue)
    assert sorted(found) == sorted(kept)
    for tree in ("Ua", "Ub", "Vc"):  # of each tree the most severe first, then the oldest
        own = [(-rank, number) for number, of, rank in found if of == tree]
        assert own == sorted(own)


@given(PUSHES)
def test_users_and_their_trees_take_turns(pushes: list[tuple[str, int]]) -> None:
    queue: FairQueue[tuple[int, str, int]] = FairQueue(1000)
    for number, (tree, rank) in enumerate(pushes):
        queue.push(tree[0], tree, rank, (number, tree, rank))
    found = [tree for _, tree, _ in drained(queue)]
    for whose, most in {"Ua": 4, "Ub": 4, "Vc": 2, "U": 2, "V": 2}.items():
        places = [place for place, each in enumerate(found) if each.startswith(whose)]
        others = [place for place, each in enumerate(found) if not each.startswith(whose)]
        for before, after in pairwise(places):
            assert sum(before < place < after for place in others) < most


def test_a_flood_of_one_tree_leaves_the_others_in() -> None:
    queue: FairQueue[str] = FairQueue(MOST)
    queue.push("user", "victim", 1, "the end of the victim")
    for number in range(1000):
        queue.push("user", "attacker", 1, f"flood {number}")
    assert "the end of the victim" in list(queue)
    assert queue.pop() == "the end of the victim"


def test_many_trees_of_one_user_push_out_no_other_users() -> None:
    queue: FairQueue[str] = FairQueue(MOST)
    queue.push("victim", "tree", 1, "the end of the victim")
    for number in range(1000):
        queue.push("attacker", number, 1, f"flood {number}")
    assert queue.pop() == "the end of the victim"
    assert queue.pop() == f"flood {1000 - MOST + 1}"


def test_a_user_can_be_passed_over() -> None:
    queue: FairQueue[str] = FairQueue(MOST)
    for item in ("a1", "a2", "b1"):
        queue.push(item[0], None, 0, item)
    assert queue.pop(["a"]) == "b1"
    assert queue.pop(["a"]) is None
    assert [queue.pop(), queue.pop()] == ["a1", "a2"]


def test_an_item_can_be_removed() -> None:
    queue: FairQueue[int] = FairQueue(MOST)
    for number in range(3):
        queue.push("user", "a", 0, number)
    queue.remove(1)
    assert list(queue) == [0, 2]
    assert len(queue) == 2

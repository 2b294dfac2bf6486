"""No run, tree or user takes more than its share, in any order, and none takes the share of the
owner."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.core.state.access import Peer
from sfad.daemon.server.shares import FRACTIONS, PeerGroups, ShareGroup, Shares
from sfad.host.linux.descriptors import LEAST_RESERVE, RESERVE, Descriptors, Need
from sfad.host.tasks import LoopRounds

OWNER = PeerGroups.of(Peer(0, "root"), None)


def inside(run: str, root: str, user: str = "root", uid: int = 0) -> PeerGroups:
    """A process of a run."""
    return PeerGroups.of(Peer(uid, user, run=run), root)


UNIDENTIFIED = PeerGroups.of(Peer(0, "root", unidentified="it left its cgroup"), None)
STRANGER = PeerGroups.of(Peer(1000, "alice", owner=False), None)
GROUPS = [
    OWNER,
    UNIDENTIFIED,
    STRANGER,
    *(inside(f"a{run}", f"a{run % 3}", f"u{run % 2}", run % 2) for run in range(9)),
]

steps = st.lists(st.tuples(st.sampled_from(GROUPS), st.integers(-50, 50)), max_size=200)


@given(steps)
def test_every_group_stays_within_its_share_and_the_owner_gets_its_own(
    taken: list[tuple[PeerGroups, int]],
) -> None:
    shares, held = Shares("things", 256), Counter[PeerGroups]()
    for groups, amount in taken:
        amount = max(amount, -held[groups])
        if amount <= 0 or shares.refusal(groups, amount) is None:
            shares.add(groups, amount)
            held[groups] += amount
        for group in {group for each in GROUPS for group in each.all}:
            members = sum(amount for each, amount in held.items() if group in each.all)
            assert (
                shares.total(group)
                == members
                <= shares.share(group)
                == 256 * FRACTIONS[group.scope]
            )
        assert shares.refusal(OWNER, 256 - held[OWNER]) is None
        assert (shares.refusal(groups, 257) or "").startswith(str(groups.all[0]))
    for groups, amount in held.items():
        shares.add(groups, -amount)
    assert not shares.over(OWNER, 256)
    assert all(not shares.total(group) for groups in GROUPS for group in groups.all)


def test_children_do_not_multiply_the_share_of_a_tree() -> None:
    shares = Shares("connections", 800)
    got = 0
    for run in range(100):
        groups = inside(f"b{run}", "a1")
        while shares.refusal(groups, 1) is None:
            shares.add(groups, 1)
            got += 1
    assert got == shares.share(ShareGroup("tree", "a1")) == 200
    assert shares.refusal(inside("b1", "a1"), 1) == (
        "run b1 would have 101 connections, at most 100 are allowed; close some, or try again later"
    )
    assert shares.refusal(inside("c1", "c1"), 1) is None


@pytest.mark.rest("at scale")
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-600, 600)), max_size=60))
def test_a_few_users_together_leave_a_share_to_the_next(taken: list[tuple[int, int]]) -> None:
    users = [PeerGroups.of(Peer(uid, f"u{uid}", owner=False), None) for uid in range(6)]
    shares, held = Shares("connections", 2048, least=8), Counter[int]()
    greedy = [(user, 1) for user in range(5) for _ in range(800)]
    for user, amount in [*taken, *greedy]:
        amount = max(amount, -held[user])
        if amount <= 0 or shares.refusal(users[user], amount) is None:
            shares.add(users[user], amount)
            held[user] += amount
    assert shares.refusal(users[5], 1536 // 2**6 - 1) is None, held
    assert shares.refusal(users[0], 100) is not None


def test_a_share_is_never_too_small_to_be_useful() -> None:
    assert Shares("connections", 10, least=8).share(ShareGroup("run", "a1")) == 8


def test_the_last_descriptors_are_for_the_owner_then_for_runs() -> None:
    used = 0
    rounds = LoopRounds()
    descriptors = Descriptors(rounds, lambda: used)
    assert descriptors.limit >= 16 * RESERVE, "the tests need a limit of 512 descriptors"
    for need in Need:
        used = descriptors.limit - need * RESERVE - 5
        rounds.number += 1
        assert descriptors.refusal(need, 5) is None
        assert descriptors.refusal(need, 5) is not None, (
            "what was granted in this turn is taken to be open"
        )
        rounds.number += 1
        refusal = descriptors.refusal(need, 6)
        assert refusal is not None
        assert (
            f"only {need * RESERVE + 5} of {descriptors.limit} descriptors are left, 6 are needed"
            in refusal
        )
    descriptors.limit = 48
    used = 48 - LEAST_RESERVE
    rounds.number += 1
    assert descriptors.refusal(Need.OWNER) is None
    assert descriptors.refusal(Need.RUN) is not None

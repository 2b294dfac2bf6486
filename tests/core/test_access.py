"""Users, positions and verbs: every combination against what the words of docs/users.md promise."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sfad.core.state.access import (
    EVERYTHING,
    FULL,
    KEYS,
    OPERATOR_ONLY,
    TABLE,
    VERBS,
    AccessRules,
    Peer,
    Permissions,
    Scope,
    why_sessions_refused,
    why_target_refused,
    why_verb_refused,
)
from tests.together import together

ADMINS = 700
ALL_USERS = AccessRules(all_users=True, admin_gid=ADMINS)
USERS = {
    "root": Peer(0, "root"),
    "operator": Peer(990, "sfad"),
    "admin": Peer(1003, "eve", owner=False, gids=frozenset({1003, ADMINS})),
    "ann": Peer(1001, "ann", owner=False, gids=frozenset({1001})),
    "bob": Peer(1002, "bob", owner=False, gids=frozenset({1002})),
}
SUPER = {"root", "operator", "admin"}
POSITIONS = {
    "outside": None,
    "inside": Permissions(),
    "main agent": FULL,
    "leaf": Permissions(leaf=True),
    "denied": Permissions(frozenset()),
}
"""What the run may do that the peer is in."""

OF_ADMINS = {"config", "reload"}
OF_PEOPLE = {"approve", "deny", "prune", "reload"}
UNBOUND = {"hello", "select"}
"""What no `--deny` takes away."""
WITH = {
    "info": {"recall"},
    "logs": {"read_output", "text", "transcript"},
    "list": {"watch_runs"},
}
"""What a verb takes along where it is denied."""


@together("user", USERS)
@together("position", POSITIONS)
def test_users_positions_and_verbs(user: str, position: str) -> None:
    permissions = POSITIONS[position]
    peer = replace(USERS[user], run=None if permissions is None else "a2")
    for verb in TABLE:
        refused = verb in OF_ADMINS and user not in SUPER
        if permissions is not None:
            refused |= verb in OF_PEOPLE
            refused |= verb == "spawn" and permissions.leaf
            refused |= position == "denied" and verb not in UNBOUND
        assert (
            why_verb_refused(peer, verb, permissions or FULL, ALL_USERS) is not None
        ) == refused, verb
    may_start = permissions is None or (permissions.sessions and not permissions.leaf)
    assert (why_sessions_refused(peer, permissions or FULL, ALL_USERS) is None) == may_start


@pytest.mark.parametrize("user", USERS)
def test_a_daemon_of_its_own_user_serves_no_other(user: str) -> None:
    for verb, run in product(TABLE, (None, "a2")):
        refused = why_verb_refused(replace(USERS[user], run=run), verb, FULL, OPERATOR_ONLY)
        if user not in {"root", "operator"}:
            assert refused is not None
            assert "serves another user" in refused
    admins = AccessRules(admin_gid=ADMINS)
    assert (why_verb_refused(USERS[user], "list", FULL, admins) is None) == (user in SUPER)


def test_a_peer_that_could_not_be_placed_may_do_nothing() -> None:
    for user, verb in product(USERS.values(), TABLE):
        assert (
            why_verb_refused(replace(user, unidentified="hidden"), verb, FULL, ALL_USERS)
            is not None
        )


def test_a_gateway_may_do_nothing_else() -> None:
    users = Peer(1001, "ann", owner=False, gateway=True, gateway_uid=1001)
    for peer, rules in product((Peer(0, "root", gateway=True), users), (ALL_USERS, OPERATOR_ONLY)):
        allowed = {verb for verb in TABLE if why_verb_refused(peer, verb, FULL, rules) is None}
        assert allowed == {"hello"}


def test_deny_takes_away_what_can_be_named() -> None:
    peer = Peer(1001, "ann", owner=False, run="a2")
    for verb in VERBS - {KEYS}:  # which only requests of a feature need
        narrowed = FULL.narrowed(
            allow=frozenset(), deny=frozenset({verb}), leaf=False, sessions=True, session=False
        )
        lost = {
            other
            for other in TABLE
            if why_verb_refused(peer, other, narrowed, ALL_USERS)
            != why_verb_refused(peer, other, FULL, ALL_USERS)
        }
        assert lost == ({verb} | WITH.get(verb, set())) - OF_ADMINS


UIDS = st.sampled_from([0, 990, 1001, 1002, 1003])
LINEAGES = st.lists(st.sampled_from(["a1", "a2", "a3", "a4"]), min_size=1, max_size=4, unique=True)


@given(
    user=st.sampled_from(list(USERS)),
    run=st.none() | st.sampled_from(["a1", "a2"]),
    uid=UIDS | st.none(),
    lineage=LINEAGES,
)
def test_a_scope_is_own_runs_or_the_subtree_or_all(
    user: str, run: str | None, uid: int | None, lineage: list[str]
) -> None:
    peer = replace(USERS[user], run=run)
    scope = ALL_USERS.scope(peer)
    own = user in SUPER or uid == peer.uid
    assert scope.admits(uid, lineage) == (own if run is None else run in lineage)
    assert scope.knows(uid, lineage) == (own or (run is not None and run in lineage))
    if scope.admits(uid, lineage):
        assert why_target_refused(peer, "stop", lineage, ALL_USERS) is None
    elif scope.knows(uid, lineage):
        assert why_target_refused(peer, "stop", lineage, ALL_USERS) is not None
    assert EVERYTHING.admits(uid, lineage)


def test_events_of_the_daemon_itself_are_for_those_who_see_all() -> None:
    assert [ALL_USERS.scope(user).admits(None, ()) for user in USERS.values()] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert not Scope(uid=None, run="a2").admits(None, ())

"""Who may ask what of the fleet."""

from __future__ import annotations

from sfad.core.state.access import FULL, AccessRules, Peer, Permissions, why_verb_refused
from sfad.daemon.loop.policy import ACCESS
from sfad.features.fleet.feature import FEATURE
from sfad.protocol.framing import tag

RULES = AccessRules(all_users=True, features=ACCESS)
VERBS = {tag(kind) for kind in FEATURE.verbs}
OF_FILES = {"put_files", "fetch_files", "get_files"}


def allowed(peer: Peer, permissions: Permissions = FULL) -> set[str]:
    return {each for each in VERBS if why_verb_refused(peer, each, permissions, RULES) is None}


def test_only_admins_outside_of_runs_and_users_for_their_files() -> None:
    assert allowed(Peer(0, "root")) == VERBS
    assert allowed(Peer(1001, "ann", owner=False)) == OF_FILES
    assert allowed(Peer(0, "root", run="a2")) == OF_FILES


def test_files_are_denied_with_what_they_are_for() -> None:
    inside = Peer(1001, "ann", owner=False, run="a2")

    def without(verb: str) -> Permissions:
        return FULL.narrowed(
            allow=frozenset(), deny=frozenset({verb}), leaf=False, sessions=True, session=False
        )

    assert allowed(inside, without("spawn")) == {"fetch_files", "get_files"}
    assert allowed(inside, without("logs")) == {"put_files"}
    assert allowed(inside, Permissions(leaf=True)) == {"fetch_files", "get_files"}

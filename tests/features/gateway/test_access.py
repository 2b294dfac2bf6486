"""Who may ask what gateways ask."""

from __future__ import annotations

import pytest

from sfad.core.state.access import FULL, AccessRules, Peer, why_verb_refused
from sfad.daemon.loop.policy import ACCESS
from sfad.features.gateway.feature import FEATURE
from sfad.protocol.framing import tag

RULES = AccessRules(all_users=True, features=ACCESS)


@pytest.mark.parametrize("verb", [tag(kind) for kind in FEATURE.verbs])
def test_only_a_gateway_asks(verb: str) -> None:
    for gateway in (
        Peer(0, "root", owner=True, gateway=True),
        Peer(1001, "ann", owner=False, gateway=True, gateway_uid=1001),
    ):
        assert why_verb_refused(gateway, verb, FULL, RULES) is None
    for run in (None, "a1"):
        for uid in (0, 1001):
            peer = Peer(uid, "someone", owner=uid == 0, run=run)
            assert (
                why_verb_refused(peer, verb, FULL, RULES)
                == f"only the daemon's own gateway may '{verb}'"
            )

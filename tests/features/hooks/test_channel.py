"""The channel of runs that hooks start is theirs alone, and what is started in them has it too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from sfad.agents.setup_reader import NO_SETUPS
from sfad.core.state.access import Peer
from sfad.features.hooks.feature import CHANNEL
from sfad.protocol.errors import RequestError
from sfad.protocol.messages import Spawn
from sfad.runs.live import Live
from sfad.start.prepared import Prepared, Surroundings
from sfad.start.steps import keep_channel

OPERATOR = Peer(0, "root")


def kept(peer: Peer, asked: str | None, callers: str = "cli") -> str | None:
    """Return the channel of a run. `callers`: that of the run which the peer is in."""
    root = SimpleNamespace(id="a1", birth=SimpleNamespace(channel=callers))
    root.root = root
    caller = cast(Live, SimpleNamespace(run=root, setups=NO_SETUPS))
    order = Spawn(id=0, argv=[b"true"], cwd=b"/", env=[], channel=asked)
    p = Prepared.of(order)
    around = Surroundings(
        order=order,
        peer=peer,
        user=None,
        client=1,
        live={"a1": caller},
        agents=dict,
        caller=caller if peer.run is not None else None,
    )
    keep_channel(p, around)
    return p.identity.channel


@pytest.mark.parametrize("asked", [None, "ci", CHANNEL])
def test_what_a_hook_starts_has_it_whatever_was_asked(asked: str | None) -> None:
    assert kept(Peer(0, "root", channel=CHANNEL), asked) == CHANNEL
    assert kept(Peer(0, "root", run="a1"), asked, callers=CHANNEL) == CHANNEL


def test_no_other_client_may_ask_for_it() -> None:
    for peer in (OPERATOR, Peer(0, "root", run="a1")):
        assert kept(peer, "ci") == "ci"
        assert kept(peer, None) is None
        with pytest.raises(RequestError, match="that of runs which a hook starts; choose another"):
            kept(peer, CHANNEL)

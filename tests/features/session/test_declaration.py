"""Who may ask what, and what the config may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfad.config import ConfigError, load
from sfad.features.session.feature import FEATURE
from sfad.features.session.messages import SessionRights, StartSession


def test_the_core_decides_who_may_start_sessions() -> None:
    """It records what it refuses; and `session_rights` tells what the peer may."""
    later = {kind for kind, access in FEATURE.verbs.items() if access.checked_later}
    assert later == {StartSession, SessionRights}


def test_the_agent_of_a_session_that_names_none_is_known(tmp_path: Path) -> None:
    file = tmp_path / "sfad.toml"
    file.write_text('[sessions]\ndefault_agent = "mine"\n')
    with pytest.raises(ConfigError, match=r"default_agent = 'mine': allowed is one of "):
        load([file])
    file.write_text('[sessions]\ndefault_agent = "mine"\n[agents.mine]\ncommand = ["true"]\n')
    assert load([file])

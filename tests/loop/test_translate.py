"""Requests and the config in the core's terms."""

from __future__ import annotations

from pathlib import Path

from sfad import config as configuration
from sfad.loop.translate import policy_of


def test_a_key_is_shown_with_the_file_that_sets_it_or_would_set_it(tmp_path: Path) -> None:
    system, user = tmp_path / "system.toml", tmp_path / "user.toml"
    system.write_text("[limits]\nmax_time = '2h'")
    policy = policy_of(configuration.load([system, user]))
    assert policy.place("limits.max_time") == f"limits.max_time in {system}"
    assert policy.place("quotas.trees") == f"quotas.trees in {user}"
    assert policy_of(configuration.load()).place("quotas.trees") == "quotas.trees in the config"

"""Requests and the config in the core's terms."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sfad import config as configuration
from sfad.core.state.access import AccessRules
from sfad.core.state.policy import Policy
from sfad.daemon.loop.policy import ACCESS, policy_of
from sfad.protocol.kinds import DEFAULT_KEYS, KINDS


def test_a_key_is_shown_with_the_file_that_sets_it_or_would_set_it(tmp_path: Path) -> None:
    system, user = tmp_path / "system.toml", tmp_path / "user.toml"
    system.write_text("[limits]\nmax_time = '2h'")
    policy = policy_of(configuration.load([system, user]), everyone=False)
    assert policy.where_set("limits.max_time") == f"limits.max_time in {system}"
    assert policy.where_set("quotas.trees") == f"quotas.trees in {user}"
    assert (
        policy_of(configuration.load(), everyone=False).where_set("quotas.trees")
        == "quotas.trees in the config"
    )


def test_the_built_in_config_has_the_defaults_of_the_table_of_kinds() -> None:
    sections = {section.key: section.kind() for section in configuration.SECTIONS}
    assert policy_of(configuration.load(), everyone=False) == Policy(
        files={},
        access=AccessRules(features=ACCESS),
        sections=sections,
        file="the config",
    )


def test_the_configs_ranges_begin_where_those_of_the_table_of_kinds_do() -> None:
    fields = msgspec.json.schema(configuration.DefaultsConfig)["$defs"]["DefaultsConfig"][
        "properties"
    ]
    for kind, key in DEFAULT_KEYS.items():
        types = fields[key].get("anyOf", [fields[key]]) if key in fields else []
        assert [found["minimum"] for found in types if "minimum" in found] == [
            KINDS[kind].least
        ] * bool(types), kind

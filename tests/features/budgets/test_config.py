"""`[budgets]`: tables below names."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfad.config import ConfigError, load
from sfad.features.budgets.feature import NAME, BudgetsConfig, TeamBudget, UserBudget

BUDGETS = """
[budgets.users.ann]
daily_usd = 20
[budgets.teams.research]
usd = 400
period = 'week'
members = ['ann', 'bob']
"""


def test_budgets_are_merged_below_their_names(tmp_path: Path) -> None:
    system, user = tmp_path / "system.toml", tmp_path / "user.toml"
    system.write_text(BUDGETS)
    user.write_text("[budgets.users.bob]\ndaily_usd = 5")
    loaded = load([system, user])
    section = loaded.config.section(NAME, BudgetsConfig)
    assert section.users == {"ann": UserBudget(daily_usd=20), "bob": UserBudget(daily_usd=5)}
    assert section.teams == {"research": TeamBudget(usd=400, period="week", members=("ann", "bob"))}
    shown = {setting.key: (setting.value, setting.source) for setting in loaded.settings}
    assert shown["budgets.teams.research.members"] == (("ann", "bob"), str(system))
    missing = tmp_path / "missing.toml"
    missing.write_text("[budgets.teams.other]\nusd = 1")
    with pytest.raises(
        ConfigError, match=r"missing\.toml: budgets\.teams\.other\.period is missing"
    ):
        load([system, missing])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[budgets.user.ann]\ndaily_usd = 1",
            "budgets.user: unknown key; known here: action, teams, users",
        ),
        (
            "[budgets.users.ann]\nusd = 1",
            "budgets.users.ann.usd: unknown key; known here: daily_usd",
        ),
        (
            "[budgets.users]\nann = 20",
            "budgets.users.ann = 20: a table is expected, written [budgets.users.ann]",
        ),
        (
            "[budgets.teams.r]\nusd = 1\nperiod = 'day'",
            "budgets.teams.r.members is missing: allowed is a list of names",
        ),
        (
            "[budgets.teams.r]\nusd = 1\nperiod = 'year'\nmembers = []",
            'budgets.teams.r.period = \'year\': allowed is one of "day", "week", "month"',
        ),
        (
            "[budgets.teams.r]\nusd = 1\nperiod = 'day'\nmembers = 'ann'",
            "budgets.teams.r.members = 'ann': allowed is a list of names",
        ),
    ],
)
def test_errors_name_key_value_and_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "sfad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load([file])
    assert str(caught.value).startswith(f"{file}: {message}")

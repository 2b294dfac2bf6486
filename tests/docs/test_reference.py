"""Compare configuration.md and exit-codes.md with the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sfactl.exits import ExitCode
from sfad import __version__
from sfad.config import ConfigError, load
from sfad.protocol.messages import Setting
from sfad.protocol.units import DURATION_FORMS
from sfad.reloading import AT_START
from tests.docs.pages import CHANGELOG, README, ROOT, rows, sections, text_of

CONFIGURATION = text_of("configuration.md")
SETTINGS = load().settings


def in_table(page: str, key: str) -> list[str]:
    """Return the row that begins with `key`."""
    [found] = [row for row in rows(page) if row[0].strip("`") == key]
    return found


def shown(value: Any) -> str:
    """Return a default as the page writes it."""
    match value:
        case None:
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case str():
            return f'`"{value}"`'
    return f"`{value}`"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_key_with_its_default_and_its_range(setting: Setting, tmp_path: Path) -> None:
    _, default, allowed, meaning = in_table(sections(CONFIGURATION, "##")["Keys"], setting.key)
    assert default == shown(setting.value)
    assert allowed == allowed_by_error(setting.key, tmp_path / "sfad.toml")
    assert meaning


def allowed_by_error(key: str, file: Path) -> str:
    """Return the allowed values that the daemon names for a value that no key takes."""
    section, _, name = key.rpartition(".")
    file.write_text(f"[{section}]\n{name} = []\n" if section else f"{name} = []\n")
    with pytest.raises(ConfigError) as caught:
        load([file])
    return str(caught.value).partition(": allowed is ")[2].replace(f" ({DURATION_FORMS})", "")


def test_every_row_is_a_key() -> None:
    keys = [row[0].strip("`") for row in rows(sections(CONFIGURATION, "##")["Keys"])]
    assert keys == ["key", *(setting.key for setting in SETTINGS)]


def test_which_keys_wait_for_a_restart() -> None:
    assert " and ".join(f"`{prefix}*`" for prefix in AT_START) + " stay as they are" in CONFIGURATION


def test_every_environment_variable_is_documented() -> None:
    sources = [path.read_text() for package in ("sfad", "sfactl") for path in (ROOT / package).rglob("*.py")]
    variables = {name for text in sources for name in re.findall(r"\bSFAD?_[A-Z_]*[A-Z]\b", text)}
    assert {name for name in variables if f"`{name}`" not in CONFIGURATION} == set()


def test_every_exit_code() -> None:
    table = [row[:2] for row in rows(sections(text_of("exit-codes.md"), "##")["sfactl"])]
    assert table == [
        ["code", "meaning"],
        *([str(code.value), code.meaning] for code in ExitCode),
        ["else", "the run's own exit code, 128 + n for signal n"],
    ]


def test_the_release_is_in_the_changelog_and_the_readme() -> None:
    assert f"## [{__version__}]" in CHANGELOG.read_text()
    assert f"{__version__} is the first release" in README.read_text()

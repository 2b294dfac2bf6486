"""Compare configuration.md and states.md with the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, get_args, get_type_hints

import pytest

from sfactl.exits import MEANINGS
from sfad import __version__
from sfad.config import (
    ConfigError,
    GroupConfig,
    Price,
    ProgramConfig,
    Whole,
    load,
)
from sfad.daemon.reloading import AT_START
from sfad.features.budgets.feature import TeamBudget, UserBudget
from sfad.features.checks.feature import ProfileChecks
from sfad.features.gateway.feature import UpstreamConfig
from sfad.features.hooks.feature import Hook
from tests.docs.pages import CHANGELOG, README, ROOT, blocks, rows, sections, text_of
from tests.together import together

CONFIGURATION = text_of("configuration.md")
DEFAULTS, NAMED = (block.text for block in blocks(CONFIGURATION) if block.language == "toml")
SETTINGS = load().settings

_LINE = re.compile(r"^#?(\w+) = (.+?) +# (.+)$")
_UNITS = re.compile(
    r"^(a (whole )?number|a duration|a size|one) ((from|of) )?| \([^)]*\)|: the program.*|, "
    r"such "
    r"as.*"
)


class Shown(NamedTuple):
    """A key of a block."""

    key: str
    value: str
    comment: str


def keys(block: str) -> list[Shown]:
    """Return the keys of a block, also those without a default."""
    found: list[Shown] = []
    table = ""
    for line in block.splitlines():
        if line.startswith('name = "') and found and table == "hooks.":  # of an array of tables
            table += line.split('"')[1] + "."
        elif line.startswith("["):
            table = line.partition("]")[0].strip("[") + "."
        elif (entry := _LINE.match(line)) is not None:
            found.append(Shown(table + entry[1], entry[2], entry[3]))
    return found


def uncommented(block: str, without: str = "env") -> str:
    """Return the block with the keys that have no default, but for one of a pair that excludes
    itself."""
    return re.sub(rf"^#(?=\w)(?!(?:key|headers)_{without} )", "", block, flags=re.MULTILINE)


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def test_the_defaults(tmp_path: Path) -> None:
    file = write(tmp_path / "sfad.toml", DEFAULTS)
    assert load([file]).config == load().config
    assert [shown.key for shown in keys(DEFAULTS)] == [setting.key for setting in SETTINGS]


@pytest.mark.parametrize("block", [DEFAULTS, NAMED])
def test_every_value_that_is_shown_is_allowed(tmp_path: Path, block: str) -> None:
    file = write(tmp_path / "sfad.toml", uncommented(block))
    settings = {setting.key for setting in load([file]).settings if setting.source == str(file)}
    other = write(tmp_path / "other.toml", uncommented(block, without="file"))
    settings |= {setting.key for setting in load([other]).settings if setting.source == str(other)}
    assert settings == {shown.key for shown in keys(block)}


def test_every_key_below_a_name() -> None:
    entries = {
        "prices": Price, "programs": ProgramConfig, "users": UserBudget, "teams": TeamBudget,
        "upstreams": UpstreamConfig, "hooks": Hook, "groups": GroupConfig, "check": ProfileChecks,
        "agents": get_args(get_type_hints(Whole)["agents"])[1],
    }  # fmt: skip
    shown = {shown.key for shown in keys(NAMED)}
    tables = {key.rpartition(".")[0] for key in shown}
    kinds = {
        table: next(kind for name, kind in entries.items() if f"{name}." in f"{table}.")
        for table in tables
    }
    assert shown == {
        f"{table}.{field}" for table, kind in kinds.items() for field in kind.__struct_fields__
    }


@together(
    ("block", "shown"),
    [(block, shown) for block in (DEFAULTS, NAMED) for shown in keys(block)],
)
def test_the_range_is_that_of_the_error(tmp_path: Path, block: str, shown: Shown) -> None:
    table, _, name = shown.key.rpartition(".")
    text = f"\n{uncommented(block, 'file' if name.endswith('_env') else 'env')}"
    head = "[[hooks]]" if table.startswith("hooks.") else f"[{table}]"
    begin = text.index(f"\n{head}") if table else 0
    wrong = text[:begin] + text[begin:].replace(
        f"\n{name} = {shown.value} ", f"\n{name} = {{}} ", 1
    )
    with pytest.raises(ConfigError) as caught:
        load([write(tmp_path / "sfad.toml", wrong)])
    assert f"{shown.key} = " in str(caught.value)
    allowed = _UNITS.sub("", str(caught.value).partition(": allowed is ")[2])
    assert allowed == "true or false" or shown.comment.startswith(allowed)


def test_which_keys_wait_for_a_restart() -> None:
    assert (
        " and ".join(f"`{key}*`" if key.endswith(".") else f"`{key}`" for key in AT_START)
        + " stay as they are"
        in CONFIGURATION
    )


def test_every_environment_variable_is_documented() -> None:
    sources = [
        path.read_text()
        for package in ("sfad", "sfactl")
        for path in (ROOT / package).rglob("*.py")
    ]
    variables = {name for text in sources for name in re.findall(r"\bSFAD?_[A-Z_]*[A-Z]\b", text)}
    assert {name for name in variables if f"`{name}`" not in CONFIGURATION} == set()


def test_every_exit_code() -> None:
    table = [row[:2] for row in rows(sections(text_of("states.md"))["sfactl"])]
    assert table == [
        ["code", "meaning"],
        *([str(code), meaning] for code, meaning in MEANINGS.items()),
        ["else", "the run's own exit code, 128 + n for signal n"],
    ]


def test_the_release_is_in_the_changelog_and_the_readme() -> None:
    assert f"## [{__version__}]" in CHANGELOG.read_text()
    assert f"{__version__} is the first release" in README.read_text()

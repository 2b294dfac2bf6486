"""Layers, origins, and errors that tell what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.config import BUILT_IN, Config, ConfigError, load
from sfad.protocol.units import format_duration, parse_duration


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_without_files_everything_is_built_in() -> None:
    loaded = load()
    assert loaded.config == Config()
    assert {setting.source for setting in loaded.settings} == {BUILT_IN}
    values = {setting.key: setting.value for setting in loaded.settings}
    assert (values["enabled"], values["guard.max_depth"], values["stop.grace"], values["log.file"]) == (True, 5, 5.0, None)


def test_the_user_s_file_wins_key_by_key(tmp_path: Path) -> None:
    system = write(tmp_path / "system.toml", "[guard]\nmax_depth = 7\nmax_descendants = 9\n[stop]\ngrace = '2s'")
    user = write(tmp_path / "user.toml", "[guard]\nmax_depth = 3")
    loaded = load([system, user])
    sources = {setting.key: (setting.value, setting.source) for setting in loaded.settings}
    assert sources["guard.max_depth"] == (3, str(user))
    assert sources["guard.max_descendants"] == (9, str(system))
    assert sources["stop.grace"] == (2.0, str(system))
    assert sources["stop.kill_wait"] == (10.0, BUILT_IN)
    assert loaded.files == [system, user]


def test_every_key_can_be_set(tmp_path: Path) -> None:
    lines = []
    for setting in load().settings:
        value = "/x" if setting.value is None else setting.value
        lines.append(f"{setting.key} = {str(value).lower() if isinstance(value, bool | int | float) else repr(value)}")
    file = write(tmp_path / "all.toml", "\n".join(lines))
    assert {setting.source for setting in load([file]).settings} == {str(file)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("enabld = true", "enabld: unknown key; known here: attempts, containment, defaults, enabled"),
        ("[guard]\nmax_dept = 3", "guard.max_dept: unknown key; known here: allow_detach, depth_ceiling"),
        ("[guard]\nmax_depth = 0", "guard.max_depth = 0: allowed is a whole number from 1 to 1000"),
        ("[guard]\nmax_depth = true", "guard.max_depth = true: allowed is a whole number from 1 to 1000"),
        ("[guard]\nmax_depth = '3'", "guard.max_depth = '3': allowed is a whole number"),
        ("guard = 3", "guard = 3: a table is expected, written [guard]"),
        ("enabled = 1", "enabled = 1: allowed is true or false"),
        ("[stop]\ngrace = 61", "stop.grace = 61: allowed is a duration of 0s to 1m"),
        ("[stop]\ngrace = -1", "stop.grace = -1: allowed is a duration"),
        ("[stop]\ngrace = nan", "stop.grace = nan: allowed is a duration"),
        ("[stop]\ngrace = '5 parsecs'", "stop.grace = '5 parsecs': allowed is a duration of 0s to 1m (seconds, or a number"),
        ("[stop]\ngrace = true", "stop.grace = true: allowed is a duration"),
        ("[stop]\ngrace = [1]", "stop.grace = [1]: allowed is a duration"),
        ("[stop]\ngrace = 2020-01-01", "stop.grace = datetime.date(2020, 1, 1): allowed is a duration"),
        ("[defaults]\ntimeout = '500ms'", "defaults.timeout = '500ms': allowed is a duration of 1s or more"),
        ("[defaults]\ntimeout = '2h'", "defaults.timeout = '2h': allowed is at most limits.max_time, which is 3600 (built-in)"),
        ("[containment]\nmode = 'docker'", """containment.mode = 'docker': allowed is one of "auto", "cgroup", "tags\""""),
        ("[containment]\ncgroup_parent = 'x'", "containment.cgroup_parent = 'x': allowed is an absolute path"),
        ("[containment]\ncgroup_parent = 4", "containment.cgroup_parent = 4: allowed is an absolute path"),
        ("[log]\nlevel = 'loud'", "log.level = 'loud': allowed is one of "),
        ("= 3", "not TOML: Invalid statement (at line 1, column 1)"),
    ],
)
def test_errors_name_file_key_value_and_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "sfad.toml", text)
    with pytest.raises(ConfigError) as caught:
        load([file])
    assert str(caught.value).startswith(f"{file}: {message}")


def test_a_bound_that_is_lowered_takes_the_built_in_default_along(tmp_path: Path) -> None:
    file = write(tmp_path / "sfad.toml", "[guard]\ndepth_ceiling = 3\n[limits]\nmax_time = '60s'")
    loaded = load([file])
    assert (loaded.config.guard.max_depth, loaded.config.defaults.timeout) == (3, 60.0)
    assert {s.key: s.source for s in loaded.settings}["guard.max_depth"] == str(file)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "sfad.toml"
    assert load([missing]).files == []
    with pytest.raises(ConfigError, match=r"sfad\.toml: no such file"):
        load([missing], required=True)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load([tmp_path])
    missing.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not TOML"):
        load([missing])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(90, 90), (1.5, 1.5), ("90", 90), ("90s", 90), ("5m", 300), ("1h", 3600), ("250ms", 0.25), ("1.5h", 5400), (" 2 d ", 172800)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "1e3", "nan", "inf", "1h30m", "5 parsecs", "٣s", "1_000", -1, float("nan"), float("inf"), True]
)
def test_what_is_no_duration(text: str | float) -> None:
    with pytest.raises(ValueError, match="is not a duration: seconds, or"):
        parse_duration(text)


@given(st.integers(0, 10**9) | st.integers(0, 10**9).map(lambda ms: ms / 1000))
def test_a_formatted_duration_is_read_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


def test_durations_are_short() -> None:
    assert [format_duration(s) for s in (0, 0.25, 1, 59, 60, 90, 120, 3600, 5400, 86400, 2678400)] == [
        "0s", "250ms", "1s", "59s", "1m", "90s", "2m", "1h", "90m", "1d", "31d"
    ]  # fmt: skip

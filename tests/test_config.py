"""Layers, sources of values, and errors that say what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.config import (
    BUILT_IN,
    ConfigError,
    Price,
    ProgramConfig,
    Whole,
    config_files,
    load,
)
from sfad.protocol.texts.units import format_duration, parse_duration
from tests.together import together


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_without_files_everything_is_built_in() -> None:
    loaded = load()
    assert loaded.config == Whole()
    assert {setting.source for setting in loaded.settings} == {BUILT_IN}
    values = {setting.key: setting.value for setting in loaded.settings}
    assert (
        values["enabled"],
        values["guard.max_depth"],
        values["stop.grace"],
        values["log.file"],
    ) == (True, 5, 5.0, None)


def test_the_user_s_file_wins_key_by_key(tmp_path: Path) -> None:
    system = write(
        tmp_path / "system.toml",
        "[guard]\nmax_depth = 7\nmax_descendants = 9\n[stop]\ngrace = '2s'",
    )
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
        value = "off" if setting.value is None else setting.value
        lines.append(
            f"{setting.key} = {json.dumps(list(value) if isinstance(value, tuple) else value)}"
        )
    file = write(tmp_path / "all.toml", "\n".join(lines))
    assert {setting.source for setting in load([file]).settings} == {str(file)}


@together(
    ("text", "message"),
    [
        (
            "enabld = true",
            "enabld: unknown key; known here: access, agents, ",
        ),
        (
            "[guard]\nmax_dept = 3",
            "guard.max_dept: unknown key; known here: agent_programs, allow_detach, depth_ceiling",
        ),
        ("[guard]\nmax_depth = 0", "guard.max_depth = 0: allowed is a whole number from 1 to 1000"),
        (
            "[guard]\nmax_depth = true",
            "guard.max_depth = true: allowed is a whole number from 1 to 1000",
        ),
        ("[guard]\nmax_depth = '3'", "guard.max_depth = '3': allowed is a whole number"),
        ("guard = 3", "guard = 3: a table is expected, written [guard]"),
        ("enabled = 1", "enabled = 1: allowed is true or false"),
        ("[stop]\ngrace = 61", "stop.grace = 61: allowed is a duration of 0s to 1m"),
        ("[stop]\ngrace = -1", "stop.grace = -1: allowed is a duration"),
        ("[stop]\ngrace = nan", "stop.grace = nan: allowed is a duration"),
        (
            "[stop]\ngrace = '5 parsecs'",
            "stop.grace = '5 parsecs': allowed is a duration of 0s to 1m (seconds, or a number",
        ),
        ("[stop]\ngrace = true", "stop.grace = true: allowed is a duration"),
        ("[stop]\ngrace = [1]", "stop.grace = [1]: allowed is a duration"),
        (
            "[stop]\ngrace = 2020-01-01",
            "stop.grace = datetime.date(2020, 1, 1): allowed is a duration",
        ),
        (
            "[defaults]\ntimeout = '500ms'",
            "defaults.timeout = '500ms': allowed is a duration of 1s or more",
        ),
        (
            "[defaults]\ntimeout = '2h'",
            "defaults.timeout = '2h': allowed is at most limits.max_time, which is 3600 (built-in)",
        ),
        (
            "[containment]\nmode = 'docker'",
            """containment.mode = 'docker': allowed is one of "auto", "cgroup", "tags\"""",
        ),
        (
            "[containment]\ncgroup_parent = 'x'",
            "containment.cgroup_parent = 'x': allowed is an absolute path",
        ),
        (
            "[containment]\ncgroup_parent = 4",
            "containment.cgroup_parent = 4: allowed is an absolute path",
        ),
        ("[log]\nlevel = 'loud'", "log.level = 'loud': allowed is one of "),
        (
            "[stop]\nresult_wait = '61m'",
            "stop.result_wait = '61m': allowed is a duration of 0s to 1h",
        ),
        (f"[stop]\ngrace = 1{400 * '0'}", "stop.grace = 1000"),
        ("[limits]\nnearing = 1", "limits.nearing = 1: allowed is a number above 0 and below 1"),
        ("[limits]\nnearing = 0", "limits.nearing = 0: allowed is a number above 0 and below 1"),
        (
            "[limits]\nnearing = '80%'",
            "limits.nearing = '80%': allowed is a number above 0 and below 1",
        ),
        (
            "[limits]\nnearing = nan",
            "limits.nearing = nan: allowed is a number above 0 and below 1",
        ),
        (
            "[limits]\npause_max = 'off'",
            "limits.pause_max = 'off': allowed is a duration of 1s to 31d",
        ),
        (
            "[defaults]\nturns = 101",
            "defaults.turns = 101: allowed is at most limits.max_turns, which is 100 (built-in)",
        ),
        (
            "[defaults]\noutput = '2G'",
            (
                "defaults.output = '2G': allowed is at most limits.max_output, "
                "which is 1073741824 (built-in)"
            ),
        ),
        (
            "[defaults]\nturns = false",
            "defaults.turns = false: allowed is a whole number from 1 to 1000000",
        ),
        (
            "[defaults]\nturns = 2.5",
            "defaults.turns = 2.5: allowed is a whole number from 1 to 1000000",
        ),
        (
            "[defaults]\ncost = 0",
            'defaults.cost = 0: allowed is a number from 0.01 to 1000000, or "off"',
        ),
        (
            "[defaults]\ntimeout = 'off'",
            "defaults.timeout = 'off': allowed is a duration of 1s or more",
        ),
        (
            "[defaults]\noutput = 'off'",
            "defaults.output = 'off': allowed is a size of 64 KiB or more",
        ),
        (
            "[defaults]\noutput = '63K'",
            (
                "defaults.output = '63K': allowed is a size of 64 KiB or more (bytes, "
                "or a number with K"
            ),
        ),
        ("[defaults]\noutput = 70000.5", "defaults.output = 70000.5: allowed is a size"),
        (
            "[defaults]\nmemory = '9999999T'",
            "defaults.memory = '9999999T': allowed is a size of 1 MiB or more",
        ),
        (
            "[defaults]\ntokens = '200x'",
            "defaults.tokens = '200x': allowed is a whole number of 1 or more (a number, or one",
        ),
        (f"[defaults]\nmessages = 1{30 * '0'}", "defaults.messages = 1000"),
        ("[defaults]\npids = 0", "defaults.pids = 0: allowed is a whole number from 1 to 4194304"),
        ("[defaults]\ncpu = 0", 'defaults.cpu = 0: allowed is a number of 0.01 or more, or "off"'),
        ("[defaults]\ncpu = inf", "defaults.cpu = inf: allowed is a number of 0.01 or more"),
        (
            "[retention]\noutput = '59s'",
            "retention.output = '59s': allowed is a duration of 1m to 3650d",
        ),
        (
            "[retention]\nledger = '30m'",
            "retention.ledger = '30m': allowed is a duration of 1h to 3650d",
        ),
        (
            "[retention]\nbackup_every = 0",
            "retention.backup_every = 0: allowed is a duration of 1m to 366d",
        ),
        (
            "[retention]\nsweep_every = 'off'",
            "retention.sweep_every = 'off': allowed is a duration of 1m to 31d (seconds",
        ),
        (
            "[retention]\narchive = '7d'",
            "retention.archive: unknown key; known here: backup_every, ledger, output, "
            "output_size, sweep_every",
        ),
        ("prices = 3", "prices = 3: a table is expected, written [prices]"),
        ("[prices]\nm = 3", "prices.m = 3: a table is expected, written [prices.m]"),
        (
            "[prices.'gpt-5.1']\ninput = 3",
            'prices."gpt-5.1".input: unknown key; known here: cache_write_mtok, cached_mtok, input',
        ),
        (
            "[prices.m]\ninput_mtok = 3",
            "prices.m.output_mtok is missing: allowed is a number of 0 or more",
        ),
        ("[prices.m]", "prices.m.input_mtok is missing: allowed is a number of 0 or more"),
        (
            "[prices.m]\ninput_mtok = -1\noutput_mtok = 1",
            "prices.m.input_mtok = -1: allowed is a number of 0 or more",
        ),
        (
            "[prices.m]\ninput_mtok = inf\noutput_mtok = 1",
            "prices.m.input_mtok = inf: allowed is a number of 0 or more",
        ),
        (
            "[prices.m]\ninput_mtok = 'off'\noutput_mtok = 1",
            "prices.m.input_mtok = 'off': allowed is a number of 0 or more",
        ),
        ("[prices.'']", 'prices."": a name of 1 to 256 characters is expected'),
        (f"[prices.{'m' * 257}]", f"prices.{'m' * 193}: a name of 1 to 256 characters is expected"),
        (
            "[agents.a]",
            (
                "agents.a.command is missing: allowed is a list of texts: "
                "the program and its arguments, one text each"
            ),
        ),
        (
            "[agents.a]\ncommand = []",
            "agents.a.command = []: allowed is a list of texts: the program",
        ),
        (
            "[agents.a]\ncommand = 'claude -p'",
            "agents.a.command = 'claude -p': allowed is a list of texts: the program",
        ),
        (
            "[agents.a]\ncommand = ['x']\nmeter = 'clod'",
            'agents.a.meter = \'clod\': allowed is one of "auto", "claude", "codex"',
        ),
        (
            "[agents.a]\ncommand = ['x']\nkind = 'robot'",
            'agents.a.kind = \'robot\': allowed is one of "agent", "skill"',
        ),
        (
            "[agents.a]\ncommand = ['x']\ntype = 3",
            "agents.a.type = 3: allowed is a text of at most 64 characters",
        ),
        (
            "[agents.a]\ncommand = ['x']\nlimits = 'turns=5'",
            "agents.a.limits = 'turns=5': allowed is a list of limits as --limit",
        ),
        (
            "[agents.a]\ncommand = ['x']\nlimits = ['trns=5']",
            "agents.a.limits: --limit trns=5: unknown limit 'trns'; choose from",
        ),
        (
            "[agents.a]\ncommand = ['x']\nlimits = ['turns=500']",
            "agents.a.limits: turns = 500 (--limit turns) is outside its range: 1 to",
        ),
        (
            "[agents.a]\ncomand = ['x']",
            "agents.a.comand: unknown key; known here: ",
        ),
        (
            "[agents.'a b']\ncommand = ['x']",
            (
                'agents."a b": an agent\'s name has 1 to 64 letters, digits, . _ and -, not '
                "beginning with -"
            ),
        ),
        ("= 3", "not TOML: Invalid statement (at line 1, column 1)"),
        (f"x = 1{5000 * '0'}", "not TOML: Exceeds the limit"),
    ],
)
def test_errors_name_file_key_value_and_what_is_allowed(
    tmp_path: Path, text: str, message: str
) -> None:
    file = write(tmp_path / "sfad.toml", text)
    with pytest.raises(ConfigError) as caught:
        load([file])
    assert str(caught.value).startswith(f"{file}: {message}")


def test_a_lowered_bound_lowers_the_built_in_default(tmp_path: Path) -> None:
    file = write(tmp_path / "sfad.toml", "[guard]\ndepth_ceiling = 3\n[limits]\nmax_time = '60s'")
    loaded = load([file])
    assert (loaded.config.guard.max_depth, loaded.config.defaults.timeout) == (3, 60.0)
    assert {s.key: s.source for s in loaded.settings}["guard.max_depth"] == str(file)


def test_off_removes_a_limit(tmp_path: Path) -> None:
    system = write(
        tmp_path / "system.toml", "[defaults]\nturns = 'off'\ncost = 'off'\ntokens = '200k'"
    )
    user = write(tmp_path / "user.toml", "[defaults]\nturns = 7\ntokens = 'off'\npids = 'off'")
    loaded = load([system, user])
    defaults = loaded.config.defaults
    assert (defaults.turns, defaults.cost, defaults.tokens, defaults.pids) == (7, None, None, None)
    assert {s.key: s.source for s in loaded.settings}["defaults.cost"] == str(system)


def test_retention_in_days_or_off(tmp_path: Path) -> None:
    built_in = load().config.retention
    assert (built_in.output, built_in.ledger, built_in.backup_every, built_in.sweep_every) == (
        604800,
        7776000,
        86400,
        3600,
    )
    file = write(
        tmp_path / "sfad.toml",
        "[retention]\noutput = 'off'\nledger = '1.5d'\nbackup_every = 'off'\nsweep_every = '10m'",
    )
    kept = load([file]).config.retention
    assert (kept.output, kept.ledger, kept.backup_every, kept.sweep_every) == (
        None,
        129600,
        None,
        600,
    )


def test_sizes_and_counts_as_people_write_them(tmp_path: Path) -> None:
    file = write(
        tmp_path / "sfad.toml",
        "[defaults]\noutput = '1.5M'\nmemory = '2G'\ntokens = '200k'\nmessages = 12\ncpu = 2",
    )
    defaults = load([file]).config.defaults
    assert (defaults.output, defaults.memory, defaults.tokens, defaults.messages, defaults.cpu) == (
        1_572_864, 2 * 1024**3, 200_000, 12, 2.0
    )  # fmt: skip


PRICED = """
[prices."gpt-5.1"]
input_mtok = 1
output_mtok = 8.5
[prices.'say "hi"']
input_mtok = 0
output_mtok = 0
cached_mtok = 'off'
[groups.night]
slots = 2
"""


def test_tables_below_a_name(tmp_path: Path) -> None:
    config = load([write(tmp_path / "sfad.toml", PRICED)]).config
    assert config.prices == {
        "gpt-5.1": Price(input_mtok=1, output_mtok=8.5),
        'say "hi"': Price(input_mtok=0, output_mtok=0),
    }


def test_each_value_below_a_name_is_a_setting(tmp_path: Path) -> None:
    file = write(tmp_path / "sfad.toml", PRICED)
    shown = {s.key: (s.value, s.source) for s in load([file]).settings}
    assert shown['prices."gpt-5.1".output_mtok'] == (8.5, str(file))
    assert shown['prices."gpt-5.1".cached_mtok'] == (None, BUILT_IN)
    assert shown['prices."say \\"hi\\"".cached_mtok'] == (None, str(file))
    assert shown["groups.night.slots"] == (2, str(file))
    again = write(
        tmp_path / "again.toml",
        "\n".join(
            f"{key} = {value[0]}"
            for key, value in shown.items()
            if "_mtok" in key and value[0] is not None
        ),
    )
    assert load([again]).config.prices == load([file]).config.prices


def test_files_are_merged_below_a_name_too(tmp_path: Path) -> None:
    system = write(tmp_path / "system.toml", PRICED)
    user = write(
        tmp_path / "user.toml",
        "[prices.'gpt-5.1']\noutput_mtok = 9\n[groups.day]\nslots = 5",
    )
    loaded = load([system, user])
    sources = {s.key: s.source for s in loaded.settings}
    assert loaded.config.prices["gpt-5.1"] == Price(input_mtok=1, output_mtok=9)
    assert (sources['prices."gpt-5.1".input_mtok'], sources['prices."gpt-5.1".output_mtok']) == (
        str(system),
        str(user),
    )
    assert list(loaded.config.groups) == ["night", "day"]


def test_built_in_programs_and_those_of_a_file(tmp_path: Path) -> None:
    assert load().config.programs == {"claude": ProgramConfig(stop="SIGINT-main")}
    file = write(
        tmp_path / "sfad.toml",
        '[programs.codex]\nstop = "SIGINT-main"\n[programs.claude]\nstop = "SIGTERM"',
    )
    loaded = load([file])
    assert loaded.config.programs == {
        "claude": ProgramConfig(stop="SIGTERM"),
        "codex": ProgramConfig(stop="SIGINT-main"),
    }
    assert {
        setting.source for setting in loaded.settings if setting.key.startswith("programs.")
    } == {str(file)}


def test_missing_files(tmp_path: Path) -> None:
    missing = tmp_path / "sfad.toml"
    assert load([missing]).files == []
    with pytest.raises(ConfigError, match=r"sfad\.toml: no such file"):
        load([missing], required=True)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load([tmp_path])
    missing.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not TOML"):
        load([missing])


def test_a_device_or_a_fifo_in_place_of_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="fifo: neither a regular file nor a device"):
        load([tmp_path / "fifo"])
    for endless in ("/dev/zero", "/dev/full"):
        with pytest.raises(ConfigError, match="larger than 1048576 bytes"):
            load([Path(endless)])
    assert load([Path("/dev/null")], required=True).settings == load([]).settings


@given(st.integers(0, 10**9) | st.integers(0, 10**9).map(lambda ms: ms / 1000))
def test_a_formatted_duration_is_read_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


def test_durations_are_short() -> None:
    seconds = (0, 0.25, 1, 59, 60, 90, 120, 3600, 5400, 86400, 2678400)
    assert [format_duration(s) for s in seconds] == [
        "0s", "250ms", "1s", "59s", "1m", "90s", "2m", "1h", "90m", "1d", "31d"
    ]  # fmt: skip


def test_the_config_files() -> None:
    home, own = {"HOME": "/home/ann"}, Path("/home/ann/.local/state/sfad")
    operators = Path("/etc/sfad/user.toml")
    assert config_files(home, own) == ([operators, Path("/home/ann/.config/sfad/sfad.toml")], False)
    assert config_files({**home, "XDG_CONFIG_HOME": "/c"}, own) == (
        [operators, Path("/c/sfad/sfad.toml")],
        False,
    )
    assert config_files({}, own) == ([operators], False)
    assert config_files(home, Path("/var/lib/sfad")) == ([Path("/etc/sfad/sfad.toml")], False)
    for state in (own, Path("/var/lib/sfad")):
        assert config_files({"SFAD_CONFIG": "/e"}, state) == ([Path("/e")], True)
        assert config_files({"SFAD_CONFIG": "/e"}, state, "/f") == ([Path("/f")], True)

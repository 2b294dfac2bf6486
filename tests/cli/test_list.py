"""`sfactl list`: every match, page by page, and a table that fits."""

from __future__ import annotations

import os
import pty
import pwd
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from sfactl import output
from sfactl.commands import list as list_
from sfactl.options.shared import moment
from sfactl.showing import table
from sfad.core.state.run import run_id
from sfad.protocol.types import RunInfo, Status, Usage
from tests.harness import wait_until

from .conftest import SFACTL, World
from .night import ROWS
from .samples import NOON, run

# noon, a minute after midnight, the last minute of a year, the 29th of February; where clocks are
# put forward and back
NOWS = [
    "2026-11-28 12:30",
    "2026-11-29 00:01",
    "2026-12-31 23:59",
    "2028-02-29 23:58",
    "2026-03-29 03:01",
    "2026-10-25 02:30",
]


@pytest.fixture(params=["UTC", "Europe/Berlin", "Pacific/Chatham"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_zone")
@pytest.mark.parametrize("text", NOWS)
def test_since_a_clock_or_a_day(text: str) -> None:
    now = datetime.fromisoformat(text)

    def found(since: str) -> datetime:
        return datetime.fromtimestamp(moment(since, now.timestamp()))

    midnight = now.replace(hour=0, minute=0)
    yesterday = midnight - timedelta(days=1)
    assert found("today") == found("00:00") == midnight
    assert found("yesterday") == yesterday
    assert found("yesterday 22:00") == yesterday.replace(hour=22)
    assert found(f"{now:%H:%M}") == now
    soon = midnight.replace(hour=23, minute=59, second=30)  # it was shown yesterday
    assert found("23:59:30") == soon - timedelta(days=1)
    assert found("00:00:01") == midnight.replace(second=1)
    assert moment("90s", now.timestamp()) == now.timestamp() - 90


@pytest.mark.parametrize(
    "text", ["tomorrow", "monday 22:00", "25:00", "yesterday x", "22:00+02:00", "today today"]
)
def test_since_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="neither a time"):
        moment(text)


def listed(world: World, *words: str) -> list[str]:
    return [found["id"] for found in world.json("list", *words)["runs"]]


def test_a_filter_lists_every_match_and_no_filter_the_last_50(night: World) -> None:
    assert listed(night) == [run_id(number) for number in range(ROWS - 49, ROWS + 1)]
    assert night.json("list")["truncated"] is True
    assert "truncated" not in night.json("list", "--since", "2d")
    assert listed(night, "--since", "2d") == [run_id(number) for number in range(1, ROWS + 1)]
    assert listed(night, "--since", "90m", "--status", "failed") == [run_id(700)]
    assert listed(night, "--status", "failed") == [run_id(100 * n) for n in range(1, 8)]
    assert len(listed(night, "--name", "clerk")) == 600


def test_labels_of_one_key_mean_either_and_of_several_all(night: World) -> None:
    assert len(listed(night, "--label", "n=1", "--label", "n=2")) == 140
    assert len(listed(night, "--label", "n=1", "--label", "n=2", "--label", "shift=late")) == 70
    assert listed(night, "--label", "n=1", "--label", "shift=early") == []


@pytest.mark.parametrize(
    ("words", "cut"),
    [(["--limit-rows", "3"], True), (["--name", "boss", "--limit-rows", "100"], False)],
)
def test_what_limit_rows_cuts_is_said(night: World, words: list[str], cut: bool) -> None:
    found = night.json("list", *words)
    assert found.get("truncated", False) is cut
    assert len(found["runs"]) == int(words[-1])
    assert ("--limit-rows" in night.sfactl("list", *words).stderr) is cut


def test_totals_count_each_run_once_and_the_sum_each_run_s_own_use(night: World) -> None:
    found = night.json("list", "--root", "a1", "--sum")
    boss, clerk, other = found["runs"][:3]
    assert (
        boss["usage"]["cost_usd"],
        boss["total_cost_usd"],
        boss["total_tokens"],
        boss["total_partial"],
    ) == (
        0.25,
        1.75,
        700,
        True,
    )
    assert (clerk["total_cost_usd"], clerk["total_partial"], other["total_partial"]) == (
        0.25,
        True,
        False,
    )
    assert found["sum"] == {
        "runs": 7,
        "cost_usd": 1.75,
        "tokens": 700,
        "partial": True,
        "at_most": False,
    }
    assert night.json("info", "a1")["total_cost_usd"] == 1.75
    assert "at least 1.75 USD with its descendants" in night.sfactl("info", "a1").stdout
    *_, last = night.sfactl("list", "--root", "a1", "--sum").stdout.splitlines()
    assert last.split() == ["sum", "7", "runs", "≥700", "≥1.75"]


def test_a_terminal_of_80_columns_is_not_exceeded(night: World) -> None:
    master, slave = pty.openpty()
    command = [*SFACTL, "list", "--name", "boss", "--limit-rows", "20"]
    size = (
        "import fcntl, struct, sys, termios; fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('4H', "
        "24, 80, 0, 0))"
    )
    subprocess.run([SFACTL[0], "-c", size], stdout=slave, check=True)
    done = subprocess.run(command, env=night.env | {"TERM": "xterm"}, stdout=slave, check=True)
    os.close(slave)
    shown = all_of(master).decode()
    assert done.returncode == 0
    assert "\033[32mcompleted\033[0m" in shown
    lines = re.sub(r"\033\[\d+m", "", shown).splitlines()
    assert len(lines) == 21
    assert max(map(len, lines)) <= 80
    assert "ENDED" in lines[0]
    assert "\033" not in night.sfactl("list", "--name", "boss", "--limit-rows", "20").stdout


def all_of(master: int) -> bytes:
    """Return what was written to a terminal until its other end was closed."""
    data = b""
    try:
        while part := os.read(master, 65536):
            data += part
    except OSError:  # EIO: the other end has been closed
        return data
    finally:
        os.close(master)
    return data


# ---- the table


OWN = pwd.getpwuid(os.getuid()).pw_name


def rows_of(*runs: RunInfo, **options: Any) -> list[str]:
    columns = [column for column in list_.COLUMNS if not column.needs]
    rows = [[column.cell(info) for column in columns] for info in runs]
    return list_.drawn(columns, rows, {info.user for info in runs}, **options).splitlines()


def test_usage_has_columns_where_it_is_known() -> None:
    usage = Usage(elapsed_s=3.0, turns=12, tokens=48_000, cost_usd=0.45, source="report")
    unknown, known = run(id="a1", user=OWN), run(id="a2", user=OWN, usage=usage)
    header, first, second = rows_of(unknown, known)
    assert header.split()[6:] == ["RAN", "TURNS", "TOKENS", "USD", "COMMAND"]
    assert first.split()[7:10] == ["-", "-", "-"]
    assert second.split()[7:10] == ["12", "48.0k", "0.45"]
    assert "USD" not in rows_of(unknown)[0]


def test_the_user_has_a_column_where_there_are_runs_of_others() -> None:
    own, other = run(id="a1", user=OWN), run(id="a2", user="zoe")
    assert "USER" not in rows_of(own)[0]
    assert "USER" in rows_of(own, wide=True)[0]
    for shown in (rows_of(other), rows_of(own, other)):
        assert shown[0].split()[5:7] == ["USER", "AGE"]
        assert shown[-1].split()[5] == "zoe"


def test_the_least_important_columns_go_first_and_then_what_is_too_long_is_cut() -> None:
    wide = run(
        name="n" * 64,
        argv=["echo", "x" * 500],
        status=Status.REJECTED_CONCURRENCY,
        usage=Usage(tokens=1, cost_usd=2.5),
    )
    for room, gone, there in ((200, "", "DEPTH"), (135, "DEPTH", "RAN"), (80, "RAN", "USD")):
        header, line = rows_of(wide, room=room)
        assert max(len(header), len(line)) <= room
        assert line.endswith("…")
        assert there in header
        assert not gone or gone not in header


def test_wide_characters_are_cut_by_columns() -> None:
    assert (table.cut("日本語", 6), table.cut("日本語", 5), table.cut("abc", 2)) == (
        "日本語",
        "日本…",
        "a…",
    )


@pytest.mark.parametrize(
    ("cell", "colour"),
    [
        ("completed", "32"),
        ("failed (exit 3)", "31"),
        ("rejected_loop", "31"),
        ("running", "36"),
        ("paused", "33"),
    ],
)
def test_a_status_has_a_colour(cell: str, colour: str) -> None:
    assert table.by_status(cell) == f"\033[{colour}m{cell}\033[0m"
    assert table.by_status("cancelled") == "cancelled"


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}, {}])
def test_no_colours_where_they_are_not_wanted(environ: dict[str, str]) -> None:
    assert not table.coloured(environ)


def test_times_are_local_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert output.local(NOON) == "2026-01-02 21:00:00"
        later = NOON + timedelta(hours=1)
        assert output.clock(NOON, later) == "21:00:00"
        assert output.clock(NOON, later + timedelta(hours=4)) == "Jan 02 21:00"
        assert output.clock(NOON, later + timedelta(days=400)) == "2026-01-02"
        assert output.clock(None) == "-"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.alone
def test_names_of_any_script_in_every_view(daemon: World) -> None:
    names = ("Übersicht", "日本語", "plain")
    script = "$SFACTL run -q --name 子供 -- sh -c 'echo $SFA_NAME in $SFA_CALL_CHAIN'; sleep 60"
    runs = [
        daemon.spawn("--name", name, "--label", "Größe=大", "--", "sh", "-c", script)
        for name in names
    ]
    for started, name in zip(runs, names, strict=True):
        assert daemon.json("info", name)["id"] == started
        wait_until(lambda name=name: daemon.sfactl("logs", name).stdout, "its child has ended")  # type: ignore[misc]
        assert daemon.sfactl("logs", name).stdout == f"子供 in {name}\n"
    assert daemon.json("info", "U\u0308bersicht")["name"] == "Übersicht"
    header, *lines = daemon.sfactl("list", "--status", "running", "--labels").stdout.splitlines()
    for line, name in zip(lines, names, strict=True):
        # the status begins in the same column of the terminal in each line
        assert output.width(line[: line.index("running")]) == header.index("STATUS")
        assert name in line
        assert "Größe=大" in line
    assert "日本語" in daemon.sfactl("tree", "日本語").stdout
    assert {run["name"] for run in daemon.json("list", "--name", "日本語")["runs"]} == {"日本語"}
    assert "Übersicht" in daemon.sfactl("events", "--run", runs[0]).stdout
    for odd in ("a\u202eb", "a\x1bb", "a\u200bb"):
        refused = daemon.sfactl("spawn", "--name", odd, "--", "true", code=2).stderr
        assert "1 to 64 letters" in refused
        assert odd not in refused

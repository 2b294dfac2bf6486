"""The benchmark still runs: each row at a tiny size. What it measures is not asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench import counts, fleet_keeper, rows
from tests.bench.native import NoCompiler
from tests.bench.ours import Sfad
from tests.bench.peers import PEERS
from tests.bench.rows import ROWS, Row

SIZES = {"lists": 20, "page": 100, "stop": 50, "stop_stubborn": 50, "commands": 1, "core": 200}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sfad, "executed", False)
    monkeypatch.setattr(rows, "CALLS", 3)
    monkeypatch.setattr(rows, "SECONDS", 0.05)
    monkeypatch.setattr(
        counts, "LOADS", {load: (act, 3) for load, (act, _) in counts.LOADS.items()}
    )
    monkeypatch.setattr(counts, "ROWS", (2, 8))


@pytest.mark.parametrize(
    "row", {row.measure: row for row in ROWS}.values(), ids=lambda row: row.measure.__name__
)
def test_each_row_measures_ours_and_the_floor(row: Row) -> None:
    size = SIZES.get(row.measure.__name__, 2)
    try:
        found = row.measure(bench.starting(Sfad), size)
        floor = row.floor(size) if row.floor else {}
    except NoCompiler:
        return
    assert found
    assert floor.keys() <= found.keys()
    assert all(isinstance(figure, int | float) for figure in found.values())


def test_the_peers_that_are_installed_run_something() -> None:
    for peer in PEERS:
        if peer.installed():
            assert rows.throughput(bench.starting(peer), 2)["N × /bin/true, runs/s"] > 0


def test_counts() -> None:
    found = counts.main()
    assert found["Python calls"].keys() == found["bytes written"].keys() == counts.LOADS.keys()
    assert found["bytes of a list"]["a row"] > 0


def test_a_question_costs_the_keeper_of_a_fleet_little_once_the_connection_is_there() -> None:
    found = fleet_keeper.counts(nodes=3, minutes=3)
    question, first = found["Python calls"]
    assert 0 < question < 250  # it was 180, and 540 on a connection for each question
    assert first > question


def test_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        bench, "ROWS", (Row("core", "runs", rows.core, (200,), (100, 200, 400), peers=False),)
    )
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # which it removes
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## Results\n\nold\n\n## Growth\n\nold\n\n## Last\n")
    monkeypatch.setattr(bench, "PAGE", page)
    for words in ([], ["--growth"]):
        monkeypatch.setattr(
            "sys.argv",
            [
                "bench",
                "--only",
                "core",
                "--quick",
                "--docs",
                "--json",
                str(tmp_path / "json"),
                *words,
            ],
        )
        bench.main()
    assert "| core events/s |" in capsys.readouterr().out
    assert [line for line in page.read_text().splitlines() if line.startswith(("#", "old"))] == [
        "# Page",
        "## Results",
        "## Growth",
        "## Last",
    ]
    assert page.read_text().count("| core events/s |") == 2
    assert "exponent" in json.loads((tmp_path / "json").read_text())["core events/s"]


def test_the_exponent_of_growth() -> None:
    assert bench.exponent([(1, 3), (2, 12), (4, 48)]) == pytest.approx(2)


def test_a_line_has_ratios_to_the_floor() -> None:
    assert (
        bench.line("x, ms", {"floor": 2.0, "sfad": 3.0, "tsp": 2400.0})
        == "| x, ms | 2 | 3 = 1.5 × | tsp 2 400 = 1 200 × |"
    )

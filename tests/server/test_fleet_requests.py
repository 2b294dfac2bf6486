"""A daemon that is in no fleet: what it says, and that nothing of Ray is imported."""

from __future__ import annotations

from pathlib import Path

from tests.harness import running


def test_without_a_fleet_each_way_to_one_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        for line in ("spawn --fleet -- true", "run --on n2 -- true", "list --fleet", "info n2/a1"):
            done = daemon.sfactl(*line.split())
            assert (done.returncode, "set fleet.address in its config" in done.stderr) == (75, True), done
        assert "in no fleet" in daemon.sfactl("fleet", "status").stdout
        assert daemon.sfactl("fleet", "nodes").returncode == 75
        assert daemon.sfactl("list", "--json").stdout == '{"runs":[]}\n'


def test_wrong_options_are_named(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        for words, said in (
            (["--cpus", "many"], "--cpus"),
            (["--memory", "4X"], "--memory"),
            (["--on", "n1", "--on", "n2"], "are several nodes"),
            (["--fleet", "--stdio", "inherit", "--wait"], "exclude each other"),
        ):
            done = daemon.sfactl("spawn", *words, "--", "true")
            assert (done.returncode, said in done.stderr) == (2, True), (words, done)

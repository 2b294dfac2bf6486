"""A daemon that is in no fleet: what it says, and that nothing of Ray is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sfactl.connecting.connection import DaemonError
from sfad.features.fleet.messages import (
    FetchFiles,
    FilesKept,
    FilesPacked,
    PutFiles,
    ShareSubscriptions,
)
from sfad.protocol import messages as m
from sfad.protocol.types import Placing, Ship
from tests.harness import running


def test_without_a_fleet_each_way_to_one_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        for line in ("spawn --fleet -- true", "run --on n2 -- true", "list --fleet", "info n2/a1"):
            done = daemon.sfactl(*line.split())
            assert (done.returncode, "set fleet.address in its config" in done.stderr) == (
                75,
                True,
            ), done
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


def test_files_go_only_with_a_run_that_is_placed(tmp_path: Path) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    (directory / "x").write_text("x")
    with running(tmp_path) as daemon:
        done = daemon.sfactl("spawn", "--ship", str(directory), "--", "true")
        assert (done.returncode, "add --fleet or --on NODE" in done.stderr) == (2, True), done
        done = daemon.sfactl("spawn", "--fleet", "--ship", str(directory), "--", "true")
        assert (done.returncode, "set fleet.address in its config" in done.stderr) == (75, True), (
            done
        )
        with daemon.client() as client:
            ship = Ship(directory=b"/src", archive="a" * 32)
            with pytest.raises(
                DaemonError, match="--ship sends files to the node where a run is placed"
            ):
                client.call(m.Spawn(id=0, argv=[b"true"], cwd=b"/", env=[], ship=ship), m.RunReply)
        assert not daemon.state_dir.with_name(f"{daemon.state_dir.name}-shipped").exists()
        run = daemon.sfactl("spawn", "--", "true").stdout.strip()
        done = daemon.sfactl("fetch", run)
        assert (done.returncode, "no files were sent with it (--ship)" in done.stderr) == (
            1,
            True,
        ), done
        assert daemon.sfactl("fetch", "zz9").returncode == 66


def test_requests_about_files_are_checked(tmp_path: Path) -> None:
    with (
        running(
            tmp_path, config='[fleet]\naddress = "127.0.0.1:1"\nship_max = "64 KiB"\n'
        ) as daemon,
        daemon.client() as client,
    ):
        given: dict[str, Any] = {
            "id": 0,
            "argv": [b"true"],
            "cwd": b"/",
            "env": [],
            "placing": Placing(),
        }
        archive = "a" * 32
        with pytest.raises(
            DaemonError, match=r"the files have 65 KiB, and fleet\.ship_max is 64 KiB"
        ):
            client.call(PutFiles(id=0, archive=archive, size=65 << 10), FilesKept)
        client.call(PutFiles(id=0, archive=archive, size=1, data=b"x"), FilesKept)
        with pytest.raises(
            DaemonError, match="the files of /src are not here any more: start the run again"
        ):
            client.call(m.Spawn(ship=Ship(directory=b"/src", archive=archive), **given), m.RunReply)
        daemon.kill()
        daemon.restart()
        kept = client.call(
            PutFiles(id=0, archive=archive, size=1, offset=1, data=b"y", last=True), FilesKept
        )
        assert (kept.offset, kept.whole) == (2, True)
        for ship, said in (
            (Ship(directory=b"/src", archive="../x"), "are not here any more"),
            (Ship(directory=b"src", archive=archive), "cannot work in"),
            (Ship(directory=b"/src", within=b"../x", archive=archive), "cannot work in"),
            (Ship(directory=b"/s\0", archive=archive), "NUL byte"),
            (Ship(directory=b"/" + b"x" * 4096, archive=archive), "at most 4096"),
            (Ship(directory=b"/src", author="a\nb", archive=archive), "control character"),
        ):
            with pytest.raises(DaemonError, match=said):
                client.call(m.Spawn(ship=ship, **given), m.RunReply)
        reply = client.call(
            m.Spawn(ship=Ship(directory=b"/src", archive=archive), **given), m.RunReply
        )
        with pytest.raises(DaemonError, match="it has not started yet"):
            client.call(FetchFiles(id=0, run=reply.run.id), FilesPacked)
        client.call(m.Stop(id=0, runs=[reply.run.id]), m.Stopped)


def test_a_daemon_that_is_no_keeper_shares_nothing(tmp_path: Path) -> None:
    config = '[fleet]\naddress = "127.0.0.1:1"\nnode = "n2"\nkeeper = "n1"\n'
    with (
        running(tmp_path, config=config) as daemon,
        daemon.client() as client,
        pytest.raises(
            DaemonError,
            match="node n2 does not keep the budgets of this fleet; for it the keeper is n1",
        ),
    ):
        client.call(ShareSubscriptions(id=0), m.Reply)

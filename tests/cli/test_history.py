"""The verbs that only read, if no daemon is running."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sfad.storage.ledger.database import open_reader
from tests.harness import as_nobody, as_root, wait_until

from .conftest import World


def recorded(daemon: World, run: str) -> str:
    """Return the status of a run in the ledger's file."""
    with closing(open_reader(daemon.state)) as reader:
        found: str = reader.execute("SELECT status FROM runs WHERE id = ?", [run]).fetchone()[0]
    return found


@pytest.mark.alone
def test_the_history_of_a_daemon_that_was_killed(daemon: World) -> None:
    left = daemon.spawn("--name", "left", "--", "sleep", "60")
    done = daemon.json("run", "--name", "done", "--no-gateway", "--", "echo", "hello")["id"]
    wait_until(
        lambda: recorded(daemon, left) == "running", "the ledger has the change, a moment later"
    )
    daemon.kill()
    try:
        listed = daemon.sfactl("list")
        assert "no daemon is running" in listed.stderr
        assert str(daemon.state) in listed.stderr
        assert "running (last known)" in listed.stdout
        assert [line.split()[0] for line in listed.stdout.splitlines()] == ["ID", left, done]
        assert (
            "was running: no daemon is running, so this is its last known state"
            in daemon.sfactl("why", "left").stdout
        )
        assert daemon.sfactl("logs", done).stdout == "hello\n"
        assert "the gateway was not used" in daemon.sfactl("calls", "-f", done).stderr
        assert daemon.json("summary")["by_status"] == {"completed": 1, "running": 1}
        daemon.sfactl("stop", left, code=69)
    finally:
        daemon.begin()
        daemon.sfactl("stop", "--all")


def test_without_a_ledger_or_for_a_socket_that_was_named_there_is_none(world: World) -> None:
    assert "ledger.db does not exist" in world.sfactl("list", code=69).stderr
    assert "history" not in world.sfactl("list", "--socket", str(world.socket), code=69).stderr
    assert not world.state.exists()
    world.state.mkdir()
    (world.state / "ledger.db").write_text("no ledger at all " * 100)
    assert "not a database" in world.sfactl("list", code=69).stderr


@as_root
def test_another_user_s_history_is_not_read(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "ledger.db").touch()

    def listed() -> object:
        from sfactl.connecting import history
        from sfactl.exits import Quit

        os.environ |= {"SFAD_STATE_DIR": str(state), "SFAD_SOCKET": "/nonexistent/s"}
        try:
            history.connect(None)
        except Quit as error:
            return f"{error.code}: {error.message}"
        return sys.argv

    said = as_nobody(listed)
    assert said.startswith("77: ")
    assert "You may not read its history" in said

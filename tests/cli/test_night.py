"""A night is `sh night.sh`: what its root gets when an agent program starts in it, and what the
user is told."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from sfad.protocol.types import Event
from tests.harness import wait_until

from .conftest import PATIENCE, World
from .test_text import raw_terminal, read_terminal

Start = Callable[..., subprocess.Popen[bytes]]

CLAUDE = """#!/bin/sh
read word < wait
"""

PROFILE = {
    "time": (1800, "profile coding-agent"),
    "turns": (100, "profile coding-agent"),
    "cost": (5, "profile coding-agent"),
}


class Night:
    """A directory with a program called claude that waits, and a foreground run of a script that
    starts it."""

    def __init__(
        self, start: Start, directory: Path, *words: str, script: str = "./claude\necho done\n"
    ) -> None:
        (directory / "claude").write_text(CLAUDE)
        (directory / "claude").chmod(0o755)
        (directory / "night.sh").write_text(script)
        os.mkfifo(directory / "wait")
        self._fifo = directory / "wait"
        self.process = start(
            "run", "--name", "night", *words, "--", "sh", "night.sh", cwd=directory
        )

    def told(self) -> Iterator[str]:
        """Yield the lines on stderr."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            yield line.decode()

    def end(self) -> None:
        """Let the program end, and with it the run."""
        self._fifo.write_bytes(b"on\n")
        assert self.process.wait(PATIENCE) == 0


def profiled(world: World, run: str = "night") -> dict[str, tuple[float, str]]:
    """Return threshold and source of the limits that a profile sets."""
    found = world.json("info", run)["limits"]
    return {
        each["kind"]: (each["threshold"], each["source"])
        for each in found
        if each["kind"] in ("time", "turns", "cost")
    }


def test_a_script_gets_the_profile_when_a_program_starts_in_it(
    daemon: World, start: Start, tmp_path: Path
) -> None:
    night = Night(start, tmp_path)
    # the first line may tell the profile already
    line = next(line for line in night.told() if "starts in it" in line)
    assert line.startswith(
        "[agent:night] 'claude' starts in it, so it has the profile coding-agent: "
        "time 2m → 30m, turns 25 → 100"
    )
    assert profiled(daemon) == PROFILE
    (event,) = map(
        json.loads,
        daemon.sfactl(
            "events", "--json", "--run", "night", "--type", "limits_widened"
        ).stdout.splitlines(),
    )
    assert (event["severity"], event["agent_name"], event["limit_kind"]) == ("low", "night", None)
    assert event.keys() == {*Event.__struct_fields__}
    night.end()


def test_a_script_that_a_script_starts_gets_the_profile_too(
    daemon: World, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "part.sh").write_text("./claude\n")
    night = Night(start, tmp_path, script="$SFACTL run --name part -- sh part.sh")
    told = (line for line in night.told() if "so it has the profile coding-agent" in line)
    assert {next(told).split()[0] for _ in range(2)} == {"[agent:night]", "[agent:part]"}
    assert (
        profiled(daemon)
        == profiled(daemon, "part")
        == {kind: each for kind, each in profiled(daemon).items() if "profile" in each[1]}
    )
    night.end()


def test_limits_that_were_typed_stay(daemon: World, start: Start, tmp_path: Path) -> None:
    night = Night(start, tmp_path, "--timeout", "5m")
    assert "5m (--timeout)" in next(line for line in night.told() if "starting" in line)
    wait_until(lambda: daemon.json("info", "night")["unadmitted"], "the program is noticed")
    assert profiled(daemon)["time"] == (300, "--timeout")
    assert "limits_widened" not in daemon.sfactl("events", "--run", "night").stdout
    night.end()


def test_spawn_tells_the_limits_at_a_terminal_only(daemon: World) -> None:
    assert daemon.sfactl("spawn", "--", "true").stderr == ""
    master, slave = raw_terminal()
    try:
        with daemon.popen("spawn", "--name", "me", "--", "true", stderr=slave) as process:
            os.close(slave)
            told = b"".join(iter(lambda: read_terminal(master, 4096), b""))
        assert process.returncode == 0
    finally:
        os.close(master)
    assert told.decode().startswith("[agent:me] starting: 2m, ")
    assert "change with --timeout, --limit" in told.decode()

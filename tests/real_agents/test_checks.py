"""An agent program goes on in its session until the check of its run passes, within one limit of
cost, across a SIGKILL of the daemon in the second check."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.harness import wait_until
from tests.real_agents.clis import CLAUDE, CODEX, Cli
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.script import Say
from tests.real_agents.test_bill import CONFIG

CHECK = """
cd {place}
count=$(cat count 2>/dev/null || echo 0); count=$((count + 1)); echo $count > count
echo "test_$count of the parser"
test $count = 2 && read -r go < gate
test $count = 3
"""


@pytest.mark.parametrize("cli", [CLAUDE, CODEX], ids=lambda cli: cli.name)
def test_an_agent_goes_on_until_its_check_passes(desk: MakeDesk, cli: Cli, tmp_path: Path) -> None:
    at = desk(config=CONFIG, **{cli.name: [Say("Done."), Say("Done again."), Say("Repaired.")]})
    place = tmp_path / "place"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    check = place / "check.sh"
    check.write_text(CHECK.format(place=place))
    os.mkfifo(place / "gate")
    (place / "gate").chmod(0o666)
    words = ["--check", f"sh {check}", "--attempts", "5", "--resume", "--retry-delay", "100ms"]
    limits = ["--limit", "cost=5", "--timeout", "10m"]
    started = at.sfactl("spawn", *words, *limits, *cli.by_name)
    assert started.returncode == 0, started.stderr
    count = place / "count"
    wait_until(
        lambda: count.exists() and count.read_text() == "2\n", "the second check", seconds=200
    )
    at.daemon.kill()
    at.daemon.restart()
    (place / "gate").write_text("go\n")
    wait_until(lambda: at.listed()[0]["ended_at"], "it has ended", seconds=200)
    (run,) = at.listed()
    assert (run["status"], run["attempts"]) == ("completed", 3), run["reason"]
    assert [each["state"] for each in run["checks"]] == ["passed"]
    talk = at.talk(cli)
    told = json.dumps(talk.requests[-1])
    assert "test_1 of the parser" in told
    assert "test_2 of the parser" in told, "one session knows of both"
    assert "test_3 of the parser" not in told
    assert run["total_cost_usd"] == pytest.approx(sum(talk.bills), rel=0.01)

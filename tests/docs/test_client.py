"""Run every program of client.md as an agent, in a run of a real daemon."""

from __future__ import annotations

import json
import os
import shlex
import sysconfig
from pathlib import Path

from sfad.protocol import messages as m
from tests.conftest import Start
from tests.docs.pages import blocks, text_of
from tests.harness import Daemon

PAGE = blocks(text_of("client.md"))
FIRST, *OTHERS = (block.text for block in PAGE if block.language == "python")
(COMMAND,) = (block.text for block in PAGE if block.language == "sh")
(CONFIG,) = (block.text for block in PAGE if block.language == "toml")


def executed(
    daemon: Daemon, directory: Path, command: str, program: str
) -> tuple[str, dict[str, object]]:
    """Return what a command of the page prints, with this program as agent.py, and its run."""
    (directory / "agent.py").write_text(program)
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    verb, *words = shlex.split(command)
    assert verb == "sfactl"
    done = daemon.sfactl(*words[:1], "--env", f"PATH={path}", *words[1:], cwd=str(directory))
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads(daemon.sfactl("info", "first", "--json").stdout)
    return done.stdout, run


def test_the_programs_run(start: Start, tmp_path: Path) -> None:
    daemon = start(config=CONFIG)
    said, run = executed(daemon, tmp_path, COMMAND, FIRST)
    assert said == "I have looked at server.py.\n"
    usage = run["usage"]
    assert isinstance(usage, dict)
    assert (usage["turns"], usage["tokens"], usage["source"]) == (1, 1190, "report")

    said, _ = executed(daemon, tmp_path, COMMAND.replace("0.50", "0.01"), FIRST)
    assert said.startswith(
        "I finish with what I have: not reserved: "
        "0.0156 USD more would take run a2 ('first') above its cost limit"
    )

    assert len(OTHERS) == 7
    apart = "\n\n".join(
        f"exec(compile({program!r}, 'client.md', 'exec'), {{}})" for program in OTHERS
    )
    said, run = executed(daemon, tmp_path, COMMAND, apart)
    assert "cost 0.0" in said
    assert "looks good" in said
    assert "server.py: looks good" in said
    assert run["descendants"] == 2
    with daemon.client() as client:
        runs = client.call(m.List(id=client.next_id()), m.RunList).runs
    assert {each.status for each in runs} == {"completed"}

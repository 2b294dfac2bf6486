"""A kind of limit that sfad does not have, added to a copy as docs/architecture.md says: nothing
else may need to know of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import sfad
from tests.conftest import Start
from tests.harness import PATIENCE, Daemon

ADDED: dict[str, dict[str, str | None]] = {
    "sfad/protocol/types.py": {
        '    TURNS = "turns"\n': '    EDITS = "edits"\n',
        "    turns: int | None = None\n": None,
    },
    "sfad/protocol/requests/use.py": {"    turns: int | None = None\n": None},
    "sfad/core/state/account.py": {"    turns: int | None = None\n": None},
    "sfad/agents/counters.py": {"    turns: int | None = None\n": None},
    "sfad/protocol/kinds.py": {
        "KINDS: dict[LimitKind, LimitSpec] = {\n": (
            '    LimitKind.EDITS: LimitSpec("e", "", "edits", "run", "meter", '
            '1, learned_from="edits", fields=("max_edits",)),\n'
        )
    },
}
"""What follows which line; `None`: a field like it."""

REPORT = """
from sfactl.connecting.connection import Client
from sfactl.top.cells import bars
from sfad.protocol import messages as m
with Client(sys.argv[1]) as client:
    run = client.call(m.Report(id=0, run=sys.argv[2], edits=int(sys.argv[3])), m.RunReply).run
print(run.usage.edits, "".join(text for text, _ in bars(run.limits, 0.0, 200, 0.8)))
"""


@dataclass(frozen=True)
class Copy:
    daemon: Daemon
    path: str

    def python(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {self.path!r})\n{program}",
            *words,
        ]
        return subprocess.run(
            argv, env=self.daemon.env, capture_output=True, text=True, timeout=2 * PATIENCE
        )

    def sfactl(self, *words: str) -> str:
        done = self.python(
            "import runpy; runpy.run_module('sfactl', run_name='__main__', alter_sys=True)", *words
        )
        assert done.returncode == 0, done
        return done.stdout

    def report(self, run: str, edits: int) -> str:
        """Report edits; return how many the run shows, and its bars in `sfactl top`."""
        done = self.python(REPORT, str(self.daemon.socket), run, str(edits))
        assert done.returncode == 0, done
        return done.stdout


@pytest.fixture
def copy(tmp_path: Path, start: Start) -> Copy:
    source, path = Path(sfad.__file__).parents[1], tmp_path / "copy"
    for package in ("sfad", "sfactl"):
        shutil.copytree(
            source / package, path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name, lines in ADDED.items():
        text = (path / name).read_text()
        for line, more in lines.items():
            assert line in text, (name, line)
            text = text.replace(line, line + (more or line.replace("turns", "edits")))
        (path / name).write_text(text)
    program = (
        f"import runpy, sys; sys.path.insert(0, {str(path)!r}); "
        "runpy.run_module('sfad', run_name='__main__', alter_sys=True)"
    )
    return Copy(start(program=("-c", program)), str(path))


@pytest.mark.rest("changes and runs a copy of the checkout")
def test_a_new_kind_of_limit_is_enforced_and_shown_everywhere(copy: Copy) -> None:
    kinds = (
        "time=5m turns=50 messages=50 tokens=50 cost=2 planning_cost=2 "
        "execution_cost=2 memory=100M pids=50"
    )
    limits = [word for limit in f"edits=10:pause {kinds}".split() for word in ("--limit", limit)]
    run = copy.sfactl("spawn", *limits, "--meter", "report", "--", "sleep", "1000").strip()
    shown = copy.report(run, 9)
    assert shown.startswith("9 "), shown
    assert "e█████" in shown, shown
    assert "edits 9 of 10 (90 %)" in copy.sfactl("info", run)
    assert copy.report(run, 3).startswith("12 ")
    assert "used 12 edits; its edits limit is 10" in copy.sfactl("why", run)
    (row,) = json.loads(copy.sfactl("list", "--json"))["runs"]
    assert (row["status"], row["reason"]["limit_kind"]) == ("paused", "edits"), row
    copy.sfactl("resume", run, "--limit", "edits=20")
    copy.sfactl("limit", run, "edits=40")
    told = [
        event
        for event in map(json.loads, copy.sfactl("events", "--json").splitlines())
        if event.get("limit_kind") == "edits"
    ]
    types = {"limit_nearing", "limit_exceeded", "limit_changed"}
    assert types <= {event["type"] for event in told}, told
    assert "edits" in copy.sfactl("recommend", "--name", "sleep")
    bounded = copy.sfactl(
        "spawn", "--limits", '{"max_edits": 2}', "--meter", "report", "--", "sleep", "1000"
    ).strip()
    assert copy.report(bounded, 2).startswith("2 ")
    copy.sfactl("stop", "--all")
    assert "12 edits" in copy.sfactl("info", run)

"""Isolated runs, by real daemons: what they can do as other runs can, and what they cannot."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfactl.connection import Client
from sfad.host.bubblewrap import bubblewrap
from sfad.protocol import messages as m
from sfad.protocol.types import Isolation, RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, ended, started, stopped, wait_until

ON, NET = Isolation(), Isolation(network=False)


@pytest.fixture(autouse=True)
def _installed() -> None:
    if bubblewrap() is None:
        pytest.skip("bubblewrap is not installed (Debian: bubblewrap)")


@pytest.fixture
def client(share: Start, containment: str) -> Iterator[Client]:
    """Return a client of a daemon with each containment."""
    with share(mode=containment).client() as client:
        yield client


def python(client: Client, work: Path, text: str, *words: object, isolation: Isolation = ON, **options: Any) -> RunInfo:
    """Start an isolated Python program in the directory `work`."""
    (work / "program.py").write_text(text)
    argv = [sys.executable, "program.py", *map(str, words)]
    return started(client, argv, cwd=os.fsencode(work), isolation=isolation, **options)


def said(daemon: Daemon, run: RunInfo) -> str:
    """Return what a run has printed."""
    return (daemon.state_dir / "output" / f"{run.id}.out").read_text()


FACTS = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
def can_write(path):
    try:
        with open(path, "w"):
            return True
    except OSError:
        return False
print(json.dumps({
    "pid": os.getpid(), "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "capabilities": [status[name].strip() for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": status["NoNewPrivs"].strip(), "written": [path for path in PATHS if can_write(path)],
}))
"""


def test_what_a_run_is_in_its_sandbox(share: Start, containment: str, tmp_path: Path) -> None:
    daemon = share(mode=containment)
    for name in ("work", "more", "other"):
        (tmp_path / name).mkdir()
    paths = [str(tmp_path / "work" / "a"), str(tmp_path / "more" / "a"), str(tmp_path / "other" / "a"), "/usr/a", "/tmp/a"]
    with daemon.client() as client:
        allowed = Isolation(writable=[os.fsencode(tmp_path / "more")])
        run = ended(client, python(client, tmp_path / "work", f"PATHS = {paths}\n{FACTS}", isolation=allowed).id)
    facts = json.loads(said(daemon, run))
    assert facts == {
        "pid": 2,
        "processes": [1, 2],
        "capabilities": ["0" * 16] * 4,
        "no_new_privs": "1",
        "written": [paths[0], paths[1], paths[4]],
    }
    assert (tmp_path / "more" / "a").exists()


@pytest.mark.parametrize(("text", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code(client: Client, tmp_path: Path, text: str, code: int) -> None:
    """A signal that ended the command is told by bubblewrap as 128 + n."""
    run = ended(client, python(client, tmp_path, text).id)
    assert (run.status, run.exit_code, run.signal) == (Status.FAILED, code, None)


POLITE = """
import pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path(f"got-{number}").touch()
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, end)
pathlib.Path("ready").touch()
while True:
    time.sleep(1)
"""


def test_signals_reach_the_command(client: Client, tmp_path: Path) -> None:
    """Those of a stop, and those to the main process, which outside is bubblewrap."""
    for number, send in ((15, lambda run: stopped(client, run)), (10, lambda run: signal_main(client, run, 10))):
        work = tmp_path / str(number)
        work.mkdir()
        run = python(client, work, POLITE)
        wait_until((work / "ready").exists, "the command is ready")
        send(run.id)
        assert ended(client, run.id).exit_code == 3
        assert (work / f"got-{number}").exists()


def signal_main(client: Client, run: str, number: int) -> None:
    """Send a signal to the main process."""
    client.call(m.Signal(id=client.next_id(), run=run, signal=number), m.Done)

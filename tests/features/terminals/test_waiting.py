"""Runs that wait for a person: what says so, who is told, and when it is over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sfactl.terminals.saying import message
from sfad.features.terminals.notices import Notice, Notices
from sfad.features.terminals.waiting import is_typed
from tests.conftest import Start
from tests.features.terminals.test_terminals import shown, spawned
from tests.harness import PYTHON, Daemon, wait_until
from tests.tiers import variant

ASKS = 'echo hello; printf "Proceed? (y/n) "; read -r x; echo "got $x"; exec sleep 600'


def info(daemon: Daemon, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(daemon.sfactl("info", "--json", run).stdout)
    return found


def waits(daemon: Daemon, run: str) -> dict[str, Any]:
    """Return what is shown of a run once it waits."""
    wait_until(lambda: info(daemon, run).get("activity") == "waiting", f"{run} waits")
    return info(daemon, run)


def events(daemon: Daemon, *types: str) -> list[dict[str, Any]]:
    lines = daemon.sfactl("events", "--json", *(f"--type={each}" for each in types)).stdout
    return [json.loads(line) for line in lines.splitlines()]


def test_a_prompt_that_stands_still(start: Start) -> None:
    daemon = start()
    run = spawned(daemon, "--limit", "silence=1h", "--", "sh", "-c", ASKS)
    busy = spawned(daemon, "--", "sh", "-c", "echo busy; sleep 600")
    found = waits(daemon, run)
    assert found["waiting"]["source"] == "prompt"
    assert found["waiting"]["screen"] == ["hello", "Proceed? (y/n)"]
    (event,) = events(daemon, "run_waiting")
    assert (event["severity"], event["run_id"]) == ("medium", run)
    assert event["message"] == "waits for a person: Proceed? (y/n)"
    assert event["screen"] == ["hello", "Proceed? (y/n)"]
    assert "has waited for a person since" in daemon.sfactl("why", run).stdout
    listed = daemon.sfactl("list").stdout.splitlines()
    assert listed[1].startswith(run)
    assert "running (waiting)" in listed[1]
    assert f"sfactl attach {run}" in daemon.sfactl("summary").stdout
    daemon.kill()
    daemon.restart()
    assert waits(daemon, run)["waiting"] == found["waiting"]
    assert daemon.sfactl("send", run, "--keys", "y<Enter>").returncode == 0
    assert info(daemon, run)["activity"] is None
    shown(daemon, run, "got y")
    assert len(events(daemon, "run_waiting")) == 1
    assert info(daemon, busy)["activity"] is None
    daemon.sfactl("stop", "--all")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\x07", Notice("bell")),
        (b"\x1b]0;sh\x07 \x1b]9;4;1;50\x07\x1b]8;;http://x\x1b\\", None),
        (
            b"\x1b]9;Approval requested: rm x\x07",
            Notice("notification", "Approval requested: rm x"),
        ),
        (b"\x1b]777;notify;Codex;done\x1b\\", Notice("notification", "Codex: done")),
        (b"\x1b]99;i=1:d=0:p=title;Claude\x1b\\", Notice("notification", "Claude")),
        ("\x1b]0;✋  Action Required (x)\x07".encode(), Notice("title", "✋ Action Required (x)")),
        (b"\x1b]2;working\x07", None),
    ],
)
def test_what_a_terminal_is_told(data: bytes, found: Notice | None) -> None:
    assert Notices()(data) == found
    whole, bytewise = Notices(), [data[at : at + 1] for at in range(len(data))]
    assert next(filter(None, map(whole, bytewise)), None) == found


def test_what_is_no_key() -> None:
    assert not is_typed(b"\x1b[I\x1b[<0;10;20M\x1b[<0;10;20m\x1b[O")
    assert is_typed(b"\x1b[Iy")
    assert is_typed(b"\x1b[A")


def test_what_hooks_of_programs_say() -> None:
    claude = '{"hook_event_name": "Notification", "message": "Claude needs your permission"}'
    codex = '{"type": "agent-turn-complete", "last-assistant-message": "Done."}'
    assert message(claude) == "Claude needs your permission"
    assert message(codex) == "Done."
    assert message("{") == "{"
    assert message("[1]") == "[1]"


RAW = """
import os, select, sys, termios, tty
tty.setraw(0)
print("menu", end="", flush=True)
select.select([0], [], [])
os.read(0, 10)
print("chosen", flush=True)
"""
LINES = """
import select
print("cooked", flush=True)
select.select([0], [], [], 600)
"""


def test_programs_that_wait_for_keys(start: Start) -> None:
    """One in raw mode, as full-screen programs are, and others that only might read."""
    daemon = start()
    raw = spawned(daemon, "--", "python3", "-c", RAW)
    cooked = spawned(daemon, "--", "python3", "-c", LINES)
    bell = spawned(daemon, "--", "sh", "-c", r"printf 'look\a'; exec sleep 600")
    note = spawned(daemon, "--", "sh", "-c", r"printf '\033]9;look here\a'; exec sleep 600")
    assert waits(daemon, raw)["waiting"]["source"] == "prompt"
    assert waits(daemon, bell)["waiting"]["source"] == "bell"
    found = waits(daemon, note)["waiting"]
    assert (found["source"], found["words"]) == ("notification", "look here")
    assert info(daemon, cooked)["activity"] is None
    assert daemon.sfactl("send", raw, "--keys", "x").returncode == 0
    daemon.sfactl("stop", "--all")


SAYS = """
{sfactl} report --waiting - <<'END'
{{"hook_event_name": "Notification", "message": "needs your permission"}}
END
until [ -e go ]; do sleep 0.05; done
{sfactl} report --going-on; touch gone
exec sleep 600
"""


def test_a_program_that_says_so(start: Start, tmp_path: Path) -> None:
    """Also without a terminal of its own. A hook is started, once."""
    told = tmp_path / "told"
    daemon = start(
        config="[[hooks]]\nname = 'phone'\non = ['run_waiting']\n"
        f"command = ['sh', '-c', 'cat >> {told}']\n"
    )
    script = SAYS.format(sfactl=f"{PYTHON} -m sfactl")
    run = daemon.sfactl("spawn", "--cwd", str(tmp_path), "--", "sh", "-c", script).stdout.strip()
    found = waits(daemon, run)["waiting"]
    assert (found["source"], found["words"]) == ("program", "needs your permission")
    wait_until(lambda: told.exists() and told.read_text().endswith("\n"), "the hook was started")
    (tmp_path / "go").touch()
    wait_until(lambda: info(daemon, run)["activity"] is None, "it is over")
    assert json.loads(told.read_text())["message"] == "waits for a person: needs your permission"
    assert daemon.sfactl("report", "--waiting", "x").returncode == 2
    assert daemon.sfactl("report", run, "--waiting", "x", "--turns", "1").returncode == 2
    daemon.sfactl("stop", run)
    assert info(daemon, run)["waiting"] is None


def test_a_limit_of_waiting(start: Start) -> None:
    """A run that has waited too long is paused, until something is typed, or ended."""
    daemon = start()
    run = spawned(daemon, "--limit", "waiting=1s:pause", "--", "sh", "-c", ASKS)
    ends = spawned(daemon, "--limit", "waiting=1s", "--grace", "0.2s", "--", "sh", "-c", ASKS)
    wait_until(lambda: info(daemon, run)["status"] == "paused", "it is paused")
    assert "its waiting limit is 1s" in daemon.sfactl("why", run).stdout
    assert daemon.sfactl("wait", ends).returncode != 0
    reason = info(daemon, ends)["reason"]
    assert reason["limit_kind"] == "waiting"
    assert reason["message"].startswith("waited for a person for ")
    assert daemon.sfactl("send", run, "--keys", "y<Enter>").returncode == 0
    wait_until(lambda: info(daemon, run)["status"] == "running", "it goes on")
    shown(daemon, run, "got y")
    daemon.sfactl("stop", "--all")


def test_what_the_config_says_of_it(start: Start) -> None:
    """Of each run that sets no limit of waiting, and of a limit without an action."""
    daemon = start(config='[defaults]\nwaiting = "1s"\n[limits]\nwaiting = "pause"\n')
    run = spawned(daemon, "--", "sh", "-c", ASKS)
    own = spawned(daemon, "--limit", "waiting=40m", "--", "sh", "-c", ASKS)
    wait_until(lambda: info(daemon, run)["status"] == "paused", "it is paused")
    assert "its waiting limit is 1s, set by defaults.waiting" in daemon.sfactl("why", run).stdout
    (found,) = [each for each in info(daemon, own)["limits"] if each["kind"] == "waiting"]
    assert (found["threshold"], found["action"]) == (2400.0, "pause")
    assert daemon.sfactl("send", run, "--keys", "y<Enter>").returncode == 0
    shown(daemon, run, "got y")
    daemon.sfactl("stop", "--all")


@variant
def test_silence_names_it(start: Start) -> None:
    daemon = start()
    run = spawned(daemon, "--limit", "silence=12s", "--", "sh", "-c", ASKS)
    assert daemon.sfactl("wait", run).returncode != 0
    assert "while waiting for a person; its silence limit" in info(daemon, run)["reason"]["message"]

"""What a run uses is read from the session file of its agent, whatever the run prints and whatever
becomes of the daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sfactl.connecting.connection import Client
from sfad.protocol.types import RunInfo, Status
from tests.conftest import Start
from tests.harness import Daemon, alive, ended, started, wait_until
from tests.tiers import variant

from .agents import info, limit

CLAUDE = """#!/usr/bin/env python3
import datetime, json, os, re, sys
here = re.sub("[^a-zA-Z0-9]", "-", os.getcwd())
home = os.path.join(os.environ["CLAUDE_CONFIG_DIR"], "projects", here)
os.makedirs(home, exist_ok=True)
session = "11111111-1111-1111-1111-111111111111"
if "--session-id" in sys.argv:
    session = sys.argv[sys.argv.index("--session-id") + 1]
def call(number):
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    message = {
        "id": f"m{number}", "model": "claude-sonnet-4-5", "stop_reason": "tool_use",
        "usage": {"input_tokens": 1000, "output_tokens": 100},
        "content": [{"type": "tool_use", "id": f"t{number}", "name": "Bash"}],
    }
    line = {
        "type": "assistant", "timestamp": now.replace("+00:00", "Z"), "sessionId": session,
        "cwd": os.getcwd(), "message": message,
    }
    with open(f"{home}/{session}.jsonl", "a") as file:
        print(json.dumps(line), file=file)
print("I print text.", flush=True)
call(1)
open(os.environ["GATE"]).read()
call(2)
call(3)
open(os.environ["GATE"]).read()
"""
"""An agent that keeps a session as Claude Code does: a call, and after a gate two more."""


class Desk:
    """Where the agent is, and what it waits for."""

    def __init__(self, path: Path) -> None:
        self.program, self.gate, self.path = path / "claude", path / "gate", path
        self.program.write_text(CLAUDE)
        self.program.chmod(0o755)
        os.mkfifo(self.gate)

    def started(self, client: Client, *argv: str, **options: Any) -> RunInfo:
        env = os.environ | {"CLAUDE_CONFIG_DIR": str(self.path / "config"), "GATE": str(self.gate)}
        where = {
            "env": [os.fsencode(f"{key}={value}") for key, value in env.items()],
            "cwd": os.fsencode(self.path),
        }
        return started(client, [self.program, *argv], **where, **options)

    def open_gate(self) -> None:
        self.gate.write_text("go\n")


def test_a_limit_counts_what_the_session_file_tells(tmp_path: Path, daemon: Daemon) -> None:
    desk = Desk(tmp_path)
    with daemon.client() as client:
        run = desk.started(
            client, "-p", "x", "--session-id", "22222222", limits=[limit("turns", 2)]
        )
        assert [state.enforced_by for state in run.limits if state.kind == "turns"] == ["meter"]
        wait_until(lambda: info(client, run.id).usage.turns == 1, "the first call is read")
        desk.open_gate()
        over = ended(client, run.id)
    assert over.reason is not None
    assert (over.status, over.reason.limit_kind, over.reason.used) == (Status.FAILED, "turns", 3)
    assert (over.usage.source, over.usage.tokens, over.usage.cost_from) == (
        "session",
        3300,
        "prices",
    )
    assert over.meter is None


@variant
def test_the_session_of_a_run_that_ended_while_no_daemon_ran_is_read(
    tmp_path: Path, start: Start, containment: str
) -> None:
    """The next daemon knows where the agent kept it, though the run and its environment are
    gone."""
    desk, daemon = Desk(tmp_path), start(mode=containment)
    with daemon.client() as client:
        run = desk.started(client, "-p", "x")
        wait_until(
            lambda: any(tmp_path.glob("config/projects/*/*.jsonl")), "the first call is saved"
        )
    daemon.kill()
    desk.open_gate()
    wait_until(
        lambda: b'"m3"' in next(tmp_path.glob("config/projects/*/*.jsonl")).read_bytes(),
        "the last call is saved",
    )
    desk.open_gate()
    wait_until(lambda: not alive(run.pid), "it ends")
    daemon.restart()
    with daemon.client() as client:
        over = ended(client, run.id)
    assert (over.usage.turns, over.usage.tokens, over.usage.source) == (3, 3300, "session")
    assert over.usage.cost_usd is not None


def test_no_meter_means_no_session_either(tmp_path: Path, daemon: Daemon) -> None:
    desk = Desk(tmp_path)
    with daemon.client() as client:
        run = desk.started(
            client,
            "-p",
            "x",
            "--session-id",
            "22222222",
            meter="none",
            limits=[limit("turns", 2)],
            gateway=False,
        )
        assert [state.enforced_by for state in run.limits if state.kind == "turns"] == ["nothing"]
        desk.open_gate()
        wait_until(
            lambda: b'"m3"' in next(tmp_path.glob("config/projects/*/*.jsonl")).read_bytes(),
            "the last call is saved",
        )
        desk.open_gate()
        over = ended(client, run.id)
    assert (over.status, over.usage.source, over.usage.turns) == (Status.COMPLETED, "none", None)


SESSION = "33333333-3333-3333-3333-333333333333"
TWICE = CLAUDE.replace("call(2)", "os.environ['SFA_ATTEMPT'] == '1' and sys.exit(1)\ncall(2)")
"""The same, but its first attempt fails at the gate."""


@variant
def test_the_usage_of_an_earlier_attempt_is_known_to_the_next_daemon(
    tmp_path: Path, start: Start
) -> None:
    """Each attempt has a session of its own; the next daemon looks only for the one of the
    latest."""
    desk, daemon = Desk(tmp_path), start()
    desk.program.write_text(TWICE)
    with daemon.client() as client:
        run = desk.started(
            client,
            "-p",
            "x",
            "--session-id",
            SESSION,
            agent_session=SESSION,
            attempts=2,
            retry_delay=0.01,
        )
        wait_until(lambda: info(client, run.id).usage.turns == 1, "the first attempt is read")
        desk.open_gate()
        wait_until(lambda: info(client, run.id).usage.turns == 2, "so is the second")
    daemon.kill()
    daemon.restart()
    with daemon.client() as client:
        wait_until(lambda: info(client, run.id).usage.turns == 2, "both are known")
        desk.open_gate()
        wait_until(lambda: info(client, run.id).usage.turns == 4, "what it has used since is added")
        desk.open_gate()
        over = ended(client, run.id)
    assert (over.usage.turns, over.usage.tokens) == (4, 4400)

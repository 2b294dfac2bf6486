"""The messages that protocol.md shows byte by byte: one conversation with a fresh daemon, in order.

`test_dialogue` says the requests to a real daemon, as they stand on the page.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sfad.protocol import messages as m
from sfad.protocol.errors import ErrorCode
from sfad.protocol.types import Claim, Event, Limit, Reason, Refusal, Rule, RunInfo, Status, Usage

CREATED = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
STARTED = datetime(2026, 1, 31, 12, 0, 0, 252_000, tzinfo=UTC)
DEADLINE = datetime(2026, 1, 31, 12, 1, 0, 252_000, tzinfo=UTC)
ENDED = datetime(2026, 1, 31, 12, 0, 9, tzinfo=UTC)

STOPPED = Reason(kind="stop", message="stopped by user ann (SIGTERM)", by="user ann", signal=15)


def run(status: Status, **fields: object) -> RunInfo:
    """The run of the conversation."""
    values: dict[str, object] = {
        "id": "a1", "name": "sleeper", "kind": "agent", "type": None, "status": status, "parent_id": None, "root_id": "a1",
        "depth": 0, "chain": ["sleeper"], "pid": 4711, "argv": ["sleep", "600"], "cwd": "/", "user": "ann", "channel": "cli",
        "exit_code": None, "signal": None, "reason": None, "attempts": 1,
        "limits": [Limit(kind="time", threshold=60.0, source="--timeout")], "usage": Usage(elapsed_s=0.0),
        "processes": None, "memory_bytes": None, "descendants": 0, "deadline": DEADLINE, "milestone": None,
        "created_at": CREATED, "started_at": STARTED, "ended_at": None, "labels": {},
    }  # fmt: skip
    return RunInfo(**(values | fields))  # type: ignore[arg-type]


RUNNING = run(Status.RUNNING)
OVER = run(
    Status.CANCELLED, pid=None, signal=15, reason=STOPPED, deadline=None, ended_at=ENDED, usage=Usage(elapsed_s=8.748)
)  # fmt: skip

REFUSAL = Refusal(
    kind=Rule.LOOP,
    detail="agent 'planner' already runs higher in the chain: planner → reviewer → planner",
    message="'planner' was not started: it would call itself in a circle (planner → reviewer → planner). Do not try again; "
    "finish your task with what you already have. If it is in truth another agent, start it with a --name of its own.",
    value=2,
    path=["planner", "reviewer", "planner"],
)

PATH = b"PATH=/usr/local/bin:/usr/bin:/bin"

EXAMPLES: dict[str, m.Request | m.Reply] = {
    "hello": m.Hello(id=1, versions=[1], client="example"),
    "welcome": m.Welcome(id=1, version=1, daemon="0.1.0", pid=4242, state_dir="/home/ann/.local/state/sfad"),
    "spawn": m.Spawn(id=2, argv=[b"sleep", b"600"], cwd=b"/", env=[PATH], name="sleeper", timeout=60.0),
    "run": m.RunReply(id=2, run=RUNNING),
    "watch": m.Watch(id=3, run="a1"),
    "done": m.Done(id=3),
    "logs": m.Logs(id=4, run="a1"),
    "log_files": m.LogFiles(id=4, run="a1", ended=False),
    "spawn with a descriptor": m.Spawn(id=5, argv=[b"cat"], cwd=b"/", env=[PATH], tied=True, stdin="descriptor", descriptors=1),
    "spawn with a claim": m.Spawn(
        id=6, argv=[b"true"], cwd=b"/", env=[PATH], name="planner", claim=Claim(names=["planner", "reviewer"], depth=2)
    ),
    "refused": m.Refused(id=6, refused=REFUSAL, run="a3"),
    "wait": m.Wait(id=7, run="a1"),
    "stop": m.Stop(id=8, runs=["a1"], grace=2.0),
    "event": m.EventPush(
        id=3,
        event=Event(
            type="run_cancelled",
            time=ENDED,
            seq=9,
            run_id="a1",
            root_id="a1",
            agent_name="sleeper",
            message="stopped by user ann (SIGTERM)",
        ),
    ),
    "stopped": m.Stopped(id=8, stopped=["a1"], survivors=[], elapsed_s=0.0041),
    "run of wait": m.RunReply(id=7, run=OVER),
    "info": m.Info(id=9, run="zz"),
    "error": m.Error(id=9, code=ErrorCode.NO_SUCH_RUN, message="no run has the id 'zz'; 'sfactl list' shows the ids"),
}

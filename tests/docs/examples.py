"""One conversation with a fresh daemon, in order. protocol.md shows some of its messages byte by
byte.

`test_dialogue` sends the requests to a real daemon and compares the replies.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sfad.features.advice.messages import Advice, Recommend, Recommended
from sfad.protocol import messages as m
from sfad.protocol.types import (
    Action,
    Claim,
    ErrorCode,
    Event,
    Limit,
    LimitKind,
    LimitRefusal,
    LimitState,
    Reason,
    Refusal,
    Rule,
    RunInfo,
    Status,
    Usage,
)

CREATED = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
STARTED = datetime(2026, 1, 31, 12, 0, 0, 252_000, tzinfo=UTC)
DEADLINE = datetime(2026, 1, 31, 12, 1, 0, 252_000, tzinfo=UTC)
ENDED = datetime(2026, 1, 31, 12, 0, 9, 125_000, tzinfo=UTC)

STOPPED = Reason(kind="stop", message="stopped by user ann (SIGTERM)", by="user ann", signal=15)


def default(
    kind: LimitKind, threshold: float, *, action: Action = Action.TERMINATE, **fields: Any
) -> LimitState:
    """Return a limit that the client did not request."""
    return LimitState(kind=kind, threshold=threshold, action=action, source="default", **fields)


def run(status: Status, **fields: object) -> RunInfo:
    """Return the run of the conversation."""
    values: dict[str, object] = {
        "id": "a1", "name": "sleeper", "kind": "agent", "type": None, "status": status,
        "parent_id": None, "root_id": "a1", "depth": 0, "chain": ["sleeper"], "pid": 4711,
        "argv": ["sleep", "600"], "cwd": "/", "user": "ann", "channel": "cli", "exit_code": None,
        "signal": None, "reason": None, "attempts": 1,
        "limits": [
            LimitState(kind=LimitKind.TIME, threshold=60.0, action=Action.TERMINATE,
                       source="--timeout", used=0.0),
            default(LimitKind.TURNS, 25.0, enforced_by="ready"),
            default(LimitKind.COST, 1.0, scope="tree", enforced_by="ready"),
            default(LimitKind.OUTPUT, 67108864.0, action=Action.WARN, enforced_by="watching"),
            default(LimitKind.PIDS, 1024.0, scope="tree", enforced_by="kernel"),
        ],
        "usage": Usage(elapsed_s=0.0),
        "processes": None, "memory_bytes": None, "descendants": 0, "deadline": DEADLINE,
        "milestone": None,
        "created_at": CREATED, "started_at": STARTED, "ended_at": None, "labels": {},
    }  # fmt: skip
    return RunInfo(**(values | fields))  # type: ignore[arg-type]


RUNNING = run(Status.RUNNING)
OVER = run(
    Status.CANCELLED, pid=None, signal=15, reason=STOPPED, deadline=None, ended_at=ENDED,
    usage=Usage(elapsed_s=8.748)
)  # fmt: skip

REFUSAL = Refusal(
    kind=Rule.LOOP,
    detail="agent 'planner' already runs higher in the chain: planner → reviewer → planner",
    message="'planner' was not started: it would call itself in a circle (planner → "
    "reviewer → planner). Do not try again; finish your task with what you already have. "
    "If it really is a different agent, give it its own --name.",
    value=2,
    path=["planner", "reviewer", "planner"],
)

TIMEOUT = Limit(kind=LimitKind.TIME, threshold=60.0, source="--timeout")

NOT_RESERVED = LimitRefusal(
    scope="tree",
    whose="a1",
    limit_kind=LimitKind.COST,
    threshold=1.0,
    used=0.07,
    asked=1.05,
    message="not reserved: 1.05 USD more would take run a1 ('sleeper') above its cost limit: "
    "0.07 of 1.00 USD are used, set by default. Finish with what you have.",
)

IN_FORCE = [
    Limit(kind=LimitKind.TIME, threshold=600.0, action=Action.TERMINATE, source="type developer"),
    Limit(kind=LimitKind.TURNS, threshold=25.0, action=Action.TERMINATE, source="type developer"),
]

TAUGHT = Advice(
    kind=LimitKind.TURNS, runs=40, p95=14.0, suggested=18.0, failed_share=0.25, ended=60,
    limit=25.0, least=1.0, most=100.0
)  # fmt: skip

PATH = b"PATH=/usr/local/bin:/usr/bin:/bin"

CONVERSATION: dict[str, m.Request | m.Reply] = {
    "hello": m.Hello(id=1, versions=[1], client="example"),
    "welcome": m.Welcome(
        id=1, version=1, daemon="0.1.0", pid=4242, state_dir="/home/ann/.local/state/sfad"
    ),
    "spawn": m.Spawn(
        id=2, argv=[b"sleep", b"600"], cwd=b"/", env=[PATH], name="sleeper", limits=[TIMEOUT]
    ),
    "run": m.RunReply(id=2, run=RUNNING),
    "watch": m.Watch(id=3, run="a1"),
    "done": m.Done(id=3),
    "logs": m.Logs(id=4, run="a1"),
    "log_files": m.LogFiles(id=4, run="a1", ended=False, name="sleeper"),
    "spawn with a descriptor": m.Spawn(
        id=5,
        argv=[b"cat"],
        cwd=b"/",
        env=[PATH],
        limits=[TIMEOUT],
        tied=True,
        stdin="descriptor",
        descriptors=1,
    ),
    "spawn with a claim": m.Spawn(
        id=6,
        argv=[b"true"],
        cwd=b"/",
        env=[PATH],
        name="planner",
        claim=Claim(names=["planner", "reviewer"], depth=2),
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
    "error": m.Error(
        id=9,
        code=ErrorCode.NO_SUCH_RUN,
        message="no run has the id or the name 'zz'; 'sfactl list' shows them",
    ),
    "report": m.Report(id=10, run="a1", turns=1, cost_usd=0.02),
    "reserve": m.Reserve(
        id=11, run="a1", model="claude-sonnet-4-5", input_tokens=10_000, max_output_tokens=2_000
    ),
    "reserved": m.Reserved(id=11, run="a1", reservation="a1-26360525", cost_usd=0.06),
    "settle": m.Settle(
        id=12, reservation="a1-26360525", input_tokens=10_000, output_tokens=900, cost_usd=0.05
    ),
    "reserve too much": m.Reserve(
        id=13, run="a1", model="claude-sonnet-4-5", input_tokens=150_000, max_output_tokens=40_000
    ),
    "not reserved": m.Reserved(id=13, run="a1", refused=NOT_RESERVED),
    "resume": m.Resume(
        id=14,
        run="a2",
        limits=[Limit(kind=LimitKind.TURNS, threshold=50.0, source="--limit turns")],
    ),
    "approve": m.Approve(id=15, run="a3"),
    "deny": m.Deny(id=16, run="a4"),
    "spawn with a key": m.Spawn(
        id=18, argv=[b"sleep", b"600"], cwd=b"/", env=[PATH], name="sleeper", key="6f0d1c3b9a7e4258"
    ),
    "wait and tie": m.Wait(id=19, run="a1", tie=True),
    "recommend": Recommend(id=17, run_type="developer"),
    "recommended": Recommended(id=17, runs=40, advice=[TAUGHT], in_force=IN_FORCE),
}

SHOWN = ("hello", "welcome", "spawn with a descriptor", "event", "error")
"""On the page: together they have each form of a value."""

EXAMPLES = {name: CONVERSATION[name] for name in SHOWN}

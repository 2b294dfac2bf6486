"""Sample runs, limits and reasons."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sfad.protocol.holds import HOLDS, UNKNOWN
from sfad.protocol.messages import DaemonStatus
from sfad.protocol.types import (
    Action,
    Hold,
    LimitKind,
    LimitState,
    Reason,
    RunInfo,
    Status,
    Usage,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def run(status: Status = Status.RUNNING, **changes: Any) -> RunInfo:
    """Return a run called `worker` that started at noon, with some fields changed."""
    fields: dict[str, Any] = {
        "id": "a1",
        "name": "worker",
        "kind": "agent",
        "type": None,
        "status": status,
        "parent_id": None,
        "root_id": "a1",
        "depth": 0,
        "chain": ["worker"],
        "pid": 42,
        "argv": ["sh", "-c", "echo a b"],
        "cwd": "/",
        "user": "ann",
        "channel": "cli",
        "exit_code": None,
        "signal": None,
        "reason": None,
        "attempts": 1,
        "limits": [state(LimitKind.TIME, 120)],
        "usage": Usage(elapsed_s=3.0),
        "processes": None,
        "memory_bytes": None,
        "descendants": 0,
        "deadline": NOON + timedelta(seconds=120),
        "milestone": None,
        "created_at": NOON,
        "started_at": NOON,
        "ended_at": None,
    }
    return RunInfo(**(fields | changes))


def state(
    kind: LimitKind, threshold: float, action: Action = Action.TERMINATE, **changes: Any
) -> LimitState:
    """Return a limit as a run shows it."""
    return LimitState(
        kind=kind, threshold=threshold, action=action, **({"source": "default"} | changes)
    )


def hold(kind: str, words: str = "because", **changes: Any) -> Hold:
    """Return why a run waits; by default what pauses it."""
    fields: dict[str, Any] = {
        "kind": kind,
        "blocks": "processes",
        "words": words,
        "ends": HOLDS.get(kind, UNKNOWN).ends,
    }
    return Hold(**(fields | changes))


def reason(kind: str, message: str = "because", **more: Any) -> Reason:
    """Return why a run ended."""
    return Reason(kind=kind, message=message, **more)


def daemon(**changes: Any) -> DaemonStatus:
    """Return the status of a daemon without runs."""
    counts: dict[str, Any] = dict.fromkeys(
        ("live", "queued", "admitted", "refused", "connections"), 0
    )
    sizes = {"memory_bytes": 1 << 20, "ledger_bytes": 12 << 10, "uptime_s": 1.0, "pid": 1}
    words: dict[str, Any] = {
        "version": "0",
        "socket": "/s",
        "state_dir": "/d",
        "containment": "tags",
        "containment_detail": "none",
    }
    return DaemonStatus(**({"id": 1, "draining": False} | counts | sizes | words | changes))

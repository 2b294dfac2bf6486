"""Agents that say what they use, one JSON line at a time, in the generic form that `--meter jsonl`
reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sfactl.connecting.connection import Client
from sfad.protocol import messages as m
from sfad.protocol.types import Action, Event, Limit, LimitKind, RunInfo
from tests.harness import PATIENCE, spawn

RECORDINGS = Path(__file__).parents[1] / "agents" / "streams"

BETWEEN = 0.05
"""Seconds between two turns."""


def turns(count: int, *, then: str = "") -> list[str]:
    """Return the command of an agent that makes `count` tool calls, 50 ms apart, and then executes
    the Python code `then`."""
    program = f"""
import sys, time
for number in range({count}):
    print('{{"type": "turn", "tool": "Bash"}}', flush=True)
    time.sleep({BETWEEN})
{then}
"""
    return [sys.executable, "-c", program]


def recorded(directory: Path, name: str, recording: str, *, code: int = 0) -> str:
    """Make a program called `name` that prints a real agent's recording and exits. Return its
    path."""
    path = directory / name
    path.write_text(f"#!/bin/sh\ncat '{RECORDINGS / recording}.jsonl'\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


def limit(kind: str, threshold: float, action: str | None = None) -> Limit:
    """Return the limit that `--limit` would make."""
    return Limit(
        kind=LimitKind(kind),
        threshold=threshold,
        action=Action(action) if action is not None else None,
        source=f"--limit {kind}",
    )


def watched(
    client: Client, argv: list[str], *limits: Limit, meter: str | None = "jsonl", **options: Any
) -> tuple[RunInfo, int]:
    """Start a run. Return it, and the id under which its events are pushed."""
    reply = spawn(client, argv, limits=list(limits), meter=meter, watch=True, **options)
    assert isinstance(reply, m.RunReply), reply
    return reply.run, reply.id


def until_over(client: Client, run: str) -> tuple[RunInfo, list[Event]]:
    """Return the run at its end, and the events that were pushed until then."""
    wait = client.send(m.Wait(id=client.next_id(), run=run, timeout=PATIENCE))
    events: list[Event] = []
    while True:
        for answer in client.arrived():
            if isinstance(answer.reply, m.EventPush):
                events.append(answer.reply.event)
            elif answer.reply.id == wait:
                assert isinstance(answer.reply, m.RunReply), answer.reply
                return answer.reply.run, events


def until_event(client: Client, what: str) -> Event:
    """Return the next event of this type."""
    client.be_patient(PATIENCE)
    while True:
        for answer in client.arrived():
            if isinstance(answer.reply, m.EventPush) and answer.reply.event.type == what:
                return answer.reply.event


def info(client: Client, run: str) -> RunInfo:
    """Return the run as it is now."""
    return client.call(m.Info(id=client.next_id(), run=run), m.RunReply).run


def state(run: RunInfo, kind: str) -> tuple[float | None, str, str]:
    """Return what is used of a limit, its action, and what enforces it."""
    found = next(each for each in run.limits if each.kind == kind)
    return found.used, found.action.value, found.enforced_by


MODEL = "claude-sonnet-4-5"
"""3 USD a million tokens in, 15 out."""


def reserve(client: Client, run: str, input_tokens: int, output_tokens: int) -> m.Reserved:
    """Reserve an estimate."""
    request = m.Reserve(
        id=client.next_id(),
        run=run,
        model=MODEL,
        input_tokens=input_tokens,
        max_output_tokens=output_tokens,
    )
    return client.call(request, m.Reserved)


def sleeper(client: Client, *limits: tuple[str, float], **options: object) -> RunInfo:
    """Start a run that does nothing."""
    run, _ = watched(
        client,
        ["sleep", "60"],
        *(limit(kind, value) for kind, value in limits),
        meter=None,
        **options,
    )
    return run

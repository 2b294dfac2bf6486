"""Output of runs on other nodes, read in pieces; and `run --fleet`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from sfad.protocol.requests.base import Reply, RunReply
from sfad.protocol.requests.following import OutputPart, ReadOutput, Wait
from sfad.protocol.requests.listing import Info
from sfad.protocol.requests.starting import Refused, Spawn
from sfad.protocol.requests.steering import Stop, Stopped
from sfad.protocol.types import RunInfo, Status

from .. import exits, output
from ..connecting import signals
from ..connecting.connection import Client, DaemonError
from ..exits import ExitCode, UsageError
from ..options.selection import RunSelection
from ..options.shared import Tail
from ..options.spawn import SpawnOptions

Stream = Literal["stdout", "stderr"]


LOOK, LOOK_MAX = 0.05, 0.5
"""Seconds between looks at an output that does not grow: doubled each time."""
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


def logs(
    client: Client,
    chosen: RunSelection,
    stdout: bool,
    stderr: bool,
    tail: Tail | None,
    *,
    follow: bool,
    stamped: bool,
) -> int:
    """Print the output of a run, wherever it is, or follow it."""
    options = {"--all": chosen.everything, "--name": chosen.name, "--label": chosen.label}
    options |= {"--timestamps": stamped, "--json": chosen.json}
    for option, given in options.items():
        if given:
            raise UsageError(
                f"{option} works only on the node where the run executes: use it there"
            )
    if len(chosen.runs) != 1:
        raise UsageError("logs --fleet prints one run: name it as NODE/ID")
    both = stdout == stderr
    targets: dict[Stream, int] = {}
    if both or stdout:
        targets["stdout"] = 1
    if both or stderr:
        targets["stderr"] = 2 if both else 1
    copy(client, chosen.runs[0], targets, _begin(tail), follow)
    return ExitCode.DONE


def _begin(tail: Tail | None) -> int:
    if tail is None:
        return 0
    if tail.lines:
        raise UsageError("--tail: of a run on another node, give bytes: 4096B, 64KiB")
    return -tail.amount


def copy(
    client: Client, run: str, targets: Mapping[Stream, int], offset: int = 0, follow: bool = True
) -> None:
    """Copy a run's output from its node to descriptors, by stream. `follow`: until it ends."""
    offsets = dict.fromkeys(targets, offset)
    pause = LOOK
    while offsets:
        grown = False
        for stream, at in list(offsets.items()):
            part = client.call(ReadOutput(id=0, run=run, stream=stream, offset=at), OutputPart)
            if at > 0 and part.offset > at:
                output.note(
                    f"sfactl: {part.offset - at} bytes of {stream} were freed before they were read"
                )
            _write(targets[stream], part.data)
            offsets[stream] = part.offset + len(part.data)
            grown |= bool(part.data)
            if part.ended or not (follow or part.data):
                del offsets[stream]
        if not grown and offsets:
            time.sleep(pause)
        pause = LOOK if grown else min(2 * pause, LOOK_MAX)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


# ---- `run --fleet`


def run(client: Client, message: Spawn, wanted: SpawnOptions) -> int:
    """Start a run on another node and stay with it: print its output, and return its exit code."""
    reply, _ = client.ask(replace(message, tied=not wanted.keep), Reply)
    if isinstance(reply, Refused):
        raise output.refusal(reply, as_json=wanted.json)
    assert isinstance(reply, RunReply)
    started = reply.run
    try:
        placed = _placed(client, started, quiet=message.quiet)
        if placed.attempts and not wanted.json:
            _copy(client, placed.id)
        ended = _wait(client, started.id)
    except KeyboardInterrupt:
        signals.taken()
        output.note(f"sfactl: stopping {started.id}")
        client.reconnect("stop it with sfactl stop")
        stopped = client.call(Stop(id=0, runs=[started.id], signal=2), Stopped)
        if stopped.unreached:
            return output.stopped(stopped, json=False)
        ended = _wait(client, started.id)
    if wanted.json:
        output.print_json(ended)
    elif words := output.failure(ended, own=False):
        output.note(words)
    elif ended.stopped_children is not None:
        output.note(f"sfactl: {ended.id} {output.plain(ended.stopped_children.message)}")
    if message.ship is not None and ended.started_at is not None and not message.quiet:
        output.note(f"sfactl: to bring back what it has changed: sfactl fetch {ended.id}")
    return exits.of_run(ended)


def _wait(client: Client, run_id: str) -> RunInfo:
    return client.call(Wait(id=0, run=run_id), RunReply).run


def _placed(client: Client, run: RunInfo, *, quiet: bool) -> RunInfo:
    """Return the run once it executes somewhere, or has ended."""
    pause, said = LOOK, ""
    while run.status in (Status.QUEUED, Status.STARTING, Status.ACCEPTED):
        time.sleep(pause)
        pause = min(2 * pause, LOOK_MAX)
        run = client.call(Info(id=0, run=run.id), RunReply).run
        waits = output.why_waits(run) if run.status is Status.QUEUED else ""
        if waits and waits != said and not quiet:
            output.note(f"sfactl: {run.id} is queued: {waits}")
            said = waits
    return run


def _copy(client: Client, run: str) -> None:
    """Copy the output. Its node may be away, and the run goes on."""
    try:
        copy(client, run, dict(zip(STREAMS, (1, 2), strict=True)))
    except DaemonError as error:
        if not client.call(Info(id=0, run=run), RunReply).run.status.terminal:
            output.note(f"sfactl: its output cannot be read: {error.message}; {run} goes on")

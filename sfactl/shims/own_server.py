"""What a shim does in place of a server of its program: a task in the background is a child run,
and the program's words about such tasks are about child runs (docs/agents.md)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec.structs import replace

from sfad.protocol.encoding import to_json
from sfad.protocol.requests.base import Reply, RunReply
from sfad.protocol.requests.following import Text, TextPart
from sfad.protocol.requests.listing import List, RunList
from sfad.protocol.requests.starting import Refused
from sfad.protocol.requests.steering import Stop, Stopped
from sfad.protocol.types import ErrorCode, RunInfo, Status

from .. import exits, output
from ..connecting.connection import Client, DaemonError, connect
from ..options import spawn as spawn_options
from ..options.spawn import SpawnOptions
from . import real_program

ALL_ROWS = 1000
_COLUMN = 28
_TASK = 60
"""Characters of a task that are shown."""
_STATES = {
    Status.COMPLETED: "done",
    Status.CANCELLED: "stopped",
    Status.PAUSED: "blocked",
}
"""Words of Claude Code for what a session does; the others are `working` and `failed`."""


def carry_out(program: str, asked: exits.OwnServer) -> int:
    """Do with child runs what a command asks of a server. Return the exit code. Raise `Quit`."""
    words = [os.fsdecode(word) for word in asked.argv]
    with connect(None) as client:
        if asked.act == "start":
            return _start(client, words, asked)
        if asked.act == "list":
            return _list(client, program, words)
        named = [word for word in words if not word.startswith("-")]
        if not named:
            raise exits.UsageError(f"name a session, as in: {asked.what} ID")
        return (_logs if asked.act == "logs" else _stop)(client, named[0])


def _start(client: Client, command: Sequence[str], asked: exits.OwnServer) -> int:
    name = os.environ.get(real_program.NAME) or None
    message = spawn_options.message(SpawnOptions(list(command), name=name))
    # The agent asks for this run, not a person, so the limits above it are enough. Without a given
    # name the guard does not take it for a loop.
    message = replace(message, automatic=True, quiet=True, env=real_program.unnamed_environment())
    reply, _ = client.ask(message, Reply)
    if isinstance(reply, Refused):
        raise output.refusal(reply, as_json=False)
    assert isinstance(reply, RunReply)  # `ask` raises for an error
    run = reply.run
    if words := output.failure(run, own=False):
        output.note(words)
        return exits.of_run(run)
    print(asked.says.replace("{run}", run.id).expandtabs(_COLUMN))
    print(f"{run.id} ends with this run, unless you wait for it: sfactl wait {run.id}")
    return exits.ExitCode.DONE


def _list(client: Client, program: str, words: Sequence[str]) -> int:
    reply = client.call(List(id=0, root=client.welcome.run, rows=ALL_ROWS), RunList)
    found = [
        run
        for run in reply.runs
        if run.id != client.welcome.run
        and os.path.basename(run.argv[0]) == program
        and not run.status.rejected
        and ("--all" in words or not run.status.terminal)
    ]
    if "--json" in words:
        output.write(to_json([_described(run) for run in found]) + b"\n")
    else:
        for run in found:
            print(f"{run.id}  {_state(run):8}  {output.plain(_task(run))}")
        if not found:
            print("no background sessions in this run")
    return exits.ExitCode.DONE


def _described(run: RunInfo) -> dict[str, object]:
    return {
        "id": run.id,
        "cwd": run.cwd,
        "kind": "background",
        "startedAt": int(run.created_at.timestamp() * 1000),
        "name": _task(run),
        "state": _state(run),
    }


def _task(run: RunInfo) -> str:
    return run.argv[-1][:_TASK]


def _state(run: RunInfo) -> str:
    return _STATES.get(run.status, "failed" if run.status.terminal else "working")


def _logs(client: Client, run: str) -> int:
    """Print what a child run has said so far."""
    cursor, more = b"", True
    try:
        while more:
            part = client.call(Text(id=0, run=run, cursor=cursor), TextPart)
            output.write(output.harmless(part.text.decode(errors="replace")).encode())
            cursor, more = part.cursor, part.more
    except DaemonError as error:
        if error.error is not ErrorCode.WRONG_STATE:
            raise
        from ..__main__ import execute  # it has no meter: its output as it is

        return execute(["logs", run])
    print()
    return exits.ExitCode.DONE


def _stop(client: Client, run: str) -> int:
    stopped = client.call(Stop(id=0, runs=[run]), Stopped)
    if stopped.survivors:
        return output.stopped(stopped, json=False)
    print(f"stopped {run}")
    return exits.ExitCode.DONE

import os
from typing import Annotated

from msgspec.structs import replace

from sfad.protocol.known import AGENTS
from sfad.protocol.requests.base import Reply, RunReply
from sfad.protocol.requests.starting import Refused, Spawn
from sfad.protocol.types import RunInfo, Status

from .. import exits, output
from ..app import TakesCommand, app
from ..connecting.connection import Client
from ..connecting.start_daemon import connect_or_start
from ..options import spawn as spawn_options
from ..options.limits import in_force
from ..options.shared import COUNT
from ..options.spawn import HEADINGS, USAGE, Command, Form, SpawnOptions, commanded
from ..options.spreading import spread


@app.command(cls=TakesCommand, options_metavar=USAGE)
@spread(SpawnOptions, headings=HEADINGS)
def spawn(
    wanted: SpawnOptions,
    count: Annotated[
        int | None,
        COUNT.option("Start so many equal runs, with SFA_INDEX=0, 1, … in their environment"),
    ] = None,
    command: Command = [],
) -> int:
    """Start a run and print its id.

    AGENT is a known program, such as claude or codex, or an agent of the config (sfactl agents
    lists all). The words after its name are the task, as one quoted argument, and options of
    its program: sfactl spawn claude --model opus "look at HEAD~1". A COMMAND runs as it is.

    Prints only the id of the run on stdout, and at a terminal its limits on stderr. The run
    gets this directory, umask and environment, and /dev/null as its stdin. With --wait it does
    what `sfactl run` does.

    Limits (--limit, repeatable): KIND is time (seconds), turns (tool calls), messages, tokens,
    cost, planning_cost or execution_cost (USD), output or memory (bytes), pids (processes), cpu
    (cores), silence or waiting (seconds) or plan (% of a subscription's window). ACTION is
    terminate, pause, warn, refuse, conclude, request_increase or, for silence, continue. Turns,
    messages, tokens and cost can only be enforced if the gateway sees the calls, or the agent
    tells them: by reports, JSON events that a meter reads, or its session file.
    """
    wanted = commanded(wanted, command)
    return start(wanted) if count is None else _several(wanted, count)


MOST = 10_000
"""Runs that one command line may start."""


def _several(wanted: SpawnOptions, count: int) -> int:
    """Start equal runs. One that is refused ends that: the next one would be, too. Those that were
    started go on."""
    if not 0 < count <= MOST:
        raise exits.UsageError(f"--count {count}: from 1 to {MOST}")
    if wanted.wait:
        raise exits.UsageError("--count and --wait exclude each other: wait with sfactl wait")
    _only_for_foreground(wanted)
    message = spawn_options.message(wanted)
    code: int = exits.ExitCode.DONE
    with connect_or_start(wanted.socket) as client:
        message = _completed(wanted, message, client)
        for index in range(count):
            env = [*message.env, b"SFA_INDEX=%d" % index]
            one = replace(message, env=env, key=os.urandom(16).hex())
            code = exits.worst([code, _background(client, one, wanted.json)])
    return code


def start(wanted: SpawnOptions, message: Spawn | None = None) -> int:
    """Start the run of checked options, or of a message that was made from them. Return the exit
    code. Raise `Quit`."""
    if message is None:
        wanted = _in_terminal(wanted)
        message = spawn_options.message(wanted)
    if wanted.wait:
        return _foreground(wanted, message)
    _only_for_foreground(wanted)
    with connect_or_start(wanted.socket) as client:
        return _background(client, _completed(wanted, message, client), wanted.json)


def _foreground(wanted: SpawnOptions, message: Spawn) -> int:
    from ..running.foreground import Foreground  # a run in the background needs nothing of it

    if message.terminal is not None:
        from ..terminals.viewer import need_terminal, start

        need_terminal("a terminal in the foreground")
    client = connect_or_start(wanted.socket)
    message = _completed(wanted, message, client)
    if message.terminal is not None:
        return start(client, message, quiet=message.quiet)
    if message.placing is not None:
        from ..running.fleet_run import run

        return run(client, message, wanted)

    inside = client.welcome.run is not None
    final = inside or not os.isatty(1)
    foreground = Foreground(client, message, wanted, _form(wanted, inside=inside), final=final)
    code = foreground.carry_out()
    if not wanted.land or code != exits.ExitCode.DONE or foreground.final is None:
        return code
    return _landed(foreground.final, wanted)


def _landed(run: RunInfo, wanted: SpawnOptions) -> int:
    """Bring the work of a run that was checked to the branch of this directory."""
    if run.worktree is None or not run.checks:
        what = "worktree of its own" if run.worktree is None else "check"
        raise exits.Quit(
            exits.ExitCode.REFUSED, f"--land: {run.id} had no {what}, so nothing was landed"
        )
    from .land import land  # of a feature

    code: int = land([run.id], socket=wanted.socket, json=wanted.json)
    return code


def _in_terminal(wanted: SpawnOptions) -> SpawnOptions:
    """Give an agent that has no task a terminal, if the person has one: they will tell the task
    there."""
    if (
        not (wanted.wait and wanted.agent in AGENTS)
        or wanted.command
        or wanted.stdio == "inherit"
        or any((wanted.json, wanted.text, wanted.raw, wanted.stdin, wanted.no_log, wanted.fleet))
        or not (os.isatty(0) and os.isatty(1))
    ):
        return wanted
    return replace(wanted, terminal=True)


def _completed(wanted: SpawnOptions, message: Spawn, client: Client) -> Spawn:
    """Return the message with what the daemon has to be asked for, or sent, before. Raise
    `Quit`."""
    if message.ship is not None:
        from ..worktrees.shipping import sent

        message = sent(message, client)
    if wanted.mcp:
        from ..mcp.registration import with_server

        message = with_server(message, client)
    if wanted.approvals:
        from ..mcp.registration import with_approvals

        message = with_approvals(message, client)
    return message


def _form(wanted: SpawnOptions, *, inside: bool) -> Form:
    """Return the form of the output. An agent that is started by its name prints its events for the
    meter, not for the caller. Inside a run, the output may be JSON for a model; the daemon
    decides."""
    if wanted.raw:
        return "raw"
    return "text" if wanted.text or wanted.agent is not None else "auto" if inside else "raw"


def _only_for_foreground(wanted: SpawnOptions) -> None:
    for option, given in (
        ("--status-file", wanted.status_file),
        ("--stdio inherit", wanted.stdio == "inherit"),
        ("--verbose", wanted.verbose),
        ("--text", wanted.text),
        ("--raw", wanted.raw),
        ("--land", wanted.land),
    ):
        if given:
            raise exits.UsageError(f"{option} needs --wait, or `sfactl run`")


def _background(client: Client, message: Spawn, as_json: bool) -> int:
    reply, _ = client.ask(message, Reply)
    if isinstance(reply, Refused):
        raise output.refusal(reply, as_json=as_json)
    assert isinstance(reply, RunReply)  # `ask` raises for an error, and a Spawn has no other reply
    run = reply.run
    if as_json:
        output.print_json(run)
    else:
        print(run.id)
    if run.status is Status.QUEUED and not message.quiet:
        output.note(f"sfactl: {run.id} is queued: {output.why_waits(run)}")
    elif not (message.quiet or run.status.terminal or as_json) and os.isatty(2):
        output.note(f"[agent:{run.name}] starting: {in_force(run)}")
    for caveat in spawn_options.caveats(run, message):
        output.note(caveat)
    if words := output.failure(run, own=False):
        output.note(words)
        return exits.of_run(run)
    return exits.ExitCode.DONE

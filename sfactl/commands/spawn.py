import os

from sfad.protocol.requests.base import Reply, RunReply
from sfad.protocol.requests.starting import Refused, Spawn
from sfad.protocol.types import RunInfo, Status

from .. import exits, output
from ..app import TakesCommand, app
from ..connecting.connection import Client
from ..connecting.start_daemon import connect_or_start
from ..options import spawn as spawn_options
from ..options.limits import in_force
from ..options.spawn import HEADINGS, USAGE, Command, Form, SpawnOptions, commanded
from ..options.spreading import spread


@app.command(cls=TakesCommand, options_metavar=USAGE)
@spread(SpawnOptions, headings=HEADINGS)
def spawn(wanted: SpawnOptions, command: Command = []) -> int:
    """Start a run and print its id.

    AGENT is a known program, such as claude or codex, or an agent of the config (sfactl agents
    lists all). The words after its name are the task, as one quoted argument, and options of
    its program: sfactl spawn claude --model opus "look at HEAD~1". A COMMAND runs as it is.

    Prints only the id of the run on stdout, and at a terminal its limits on stderr. The run
    gets this directory, umask and environment, and /dev/null as its stdin. With --wait it does
    what `sfactl run` does.

    Limits (--limit, repeatable): KIND is time (seconds), turns (tool calls), messages, tokens,
    cost, planning_cost or execution_cost (USD), output or memory (bytes), pids (processes), cpu
    (cores), silence (seconds) or plan (% of a subscription's window). ACTION is terminate,
    pause, warn, refuse, request_increase or, for silence, continue. Turns, messages, tokens and
    cost can only be enforced if the gateway sees the calls, or the agent tells them: by
    reports, JSON events that a meter reads, or its session file.
    """
    return start(commanded(wanted, command))


def start(wanted: SpawnOptions, message: Spawn | None = None) -> int:
    """Start the run of checked options, or of a message that was made from them. Return the exit
    code. Raise `Quit`."""
    message = message or spawn_options.message(wanted)
    if wanted.wait:
        return _foreground(wanted, message)
    _only_for_foreground(wanted)
    with connect_or_start(wanted.socket) as client:
        return _background(client, _completed(wanted, message, client), wanted.json)


def _foreground(wanted: SpawnOptions, message: Spawn) -> int:
    from ..running.foreground import Foreground  # a run in the background needs nothing of it

    client = connect_or_start(wanted.socket)
    message = _completed(wanted, message, client)
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


def _completed(wanted: SpawnOptions, message: Spawn, client: Client) -> Spawn:
    """Return the message with what the daemon has to be asked for, or sent, before. Raise
    `Quit`."""
    if message.ship is not None:
        from ..worktrees.shipping import sent

        message = sent(message, client)
    if not wanted.mcp:
        return message
    from ..mcp.registration import with_server

    return with_server(message, client)


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

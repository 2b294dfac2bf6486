from msgspec.structs import replace

from ..app import TakesCommand, app
from ..options.spawn import HEADINGS, USAGE, Command, SpawnOptions, commanded
from ..options.spreading import spread
from . import spawn


@app.command(cls=TakesCommand, options_metavar=USAGE)
@spread(SpawnOptions, headings=HEADINGS)
def run(wanted: SpawnOptions, command: Command = []) -> int:
    """Start a run in the foreground, with its output and exit code.

    AGENT is a known program, such as claude or codex, or an agent of the config (sfactl agents
    lists all). The words after its name are the task, as one quoted argument, and options of
    its program: sfactl run claude --model opus "look at HEAD~1". A COMMAND runs as it is.

    Copies the run's output as it is written, passes stdin on, and exits with the run's own exit
    code (see `sfactl --help` for the others). Ctrl-C, SIGTERM and SIGHUP stop the run and
    everything below it; a second one skips the grace. If this client dies, the run is stopped,
    except with --keep.

    With --text, shows the agent's text instead of its JSON events, if the meter knows them: at
    a terminal each message as it comes, and the final answer once; into a pipe or a file, and
    inside a run, the final answer alone. --verbose adds tool calls on stderr. This is the
    default for an AGENT, and in a run that itself has a meter.

    With --json, prints the ended run as one object instead of the output, which `sfactl logs`
    shows.

    Limits (--limit, repeatable): KIND is time (seconds), turns (tool calls), messages, tokens,
    cost, planning_cost or execution_cost (USD), output or memory (bytes), pids (processes), cpu
    (cores), silence or waiting (seconds) or plan (% of a subscription's window). ACTION is
    terminate, pause, warn, refuse, conclude, request_increase or, for silence, continue. Turns,
    messages, tokens and cost can only be enforced if the gateway sees the calls, or the agent
    tells them: by reports, JSON events that a meter reads, or its session file.
    """
    return spawn.start(replace(commanded(wanted, command), wait=True))

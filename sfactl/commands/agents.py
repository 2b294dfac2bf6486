import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from msgspec.structs import asdict

from sfad.protocol.requests.starting import AgentInfo, AgentList, Agents

from .. import output
from ..app import app
from ..connecting.connection import call
from ..exits import UsageError
from ..options.shared import Json, Socket, Value
from ..showing import table


@app.command()
def agents(
    name: Annotated[str | None, Value("NAME", words="agent").argument("Agent to explain")] = None,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """List the registered agents, or explain one.

    An agent of this list is started with `sfactl run NAME "task"`; the config adds to the
    built-in ones. ON PATH says whether its program is on your PATH. With NAME, show everything
    about that agent, and the command of its runs: {task} stands for the task, {session} for a
    new session id, and {options} for the options beside the task.

    Exit codes: 0; 2 unknown agent.
    """
    agents = call(socket, Agents(id=0), AgentList).agents
    chosen = agents if name is None else [_named(name, agents)]
    if json:
        found = [{**asdict(agent), "program": shutil.which(agent.command[0])} for agent in chosen]
        output.print_json({"agents": found} if name is None else found[0])
    elif name is None:
        print(table.of(_COLUMNS, agents))
    else:
        print("\n".join(f"{key + ':':<13}{value}" for key, value in _explained(chosen[0])))


def _named(name: str, agents: Sequence[AgentInfo]) -> AgentInfo:
    for agent in agents:
        if agent.name == name:
            return agent
    raise UsageError(
        f"unknown agent {name!r}; choose from: {', '.join(agent.name for agent in agents)}"
    )


_COLUMNS: dict[str, Callable[[AgentInfo], str]] = {
    "NAME": lambda agent: agent.name,
    "ON PATH": lambda agent: "yes" if shutil.which(agent.command[0]) else "no",
    "TYPE": lambda agent: agent.type or "-",
    "METER": lambda agent: agent.meter,
    "LIMITS": lambda agent: ", ".join(agent.limits) or "-",
    "DEFINED IN": lambda agent: agent.source,
    "DESCRIPTION": lambda agent: agent.description or "-",
    "COMMAND": lambda agent: _command(agent),
}


def _explained(agent: AgentInfo) -> Iterator[tuple[str, str]]:
    yield "name", f"{agent.name} ({agent.kind})"
    if agent.description:
        yield "description", output.plain(agent.description)
    yield "command", output.plain(_command(agent))
    yield (
        "program",
        output.plain(shutil.which(agent.command[0]) or f"{agent.command[0]}: not on your PATH"),
    )
    yield (
        "type",
        output.plain(agent.type or "none; a known agent program has the profile coding-agent"),
    )
    yield "meter", "chosen from the command" if agent.meter == "auto" else agent.meter
    yield "limits", output.plain(", ".join(agent.limits) or "those of its type or profile")
    yield "stdin", "kept open for sfactl send" if agent.stdin else "empty in the background"
    if agent.worktree:
        yield "worktree", "each run has a git worktree of its own"
    yield "defined in", output.plain(agent.source)


def _command(agent: AgentInfo) -> str:
    """Return the command quoted for a shell, except its placeholders."""
    return re.sub(r"'([^' ]*\{[a-z]+\})'", r"\1", shlex.join(agent.command))

"""Registered agents: a name, and how to start the program behind it (docs/agents.md).

Placeholders in a command: `{task}`, `{model}`, `{provider}` and `{instructions}` come from the
request; `{session}` is a new UUID for each attempt, and `{gateway}` the gateway's address where the
run uses it. Each stays within its argument: no shell splits it. `{options}` stands for all
arguments that the caller gave beside the task; a command without it gets them at its end. An
argument whose placeholder has no value is left out, and so is the option before it: without a
model, `--model {model}` is nothing.
"""

import os
import re
import shlex
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from ..config import BUILT_IN, Agent, Configuration, entry_key
from ..core.state.naming import named_word, program_name
from ..core.state.policy import Invalid
from ..core.state.request import ToolLists
from ..protocol.known import AGENTS, KNOWN_PROGRAMS
from ..protocol.limits import parse_limit
from ..protocol.messages import AgentInfo, Setting, Spawn, Stdin
from ..protocol.types import Kind, Limit
from .command import Command
from .program import AgentProgram, is_session_id, program_called

_PLACEHOLDER = re.compile(r"\{(task|model|provider|instructions|session|gateway)\}")
_OPTIONS = "{options}"

BUILT_IN_AGENTS = {
    name: Agent(description=KNOWN_PROGRAMS[name].title, command=program_called(name).command)
    for name in AGENTS
}
"""Built-in agents. Each command starts a program without a terminal that prints the events that its
meter reads."""


_OWN_SESSION = {b"--session-id", b"-c", b"--continue", b"-r", b"--resume"}
"""Options by which the caller chooses the session; Claude Code then refuses `--session-id`."""


_TOLD = ("task", "model", "provider", "instructions")
"""Placeholders that the agent also finds in its environment, as SFA_TASK and so on."""


class Registered(Struct, frozen=True):
    name: str
    agent: Agent
    source: str

    @property
    def info(self) -> AgentInfo:
        return msgspec.convert(
            msgspec.structs.asdict(self.agent) | {"name": self.name, "source": self.source},
            AgentInfo,
        )


def registered(config: Configuration, settings: Sequence[Setting]) -> dict[str, Registered]:
    """Return all agents by name. An entry of the config replaces a built-in agent."""
    source = {setting.key: setting.source for setting in settings}
    found = {name: Registered(name, agent, BUILT_IN) for name, agent in BUILT_IN_AGENTS.items()}
    for name, agent in config.agents.items():
        found[name] = Registered(name, agent, source[f"{entry_key('agents', name)}.command"])
    return dict(sorted(found.items()))


class FilledIn(NamedTuple):
    """What a request for a registered agent stands for."""

    argv: list[bytes]
    env: list[bytes]
    placeholders: dict[str, str]
    agent_session: str | None
    resume_argv: list[bytes]
    agent: str | None
    """The agent's name, if that is the run's identity."""
    name: str | None
    kind: Kind
    run_type: str | None
    limits: tuple[Limit, ...]
    meter: str | None
    stdin: Stdin


def filled_in(
    request: Spawn,
    agents: Mapping[str, Registered],
    tools: ToolLists,
    limits: Sequence[Limit],
    gateway: str | None = None,
) -> FilledIn:
    """Return the command that a request for an agent stands for, and what comes with it. What the
    request says takes precedence over the agent's entry. `tools`, `limits`: those of the request
    that hold; `gateway`: its address, if the run uses it. Raises `Invalid`."""
    entry = agents.get(request.agent or "")
    if entry is None:
        command = _shown([os.fsencode(request.agent or ""), *request.argv])
        raise Invalid(
            f"there is no agent {(request.agent or '')[:64]!r}; known: {', '.join(agents)}. "
            f"To start a command, write '--' before it: -- {command}"
        )
    if request.terminal is not None and entry.source == BUILT_IN:
        entry = _in_terminal(entry)
    agent = entry.agent
    options, task = _sorted_out(entry, request)
    continues = request.continues
    begins = (
        continues is None
        and "{session}" in agent.command
        and not _OWN_SESSION.intersection(options)
    )
    session = str(uuid.uuid4()) if begins else None
    _refuse_unused(entry, request)
    given = {**request.placeholders, "session": session, "task": task, "gateway": gateway}
    values = {name: value for name, value in given.items() if value is not None}
    if (
        "instructions" in values
        and task is not None
        and not any("{instructions}" in word for word in agent.command)
    ):
        values["task"] = f"{values['instructions']}\n\n{task}"
    program = _program(entry)
    argv = _command(agent.command, options, values)
    resume = (
        _command(agent.resume, options, values | {"session": "{session}", "task": "{task}"})
        if agent.resume
        else []
    )
    if continues is not None:
        given["task"] = continues.task
    of_tools = program.tool_options(*tools) if program is not None else []
    kept = request.log and request.stdio == "files"
    own = entry.source != BUILT_IN
    return FilledIn(
        argv=[*argv[:1], *(word.encode() for word in of_tools), *argv[1:]],
        env=_with(request.env, program.tool_variables(*tools) if program is not None else {}),
        placeholders={name: text for name in _TOLD if (text := given.get(name)) is not None},
        agent_session=session,
        resume_argv=resume if continues is not None or request.attempts > 1 else [],
        agent=entry.name if own else None,
        name=request.name or (entry.name if own else None),
        kind=agent.kind,
        run_type=request.run_type or agent.type,
        limits=(*limits, *_other_limits(entry, limits)),
        meter=request.meter or (agent.meter if kept and agent.meter != "auto" else None),
        stdin="pipe" if agent.stdin and request.stdin == "null" else request.stdin,
    )


def _in_terminal(entry: Registered) -> Registered:
    """Return an agent program as a person starts it in a terminal: all words are its own."""
    command = (entry.agent.command[0], _OPTIONS)
    return Registered(
        entry.name, msgspec.structs.replace(entry.agent, command=command, resume=()), entry.source
    )


def _program(entry: Registered) -> AgentProgram | None:
    """Return the program that an agent's command starts, if it is a known one."""
    name = os.path.basename(entry.agent.command[0])
    return program_called(name) if name in AGENTS else None


def session_of(first: str, attempt: int) -> str:
    """Return the session id of an attempt: programs refuse an id that was used before. `first`: the
    id of the first attempt."""
    return first if attempt <= 1 else str(uuid.uuid5(uuid.NAMESPACE_OID, f"{first} {attempt}"))


def resumed_command(
    command: Command, session: str, task: str | None, *, terminal: bool
) -> list[bytes] | None:
    """Return the command that continues a session with the options of another; `None` if its agent
    has none, or no agent would give a session this id. `terminal`: it is started in one. Raise
    `Invalid`."""
    if not is_session_id(session):
        return None
    if command.resume_argv:
        values = {"session": session} | ({"task": task} if task is not None else {})
        return _command([os.fsdecode(word) for word in command.resume_argv], (), values)
    words = [os.fsdecode(word) for word in command.argv]
    name = program_name(words)
    at = named_word(words, name)
    known = KNOWN_PROGRAMS.get(name)
    if at is None or known is None or not known.title:
        return None
    own = words[at + 1 :]
    own = own[: own.index("--")] if "--" in own else own
    found = program_called(name).resumed(own, session, task, terminal=terminal)
    return [*command.argv[: at + 1], *map(os.fsencode, found)] if found is not None else None


def going_on(why: str | None = None) -> str:
    """Return what an agent is told that has ended before its time, and is to continue."""
    ended = f"You were interrupted: {why}." if why is not None else "You were interrupted."
    return f"{ended} Continue the task from where you left off. First check what is done already."


def taking_up(why: str | None) -> str:
    """Return what an agent is told that ended by itself, and is to take its task up again."""
    ended = f"You ended by yourself: {why}." if why is not None else "You ended by yourself."
    return (
        f"{ended} Take the task up again: first check what is done already, then do what is left."
    )


def argv_of(
    command: Command,
    attempt: int,
    session: str | None = None,
    *,
    terminal: bool = False,
    told: str | None = None,
) -> list[bytes]:
    """Return the command of an attempt. `session`: the one that it continues; `terminal`: it is
    started in one; `told`: what its agent is told, if not to go on."""
    argv = command.argv
    if session is not None:
        task = None if terminal else told or going_on()
        resumed = resumed_command(command, session, task, terminal=terminal)
        if resumed is not None:
            return resumed
    if command.agent_session is None or attempt <= 1:
        return argv
    first = command.agent_session
    given, fresh = first.encode(), session_of(first, attempt).encode()
    return [fresh if word == given else word for word in argv]


def _with(env: list[bytes], variables: Mapping[str, str]) -> list[bytes]:
    if not variables:
        return env
    names = tuple(f"{name}=".encode() for name in variables)
    kept = [item for item in env if not item.startswith(names)]
    return kept + [f"{name}={value}".encode() for name, value in variables.items()]


def _refuse_unused(entry: Registered, request: Spawn) -> None:
    """An agent of the config may look for its model in its environment."""
    for name in ("model", "provider"):
        used = any(f"{{{name}}}" in word for word in entry.agent.command)
        if name in request.placeholders and not used and entry.source == BUILT_IN:
            raise Invalid(
                f"agent '{entry.name}' takes no {name}: "
                f"its command has no {{{name}}} (sfactl agents {entry.name})"
            )


def _shown(words: Sequence[bytes]) -> str:
    text = shlex.join(word.decode(errors="backslashreplace") for word in words if word != b"--")
    return text if len(text) <= 200 else f"{text[:200]} …"


def _sorted_out(entry: Registered, request: Spawn) -> tuple[list[bytes], str | None]:
    """Return the words that go to the program unchanged, and the task: the first or the last word,
    because only the program knows which words in between are values of options."""
    words, needed = request.argv, any("{task}" in word for word in entry.agent.command)
    at = words.index(b"--") if b"--" in words else len(words)
    before, after = words[:at], words[at + 1 :]
    if not needed or "task" in request.placeholders:
        return before + after, request.placeholders.get("task")
    if len(after) == 1:
        return _without_introduction(entry, before), os.fsdecode(after[0])
    options = _without_introduction(entry, before + after)
    comes_first = bool(options) and not options[0].startswith(b"-")
    task = options.pop(0 if comes_first else -1) if options else b"-"
    if task.startswith(b"-"):
        example = f"sfactl run {entry.name} 'look at HEAD~1'"
        raise Invalid(
            f"agent '{entry.name}' needs a task, as in: {example}{_by_hand(entry, words)}"
        )
    if comes_first and options and not options[0].startswith(b"-"):
        example = f"sfactl run {entry.name} {_shown([b' '.join([task, *options])])}"
        raise Invalid(
            f"the task of agent '{entry.name}' is one argument; "
            f"quote it: {example}{_by_hand(entry, words)}"
        )
    return options, os.fsdecode(task)


def _without_introduction(entry: Registered, words: list[bytes]) -> list[bytes]:
    program = _program(entry)
    known = {word.encode() for word in program.introduces_task} if program is not None else ()
    return [
        word
        for at, word in enumerate(words)
        if word not in known or not (at == 0 or word.startswith(b"-"))
    ]


def _by_hand(entry: Registered, words: Sequence[bytes]) -> str:
    return (
        ". To run the program's own command line: "
        f"sfactl run -- {_shown([os.fsencode(entry.agent.command[0]), *words])}"
    )


def _command(
    command: Sequence[str], options: Sequence[bytes], values: Mapping[str, str]
) -> list[bytes]:
    argv: list[bytes] = []
    if "provider" not in values:
        command = [word.replace("{provider}/{model}", "{model}") for word in command]
    for before, word in zip(("", *command), command, strict=False):
        wanted = _PLACEHOLDER.findall(word)
        if word == _OPTIONS:
            argv += options
        elif all(name in values for name in wanted):
            filled = _PLACEHOLDER.sub(lambda found: values[found[1]], word)
            if filled.startswith("-") and not word.startswith("-") and b"--" not in argv:
                raise Invalid(_like_an_option(wanted[0], command))
            argv.append(os.fsencode(filled))
        elif before.startswith("-") and not word.startswith("-"):
            argv.pop()
    return argv if _OPTIONS in command else [*argv, *options]


def _like_an_option(name: str, command: Sequence[str]) -> str:
    """A model that gives a subagent its task must not choose the options of the program, such as
    those about permissions."""
    return (
        f"the {name} begins with '-', "
        f"and {os.path.basename(command[0])[:64]} could take it for an option; begin otherwise, "
        f"or in the agent's command write '--' before {{{name}}}, or --OPTION={{{name}}}"
    )


def _other_limits(entry: Registered, asked: Sequence[Limit]) -> list[Limit]:
    kinds = {limit.kind for limit in asked}
    found = (
        msgspec.structs.replace(parse_limit(text), source=f"agent {entry.name}")
        for text in entry.agent.limits
    )
    return [limit for limit in found if limit.kind not in kinds]

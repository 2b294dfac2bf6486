"""What each program's file says of how the program hands work to a server of its own, which would
do it outside of the run: a daemon of the program, its maker's cloud, a terminal multiplexer.

`OwnServer` is a table, and `call_of` finds what a command line asks for. Pure.
"""

import re
from collections.abc import Container, Mapping, Sequence

from msgspec import Struct

from ..protocol.requests.starting import ServerAct
from .words import sorted_words

_ONLY_TELLS = frozenset({"--help", "-h", "--version"})


class Background(Struct, frozen=True):
    """How a program starts a task in the background of its own server."""

    options: frozenset[str]
    """Each asks for it."""
    command: tuple[str, ...]
    """Words after the program that do the same task without the server."""
    without: frozenset[str]
    """Options that are left out then."""
    refused_by: str
    """The variable with which the program refuses it."""
    says: str
    """What the program prints when the task has begun; `{run}` stands for the id, and a tab for a
    column."""


class OwnServer(Struct, frozen=True):
    """How a program hands work to a server of its own."""

    valued: Container[str]
    """Options of the program that take the next word."""
    listed: Container[str] = ()
    """Options that take each word up to the next option."""
    tasked: frozenset[str] = frozenset()
    """Options beside which the first other word is a task, and no subcommand."""
    background: Background | None = None
    verbs: Mapping[str, ServerAct] = {}
    """Subcommands about what is in the background, each with its like for child runs."""
    outside: Mapping[str, str | None] = {}
    """Subcommands, of one or two words, and options that hand work over: the server that gets it.
    `None`: this subcommand hands nothing over, whatever its first word alone does."""
    addresses: frozenset[str] = frozenset()
    """Those whose next word is the address of a server, which may be in the run's own tree."""
    variables: Mapping[str, str] = {}
    """With these in its environment the program itself refuses to hand work over."""
    alone: tuple[str, ...] = ()
    """Words with which it does its work itself. Without an option of this kind it would use a
    server."""
    always_alone: frozenset[str] = frozenset()
    """Subcommands that do their work themselves anyway."""
    sockets: re.Pattern[str] | None = None
    """The paths on which such a server listens."""


class ServerCall(Struct, frozen=True):
    """What a command line asks of a server."""

    act: ServerAct
    what: str
    """The words that do so, as in `claude --bg`."""
    words: tuple[str, ...] = ()
    """Words after the program: of `start` those that do the task without the server, of others what
    they are about."""
    server: str = ""
    """Which server would get the work, of `outside`."""
    address: str | None = None
    """The address of the server, if the command line has it."""


def call_of(program: str, server: OwnServer | None, words: Sequence[str]) -> ServerCall | None:
    """Return what the words after a program ask of its server; `None` if they ask nothing."""
    if server is None or not _ONLY_TELLS.isdisjoint(words):
        return None
    at = words.index("--") if "--" in words else len(words)
    options, operands = sorted_words(words[:at], valued=server.valued, listed=server.listed)
    named = [word.partition("=")[0] for word in options if word.startswith("-")]
    background = server.background
    if background is not None and (asked := background.options & set(named)):
        kept, _ = sorted_words(
            words[:at],
            valued=server.valued,
            listed=server.listed,
            without=background.options | background.without,
        )
        task = [*operands, *words[at + 1 :]]
        what = f"{program} {min(asked, key=len)}"
        if not task:
            return ServerCall("outside", what, server="a session that waits for a person")
        return ServerCall("start", what, (*background.command, *kept, "--", *task))
    option = next((name for name in named if server.outside.get(name) is not None), None)
    if option is not None:
        return _outside(program, option, server, words)
    if not server.tasked.isdisjoint(named):
        return None
    for command in (" ".join(operands[:2]), operands[0] if operands else ""):
        if (act := server.verbs.get(command)) is not None:
            about = list(words)
            about.remove(command)
            return ServerCall(act, f"{program} {command}", tuple(about))
        if command in server.outside:
            return _outside(program, command, server, words)
    return None


def _outside(program: str, name: str, server: OwnServer, words: Sequence[str]) -> ServerCall | None:
    """Return the call of a subcommand or option of `OwnServer.outside`."""
    gets = server.outside[name]
    if gets is None:
        return None
    address = None
    if name in server.addresses:
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if word == name:
                address = following
            elif word.startswith(f"{name}="):
                address = word[len(name) + 1 :]
    return ServerCall("outside", f"{program} {name}", server=gets, address=address)


def words_alone(server: OwnServer | None, words: Sequence[str]) -> tuple[str, ...]:
    """Return the words to put after a program, before these, so that it does its work itself."""
    if server is None or not server.alone or not _ONLY_TELLS.isdisjoint(words):
        return ()
    options, operands = sorted_words(words, valued=server.valued, listed=server.listed)
    has_one = any(word.startswith(server.alone[0]) for word in options)
    return () if has_one or not server.always_alone.isdisjoint(operands[:1]) else server.alone


def sentence(call: ServerCall, program: str, *, for_model: bool) -> str:
    """Return why a command is not started, and what to do."""
    if call.act == "start":
        gets = "a background server of the program"
        advice = f'leave out {call.what.split()[-1]}; or: sfactl spawn {program} "TASK"'
    elif call.server == "a session that waits for a person":
        gets, advice = call.server, f'name the task: {call.what} "TASK"'
    else:
        gets = call.server
        advice = (
            f'do not try again; do it yourself, or in a child run: sfactl spawn {program} "TASK"'
            if for_model
            else "leave it out, or start it outside of any run"
        )
    return (
        f"{call.what} hands work to {gets}, outside of this run, its limits and its end: {advice}"
    )

"""Options and arguments as data, and a reader for plain command lines.

A value is a text, a list of texts or a flag. Both readers, this one and typer's (`typer_app`), only assign texts to parameters; the
verb converts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from sfad.protocol.units import MOST_WHOLE, parse_duration, parse_whole

from .exits import UsageError, understood

Values = dict[str, Any]


class Option(Struct, frozen=True):
    """`--name VALUE` or a flag. `target` is the parameter of the verb's `main` that receives the value."""

    flags: tuple[str, ...]
    target: str
    help: str
    metavar: str = ""
    """The placeholder for the value in the help; empty for a flag."""
    many: bool = False
    """May be given more than once; the parameter is a list."""
    complete: str = ""
    """The words that a shell completes: a key of `shell_completion.CANDIDATES`; empty for none, or files."""
    alone: str = ""
    """The value of the option without `=VALUE`. It then takes no word after it."""


class Argument(Struct, frozen=True):
    target: str
    metavar: str
    help: str
    many: bool = False
    required: bool = True
    complete: str = ""


class Heading(Struct, frozen=True):
    """A heading of the help, for the options that follow it."""

    text: str


Parameter = Option | Argument | Heading
SOCKET = Option(("--socket",), "socket", "The daemon's socket (default: SFA_SOCKET, SFAD_SOCKET, the user's, the system's)", "PATH")
JSON = Option(("--json",), "json", "Print JSON on stdout; notes stay on stderr")
COMMON: tuple[Parameter, ...] = (SOCKET, JSON)
FLEET = Option(("--fleet",), "over_fleet", "On all nodes of the fleet, or on the node of a run that is named NODE/ID")
RUNS = Argument("runs", "RUN", "Ids, names, or unique prefixes of ids", many=True, complete="run")
NAME = Option(("--name",), "name", "Only runs of this name", "NAME", many=True, complete="name")
LABEL = Option(
    ("--label",),
    "label",
    "Only runs with this label; several values of a key match any of them",
    "K=V",
    many=True,
    complete="label",
)
USER = Option(("--user",), "user", "Only this user's runs", "USER", complete="user")
RUN = Argument("run", "RUN", "Id, name, or unique prefix of an id", complete="run")


class NotPlain(Exception):
    """The command line needs typer: it asks for help, has an error, or is written in an unusual way."""


def read(parameters: Sequence[Parameter], arguments: Sequence[str]) -> Values:
    """Return the values for a verb's `main`, by typer's rules. Raise `NotPlain` if typer has to read the line."""
    options = {flag: p for p in parameters if isinstance(p, Option) for flag in p.flags}
    values: Values = {}
    positional: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            positional += rest
        elif word.startswith("-") and word != "-":
            _option(options, word, rest, values)
        else:
            positional.append(word)
    _place([p for p in parameters if isinstance(p, Argument)], positional, values)
    return values


def before_command(parameters: Sequence[Parameter], arguments: Sequence[str]) -> int:
    """Return how many of `arguments` are options and their values; `--` or the name of an agent follows."""
    valued = {flag for p in parameters if isinstance(p, Option) and p.metavar and not p.alone for flag in p.flags}
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] not in {"-", "--"}:
        at += 2 if arguments[at] in valued else 1
    return min(at, len(arguments))


def agent_or_command(words: Sequence[str]) -> Values:
    """Return the values for what follows the options of a verb that takes a command: the agent, or `--`, and the words after."""
    if words[:1] in (["--"], ("--",)):
        return {"command": list(words[1:])}
    return {"agent": words[0], "command": list(words[1:])} if words else {"command": []}


def pair(option: str, text: str) -> tuple[str, str]:
    """Return key and value of `K=V`. Raise `UsageError`."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError(f"{option}: {text[:80]!r} is not of the form K=V")
    return key, value


def whole(source: str, text: str, *limits: int) -> int:
    """Return a whole number within `limits`, the least and the most. Raise `UsageError` naming `source`."""
    return understood(source, parse_whole, text, *limits)


def count(option: str, text: str | None) -> int | None:
    """Return a whole number that is not negative, `None` if the option is not given. Raise `UsageError`."""
    return None if text is None else whole(option, text, 0, MOST_WHOLE)


def seconds(option: str, text: str | None) -> float | None:
    """Return the seconds of an option, `None` if it is not given. Raise `UsageError`."""
    return None if text is None else duration(option, text)


def duration(source: str, text: str) -> float:
    """Return seconds. Raise `UsageError` naming `source`."""
    return understood(source, parse_duration, text)


def _option(options: dict[str, Option], word: str, rest: Iterator[str], values: Values) -> None:
    flag, equals, attached = word.partition("=") if word.startswith("--") else (word, "", "")
    option = options.get(flag)
    if option is None or (equals and not option.metavar):
        raise NotPlain
    if not option.metavar:
        values[option.target] = True
        return
    value = attached if equals else option.alone or next(rest, None)
    if value is None:
        raise NotPlain
    if option.many:
        values.setdefault(option.target, []).append(value)
    else:
        values[option.target] = value


def _place(arguments: Sequence[Argument], words: list[str], values: Values) -> None:
    for argument in arguments:
        if argument.many:
            values[argument.target], words = words, []
        elif words:
            values[argument.target] = words.pop(0)
        if argument.required and not values.get(argument.target):
            raise NotPlain
    if words:
        raise NotPlain

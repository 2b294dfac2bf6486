"""What `spawn` takes, and the request that it makes: that of `sfactl spawn` with the same
options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

from sfad.protocol.limits import parse_action, parse_limit
from sfad.protocol.requests.starting import Spawn
from sfad.protocol.texts.units import parse_duration
from sfad.protocol.types import Limit

from ..errors import of_quit
from ..exits import Quit
from ..options import limits as limit_options
from ..options import spawn as spawn_options
from ..options.shared import Words

Word = str | bytes | os.PathLike[str]
Amount = float | str
Limits = Mapping[str, Amount]
"""Limits by their kind (docs/limits.md), as `{"cost": 2, "time": "20m", "turns": "50:warn"}`. A
number is in the unit of the kind; a text is what follows `KIND=` on the command line, with an
action behind a colon."""


class AdmitOptions(TypedDict, total=False):
    """Options of `admit` and `spawn`, by keyword. Each has the meaning of the option of `sfactl
    spawn` that is named so, where no other is given here."""

    kind: Literal["agent", "skill"]
    type: str
    """Kind of work: `developer`, `qa`, … have a profile of limits."""
    limits: Limits
    on_limit: str
    """Action of limits that name none. For `admit` also `terminate_process`: a stop of the run ends
    this process, by SIGTERM, and SIGKILL after the grace."""
    timeout: float | str
    """Limit of time: seconds, or a text such as `20m`."""
    gateway: bool
    """False: leave the gateway out."""
    models: Sequence[str]
    """Patterns of the models that it may call (`--model-allow`)."""
    labels: Mapping[str, str]
    channel: str
    grace: float
    """Seconds."""
    on_end: str
    queue: bool
    """False: refuse the run instead of waiting for a slot."""
    after: Sequence[str]
    """Runs that have to end before: `a3`, or `a3:ok`."""
    group: str
    priority: int
    detach: bool
    max_depth: int
    max_descendants: int
    leaf: bool
    nested: bool
    allow: Sequence[str]
    deny: Sequence[str]
    allow_tools: Sequence[str]
    block_tools: Sequence[str]


class StartOptions(AdmitOptions, total=False):
    """Options of `spawn`: those, and what only a process has."""

    name: str
    """The agent's name, which the loop rule compares. Default: from the command."""
    meter: str
    """How the use is read; `report` if the agent reports it."""
    cwd: str | os.PathLike[str]
    env: Mapping[str, str]
    """Variables beside those of this process."""
    worktree: str | bool
    """Work in a new git worktree: on a branch of this name, or on `sfad/NAME-ID` if true."""
    worktree_of: str
    attempts: int
    retry_delay: float
    """Seconds."""
    resume: bool
    stdin: bool
    """Keep its stdin open for `Run.send`."""
    log: bool
    """False: keep no output."""
    check: Sequence[str]
    """Commands that have to succeed after it."""
    check_timeout: float | str
    setup: str
    at: datetime
    terminal: bool
    isolate: Literal["on", "net"]
    egress: Sequence[str]
    writable: Sequence[str]
    readable: Sequence[str]
    fleet: bool
    """Execute it on a node of the fleet that has room for it."""
    on: Sequence[str]
    """Nodes, or labels of nodes as `gpu=yes`."""


_NAMES = {"labels": "label", "models": "model_allow", "allow_tools": "allow_tool"}
_NAMES |= {"block_tools": "block_tool", "limits": "limit"}
"""Options that `sfactl spawn` calls otherwise."""


def spawn_of(
    command: Sequence[Word], agent: str | None, given: Mapping[str, Any], by: str = "spawn"
) -> Spawn:
    """Return the request that the method `by` makes. Raise `ValueError` for what is written
    wrongly, and `TypeError` for one text in place of words, and for an unknown option."""
    if isinstance(command, str | bytes):
        raise TypeError(f"write each word by itself, as in ['echo', 'hi'], not as {command!r}")
    reads = {**_READ, "limits": lambda limits: limits_of(limits, f"{by}()")}
    options = {
        _NAMES.get(name, name): reads[name](value) if name in reads else value
        for name, value in given.items()
        if name not in _SWITCHES and value is not None
    }
    # a feature may not be there, whose options these are
    unknown = given.keys() - StartOptions.__annotations__.keys()
    unknown |= options.keys() - {*spawn_options.SpawnOptions.__struct_fields__}
    if unknown:
        raise TypeError(f"spawn has no option {', '.join(map(repr, sorted(unknown)))}")
    for name, switch in _SWITCHES.items():
        if name in given and (found := switch(given[name])) is not None:
            options |= found
    if not command and agent is None:
        raise ValueError("nothing to run: name a command, or an agent")
    wanted = spawn_options.SpawnOptions(
        command=[os.fsdecode(word) for word in command], agent=agent, **options
    )
    try:
        spawn_options.check(wanted)
        return spawn_options.message(wanted)
    except Quit as error:
        raise of_quit(error) from None


def limits_of(given: Limits | object, source: str) -> list[Limit]:
    """Return limits as they are asked for. Raise `ValueError` with what is allowed."""
    if not isinstance(given, Mapping):
        raise TypeError(f"limits are written as {{'cost': 2, 'time': '20m'}}, not as {given!r}")
    found = (parse_limit(f"{kind}={amount}", source) for kind, amount in given.items())
    try:
        return limit_options.once(found)
    except Quit as error:
        raise of_quit(error) from None


def _seconds(given: Amount) -> float:
    return parse_duration(given) if isinstance(given, str) else float(given)


def _words(given: Iterable[str]) -> list[Words]:
    return [Words(word) for word in _texts(given)]


def _texts(given: Iterable[str] | object) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"several words are expected, as in [{given!r}], not one text")
    return list(given)


_READ: Mapping[str, Any] = {
    "on_limit": parse_action,
    "timeout": _seconds,
    "cwd": os.fspath,
    "env": lambda given: list(given.items()),
    "labels": lambda given: list(given.items()),
    "after": lambda given: [spawn_options.read_after(text) for text in _texts(given)],
    "on": lambda given: [spawn_options.read_place(text) for text in _texts(given)],
    "allow": _words,
    "deny": _words,
    "egress": _words,
    "allow_tools": _texts,
    "block_tools": _texts,
    "writable": _texts,
    "readable": _texts,
    "models": _texts,
    "check": _texts,
    "check_timeout": _seconds,
}

_SWITCHES: Mapping[str, Any] = {
    "gateway": lambda on: {"gateway" if on else "no_gateway": True},
    "worktree": lambda name: (
        {"worktree": "-" if name is True else os.fspath(name)} if name not in (False, None) else {}
    ),
    "log": lambda on: {"no_log": not on},
    "queue": lambda on: {"no_queue": not on},
}
"""Options of which the values are written otherwise on the command line."""

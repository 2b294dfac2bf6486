"""The verbs: each is a module of `commands/`, named like the verb. The first line of its docstring is its line in the help.

A package there is a group of verbs of two words: `session list` is the module `commands/session/list.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

ALIASES = {"ps": "list"}

HEADINGS = {
    "Start": ("run", "spawn", "continue", "rerun", "session", "agents"),
    "Look": ("list", "tree", "top", "web", "info", "why", "logs", "result", "summary", "events", "wait"),
    "Steer": ("stop", "pause", "resume", "limit", "approve", "deny", "send", "fetch"),
    "Money": ("calls", "plans", "recommend", "report", "reserve", "settle"),
    "Set up": ("status", "doctor", "demo"),
}
"""The headings of the help, with the verbs that it lists first, in this order. Verbs without a heading follow by name, under the
last."""

_DIRECTORY = os.path.join(os.path.dirname(__file__), "commands")


def load(verb: str) -> Any:
    """Return the module of a verb, or `None` if there is no such verb. It has `PARAMETERS` and `main(**values) -> exit code`."""
    words = verb.split(" ")
    name = ".".join([f"{__package__}.commands", *words])
    if not all(word.isidentifier() and not word.startswith("_") for word in words):
        return None
    try:
        __import__(name)  # as importlib.import_module, which takes an import itself
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
    return None if hasattr(sys.modules[name], "__path__") else sys.modules[name]


def names() -> list[str]:
    """Return every verb of one word and every group, in the order of the help."""
    found = sorted([*_modules(_DIRECTORY), *filter(is_group, os.listdir(_DIRECTORY))])
    first = [verb for listed in HEADINGS.values() for verb in listed]
    return [*first, *(verb for verb in found if verb not in first)]


def heading(verb: str) -> str:
    """Return the heading of the help under which a verb of one word, or a group, is listed."""
    return next((heading for heading, listed in HEADINGS.items() if verb in listed), [*HEADINGS][-1])


def suggestion(verb: str) -> str:
    """Return the end of the error about an unknown verb: the verb that was probably meant, if there is one."""
    group, _, member = verb.partition(" ")
    within = f"{group} " if member and is_group(group) else ""
    known = [each.removeprefix(within) for each in (members(group) if within else names())]
    word = verb.removeprefix(within)
    meant = _MEANT[word] if _MEANT.get(word) in known else closest(word, known)
    return f". Did you mean '{within}{meant}'?" if meant is not None else ""


def closest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that was probably meant."""
    # Imported here because it takes 5 ms, and few command lines are wrong.
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known, 1)), None)


_MEANT = {
    "kill": "stop", "cancel": "stop", "terminate": "stop", "start": "run", "exec": "run", "log": "logs", "tail": "logs",
    "attach": "logs", "show": "info", "inspect": "info", "describe": "info", "ls": "list", "rm": "prune", "delete": "prune",
    "clean": "prune", "cost": "summary", "usage": "summary", "explain": "why", "freeze": "pause",
    "suspend": "pause", "ask": "send", "restart": "rerun", "retry": "rerun", "again": "rerun",
}  # fmt: skip
"""Words of other tools, and the verbs that do the same."""


def everything() -> list[str]:
    """Return every verb, also those of two words."""
    return [verb for name in names() for verb in (members(name) if is_group(name) else [name])]


def is_group(name: str) -> bool:
    return os.path.exists(os.path.join(_DIRECTORY, name, "__init__.py"))


def members(group: str) -> list[str]:
    """Return the verbs of a group, each of two words."""
    return [f"{group} {name}" for name in _modules(os.path.join(_DIRECTORY, group))]


def _modules(directory: str) -> list[str]:
    return sorted(file.removesuffix(".py") for file in os.listdir(directory) if file.endswith(".py") and file[0] != "_")


def summary(verb: str) -> str:
    """Return the verb's line in the help. Its module is not loaded: all together take 0.1 s."""
    path = os.path.join(_DIRECTORY, *verb.split(" "))
    with open(os.path.join(path, "__init__.py") if is_group(verb) else f"{path}.py", encoding="utf-8") as file:
        return file.readline().strip().strip('"').removesuffix(".")

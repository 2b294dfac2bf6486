"""The verbs: each is a module of `commands/`, named like the verb. The first line of its docstring is its line in the help."""

import os
from importlib import import_module
from typing import Any

ALIASES = {"ps": "list"}

NEEDED_FIRST = (
    "run", "spawn", "list", "info", "why", "logs", "result", "stop", "tree", "summary", "wait", "send", "pause", "resume", "limit",
    "approve", "deny", "status", "doctor", "demo",
)  # fmt: skip
"""The verbs that help lists first, in this order. The others follow by name."""

_DIRECTORY = os.path.join(os.path.dirname(__file__), "commands")


def load(verb: str) -> Any:
    """Return the module of a verb, or `None` if there is no such verb. It has `PARAMETERS` and `main(**values) -> exit code`."""
    name = f"{__package__}.commands.{verb}"
    if not verb.isidentifier() or verb.startswith("_"):
        return None
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


def names() -> list[str]:
    """Return every verb, in the order of the help."""
    found = sorted(file.removesuffix(".py") for file in os.listdir(_DIRECTORY) if file.endswith(".py") and file[0] != "_")
    first = [verb for verb in NEEDED_FIRST if verb in found]
    return [*first, *(verb for verb in found if verb not in first)]


def summary(verb: str) -> str:
    """Return the verb's line in the help. Its module is not loaded: all together take 0.1 s."""
    with open(os.path.join(_DIRECTORY, f"{verb}.py"), encoding="utf-8") as file:
        return file.readline().strip().removeprefix('"""').removesuffix(".")

"""The command `sfactl`: find the verb, load only its module, and turn each result or error into an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from sfad.protocol.inherited import repair_process, unblock_signals

from . import verbs
from .entry import guarded
from .exits import ExitCode, UsageError
from .options import NotPlain, agent_or_command, before_command, read


def main() -> None:
    repair_process()
    unblock_signals()
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Carry out a command line. Return its exit code; errors are printed on stderr."""
    return guarded(lambda: _dispatch(arguments))


def _dispatch(arguments: list[str]) -> int:
    if "_SFACTL_COMPLETE" in os.environ:
        from .completing import answered

        instruction, _, shell = os.environ["_SFACTL_COMPLETE"].partition("_")
        if instruction == "complete" and (code := answered(shell, split)) is not None:
            return code
        # bash passes the command line in COMP_WORDS, the other shells in the other variable (typer/_completion_classes.py)
        typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
        return _by_typer(arguments, split(typed.split()[1:])[1], completing=True)
    before, verb, after = split(arguments)
    if "--version" in before:
        from sfad import __version__

        print(f"sfactl {__version__}")
        return ExitCode.DONE
    if verb is None or before[:1] in (["-h"], ["--help"]):
        return _by_typer(arguments, None)
    module = verbs.load(verb)
    command: tuple[str, ...] = ()
    if getattr(module, "TAKES_COMMAND", False):
        cut = before_command(module.PARAMETERS, after)
        after, command = after[:cut], tuple(after[cut:])
    try:
        values = read(module.PARAMETERS, [*before, *after])
    except NotPlain:
        return _by_typer([*verb.split(" "), *before, *after], verb, command)
    return _call(verb, values, command)


def split(arguments: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Return what is before the verb, the verb, and what follows it. `--socket` is the only option with a value that
    may be before the verb. An unknown word is not a verb, so that typer reports it."""
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        position += 2 if arguments[position] == "--socket" else 1
    before, rest = list(arguments[:position]), list(arguments[position:])
    verb = verbs.ALIASES.get(rest[0], rest[0]) if rest else None
    if verb is not None and verbs.load(verb):
        return before, verb, rest[1:]
    pair = " ".join(rest[:2])
    return (before, pair, rest[2:]) if len(rest) > 1 and verbs.load(pair) else (before, None, rest)


def _call(verb: str, values: dict[str, Any], command: tuple[str, ...]) -> int:
    module = verbs.load(verb)
    if getattr(module, "TAKES_COMMAND", False):
        values |= agent_or_command(command)
    over_fleet = values.pop("over_fleet", False) or _names_node(values)
    try:
        if over_fleet:
            from .over_fleet import carry_out

            code: int = carry_out(verb, module.main, values)
        else:
            code = module.main(**values)
    except UsageError as error:
        raise UsageError(f"{error.message}\nTry 'sfactl {verb} --help'.") from error
    sys.stdout.flush()
    return code


def _names_node(values: dict[str, Any]) -> bool:
    """Return whether a run is named as the fleet knows it, NODE/ID."""
    words = values.get("words", ()) if "run" not in values else ()
    named = [*values.get("runs", ()), *words, *([values["run"]] if isinstance(values.get("run"), str) else [])]
    return any("/" in run and "=" not in run for run in named)


def _by_typer(arguments: Sequence[str], verb: str | None, command: tuple[str, ...] = (), *, completing: bool = False) -> int:
    from .typer_app import invoke

    try:
        invoke(arguments, verb, lambda name, values: _call(name, values, command), completing)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.USAGE
    return ExitCode.DONE


if __name__ == "__main__":
    main()

"""The command `sfactl`: find the verb, load only its module, and turn each result or error into an exit code."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from . import verbs
from .exits import ExitCode, Quit, UsageError
from .options import NotPlain, before_command, read


def main() -> None:
    _own_standard_descriptors()
    sys.exit(_guarded(sys.argv[1:]))


def _guarded(arguments: list[str]) -> int:
    try:
        return _dispatch(arguments)
    except Quit as quit_:
        # the words of a user or an agent must not steer the terminal
        shown = "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in quit_.message)
        if shown:
            print(f"sfactl: {shown}", file=sys.stderr)
        return quit_.code
    except UnicodeEncodeError as error:
        # argv, environment and paths of a run travel as bytes; names, ids and labels are text
        print(f"sfactl: {error.object!a}: only the command, --env and --cwd may hold bytes that are not UTF-8", file=sys.stderr)
        return ExitCode.USAGE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return _unread()
    except OSError as error:
        _unread()
        print(f"sfactl: {error}", file=sys.stderr)
        return ExitCode.UNAVAILABLE


def _own_standard_descriptors() -> None:
    # The next open() would get a closed 0, 1 or 2, and a socket would then receive what is written to stdout.
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # The interpreter makes no stream for a descriptor that was closed when it started.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _unread() -> int:
    # The reader of our stdout has gone. The interpreter flushes the buffer at exit, which must not raise again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141


def _dispatch(arguments: list[str]) -> int:
    if "_SFACTL_COMPLETE" in os.environ:
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
        return _by_typer([verb, *before, *after], verb, command)
    return _call(verb, values, command)


def split(arguments: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Return what is before the verb, the verb, and what follows it. `--socket` is the only option with a value that
    may be before the verb. An unknown word is not a verb, so that typer reports it."""
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        position += 2 if arguments[position] == "--socket" else 1
    before, rest = list(arguments[:position]), list(arguments[position:])
    verb = verbs.ALIASES.get(rest[0], rest[0]) if rest else None
    return (before, verb, rest[1:]) if verb is not None and verbs.load(verb) else (before, None, rest)


def _call(verb: str, values: dict[str, Any], command: tuple[str, ...]) -> int:
    module = verbs.load(verb)
    if getattr(module, "TAKES_COMMAND", False):
        values |= _agent_or_command(command)
    try:
        code: int = module.main(**values)
    except UsageError as error:
        raise UsageError(f"{error.message}\nTry 'sfactl {verb} --help'.") from error
    sys.stdout.flush()
    return code


def _agent_or_command(words: tuple[str, ...]) -> dict[str, Any]:
    if words[:1] == ("--",):
        return {"command": list(words[1:])}
    return {"agent": words[0], "command": list(words[1:])} if words else {"command": []}


def _by_typer(arguments: Sequence[str], verb: str | None, command: tuple[str, ...] = (), *, completing: bool = False) -> int:
    from .typer_app import invoke

    try:
        invoke(arguments, verb, lambda name, values: _call(name, values, command), completing)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.USAGE
    return ExitCode.DONE


if __name__ == "__main__":
    main()

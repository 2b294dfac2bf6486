"""The typer application, made from the declarations that `options.read` reads. Imported only for help, completion and errors."""

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from . import exits, verbs
from .options import SOCKET, Argument, Option, Parameter

SETTINGS = {"help_option_names": ["-h", "--help"]}
EPILOG = "Exit codes:\n\n\b\n" + exits.table()
_UsageError: Any = typer.BadParameter.__base__
"""The base of all errors in a command line. typer exports only its subclass."""
Run = Callable[[str, dict[str, Any]], int]
"""The function that runs a verb, given its name and its values, and returns the exit code."""


def invoke(arguments: Sequence[str], verb: str | None, run: Run, completing: bool = False) -> None:
    """Let typer read `arguments`, and exit. Load only the module of `verb`. Raise `UsageError`."""
    app = build(verb, run, completing, helping={"-h", "--help"}.intersection(arguments) != set())
    try:
        code = app(args=None if completing else _with_values(arguments, verb), prog_name="sfactl", standalone_mode=not arguments)
    except _UsageError as error:
        what = error.format_message().removesuffix(".")
        if verb is None and what.startswith("No such command '") and "Did you mean" not in what:
            what += verbs.suggestion(what.split("'")[1])
        raise exits.UsageError(f"{what[:1].lower()}{what[1:]}\nTry '{' '.join(filter(None, ('sfactl', verb)))} --help'.") from None
    sys.exit(code)


def _with_values(arguments: Sequence[str], verb: str | None) -> list[str]:
    """Return the arguments, with the value of each option that is complete without one: typer would take the next word for it."""
    module = verbs.load(verb) if verb is not None else None  # a group has no module: `sfactl help hooks`
    declared = module.PARAMETERS if module is not None else ()
    alone = {flag: p.alone for p in declared if isinstance(p, Option) and p.alone for flag in p.flags}
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    return [f"{word}={alone[word]}" if at < end and word in alone else word for at, word in enumerate(arguments)]


def build(verb: str | None, run: Run, completing: bool = False, helping: bool = False) -> typer.Typer:
    """Return an application that lists each verb, and can run or complete `verb`. With `helping`, the help of `run` and `spawn`
    ends with the default limits, which may ask the daemon."""
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=completing,
        no_args_is_help=True,
        context_settings=SETTINGS,
        help="Start, watch and stop runs of AI agents under sfad.",
        epilog=EPILOG,
    )
    app.callback()(_globals)
    for name in verbs.names():
        if verbs.is_group(name):
            _register_group(app, name, verb, run)
            continue
        module = verbs.load(name) if name == verb else None
        epilog = None
        if helping and getattr(module, "TAKES_COMMAND", False):
            # Imported here because it may start a process.
            from .default_limits import paragraph

            epilog = paragraph()
        _register(app, name, verbs.summary(name), module.PARAMETERS if module else (), run, epilog)
    for alias, name in verbs.ALIASES.items() if completing else ():
        # `split` accepts aliases, so typer has to know them when it completes
        _register(app, alias, verbs.summary(name), verbs.load(name).PARAMETERS if name == verb else (), run)
    return app


def _globals(
    socket: Annotated[str | None, typer.Option(*SOCKET.flags, help=SOCKET.help, metavar=SOCKET.metavar)] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version")] = False,
) -> None:
    # __main__ reads both before it looks for a verb; they are declared here for the help.
    del socket, version


def _register_group(app: typer.Typer, name: str, verb: str | None, run: Run) -> None:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, context_settings=SETTINGS, help=f"{verbs.summary(name)}.")
    app.add_typer(group, name=name, short_help=verbs.summary(name))
    for member in verbs.members(name):
        module = verbs.load(member) if member == verb else None
        _register(group, member, verbs.summary(member), module.PARAMETERS if module else (), run)


def _register(
    app: typer.Typer, name: str, summary: str, parameters: Sequence[Parameter], run: Run, epilog: str | None = None
) -> None:
    def command(**values: Any) -> None:
        # As in `options.read`, the defaults of the verb's `main` apply to values that were not given.
        given = {key: value for key, value in values.items() if value not in (None, False, [])}
        given |= {p.target: [] for p in parameters if p.many and isinstance(p, Argument) and p.target not in given}
        raise typer.Exit(run(name, given))

    signature = inspect.Signature([_parameter(p) for p in parameters])
    vars(command)["__signature__"] = signature
    command.__annotations__ = {key: p.annotation for key, p in signature.parameters.items()}
    details = (verbs.load(verbs.ALIASES.get(name, name)).__doc__ or "").partition("\n\n")[2] if parameters else ""
    usage = (
        "[OPTIONS] -- COMMAND... | [OPTIONS]"
        if any(isinstance(p, Argument) and p.target == "agent" for p in parameters)
        else "[OPTIONS]"
    )
    paragraphs = ("\b\n" + part if part.startswith(" ") else part for part in (f"{summary}.", *details.split("\n\n")))
    app.command(name.split(" ")[-1], help="\n\n".join(paragraphs), short_help=summary, options_metavar=usage, epilog=epilog)(
        command
    )


def _parameter(declared: Parameter) -> inspect.Parameter:
    is_flag = isinstance(declared, Option) and not declared.metavar
    kind: Any = bool if is_flag else list[str] if declared.many else str | None
    completion: Any = {"autocompletion": _completer(declared.complete)} if declared.complete else {}
    info: Any = (
        typer.Option(*declared.flags, help=declared.help, metavar=declared.metavar or None, **completion)
        if isinstance(declared, Option)
        else typer.Argument(help=declared.help, metavar=declared.metavar, **completion)
    )
    required = isinstance(declared, Argument) and declared.required
    if required and kind == str | None:
        kind = str
    default: Any = inspect.Parameter.empty if required else False if is_flag else [] if declared.many else None
    return inspect.Parameter(declared.target, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _completer(kind: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    def complete(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        # Imported here because typer also builds the help, which completes nothing.
        from .shell_completion import candidates

        return candidates(kind, incomplete, context.params.get("socket"))

    return complete

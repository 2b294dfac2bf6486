"""The typer application, made from the same declarations that `options.read` reads. Only imported when it is needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from . import exits, verbs
from .options import SOCKET, Argument, Option, Parameter

SETTINGS = {"help_option_names": ["-h", "--help"]}

EPILOG = "Exit codes:\n\n\b\n" + exits.table()

Run = Callable[[str, dict[str, Any]], int]
"""What carries a verb out, given its name and its values."""


def invoke(arguments: Sequence[str], verb: str | None, run: Run, completing: bool = False) -> None:
    """Has typer read `arguments`. Exits. With `verb`, only that verb's module is loaded; for completion all are."""
    app = build(None if completing else verb, run, completing, helping={"-h", "--help"}.intersection(arguments) != set())
    app(args=None if completing else list(arguments), prog_name="sfactl")


def build(verb: str | None, run: Run, completing: bool = False, helping: bool = False) -> typer.Typer:
    """Return an application that lists every verb and can carry out `verb`, or all of them when completing. `helping`: the help of
    `verb` is wanted, with what it looks up for its last paragraph."""
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=completing,
        no_args_is_help=True,
        context_settings=SETTINGS,
        help="Starts, watches and stops runs of AI agents under sfad.",
        epilog=EPILOG,
    )
    app.callback()(_globals)
    for name, summary in verbs.VERBS.items():
        parameters = verbs.load(name).PARAMETERS if completing or name == verb else ()
        epilog = getattr(verbs.load(name), "EPILOG", None) if helping and name == verb else None
        _register(app, name, summary, parameters, run, epilog and epilog())
    return app


def _globals(
    socket: Annotated[str | None, typer.Option(*SOCKET.flags, help=SOCKET.help, metavar=SOCKET.metavar)] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version")] = False,
) -> None:
    # Both are taken by __main__ before a verb is looked for; they are declared here for the help.
    del socket, version


def _register(app: typer.Typer, name: str, summary: str, parameters: Sequence[Parameter], run: Run, epilog: str | None) -> None:
    def command(**values: Any) -> None:
        # What was not given is left to the defaults of the verb's `main`, as the other reader leaves it.
        given = {key: value for key, value in values.items() if value not in (None, False, [])}
        given |= {p.target: [] for p in parameters if p.many and isinstance(p, Argument) and p.target not in given}
        raise typer.Exit(run(name, given))

    shown = [p for p in parameters if isinstance(p, Option) or not p.hidden]
    signature = inspect.Signature([_parameter(p) for p in shown])
    vars(command)["__signature__"] = signature
    command.__annotations__ = {key: p.annotation for key, p in signature.parameters.items()}
    details = (verbs.load(name).__doc__ or "").partition("\n\n")[2] if parameters else ""
    usage = "[OPTIONS] AGENT [WORDS...] | [OPTIONS] -- COMMAND..." if any(p.target == "leaf" for p in parameters) else "[OPTIONS]"
    text = f"{summary}.\n\n{_paragraphs(details)}"
    app.command(name, help=text, short_help=summary, options_metavar=usage, epilog=epilog)(command)


def _paragraphs(text: str) -> str:
    return "\n\n".join("\b\n" + part if part.startswith(" ") else part for part in text.split("\n\n"))


def _parameter(declared: Parameter) -> inspect.Parameter:
    is_flag = isinstance(declared, Option) and not declared.metavar
    kind: Any = bool if is_flag else list[str] if declared.many else str | None
    info: Any = (
        typer.Option(*declared.flags, help=declared.help, metavar=declared.metavar or None, hidden=declared.hidden)
        if isinstance(declared, Option)
        else typer.Argument(help=declared.help, metavar=declared.metavar, hidden=declared.hidden)
    )
    required = isinstance(declared, Argument) and declared.required
    if required and kind == str | None:
        kind = str
    default: Any = inspect.Parameter.empty if required else False if is_flag else [] if declared.many else None
    return inspect.Parameter(declared.target, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])

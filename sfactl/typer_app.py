"""The typer application, made from the declarations that `options.read` reads. Imported only for help, completion and errors."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from msgspec import json
from typer.core import TyperCommand, TyperGroup, TyperOption

from sfad.protocol.kinds import DEFAULT_KEYS, KINDS
from sfad.protocol.known import CODING_AGENT, PROFILES, Profile
from sfad.protocol.limits import format_amount
from sfad.protocol.requests.daemon import Config, ConfigReply, Setting
from sfad.protocol.types import LimitKind

from . import exits, verbs
from .connection import connect
from .exits import Quit
from .options import SOCKET, Argument, Heading, Option, Parameter
from .shell_completion import Late, within

SETTINGS = {"help_option_names": ["-h", "--help"]}
EPILOG = "Exit codes:\n\n\b\n" + exits.table()
_UsageError: Any = typer.BadParameter.__base__
"""The base of all errors in a command line. typer exports only its subclass."""
Run = Callable[[str, dict[str, Any]], int]
"""The function that runs a verb, given its name and its values, and returns the exit code."""
Sections = dict[str, list[tuple[str, str]]]
"""Lines of the help by their heading: a term and what it means."""


def options_by_heading(command: Any, ctx: Any) -> Sections:
    found: Sections = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        if record := parameter.get_help_record(ctx):
            heading = parameter.rich_help_panel if isinstance(parameter, TyperOption) else None
            found.setdefault(heading or f"{parameter.param_type_name.capitalize()}s", []).append(record)
    return {heading: lines for heading, lines in found.items() if lines}


def verbs_by_heading(group: Any, ctx: Any) -> Sections:
    found: Sections = {}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        found.setdefault(command.rich_help_panel or "Commands", []).append((name, command.short_help))
    return found


class _Verb(TyperCommand):
    """A verb. typer shows headings only if rich formats the help, and plain help is what pipes and screen readers need."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write(options_by_heading(self, ctx), formatter)


class _Verbs(TyperGroup):
    """All verbs, or a group of them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        _write(verbs_by_heading(self, ctx), formatter)


def _write(sections: Sections, formatter: Any) -> None:
    wide = max((len(term) for lines in sections.values() for term, _ in lines), default=0)
    for heading, lines in sections.items():
        with formatter.section(heading):
            formatter.write_dl([(term.ljust(wide), about) for term, about in lines])


def invoke(arguments: Sequence[str], verb: str | None, run: Run, completing: bool = False) -> None:
    """Let typer read `arguments`, and exit. Load only the module of `verb`. Raise `UsageError`."""
    app = build(verb, run, completing, helping={"-h", "--help"}.intersection(arguments) != set())
    try:
        code = app(args=None if completing else with_values(arguments, verb), prog_name="sfactl", standalone_mode=not arguments)
    except _UsageError as error:
        group = next((word for word in arguments[:1] if verb is None and verbs.is_group(word)), None)
        raise exits.UsageError(
            f"{_words_of(error, group)}\nTry '{' '.join(filter(None, ('sfactl', verb or group)))} --help'."
        ) from None
    sys.exit(code)


def _words_of(error: Any, group: str | None) -> str:
    """Return what is wrong with a command line, and what was probably meant. `group`: where a verb was looked for."""
    what: str = error.format_message().removesuffix(".")
    if similar := getattr(error, "possibilities", None):  # of an unknown option
        meant = verbs.closest(error.option_name, similar) or similar[0]
        what = f"{error.message}. Did you mean '{meant}'?"
    elif what.startswith("No such command '"):
        what = what.partition(". Did you mean")[0]
        what += verbs.suggestion(" ".join(filter(None, (group, what.split("'")[1]))))
    return f"{what[:1].lower()}{what[1:]}"


def with_values(arguments: Sequence[str], verb: str | None) -> list[str]:
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
        cls=_Verbs,
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
    summary = verbs.summary(name)
    group = typer.Typer(cls=_Verbs, rich_markup_mode=None, no_args_is_help=True, context_settings=SETTINGS, help=f"{summary}.")
    app.add_typer(group, name=name, short_help=summary, rich_help_panel=verbs.heading(name))
    for member in verbs.members(name):
        module = verbs.load(member) if member == verb else None
        _register(group, member, verbs.summary(member), module.PARAMETERS if module else (), run)


def _register(
    app: typer.Typer, name: str, summary: str, parameters: Sequence[Parameter], run: Run, epilog: str | None = None
) -> None:
    def command(**values: Any) -> None:
        # As in `options.read`, the defaults of the verb's `main` apply to values that were not given.
        given = {key: value for key, value in values.items() if value not in (None, False, [])}
        given |= {p.target: [] for p in parameters if isinstance(p, Argument) and p.many and p.target not in given}
        raise typer.Exit(run(name, given))

    signature = inspect.Signature(list(_declared(parameters)))
    vars(command)["__signature__"] = signature
    command.__annotations__ = {key: p.annotation for key, p in signature.parameters.items()}
    details = (verbs.load(verbs.ALIASES.get(name, name)).__doc__ or "").partition("\n\n")[2] if parameters else ""
    usage = (
        "[OPTIONS] -- COMMAND... | [OPTIONS]"
        if any(isinstance(p, Argument) and p.target == "agent" for p in parameters)
        else "[OPTIONS]"
    )
    paragraphs = ("\b\n" + part if part.startswith(" ") else part for part in (f"{summary}.", *details.split("\n\n")))
    app.command(
        name.split(" ")[-1],
        cls=_Verb,
        help="\n\n".join(paragraphs),
        short_help=summary,
        options_metavar=usage,
        epilog=epilog,
        rich_help_panel=None if " " in name else verbs.heading(name),
    )(command)


def _declared(parameters: Sequence[Parameter]) -> Iterator[inspect.Parameter]:
    heading = None
    for each in parameters:
        if isinstance(each, Heading):
            heading = each.text
        else:
            yield _parameter(each, heading)


def _parameter(declared: Option | Argument, heading: str | None) -> inspect.Parameter:
    is_flag = isinstance(declared, Option) and not declared.metavar
    kind: Any = bool if is_flag else list[str] if declared.many else str | None
    completion: Any = {"autocompletion": _completer(declared.complete)} if declared.complete else {}
    info: Any = (
        typer.Option(*declared.flags, help=declared.help, metavar=declared.metavar or None, rich_help_panel=heading, **completion)
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


# ---- The limits of a run without options, for `run --help` and `spawn --help`: those of the running daemon, else those in the
# config that a daemon started now would read.

ADVICE_SECONDS = 1.0
"""Seconds to wait for the daemon's answer."""
SHOWN = [kind for kind in KINDS if kind.value in Profile.__struct_fields__]
"""The kinds that the help shows: those that a profile sets."""


def paragraph() -> str:
    """Return the defaults in force, as a paragraph of a help text."""
    try:
        found = _settings()
    except Quit as error:
        return f"Default limits: unknown. {error.message}"
    values = {setting.key: setting.value for setting in found}
    defaults = {kind: value for kind in SHOWN if (value := values[f"defaults.{DEFAULT_KEYS[kind]}"]) is not None}
    most = {kind: values[f"limits.{KINDS[kind].most}"] for kind in SHOWN}
    lines = [f"any command            {_amounts(defaults)}"]
    if values["defaults.program_profile"] != "off":
        profile = {kind: min(getattr(PROFILES[CODING_AGENT], kind.value), most[kind]) for kind in SHOWN}
        lines.append(f"claude, codex, …       {_amounts(profile)} (profile coding-agent)")
    lines.append(f"at most                {_amounts(most)} (limits.max_time, .max_turns, .max_cost)")
    wanted = {f"defaults.{DEFAULT_KEYS[kind]}" for kind in SHOWN} | {f"limits.{KINDS[kind].most}" for kind in SHOWN}
    told = (setting for setting in found if setting.key in wanted and setting.source != "built-in")
    lines += [f"{setting.key:<22} set in {setting.source}" for setting in told]
    return "\b\nDefault limits:\n" + "\n".join(f"  {line}" for line in lines)


def _settings() -> list[Setting]:
    try:
        with within(ADVICE_SECONDS), connect(None, tell=False) as client:
            return client.call(Config(id=0), ConfigReply).settings
    except (Quit, Late):
        pass  # the help must work if no daemon is running
    command = [sys.executable, "-P", "-X", "utf8", "-m", "sfad.config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Quit(done.returncode, done.stderr.strip())
    return [Setting(**each) for each in json.decode(done.stdout)]


def _amounts(limits: Mapping[LimitKind, float]) -> str:
    turns = {LimitKind.TURNS: " turns"}
    return ", ".join(format_amount(kind, threshold) + turns.get(kind, "") for kind, threshold in limits.items())

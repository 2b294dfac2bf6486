"""The application: typer reads a command line, and only the module of the verb that it names is
loaded.

    from ..app import app

    @app.command()
    def pause(runs: LiveRuns, socket: Socket = None) -> int:

What typer does not export is used here alone, because another version may have it elsewhere.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from inspect import getdoc
from typing import Annotated, Any, cast

import typer
from typer._click.exceptions import NoSuchOption
from typer._click.exceptions import UsageError as TyperUsageError
from typer._click.parser import _OptionParser
from typer._click.shell_completion import CompletionItem, _resolve_context, _resolve_incomplete
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command_from_info, get_group

from . import exits, verbs
from .options.shared import WITHOUT_VALUE, RootJson, RootSocket

Sections = dict[str, list[tuple[str, str]]]
"""Lines of the help by their heading: a term and what it means."""
COMPLETING = "_SFACTL_COMPLETE"
"""The variable by which a completion script asks for words: `complete_bash`."""
SETTINGS = {"help_option_names": ["-h", "--help"]}


# ---- Verbs


class _Parser(_OptionParser):
    """typer has no options whose value may be left out."""

    def _match_long_opt(self, opt: str, explicit_value: str | None, state: Any) -> None:
        super()._match_long_opt(
            opt, WITHOUT_VALUE.get(opt) if explicit_value is None else explicit_value, state
        )


class _UpToCommand(_Parser):
    """Leaves the command unread, which begins with `--` or with the name of an agent."""

    def _process_args_for_options(self, state: Any) -> None:
        while state.rargs and state.rargs[0].startswith("-") and state.rargs[0] not in {"-", "--"}:
            self._process_opts(state.rargs.pop(0), state)

    def _match_long_opt(self, opt: str, explicit_value: str | None, state: Any) -> None:
        rest = state.rargs
        if rest[:1] == ["--"]:  # not the value of an option that lacks one, as in --name -- COMMAND
            state.rargs = []
        try:
            super()._match_long_opt(opt, explicit_value, state)
        finally:
            state.rargs = state.rargs or rest


class Verb(TyperCommand):
    """A verb, which may be about runs on other nodes."""

    parser: type[_OptionParser] = _Parser

    def __init__(self, name: str | None, *, params: list[Any], **settings: Any) -> None:
        for each in params:
            each.show_default = False  # the texts say what follows without the option
            each.secondary_opts = []  # nor is there a --no-… beside each option without a value
        super().__init__(name, params=params, **settings)

    def make_parser(self, ctx: Any) -> _OptionParser:
        parser = self.parser(ctx)
        for parameter in self.get_params(ctx):
            parameter.add_to_parser(parser, ctx)
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _help_named(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> int:
        """Return the exit code."""
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        if not (self.name == "wait" or ctx.params.get("follow_")):
            return self._invoke(ctx)
        from .reader import while_read  # only for what may wait for long before it prints

        with while_read():
            return self._invoke(ctx)

    def _invoke(self, ctx: Any) -> int:
        with _help_named(ctx):
            if not (ctx.params.pop("over_fleet", False) or _names_node(ctx.params)):
                return super().invoke(ctx) or exits.ExitCode.DONE
            from .connecting import fleet  # most command lines are about this node

            ctx.params["socket"] = fleet.place(ctx.params["socket"])
            code = super().invoke(ctx)
            return code or fleet.tell_unanswered()

    def format_options(self, ctx: Any, formatter: Any) -> None:
        # typer shows headings only if rich formats the help, and plain help is what pipes and
        # screen readers need
        _write(options_by_heading(self, ctx), formatter)


class OverFleet(Verb):
    """A verb with --fleet."""

    def __init__(self, name: str | None, *, params: list[Any], **settings: Any) -> None:
        fleet = TyperOption(
            param_decls=["over_fleet", "--fleet"],
            is_flag=True,
            default=False,
            help="On all nodes of the fleet, or on the node of a run that is named NODE/ID",
        )
        after = 1 + max(at for at, each in enumerate(params) if each.name in ("socket", "json"))
        super().__init__(name, params=[*params[:after], fleet, *params[after:]], **settings)


class TakesCommand(Verb):
    """A verb that ends with an agent or a command. Its help ends with the limits of a run without
    options."""

    parser = _UpToCommand

    def format_epilog(self, _ctx: Any, formatter: Any) -> None:
        from .options.default_limits import paragraph  # may ask the daemon, and start a process

        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(paragraph())


class _WithHelp(exits.UsageError):
    """An error that says where the help is."""


@contextmanager
def _help_named(ctx: Any) -> Iterator[None]:
    """Add to an error in a command line where the help is."""
    try:
        yield
    except _WithHelp:
        raise  # of the line that a verb has carried out, as `rerun` does
    except exits.UsageError as error:
        raise _WithHelp(f"{error.message}\nTry '{ctx.command_path} --help'.") from error
    except TyperUsageError as error:
        raise _WithHelp(f"{_words_of(error)}\nTry '{ctx.command_path} --help'.") from None


def _names_node(values: Mapping[str, Any]) -> bool:
    """Return whether a run is named as the fleet knows it, NODE/ID."""
    words = values.get("words", ()) if "run" not in values else ()
    run = values.get("run")
    several = run if isinstance(run, list | tuple) else [run]
    named = [*values.get("runs", ()), *words, *several, values.get("root")]
    return any(isinstance(run, str) and "/" in run for run in named)


# ---- Groups of verbs


class Verbs(TyperGroup):
    """All verbs, or a group of them. A verb is loaded when it is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            print(ctx.get_help(), file=sys.stderr)
            raise typer.Exit(exits.ExitCode.USAGE)
        with _help_named(ctx):
            rest = super().parse_args(ctx, args)
            if not (ctx._protected_args or ctx.resilient_parsing):
                ctx.fail("Missing command.")
        return rest

    def list_commands(self, _ctx: Any) -> list[str]:
        return [*verbs.known(self.name)]

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        verb = f"{self.name} {cmd_name}".strip()
        return load(verb) if verb in verbs.SUMMARIES else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name = args[0] if self.name else verbs.ALIASES.get(args[0], args[0])
        if not ctx.resilient_parsing and name not in verbs.known(self.name):
            hint = verbs.suggestion(f"{self.name} {name}".strip())
            raise _WithHelp(f"no such command {name!r}{hint}\nTry '{ctx.command_path} --help'.")
        return super().resolve_command(ctx, [name, *args[1:]])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        shown = verbs.known(self.name)
        if not self.name:
            shown = shown | {alias: shown[verb] for alias, verb in verbs.ALIASES.items()}
        found = [
            CompletionItem(name, help=summary)
            for name, summary in shown.items()
            if name.startswith(incomplete)
        ]
        return [*found, *super(TyperGroup, self).shell_complete(ctx, incomplete)]

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        listed = {"Commands": verbs.known(self.name)} if self.name else verbs.HEADINGS
        _write({heading: [*lines.items()] for heading, lines in listed.items()}, formatter)


class Application(typer.Typer):
    """All verbs, or a group of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=Verbs,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            add_completion=False,
            context_settings=SETTINGS,
            **settings,
        )

    def command(
        self, name: str | None = None, *, cls: Any = Verb, **settings: Any
    ) -> Callable[[Any], Any]:
        """Register a function, which returns an exit code or `None` for 0, as the verb that its
        module is named like."""

        def register(function: Callable[..., int | None]) -> Callable[..., int | None]:
            text = _paragraphs(getdoc(function) or "")
            super(Application, self).command(
                name, cls=cls, help=text, context_settings=SETTINGS, **settings
            )(function)
            return function

        return register


def _paragraphs(text: str) -> str:
    """Return the text of a help, in which paragraphs that are indented keep their lines."""
    return "\n\n".join(
        "\b\n" + part if part.startswith(" ") else part for part in text.split("\n\n")
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        from sfad import __version__

        print(f"sfactl {__version__}")
        raise typer.Exit


app = Application(
    help="Start, watch and stop runs of AI agents under sfad.",
    epilog="Exit codes:\n\n\b\n" + exits.table(),
)


@app.callback()
def _before_the_verb(
    socket: RootSocket = None,
    json: RootJson = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    # a verb finds the first two by its own options, and the third has been printed
    del socket, json, version


# ---- Loading, help and carrying out


@cache
def root() -> TyperGroup:
    """Return what typer makes of the application. Its verbs are loaded by their names."""
    return get_group(app)


@cache
def load(verb: str) -> Any:
    """Return what typer makes of a verb, or of a group. It must exist."""
    module = import_module(".".join([f"{__package__}.commands", *verb.split(" ")]))
    if verb in verbs.MEMBERS:
        return get_group(module.app)
    (info,) = (
        each
        for each in module.app.registered_commands
        if each.callback.__module__ == module.__name__
    )
    return get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)


def context(*words: str) -> Any:
    """Return the context of `sfactl`, or of a verb or group, for its help."""
    ctx = root().make_context("sfactl", [], resilient_parsing=True)
    for at, word in enumerate(words):
        ctx = load(" ".join(words[: at + 1])).make_context(
            word, [], parent=ctx, resilient_parsing=True
        )
    return ctx


def options_by_heading(command: Any, ctx: Any) -> Sections:
    found: Sections = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        if record := parameter.get_help_record(ctx):
            record = _with_optional_value(parameter, record)
            heading = parameter.rich_help_panel if isinstance(parameter, TyperOption) else None
            found.setdefault(heading or f"{parameter.param_type_name.capitalize()}s", []).append(
                record
            )
    return {heading: lines for heading, lines in found.items() if lines}


def _with_optional_value(parameter: Any, record: tuple[str, str]) -> tuple[str, str]:
    """Show that the value may be left out, where it may: `--isolate[=on|net]`."""
    if WITHOUT_VALUE.keys().isdisjoint(parameter.opts):
        return record
    name, _, value = record[0].rpartition(" ")
    return f"{name}[={value}]", record[1]


def _write(sections: Sections, formatter: Any) -> None:
    wide = max((len(term) for lines in sections.values() for term, _ in lines), default=0)
    for heading, lines in sections.items():
        with formatter.section(heading):
            formatter.write_dl([(term.ljust(wide), about) for term, about in lines])


def carry_out(arguments: Sequence[str]) -> int:
    """Carry out a command line, or complete one if the environment asks for that. Return the exit
    code. Raise `Quit`."""
    group = root()
    if (asked := os.environ.get(COMPLETING)) is not None:
        return _complete(group, asked.removeprefix("complete_"))
    try:
        # not `group.main`, which has exit codes of its own for Ctrl-C and for a reader that has
        # gone
        with group.make_context("sfactl", list(arguments)) as ctx:
            code = group.invoke(ctx)
    except typer.Exit as end:
        code = end.exit_code
    sys.stdout.flush()
    return cast(int, code)


def _complete(group: TyperGroup, shell: str) -> int:
    """Answer the completion script of a shell, and return the exit code."""
    from .options import completion_scripts as scripts  # no other command line needs it

    typed = os.environ.get(scripts.LINE.get(shell, ""), "")
    line = scripts.read(typed, os.environ.get(scripts.BREAKS, ""))
    sys.stdout.write(scripts.answer(shell, line, _following(group, line.words[1:], line.last)))
    sys.stdout.flush()
    return exits.ExitCode.DONE


def _following(group: TyperGroup, words: Sequence[str], last: str) -> Iterator[tuple[str, str]]:
    """Generate what the last word of a command line may be, with what it means."""
    # typer would take the next word for a value
    args = [f"{word}={WITHOUT_VALUE[word]}" if word in WITHOUT_VALUE else word for word in words]
    try:
        ctx = _resolve_context(group, {}, "sfactl", args)
        completed, begun = _resolve_incomplete(ctx, args, last)
        found = completed.shell_complete(ctx, begun)
    except (exits.UsageError, TyperUsageError):
        return  # a shell would show the error in the middle of the command line
    before = last.removesuffix(begun)  # `--label=` of `--label=a`
    yield from ((f"{before}{item.value}", item.help or "") for item in found)


def _words_of(error: TyperUsageError) -> str:
    """Return what is wrong with a command line, and what was probably meant."""
    what: str = error.format_message().removesuffix(".")
    if isinstance(error, NoSuchOption) and error.possibilities:
        meant = verbs.closest(error.option_name, error.possibilities) or error.possibilities[0]
        what = f"{error.message}. Did you mean '{meant}'?"
    elif type(error) is typer.BadParameter and error.param is not None:
        what = error.message
        if isinstance(error.param, TyperOption):
            return f"{error.param.opts[0]}: {what}"
    return f"{what[:1].lower()}{what[1:]}"

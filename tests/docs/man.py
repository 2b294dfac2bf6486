"""The man pages, made from the texts that `--help` shows: man(7) in docs/man/, which the wheel
installs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from sfactl import app as application
from sfactl import verbs
from sfad.cli import app


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    yield "sfactl.1", "".join(line + "\n" for line in sfactl())
    yield "sfad.8", "".join(line + "\n" for line in sfad())


def sfactl() -> Iterator[str]:
    everything, ctx = _command(None)
    yield from _head("sfactl", 1, everything, "[OPTIONS] VERB [ARGS]...")
    yield from _sections(application.options_by_heading(everything, ctx))
    for heading, listed in verbs.HEADINGS.items():
        yield f".SH {_quoted(heading.upper())}"
        for name in listed:
            members = verbs.MEMBERS.get(name)
            for verb in [name] if members is None else [f"{name} {each}" for each in members]:
                yield from _verb(verb)
    # `run --help` has the default limits of the daemon as its epilog; the epilog of `--help` is the
    # same for all
    yield ".SH EXIT STATUS"
    yield from _text(everything.epilog.partition("\n\n")[2])
    yield from (".SH SEE ALSO", ".BR sfad (8)")


def _verb(verb: str) -> Iterator[str]:
    command, ctx = _command(verb)
    yield f".SS {_quoted(' '.join(('sfactl', verb, *command.collect_usage_pieces(ctx))))}"
    yield from _text(command.help)
    if verb == "spawn":
        yield from _text("Arguments and options are those of `sfactl run`, and:")
        of_run = application.options_by_heading(*_command("run"))
        known = {term for lines in of_run.values() for term, _ in lines}
        for lines in application.options_by_heading(command, ctx).values():
            own = [(term, about) for term, about in lines if term not in known]
            yield from _sections({"Options": own}, level=0)
    else:
        yield from _sections(application.options_by_heading(command, ctx), level=0)


def sfad() -> Iterator[str]:
    everything: Any = get_command(app)
    ctx = everything.make_context("sfad", ["--help"], resilient_parsing=True)
    yield from _head("sfad", 8, everything, "[OPTIONS] [COMMAND] [ARGS]...")
    yield from _sections(application.options_by_heading(everything, ctx))
    yield ".SH COMMANDS"
    for name, command in everything.commands.items():
        if command.hidden:
            continue
        inner = command.make_context(f"sfad {name}", [], parent=ctx, resilient_parsing=True)
        yield f".SS {_quoted(' '.join(('sfad', name, *command.collect_usage_pieces(inner))))}"
        yield from _text(inspect.cleandoc(command.help))
        yield from _sections(application.options_by_heading(command, inner), level=0)
    yield from (".SH SEE ALSO", ".BR sfactl (1)")


def _command(verb: str | None) -> tuple[Any, Any]:
    """Return what `sfactl VERB --help` explains, and its context; without a verb, all of them."""
    ctx = application.context(*(verb.split(" ") if verb is not None else ()))
    return ctx.command, ctx


def _head(name: str, section: int, command: Any, usage: str) -> Iterator[str]:
    summary = command.help.partition(". ")[0].removesuffix(".")
    yield '.\\" Written by `make docs` from the texts of --help.'
    yield f'.TH {name.upper()} {section} "" sfad'
    yield from (".SH NAME", f"{name} \\- {_escaped(summary[:1].lower() + summary[1:])}")
    yield from (".SH SYNOPSIS", f".B {name}", _escaped(usage), ".SH DESCRIPTION")
    yield from _text(command.help)


def _sections(sections: application.Sections, *, level: int = 1) -> Iterator[str]:
    """Yield options. `level` 0: within a part of the page, where their headings are paragraphs."""
    for heading, lines in sections.items():
        shown = [(term, about) for term, about in lines if level or not term.endswith("--help")]
        if not shown:
            continue
        if level:
            yield f".SH {_quoted(heading.upper())}"
        elif len(sections) > 1:
            yield from (".PP", f".I {_quoted(heading + ':')}")
        for term, about in shown:
            yield from (".TP", f".B {_quoted(term)}", _escaped(about))


def _text(text: str) -> Iterator[str]:
    """Yield paragraphs. One that begins with `\\b` keeps its lines, as in the help."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield from (".PP", ".nf", *map(_escaped, paragraph[2:].splitlines()), ".fi")
        else:
            yield from (".PP", _escaped(" ".join(paragraph.split())))


def _escaped(text: str) -> str:
    """Return a line in which nothing is a request or an escape, and a hyphen can be copied as an
    option's."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return f"\\&{text}" if text[:1] in (".", "'") else text


def _quoted(text: str) -> str:
    return '"' + _escaped(text).replace('"', '""') + '"'

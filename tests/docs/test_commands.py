"""Every command line in the pages parses, and every verb is mentioned."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import typer

from sfactl import verbs
from sfactl.app import TakesCommand, Verb, carry_out
from sfactl.exits import UsageError
from sfad.agents.registered import BUILT_IN_AGENTS
from sfad.cli import app
from tests.docs.pages import DOCS, README, blocks, pages, spans
from tests.together import together

AGENTS = {*BUILT_IN_AGENTS, "reviewer"}
"""Agents that the pages start by name."""

_ENDS = {"|", "||", "&", "&&", ";", ">", ">>", "<", "(", ")"}


def commands(text: str) -> Iterator[list[str]]:
    """Return every command line of `sfactl` and `sfad`: in console and shell blocks, and whole
    inline code."""
    lines = [
        line
        for block in blocks(text)
        if block.language in {"console", "sh"}
        for line in block.text.splitlines()
    ]
    for line in [*lines, *spans(text)]:
        yield from ours(line.removeprefix("$ ").replace("…", ""))


def ours(line: str) -> Iterator[list[str]]:
    """Return the parts of a shell's command line that begin with sfactl or sfad, and those within
    what is quoted or after `--`."""
    if not re.match(r"(sfactl|sfad)\b(?!:)", line):
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in _ENDS:
            break
        words.append(word)
    yield words
    if "--" in words and (inner := words[words.index("--") + 1 :])[:1] in (["sfactl"], ["sfad"]):
        yield inner


def check_sfactl(words: list[str]) -> None:
    """Raise if `sfactl` would not understand the options."""
    words = [word for word in words if word not in {"-h", "--help", "--version"}]
    verb = " ".join(words)
    if not words or verb in verbs.SUMMARIES or verb in verbs.ALIASES:
        return  # a bare `sfactl info` in running text names the verb; with options it must be whole

    def invoke(command: Verb, ctx: typer.Context) -> int:
        begin = ctx.params["command"][:1] if isinstance(command, TakesCommand) else ()
        assert begin in ((), ("--",), *((agent,) for agent in AGENTS)), (
            f"a command needs '--': {words}"
        )
        return 0

    try:
        with patch.object(Verb, "invoke", invoke):
            carry_out(words)
    except UsageError as error:
        raise AssertionError(f"not understood: sfactl {verb}: {error}") from None


def check_sfad(words: list[str]) -> None:
    """Raise if `sfad` would not understand the options."""
    group = typer.main.get_command(app)
    if words[:1] and not words[0].startswith("-"):
        command = group.commands[words[0]]  # type: ignore[attr-defined]
        command.make_context(words[0], words[1:])


def examples() -> list[tuple[Path, list[str]]]:
    """Return page and command line of every example."""
    return [(page, words) for page in pages() for words in commands(page.read_text())]


@together(
    ("page", "words"),
    examples(),
)
def test_it_parses(page: Path, words: list[str]) -> None:
    assert page.exists()
    program, *rest = words
    (check_sfactl if program == "sfactl" else check_sfad)(rest)


def test_the_examples_are_found() -> None:
    assert len([words for page, words in examples() if page.name == "tutorial.md"]) > 25
    assert len([words for page, words in examples() if page.name == "README.md"]) > 5


def test_wrong_command_lines_are_found() -> None:
    for wrong in (
        ["run", "--colour", "--", "true"],
        ["stop", "--grace"],
        ["bogus"],
        ["run", "true"],
    ):
        with pytest.raises(AssertionError):
            check_sfactl(wrong)


def test_every_verb_is_mentioned() -> None:
    everything = README.read_text() + "".join(page.read_text() for page in DOCS.glob("*.md"))
    assert [
        verb
        for verb in (*verbs.everything(), *verbs.ALIASES)
        if not re.search(
            rf"`sfactl {verb}\b|`{verb}`|^\$ sfactl {verb}\b", everything, re.MULTILINE
        )
    ] == []

"""The reader of plain command lines and typer give the same values, for every verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactl import verbs
from sfactl.__main__ import split
from sfactl.options import FLEET, Heading, NotPlain, Option, Parameter, read
from sfactl.typer_app import build, with_values

WORDS = st.text("abcXYZ019=,.:/ é-", min_size=1, max_size=8)
PLAIN_WORDS = WORDS.filter(lambda word: not word.startswith("-"))


def by_typer(verb: str, arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the values that typer reads from a command line; `None` if it refuses the line."""
    seen: list[dict[str, Any]] = []

    def note(_verb: str, values: dict[str, Any]) -> int:
        seen.append(values)
        return 0

    with pytest.raises(SystemExit):
        build(verb, note)(args=with_values([*verb.split(), *arguments], verb), prog_name="sfactl")
    return seen[0] if seen else None


def by_reader(verb: str, arguments: Sequence[str]) -> dict[str, Any] | None:
    try:
        return read(verbs.load(verb).PARAMETERS, arguments)
    except NotPlain:
        return None


@st.composite
def lines(draw: st.DrawFn, parameters: Sequence[Parameter]) -> list[str]:
    options = [p for p in parameters if isinstance(p, Option)]
    line: list[str] = []
    for _ in range(draw(st.integers(0, 5))):
        option = draw(st.sampled_from([*options, None]))
        if option is None:
            line.append(draw(WORDS))
        else:
            line += draw(written(option))
    return line


@st.composite
def written(draw: st.DrawFn, option: Option) -> list[str]:
    flag = draw(st.sampled_from(option.flags))
    if not option.metavar:
        return [flag]
    value = draw(WORDS)
    attached = flag.startswith("--") and draw(st.booleans())
    return [f"{flag}={value}"] if attached else [flag, value]


@pytest.mark.parametrize("verb", verbs.everything())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_the_reader_takes_typer_reads_the_same(verb: str, data: st.DataObject) -> None:
    arguments = data.draw(lines(verbs.load(verb).PARAMETERS))
    values = by_reader(verb, arguments)
    if values is not None and "agent" not in values:
        assert normal(values) == normal(by_typer(verb, arguments) or {})


def normal(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without those that mean the same as none."""
    return {key: value for key, value in values.items() if value not in (None, False, [])}


@pytest.mark.parametrize("verb", verbs.everything())
def test_every_parameter_is_one_of_main(verb: str) -> None:
    from inspect import Parameter, signature

    from sfactl.selection import SelectionOptions
    from sfactl.session_options import OrderOptions
    from sfactl.spawn_options import SpawnOptions
    from sfactl.usage_options import OPTIONS

    module = verbs.load(verb)
    accepted = signature(module.main).parameters
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in accepted.values())
    names = {
        *accepted,
        *(
            (*SpawnOptions.__struct_fields__, *OPTIONS, *SelectionOptions.__annotations__, *OrderOptions.__annotations__)
            if takes_any
            else ()
        ),
    }
    # `--fleet` chooses who carries the verb out
    assert {p.target for p in module.PARAMETERS if not isinstance(p, Heading)} - {FLEET.target} <= names


@given(before=st.lists(st.sampled_from(["--json", "--socket=/s"])), after=st.lists(WORDS))
def test_the_verb_is_found_behind_options(before: list[str], after: list[str]) -> None:
    assert split([*before, "ps", *after]) == (before, "list", after)


def test_the_value_of_socket_is_not_the_verb() -> None:
    assert split(["--socket", "run", "list"]) == (["--socket", "run"], "list", [])


@pytest.mark.parametrize("line", [["--nope"], ["--json=1"], ["--since"], ["word"], ["--help"]])
def test_what_is_not_plain_is_left_to_typer(line: list[str]) -> None:
    assert by_reader("list", line) is None

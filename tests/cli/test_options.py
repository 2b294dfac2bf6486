"""typer gives each verb the values of its command line."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.core import TyperGroup, TyperOption

from sfactl import app, verbs
from sfactl.__main__ import execute
from sfactl.options import spawn as spawn_options
from sfactl.options.shared import WITHOUT_VALUE
from sfactl.options.usage import Amounts
from sfad.protocol.requests.use import Report, Settle
from tests.together import together

WORDS = st.text("abcXYZ019=,.:/ é-", min_size=1, max_size=8)


def values(verb: str, *words: str) -> dict[str, Any]:
    """Return the values of a command line, by parameter. Raise `UsageError`."""
    found: dict[str, Any] = app.load(verb).make_context(verb, list(words)).params
    return found


@together("verb", verbs.everything())
def test_a_verb_is_a_function_with_the_first_sentence_of_its_docstring_in_the_help(
    verb: str,
) -> None:
    command = app.load(verb)
    first = (inspect.getdoc(command.callback.__wrapped__) or "").partition("\n\n")[0]
    assert " ".join(first.split()) == f"{verbs.SUMMARIES[verb]}."
    assert command.name == verb.split()[-1]


@pytest.mark.parametrize("group", [*verbs.MEMBERS])
def test_a_group_has_its_line_in_the_help(group: str) -> None:
    assert isinstance(app.load(group), TyperGroup)
    assert app.load(group).help == f"{verbs.SUMMARIES[group]}."


def test_the_list_of_verbs_has_each_module() -> None:
    commands = os.path.join(os.path.dirname(app.__file__), "commands")
    assert modules(commands) == set(verbs.known())
    for group, members in verbs.MEMBERS.items():
        assert modules(os.path.join(commands, group)) == set(members)


def modules(directory: str) -> set[str]:
    return {name.removesuffix(".py") for name in os.listdir(directory) if not name.startswith("_")}


def test_the_list_of_verbs_is_made_without_loading_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(verb: str) -> None:
        pytest.fail(f"{verb} was loaded")

    monkeypatch.setattr(app, "load", fail)
    assert "Freeze" not in app.context().get_help()
    assert execute(["--help"]) == 0


@given(words=st.lists(WORDS))
def test_the_words_after_an_agent_or_a_dash_are_not_read(words: list[str]) -> None:
    for begin in (["--"], ["claude"]):
        found = values("run", "--name", "n", "-q", "--isolate", *begin, *words)
        assert (found["command"], found["name"], found["quiet"]) == ((*begin, *words), "n", True)
        assert found["isolate"] == "on"


@pytest.mark.parametrize("flag", WITHOUT_VALUE)
def test_a_value_that_is_left_out_is_not_the_next_word(flag: str) -> None:
    name = flag.removeprefix("--")
    given = values("spawn", flag, "claude", "task")
    assert (given[name], given["command"]) == (WITHOUT_VALUE[flag], ("claude", "task"))
    assert values("spawn", f"{flag}=net", "claude")[name] == "net"
    assert values("spawn", "--name", flag, "--", "true")["name"] == flag, (
        "here it is a value itself"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--on", "--", "true"], "option '--on' requires an argument"),
        (["-q", "--name", "--", "true"], "option '--name' requires an argument"),
        (["--isolate", "on", "--", "true"], "the value of --isolate follows a '=': --isolate=on"),
        (["--isolate", "net", "claude"], "the value of --isolate follows a '=': --isolate=net"),
    ],
)
def test_a_value_that_is_missing_or_in_the_wrong_place_is_said(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["spawn", *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "before", [[], ["--json"], ["--socket", "/nonexistent/x"], ["--socket=/nonexistent/x"]]
)
@pytest.mark.parametrize("verb", ["list", "ps", "session list"])
def test_socket_and_json_may_stand_before_the_verb(
    before: list[str],
    verb: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SFAD_SOCKET", "/nonexistent/y")
    monkeypatch.setenv("SFAD_STATE_DIR", str(tmp_path))
    assert execute([*before, *verb.split()]) == 69
    assert (
        "/nonexistent/x" if len("".join(before)) > len("--json") else "/nonexistent/y"
    ) in capsys.readouterr().err


def test_the_value_of_socket_is_not_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--socket", "/nonexistent/run", "status"]) == 69
    assert "/nonexistent/run" in capsys.readouterr().err


def test_options_of_spawn_are_declared_once() -> None:
    spawn, run = (app.load(verb).params for verb in ("spawn", "run"))
    # of which one is in the foreground
    assert [each.name for each in spawn if each.name != "count"] == [each.name for each in run]
    declared = {each.name for each in spawn} - {"command", "count"}
    assert declared == {*spawn_options.SpawnOptions.__struct_fields__} - {"command", "agent"}
    assert {*spawn_options.HEADINGS} <= declared


def test_an_amount_is_a_field_of_the_message() -> None:
    for message in (Report, Settle):
        assert {*Amounts.__struct_fields__} <= {*message.__struct_fields__}


@together("verb", verbs.everything())
def test_no_option_shows_its_default_twice(verb: str) -> None:
    for each in app.load(verb).params:
        assert not each.show_default
        assert not isinstance(each, TyperOption) or each.help

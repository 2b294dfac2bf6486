"""Odd numbers for each option and variable of `sfactl` that takes one: an invalid one is a usage
error that names its source, and none causes a traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.core import TyperOption

from sfactl import app, verbs
from sfactl.__main__ import execute
from sfactl.exits import ExitCode
from tests.tiers import examples
from tests.together import together

MALFORMED = (
    "many",
    "²",
    "٣",
    "1_000",
    "0x10",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "--5",
    "1 2",
    "9" * 5000,
    "1" * 4299 + "²",
    "\udcff",
)
"""No number of any kind, or one that is too large for every option."""

WRITTEN = st.one_of(
    st.sampled_from(
        [
            *MALFORMED,
            "",
            " ",
            "-1",
            "+5",
            "0",
            "1.5",
            " 7 ",
            "1e5",
            "9" * 10,
            "9" * 19,
            "9" * 20,
            "9" * 300,
        ]
    ),
    st.text("0123456789+-_.,:=eE kKmMsSdB²٣", max_size=12),
)

METAVARS = {"N", "TIME", "USD"}

NEEDED = {
    "report": ["--turns", "1"],
    "reserve": ["--model", "m", "--input-tokens", "1", "--max-output-tokens", "1"],
    "settle": ["a1-1", "--input-tokens", "1", "--output-tokens", "1"],
    "spawn": [],
    "run": [],
}
"""What a verb cannot do without, so that the number is what is wrong."""

WITHOUT_RUN = ("list", "doctor", "recommend", "summary", "prune", "events", "mcp", "session list")

VARIABLES = ("SFA_DEPTH", "SFA_MAX_DEPTH", "SFA_MAX_DESCENDANTS", "SFA_DEFAULTS_TIMEOUT")

OTHERS = ("SFA_CALL_CHAIN", "SFA_NAME", "SFA_QUIET", "SFA_NO_LOG", "SFA_RUN_ID", "SFA_COOKIE")
"""Texts and switches, in which a number is nothing special."""


def numeric() -> Iterator[tuple[str, str]]:
    """Return each verb with each of its options that takes a number."""
    for verb in verbs.everything():
        for option in app.load(verb).params:
            if isinstance(option, TyperOption) and (
                option.metavar in METAVARS or option.name in ("limit", "signal")
            ):
                yield verb, option.opts[0]


NUMERIC = list(numeric())

ASKING = [(verb, option) for verb, option in NUMERIC if verb != "mcp"]
"""Those of verbs that ask the daemon first; `mcp` reads its stdin."""


def line(verb: str, option: str, value: str) -> list[str]:
    """Return a complete command line with this value."""
    needed = NEEDED.get(verb, ["a1"] if verb not in WITHOUT_RUN else [])
    words = [*verb.split(), *needed, option, f"turns={value}" if option == "--limit" else value]
    return [*words, "--", "true"] if verb in ("spawn", "run") else words


def tried(
    words: list[str], capsys: pytest.CaptureFixture[str], **variables: str
) -> tuple[int, str]:
    """Return exit code and stderr of a call to a daemon that is not running. If the number is
    valid, that is the only error."""
    nowhere = {
        "SFAD_SOCKET": "/nonexistent/s",
        "SFAD_STATE_DIR": "/nonexistent",
        "SFAD_AUTOSTART": "0",
    }
    with patch.dict(os.environ, nowhere | variables):
        code = execute(words)
    return code, capsys.readouterr().err


@together(("verb", "option"), NUMERIC)
def test_a_malformed_number_is_a_usage_error_that_names_the_option(
    verb: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in MALFORMED:
        code, said = tried(line(verb, option, value), capsys)
        assert (code, said[: len(option) + 8]) == (ExitCode.USAGE, f"sfactl: {option}"), (
            value[:80],
            said[:300],
        )


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_malformed_number_is_a_usage_error_that_names_the_variable(
    variable: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in MALFORMED:
        code, said = tried(["spawn", "--", "true"], capsys, **{variable: value})
        assert (code, said[: len(variable) + 10]) == (ExitCode.USAGE, f"sfactl: {variable}: "), (
            value[:80],
            said[:300],
        )


@pytest.mark.parametrize("variable", ["SFA_CALL_CHAIN", "SFA_NAME"])
def test_a_chain_that_is_no_text_names_the_variable(
    variable: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = tried(["spawn", "--", "true"], capsys, **{variable: "a,\udcff"})
    assert (code, said.partition(" is not")[0]) == (
        ExitCode.USAGE,
        f"sfactl: {variable}: 'a,\\udcff'",
    )


@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    where=st.sampled_from([*ASKING, *((name, "") for name in (*VARIABLES, *OTHERS))]), value=WRITTEN
)
def test_no_number_is_a_traceback(
    where: tuple[str, str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, option = where
    if option:
        code, said = tried(line(name, option, value), capsys)
    else:
        code, said = tried(["spawn", "--", "true"], capsys, **{name: value})
    assert code in (ExitCode.USAGE, ExitCode.UNREACHABLE)
    assert said.startswith(("sfactl: ", "Usage: "))
    if code == ExitCode.USAGE:
        assert option.lstrip("-") in said
        assert option or name in said


@pytest.mark.parametrize("variable", ["SFA_SOCKET", "SFAD_SOCKET"])
def test_a_socket_that_cannot_be_one_is_named(
    variable: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in (
        "9" * 5000,
        "/" + "d/" * 100,
        "²",
        "\udcff",
        "/dev/null",
        str(Path(__file__).parent),
    ):
        code, said = tried(["list"], capsys, **{variable: value})
        assert code in (ExitCode.USAGE, ExitCode.UNREACHABLE)
        assert said.startswith("sfactl: ")
        assert (value[:8] if value.isprintable() else "\\udcff") in said, (value, said)
        if value.startswith("/dev"):
            assert "it is not a socket" in said  # nobody waits for a daemon there

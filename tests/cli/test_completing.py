"""What the completion scripts of the shells are offered."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sfactl import verbs
from sfactl.connecting.connection import Client
from sfactl.options import spawn as spawn_options
from sfad.protocol.types import LimitKind
from tests.harness import started
from tests.tiers import first

from .conftest import PATIENCE, World

ASK = (
    "import sys; import sfactl.options.completion as s; s.COMPLETION_SECONDS = 60; "
    "sys.argv = ['sfactl']; from sfactl.__main__ import main; main()"
)
"""Completes with time for a loaded machine."""


def asked(world: World, shell: str, line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = world.env | {
        "_SFACTL_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "_TYPER_COMPLETE_ARGS": line,
        "COMP_WORDBREAKS": " \t\n\"'><=;|&(:",
        **environ,
    }
    command = [sys.executable, "-c", ASK]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def offered(world: World, shell: str, line: str, **environ: str) -> dict[str, str]:
    """Return the words, with their descriptions, which bash does not show."""
    done = asked(world, shell, line, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(each.partition("\t")[::2] for each in done.stdout.splitlines())


@pytest.fixture(scope="module")
def runs(shared: World) -> World:
    with Client(shared.socket) as client:
        started(
            client,
            ["sleep", "100"],
            name="completeme",
            labels={"night": "yes", "k:l": 'a"b'},
            run_type="odd",
        )
    return shared


ALL_OF_SPAWN = {
    f"--{name.replace('_', '-')}" for name in spawn_options.SpawnOptions.__struct_fields__
} - {"--command", "--agent"} | {"--count"}

LINES: dict[str, set[str]] = {
    "sfactl ": {*verbs.known(), "ps"},
    "sfactl s": {"spawn", "session", "summary", "stop", "send", "settle", "status", "shim"},
    "sfactl -": {"--socket", "--version", "-h", "--help"},
    "sfactl session l": {"list", "log"},
    "sfactl spawn --max": {"--max-depth", "--max-descendants"},
    "sfactl spawn --": {*ALL_OF_SPAWN, "--help"},
    "sfactl spawn --name a --n": {
        "--nested",
        "--no-check",
        "--no-gateway",
        "--no-log",
        "--no-queue",
    },
    "sfactl spawn --label a=b --l": {"--label", "--land", "--leaf", "--limit", "--limits"},
    "sfactl run --cwd ": set(),
    "sfactl run cl": {"claude"},
    "sfactl run --isolate cl": {"claude"},
    "sfactl run --worktree cl": {"claude"},
    "sfactl run claude ": set(),
    "sfactl run -- l": set(),
    "sfactl list --status comp": {"completed"},
    "sfactl list --status=comp": {"completed"},
    "sfactl list --limit-rows 3 ": set(),
    "sfactl ps --label ni": {"night=yes"},
    "sfactl stop compl": {"completeme"},
    "sfactl stop a1 compl": {"completeme"},
    "sfactl info a1 --j": {"--json"},
    "sfactl limit a1 t": {each for each in (f"{kind}=" for kind in LimitKind) if each[0] == "t"},
    "sfactl report ": set(),
    "sfactl help su": {"summary"},
    "sfactl 'l": {"land", "list", "logs", "limit"},
    "sfactl list --nonsense --stat": {"--status"},
}


@first(10)
@pytest.mark.parametrize("line", LINES)
def test_a_line(runs: World, line: str) -> None:
    assert set(offered(runs, "bash", line)) == LINES[line]


def test_the_words_are_those_of_the_daemon_and_of_the_program(runs: World) -> None:
    assert {"odd", "qa"} <= set(offered(runs, "bash", "sfactl spawn --type "))


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_descriptions_are_whole(runs: World, shell: str) -> None:
    """typer would let rich break them in lines, and read their brackets."""
    found = offered(runs, shell, "sfactl spawn --")
    assert set(found) == {*ALL_OF_SPAWN, "--help"}
    assert (
        found["--limits"]
        == "Limits as a JSON object (see `sfactl config schema`), or a file with one"
    )
    assert all(about for about in found.values())


def test_characters_that_a_shell_reads(runs: World) -> None:
    for shell in ("zsh", "fish"):
        assert {"night=yes", 'k:l=a"b'} <= set(offered(runs, shell, "sfactl ps --label "))
    assert r"k:l=a\"b" in offered(runs, "bash", "sfactl ps --label ")


def test_bash_replaces_the_part_behind_a_break(runs: World) -> None:
    for line, part in (
        ("sfactl ps --label=k", r"k:l=a\"b"),
        ("sfactl ps --label k:", r"l=a\"b"),
        ("sfactl ps --label k:l=a", r"a\"b"),
        ("sfactl ps --label 'k:l", 'k:l=a"b'),
    ):
        assert set(offered(runs, "bash", line)) == {part}
    for line in ('sfactl ps --label "k:l', "sfactl ps --label 'k':l"):
        assert not offered(runs, "bash", line)
    assert set(offered(runs, "bash", "sfactl ps --label k:", COMP_WORDBREAKS=" ")) == {r"k:l=a\"b"}


def test_no_option_is_offered_that_a_run_has_made(runs: World) -> None:
    with Client(runs.socket) as client:
        started(client, ["true"], labels={"-x": "y"}, run_type="--all")
    assert "-x=y" not in offered(runs, "fish", "sfactl ps --label ")
    assert "--all" not in offered(runs, "fish", "sfactl spawn --type ")


def test_the_socket_of_the_line_is_asked(runs: World) -> None:
    for line in (
        f"sfactl --socket {runs.socket} stop compl",
        f"sfactl stop --socket {runs.socket} compl",
    ):
        assert asked(runs, "bash", line, SFAD_SOCKET="/nonexistent").stdout == "completeme\n"

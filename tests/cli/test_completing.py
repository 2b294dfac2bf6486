"""What a shell is offered, by typer's scripts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sfactl import spawn_options, verbs
from sfactl.connection import Client
from sfad.protocol.types import LimitKind
from tests.harness import started

from .conftest import PATIENCE, World

ASK = (
    "import sys; import sfactl.shell_completion as s; s.COMPLETION_SECONDS = 60; "
    "sys.argv = ['sfactl']; from sfactl.__main__ import main; main()"
)
"""Completes with time for a loaded machine."""


def asked(world: World, shell: str, line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = world.env | {
        "_SFACTL_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        **environ,
    }
    command = [sys.executable, "-c", ASK]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def offered(world: World, shell: str, line: str) -> dict[str, str]:
    """Return the words, with their descriptions, which bash does not show."""
    done = asked(world, shell, line)
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout.replace("\\`", "`").removeprefix("_arguments '*: :((").removesuffix("))'\n")
    if shell == "bash":
        return dict.fromkeys(text.split(), "")
    if shell == "fish":
        return dict(each.partition("\t")[::2] for each in text.splitlines())
    return {
        each[1:-1].partition('":"')[0]: each[1:-1].partition('":"')[2] for each in text.splitlines()
    }


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
} - {"--command", "--agent"}

LINES: dict[str, set[str]] = {
    "sfactl ": {*verbs.known(), "ps"},
    "sfactl s": {"spawn", "session", "summary", "stop", "send", "settle", "status", "shim"},
    "sfactl -": {"--socket", "--version", "-h", "--help"},
    "sfactl session l": {"list", "log"},
    "sfactl spawn --max": {"--max-depth", "--max-descendants"},
    "sfactl spawn --": {*ALL_OF_SPAWN, "--help"},
    "sfactl spawn --name a --n": {"--nested", "--no-gateway", "--no-log", "--no-queue"},
    "sfactl spawn --label a=b --l": {"--label", "--leaf", "--limit", "--limits"},
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
}


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


def test_zsh_completes_files_where_no_words_are_known(runs: World) -> None:
    assert asked(runs, "zsh", "sfactl run --cwd ").stdout == "_files\n"


def test_characters_that_a_shell_reads(runs: World) -> None:
    assert "night=yes" in offered(runs, "zsh", "sfactl ps --label ")
    assert '"k\\\\:l=a""b"' in asked(runs, "zsh", "sfactl ps --label ").stdout
    assert 'k:l=a"b' in offered(runs, "fish", "sfactl ps --label ")


def test_fish_asks_first_whether_there_are_words(runs: World) -> None:
    for line, code in (("sfactl list --st", 0), ("sfactl run --cwd ", 1)):
        assert asked(runs, "fish", line, _TYPER_COMPLETE_FISH_ACTION="is-args").returncode == code


def test_the_socket_of_the_line_is_asked(runs: World) -> None:
    for line in (
        f"sfactl --socket {runs.socket} stop compl",
        f"sfactl stop --socket {runs.socket} compl",
    ):
        assert asked(runs, "bash", line, SFAD_SOCKET="/nonexistent").stdout == "completeme\n"

"""Completion without typer offers what typer offers for the same line, and reads no line that only typer understands."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sfactl.connection import Client
from tests.harness import started

from .conftest import PATIENCE, World

ASK = (
    "import sys; import sfactl.shell_completion as s; s.COMPLETION_SECONDS = 60; sys.argv = ['sfactl']; "
    "from sfactl.__main__ import main; main()"
)
"""Completes with time for a loaded machine."""
ASK_TYPER = f"import sfactl.completing as c; c.answered = lambda *_: None; {ASK}"
ASK_NO_TYPER = f"import sys; sys.modules['typer'] = None; {ASK}"


def asked(world: World, script: str, shell: str, line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = world.env | {
        "_SFACTL_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        **environ,
    }
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)


def offered(done: subprocess.CompletedProcess[str], shell: str) -> list[str]:
    """Return the words without their descriptions, which typer breaks in lines."""
    assert done.stderr == ""
    text = done.stdout.removeprefix("_arguments '*: :((").removesuffix("))'\n")
    if shell == "bash":
        return sorted(text.split())
    if shell == "fish":
        return sorted(line.split("\t")[0] for line in text.splitlines() if "\t" in line)
    return sorted(line.split('"')[1] for line in text.splitlines() if line.startswith('"'))


@pytest.fixture(scope="module")
def runs(shared: World) -> World:
    with Client(shared.socket) as client:
        started(client, ["sleep", "100"], name="completeme", labels={"night": "yes", "k:l": 'a"b'}, run_type="odd")
    return shared


LINES = (
    "sfactl ",
    "sfactl s",
    "sfactl spawn --max",
    "sfactl spawn -",
    "sfactl spawn --name a --n",
    "sfactl spawn --label a=b --l",
    "sfactl spawn --type ",
    "sfactl run --cwd ",
    "sfactl run cl",
    "sfactl list --status comp",
    "sfactl list --limit-rows 3 ",
    "sfactl ps --label ",
    "sfactl stop ",
    "sfactl stop a1 compl",
    "sfactl info a1 --j",
    "sfactl limit a1 t",
    "sfactl report ",
    "sfactl help su",
)
OTHER_SHELLS = [
    (shell, line) for shell in ("zsh", "fish") for line in ("sfactl spawn -", "sfactl run --cwd ", "sfactl ps --label ")
]


@pytest.mark.parametrize(("shell", "line"), [*(("bash", line) for line in LINES), *OTHER_SHELLS])
def test_a_plain_line(runs: World, shell: str, line: str) -> None:
    typers, ours = asked(runs, ASK_TYPER, shell, line), asked(runs, ASK_NO_TYPER, shell, line)
    assert offered(ours, shell) == offered(typers, shell)
    assert (ours.stdout == "_files\n") is (typers.stdout == "_files\n")


@pytest.mark.parametrize(
    "line",
    ["sfactl -", "sfactl session l", "sfactl xyz ", "sfactl run claude ", "sfactl run -- l", "sfactl list --status=r", "sfactl 'l"],
)
def test_other_lines_are_left_to_typer(runs: World, line: str) -> None:
    done, typers = asked(runs, ASK, "bash", line), asked(runs, ASK_TYPER, "bash", line)
    assert (done.returncode, sorted(done.stdout.split())) == (typers.returncode, sorted(typers.stdout.split()))


def test_fish_asks_first_whether_there_are_words(runs: World) -> None:
    for line, code in (("sfactl list --st", 0), ("sfactl run --cwd ", 1)):
        for script in (ASK_NO_TYPER, ASK_TYPER):
            assert asked(runs, script, "fish", line, _TYPER_COMPLETE_FISH_ACTION="is-args").returncode == code


def test_the_socket_of_the_line_is_asked(runs: World) -> None:
    line = f"sfactl --socket {runs.socket} stop compl"
    assert asked(runs, ASK_NO_TYPER, "bash", line, SFAD_SOCKET="/nonexistent").stdout == "completeme\n"

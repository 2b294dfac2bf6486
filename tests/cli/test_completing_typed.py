"""Tab and Enter in real shells: what a run has set as a label is completed as text."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfactl.connecting.connection import Client
from tests.harness import started
from tests.tiers import variant

from .conftest import World
from .test_completing import ASK
from .test_terminal import Screen

LABELS = {
    "plain": "yes",
    "letters": "Größe ☃ @file,x",
    "command": "$(touch executed)`touch executed`; touch executed",
    "escaped": r"\$(touch executed)\`touch executed\`",
    "quoted": """'$(touch executed)'"$(touch executed)\"""",
    "closing": """')$(touch executed)('"))'; touch executed; _x '\"""",
    "signs": "a&b|c<d>e(f) *[a-z]? {a,b} #a ^b^c %1%s $HOME${HOME}",
    "spaces": " two  words ",
    "tilde": "~",
    "colons": "a:~root::=ls=b",
    "history": "!!touch!$b",
    "equals": "=touch",
    "option": "--all",
    "backslash": "a\\",
}
"""By a part of their key."""
SHELLS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}
BEGIN = {
    "bash": 'eval "$(sfactl completion bash)"; PS1="> "; bind "set enable-bracketed-paste off"',
    "zsh": 'autoload -Uz compinit; compinit -D; eval "$(sfactl completion zsh)"; PS1="> "',
    "fish": 'sfactl completion fish | source; function fish_prompt; echo -n "> "; end',
}


@pytest.fixture(scope="module")
def runs(shared: World) -> dict[str, str]:
    """Return the run with each label."""
    with Client(shared.socket) as client:
        found = {
            f"k{word}.": started(client, ["sleep", "1000"], labels={f"k{word}.": value}).id
            for word, value in LABELS.items()
        }
        for value in ("same a", "same b"):
            found[value] = started(client, ["sleep", "1000"], labels={"several": value}).id
        return found


@pytest.fixture(params=[
    "bash", *(pytest.param(shell, marks=pytest.mark.needs(shell)) for shell in ("zsh", "fish"))
])  # fmt: skip
def shell(request: pytest.FixtureRequest, shared: World, tmp_path: Path) -> Iterator[Screen]:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    program = bin_ / "sfactl"
    patient = ASK.replace("sys.argv = ['sfactl']", "sys.argv[:] = ['sfactl', *sys.argv[1:]]")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{patient}" "$@"\n')
    program.chmod(0o755)
    place = tmp_path / "place"
    place.mkdir()
    name = request.param
    variables = (
        f"PATH={bin_}:{os.environ['PATH']}",
        "TERM=xterm",
        "LC_ALL=C.UTF-8",
        f"HOME={tmp_path}",
        f"XDG_RUNTIME_DIR={tmp_path}",
    )
    words = ("/usr/bin/env", "-C", str(place), *variables, *SHELLS[name])
    screen = Screen(shared, program=words)
    screen.type(f"{BEGIN[name]}; echo re''ady\r")
    screen.expect("ready")
    yield screen
    os.kill(screen.pid, signal.SIGKILL)
    os.waitid(os.P_PID, screen.pid, os.WEXITED)
    screen.close()


def listed(shell: Screen, keys: str) -> list[str]:
    """Type a line, and return the runs that it lists."""
    shell.type(f"{keys}\r")
    found = shell.expect(r'\{"runs":.*\}')
    return re.findall(r'"id":"(\w+)","name"', found)


@variant
@pytest.mark.parametrize("keys", ["--label k{}.\t", "--label=k{}.\t"])
def test_a_label_stays_a_text(
    shell: Screen, runs: dict[str, str], tmp_path: Path, keys: str
) -> None:
    for word in LABELS:
        assert listed(shell, f"sfactl list --json {keys.format(word)}") == [runs[f"k{word}."]], word
        assert not os.listdir(tmp_path / "place"), word


@variant
def test_within_quotes(shell: Screen, runs: dict[str, str], tmp_path: Path) -> None:
    for word in ("plain", "command", "escaped", "signs", "history"):
        assert listed(shell, f"sfactl list --json --label 'k{word}.\t") == [runs[f"k{word}."]], word
    assert listed(shell, 'sfactl list --json --label "kplain.\t') == [runs["kplain."]]
    for word in LABELS:  # some cannot be written there
        shell.type(f'sfactl list --json --label "k{word}.\t\x03')
    shell.type("echo re''ady\r")
    shell.expect("ready")
    assert not os.listdir(tmp_path / "place")


def test_what_several_have_in_common(shell: Screen, runs: dict[str, str]) -> None:
    for which in "ab":
        found = listed(shell, f"sfactl list --json --label seve\t{which}\t")
        assert found == [runs[f"same {which}"]]

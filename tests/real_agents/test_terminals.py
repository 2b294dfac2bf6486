"""The real programs in a terminal of their own (`--terminal`) show what they show in tmux.
SFAD_TEST_AGENTS=1 takes two of them, SFAD_TEST_AGENTS=all four."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from sfactl.terminals.replay import Replay
from sfad.features.terminals.screen import Line, Screen
from tests.harness import wait_until
from tests.real_agents.clis import CLIS, CODEX, Cli, environment
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk
from tests.real_agents.script import Reply, Stall
from tests.real_agents.tmux import Pane, pane

ROWS, COLUMNS = 24, 80
LONG = 180.0
"""Seconds: four programs that begin at once need a minute on two cores."""
LEAVES = {"claude": "/exit", "codex": "/quit", "gemini": "/quit", "opencode": "/exit"}
VARIES = {
    # the spinner, and how long it has taken, in a word that is drawn by lot; its home directory
    "claude": r"^[·✢✳✶✻✽*] .*|/hom[ef]$",
    "codex": r"Work(ed|ing) ",
    "opencode": r"▣ |/hom[ef]\b",
}
"""Lines that are not twice the same, whatever shows them."""

Cells = list[list[Any]]


def characters(lines: Sequence[Line], varies: str) -> Cells:
    """Return the characters. Their colours depend on whether a terminal tells its background."""
    return [[] if re.search(varies, each.text) else [*each.characters] for each in lines]


def looks(lines: Sequence[Line]) -> Cells:
    """Return characters and looks; of a blank, only what can be seen, and of those at the end of a
    line nothing: `tmux capture-pane` does not tell the background of cells that were erased."""
    return [
        [
            (c, look if c.strip() else look.background)
            for c, look in zip(line.characters, line.looks, strict=True)
        ][: max((at for at, c in enumerate(line.characters, 1) if c.strip()), default=0)]
        for line in lines
    ]


def different(one: Cells, other: Cells) -> list[str]:
    """Return the places that differ, as words."""
    return [
        f"{row},{column}: {a} {b}"
        for row, (left, right) in enumerate(zip(one, other, strict=True))
        for column, (a, b) in enumerate(zip_longest(left, right))
        if a != b
    ]


class Both:
    """A program in tmux, and in a run."""

    def __init__(self, at: Desk, cli: Cli, tmux: Pane, home: Path) -> None:
        self.at, self.cli, self.tmux = at, cli, tmux
        other = at.env | environment(home, at.model.url)
        # names of the same length, which the programs show
        self._names = other["HOME"], at.env["HOME"]
        assert len(other["HOME"]) == len(at.env["HOME"])
        program, *words = cli.in_terminal
        # else it would have a server of its own, which outlives it, and tells that in its last line
        own = ["-c", "check_for_update_on_startup=false"] if cli is CODEX else []
        tmux.start([program, *own, *words], other, other["HOME"])
        done = at.sfactl(
            "spawn", "--terminal", "--timeout", "20m", "--name", "agent", "--", *cli.in_terminal
        )
        assert done.returncode == 0, done.stderr
        self.run = done.stdout.strip()

    def _output(self, kind: str) -> Path:
        return self.at.daemon.state_dir / "output" / f"{self.run}.{kind}"

    @property
    def written(self) -> bytes:
        return self._output("out").read_bytes()

    def screen(self) -> Screen:
        """Return what the run shows now."""
        output, record = (os.open(self._output(kind), os.O_RDONLY) for kind in ("out", "shown"))
        try:
            replay = Replay(output, record)
            replay.take_all()
            return replay.screen
        finally:
            os.close(output)
            os.close(record)

    def draws(self) -> None:
        """Wait until the run has written more."""
        before = len(self.written)
        wait_until(lambda: len(self.written) > before, "it draws")

    def type(self, keys: str) -> None:
        self.tmux.type(keys.encode())
        named = keys.replace("\r", "<Enter>").replace("\x7f", "<BS>")
        assert self.at.sfactl("send", self.run, "--keys", named).returncode == 0

    def agree(self, words: str) -> None:
        """Wait until both show the same, and these words."""
        varies = VARIES.get(self.cli.name, "$^")
        same(
            lambda: characters(self.tmux.lines(), varies),
            lambda: characters(self.screen().lines, varies),
            lambda: words in "\n".join(self.screen().text()),
        )


def same(
    theirs: Callable[[], Cells],
    ours: Callable[[], Cells],
    also: Callable[[], bool] = lambda: True,
) -> None:
    """Wait until both are the same."""
    try:
        wait_until(
            lambda: also() and not different(theirs(), ours()), "equal", seconds=LONG, pause=0.2
        )
    except AssertionError:
        one, other = theirs(), ours()
        text = [
            "".join(str(each) if isinstance(each, str) else each[0] for each in line)
            for line in (*one, *other)
        ]
        raise AssertionError("\n".join([*text, *different(one, other)[:40]])) from None


@contextmanager
def both(desk: MakeDesk, cli: Cli, place: Path, *script: Reply) -> Iterator[Both]:
    at = desk(**{cli.name: script})
    with pane(place, ROWS, COLUMNS) as tmux:
        yield Both(at, cli, tmux, place / "homf")


@pytest.mark.needs("tmux")
@pytest.mark.parametrize(
    "name", LEAVES if os.environ.get("SFAD_TEST_AGENTS") == "all" else ["claude", "gemini"]
)
def test_a_program_shows_the_same_as_in_tmux(desk: MakeDesk, tmp_path: Path, name: str) -> None:
    cli = CLIS[name]
    with both(desk, cli, tmp_path) as programs:
        programs.agree("Done.")
        programs.type("hello")
        programs.agree("hello")
        programs.type("\x7f" * 5 + LEAVES[name])
        programs.agree(LEAVES[name])
        # what it has written so far makes the same of both, in each cell
        written = tmp_path / "written"
        written.write_bytes(programs.written)
        screen = Screen(ROWS, COLUMNS)
        screen.feed(written.read_bytes())
        (tmp_path / "second").mkdir()
        with pane(tmp_path / "second", ROWS, COLUMNS) as second:
            copy = f"stty raw -echo; cat {written}; exec sleep 600"
            second.start(["sh", "-c", copy], os.environ, "/")
            same(lambda: looks(second.lines()), lambda: looks(screen.lines))
        programs.type("\r")
        wait_until(
            lambda: programs.tmux.exit_code is not None, "it has ended in tmux", seconds=LONG
        )
        assert programs.at.sfactl("wait", programs.run).returncode == programs.tmux.exit_code == 0


@pytest.mark.needs("tmux")
def test_a_program_survives_twenty_kills_of_the_daemon(desk: MakeDesk, tmp_path: Path) -> None:
    """In the middle of a screen that moves: its spinner turns while the model says nothing."""
    with both(desk, CLIS["claude"], tmp_path, Stall("Let"), Stall("Let")) as programs:
        at = programs.at
        asked = at.talk(programs.cli).requests
        wait_until(lambda: len(asked) == 2, "both have asked the model", seconds=LONG)
        for _ in range(20):
            at.daemon.kill()
            programs.draws()
            at.daemon.restart()
            programs.draws()
        at.model.released.set()
        programs.agree("Let")
        programs.type("hello")
        programs.agree("hello")
        programs.type("\x7f" * 5 + "/exit")
        programs.agree("/exit")
        programs.type("\r")
        assert at.sfactl("wait", programs.run).returncode == 0

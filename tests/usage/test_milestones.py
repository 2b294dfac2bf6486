"""Milestones: the newest line `[agent:NAME] text` on a run's stderr, read without reading all of
it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfad.usage.tailed_run import MAX_MILESTONE, MILESTONES_WITHIN, StderrMilestones


class Stderr:
    """A file that is written to, and what was found in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[str] = []
        self._file = path.open("ab", buffering=0)
        self._milestones = StderrMilestones(
            "me", lambda: os.open(path, os.O_RDONLY), self.found.append
        )

    def writes(self, data: bytes) -> list[str]:
        """Write, and return what a look finds."""
        self._file.write(data)
        return self.look()

    def look(self) -> list[str]:
        self.found.clear()
        self._milestones.look(self.path.stat().st_size)
        return list(self.found)

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def stderr(tmp_path: Path) -> Iterator[Stderr]:
    one = Stderr(tmp_path / "a1.err")
    yield one
    one.close()


def test_the_newest_whole_line_counts(stderr: Stderr) -> None:
    assert stderr.writes(b"noise\n[agent:me] one\n[agent:me] two\nmore [agent:me] not\n") == ["two"]
    assert stderr.writes(b"[agent:me] thr") == []
    assert stderr.writes(b"ee\n[agent:other] done\n") == ["other: done"]
    assert stderr.look() == []
    os.truncate(stderr.path, 0)
    assert stderr.look() == []
    assert stderr.writes(b"[agent:me] again\n") == ["again"]


def test_only_the_newest_bytes_are_read(stderr: Stderr) -> None:
    assert stderr.writes(
        b"[agent:me] early\n"
        + b"x" * 2 * MILESTONES_WITHIN
        + b"[agent:me] no line\n[agent:me] late\n"
    ) == ["late"]
    assert stderr.writes(b"[agent:me] " + b"y" * 2 * MILESTONES_WITHIN) == []
    assert stderr.writes(b"y\n[agent:me] after a long line\n") == ["after a long line"]


def test_a_secret_is_hidden_before_it_is_cut(stderr: Stderr) -> None:
    (found,) = stderr.writes(
        b"[agent:me] "
        + b"x" * (MAX_MILESTONE - 45)
        + b" https://ann:correct-horse-battery@example.org/\n"
    )
    assert "correct" not in found


def test_it_steers_no_terminal_and_is_short(stderr: Stderr) -> None:
    hostile = "[agent:me] \x1b[2J\x9b1mred\u202e \x07 \r gone".encode() + b"\xff\n"
    assert stderr.writes(hostile) == ["red gone\ufffd"]
    assert stderr.writes(b"[agent:\x1b[31mevil] here\n") == ["evil: here"]
    assert len(stderr.writes(b"[agent:me] " + b"z" * 1000 + b"\n")[0]) == MAX_MILESTONE
    assert stderr.writes(b"[agent:me] \x1b[2J\n") == []

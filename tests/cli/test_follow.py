"""Followers copy growing files, whatever is done to them."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactl.commands.logs import last_lines
from sfactl.follow import Copying, Follower


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    readable, writable = os.pipe()
    yield readable, writable
    os.close(readable)
    os.close(writable)


def drain(follower: Follower) -> None:
    while follower.fill():
        follower.flush()


def test_growth_is_copied_from_any_point(tmp_path: Path, notes: list[str], pipe: tuple[int, int]) -> None:
    with open(tmp_path / "out", "ab+", buffering=0) as file:
        file.write(b"old new")
        follower = Follower(file.fileno(), pipe[1], notes.append, offset=4)
        drain(follower)
        file.write(b" newer")
        drain(follower)
    assert os.read(pipe[0], 100) == b"new newer"
    assert notes == []


def test_a_truncated_file_is_begun_again_with_a_note(tmp_path: Path, notes: list[str], pipe: tuple[int, int]) -> None:
    with open(tmp_path / "out", "ab+", buffering=0) as file:
        file.write(b"first words")
        follower = Follower(file.fileno(), pipe[1], notes.append)
        drain(follower)
        file.truncate(0)
        file.write(b"again")
        drain(follower)
    assert os.read(pipe[0], 100) == b"first wordsagain"
    assert len(notes) == 1
    assert "truncated" in notes[0]


def test_freed_bytes_are_skipped_with_a_note(tmp_path: Path, notes: list[str], pipe: tuple[int, int]) -> None:
    with open(tmp_path / "out", "wb+", buffering=0) as file:
        file.seek(1 << 20)
        file.write(b"newest")
        if os.lseek(file.fileno(), 0, os.SEEK_DATA) == 0:
            pytest.skip("this file system does not tell holes from data")
        drain(Follower(file.fileno(), pipe[1], notes.append))
    assert os.read(pipe[0], 100) == b"newest"
    assert "freed" in notes[0]


def test_the_kernel_tells_of_growth(tmp_path: Path, notes: list[str], pipe: tuple[int, int]) -> None:
    """Nothing is read by the clock: poll without a timeout returns because somebody wrote."""
    path = tmp_path / "out"
    path.touch()
    copying = Copying([Follower(os.open(path, os.O_RDONLY), pipe[1], notes.append)])
    wanted = copying.interests()
    assert copying.timeout is None
    assert copying.drained()
    writer = threading.Timer(0.05, path.write_bytes, [b"hello"])
    writer.start()
    poll = select.poll()
    for descriptor, mask in wanted.items():
        poll.register(descriptor, mask)
    assert poll.poll(5000)
    writer.join()
    assert copying.interests()[pipe[1]] == select.POLLOUT
    copying.advance({pipe[1]: select.POLLOUT})
    assert os.read(pipe[0], 10) == b"hello"
    assert copying.drained()
    copying.close()


def test_a_slow_reader_is_never_waited_for(tmp_path: Path, notes: list[str], pipe: tuple[int, int]) -> None:
    """As often as poll says that a pipe takes something, one flush does not block, until the pipe is full."""
    with open(tmp_path / "out", "wb+", buffering=0) as file:
        file.write(b"x" * (1 << 20))
        follower = Follower(file.fileno(), pipe[1], notes.append)
        flushed = 0
        while select.select([], [pipe[1]], [], 0)[1]:
            follower.fill()
            follower.flush()
            flushed += 1
        assert flushed * 4096 == 65536
        assert follower.wants_to_write


@settings(deadline=None)
@given(st.binary(max_size=300).map(lambda data: data.replace(b"a", b"\n")), st.integers(0, 12))
def test_the_last_lines(tmp_path_factory: pytest.TempPathFactory, data: bytes, count: int) -> None:
    path = tmp_path_factory.mktemp("tail") / "out"
    path.write_bytes(data)
    with open(path, "rb") as file:
        start = last_lines(file.fileno(), len(data), count)
    lines = _lines(data)
    assert data[start:] == b"".join(lines[-count:] if count else [])


def _lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    ended = [part + b"\n" for part in parts[:-1]]
    return ended + ([parts[-1]] if parts[-1] else [])


def test_the_last_lines_of_a_long_file_are_found_across_blocks(tmp_path: Path) -> None:
    data = b"".join(b"%d %s\n" % (n, b"y" * 900) for n in range(500))
    path = tmp_path / "out"
    path.write_bytes(data)
    with open(path, "rb") as file:
        assert data[last_lines(file.fileno(), len(data), 200) :].startswith(b"300 ")

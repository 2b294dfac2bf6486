"""Followers copy growing files, whatever is done to them."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfactl.commands.logs import LineFollower, LineForm, Source, last_lines, start_of
from sfactl.options import shared as options
from sfactl.showing.follower import SOON, Copying, Follower
from sfad.storage.output import OutputFiles


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


def test_growth_is_copied_from_any_point(
    tmp_path: Path, notes: list[str], pipe: tuple[int, int]
) -> None:
    with open(tmp_path / "out", "ab+", buffering=0) as file:
        file.write(b"old new")
        follower = Follower(file.fileno(), pipe[1], notes.append, offset=4)
        drain(follower)
        file.write(b" newer")
        drain(follower)
    assert os.read(pipe[0], 100) == b"new newer"
    assert notes == []


def test_a_truncated_file_is_begun_again_with_a_note(
    tmp_path: Path, notes: list[str], pipe: tuple[int, int]
) -> None:
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


def test_freed_bytes_are_skipped_with_a_note(
    tmp_path: Path, notes: list[str], pipe: tuple[int, int]
) -> None:
    with open(tmp_path / "out", "wb+", buffering=0) as file:
        file.seek(1 << 20)
        file.write(b"newest")
        if os.lseek(file.fileno(), 0, os.SEEK_DATA) == 0:
            pytest.skip("this file system does not tell holes from data")
        drain(Follower(file.fileno(), pipe[1], notes.append))
    assert os.read(pipe[0], 100) == b"newest"
    assert notes == [
        "1048576 bytes were freed before they were read "
        "(the output limit, or a full disk, keeps only the newest)"
    ]


def test_a_follower_that_lags_behind_skips_what_is_gone_and_says_so_once_a_gap(
    tmp_path: Path, notes: list[str], pipe: tuple[int, int]
) -> None:
    store = OutputFiles(tmp_path)
    out, err = store.open_for_run("a1")
    os.close(err)
    source = store.open_for_meter("a1")
    follower = Follower(source, pipe[1], notes.append)
    os.write(out, b"read before\n")
    drain(follower)
    for _ in range(2):
        os.write(out, b"x" * (3 << 20) + b"\nnewest\n")
        store.free("a1", ".out", 4096, 1 << 62)
        for _ in range(3):
            copied = follower.take() if follower.fill() else b""
            assert b"\0" not in copied
    os.close(out)
    os.close(source)
    assert len(notes) == 2
    assert all("freed before they were read" in note for note in notes)
    assert os.read(pipe[0], 100) == b"read before\n"


def test_bytes_freed_between_two_looks_are_not_copied_as_zeros(
    tmp_path: Path, notes: list[str], pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are freed after the follower has seen that there is data, and before it reads
    them."""
    store = OutputFiles(tmp_path)
    out, err = store.open_for_run("a1")
    data = b"".join(b"%07d\n" % n for n in range(32768))
    os.write(out, data)
    really = os.pread

    def late(file: int, length: int, offset: int) -> bytes:
        store.free("a1", ".out", 1 << 16, 1 << 62)
        return really(file, length, offset)

    source = store.open_for_meter("a1")
    follower = Follower(source, pipe[1], notes.append)
    monkeypatch.setattr(os, "pread", late)
    assert follower.fill()
    assert follower.take() == data[-(1 << 16) :]
    for descriptor in (out, err, source):
        os.close(descriptor)
    assert len(notes) == 1


def test_a_file_that_was_only_made_longer_shows_nothing(
    tmp_path: Path, notes: list[str], pipe: tuple[int, int]
) -> None:
    with open(tmp_path / "out", "wb+", buffering=0) as file:
        file.truncate(1 << 20)
        follower = Follower(file.fileno(), pipe[1], notes.append)
        assert not follower.fill()
        file.seek(1 << 20)
        file.write(b"data")
        assert follower.fill()
        assert follower.take() == b"data"


@pytest.mark.parametrize(
    ("tail", "shown"),
    [("3", b"line\n" * 3), ("10B", b"line\n" * 2), ("999999999", b"line\n" * 10_000)],
)
def test_the_tail_of_ten_gigabytes_of_which_little_is_left(
    tmp_path: Path, notes: list[str], pipe: tuple[int, int], tail: str, shown: bytes
) -> None:
    with open(tmp_path / "out", "wb+", buffering=0) as file:
        file.seek(10_000_000_000 // 4096 * 4096)
        file.write(b"line\n" * 10_000)
        follower = Follower(
            file.fileno(), pipe[1], notes.append, start_of(options.tail(tail), file.fileno())
        )
        assert follower.fill()
        assert follower.take() == shown
    assert len(notes) == (tail == "999999999")


def test_a_line_that_was_begun_does_not_go_on_behind_a_gap(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = OutputFiles(tmp_path)
    out, err = store.open_for_run("a1")
    source = store.open_for_meter("a1")
    watched = Source("stdout", source, 1)
    follower = LineFollower(
        watched, 0, LineForm(watched, run=None, prefix="", colour=36, stamped=False, json=True)
    )
    os.write(out, b"one\nthe beginning")
    drain(follower)
    os.write(out, b"x" * 8175 + b"the end\n")
    store.free("a1", ".out", 8, 1 << 62)
    drain(follower)
    for descriptor in (out, err, source):
        os.close(descriptor)
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == [
        '{"stream":"stdout","text":"one"}',
        '{"stream":"stdout","text":"the beginning"}',
    ]
    assert len(lines) == 3
    assert "beginning" not in lines[2]


def test_the_kernel_tells_of_growth(
    tmp_path: Path, notes: list[str], pipe: tuple[int, int]
) -> None:
    """poll without a timeout returns because the file was written; no clock is used."""
    path = tmp_path / "out"
    path.touch()
    copying = Copying([Follower(os.open(path, os.O_RDONLY), pipe[1], notes.append)])
    assert copying.interests() == {}, "a command that ends at once is not watched"
    before = copying.timeout
    assert before == SOON
    time.sleep(SOON)  # the condition is the time itself
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


def test_a_slow_reader_is_never_waited_for(
    tmp_path: Path, notes: list[str], pipe: tuple[int, int]
) -> None:
    """A flush does not block while poll reports that the pipe is writable, until the pipe is
    full."""
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

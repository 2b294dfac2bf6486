"""What a run had written before it truncated its own output: real files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfad.storage.output import holes, truncated
from sfad.storage.output.truncated import KEPT, MOST, NEWEST, Budget, NewestBytes, Truncation


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "a1.err", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    yield descriptor
    os.close(descriptor)


def look(newest: NewestBytes, file: int) -> Truncation | None:
    return newest.look(file, os.fstat(file))


def test_what_is_added_is_no_truncation(file: int) -> None:
    newest = NewestBytes(Budget())
    for text in (b"", b"one\n", b"two\n" * 10_000, b"", b"x" * (3 * NEWEST)):
        os.write(file, text)
        assert look(newest, file) is None


@pytest.mark.parametrize("after", [b"", b"2", b"two\n", b"longer than before\n"])
def test_what_was_there_is_told_whatever_comes_after(file: int, after: bytes) -> None:
    newest = NewestBytes(Budget())
    os.write(file, b"one\n")
    assert look(newest, file) is None
    os.ftruncate(file, 0)
    os.write(file, after)
    assert look(newest, file) == Truncation(b"one\n", 0)
    os.write(file, b"more\n")
    assert look(newest, file) is None
    os.ftruncate(file, 0)
    assert look(newest, file) == Truncation(after + b"more\n", 0)


def test_what_is_written_again_after_it_was_opened_is_told_though_it_is_the_same(file: int) -> None:
    """Between the open and the truncation was a look."""
    newest = NewestBytes(Budget())
    os.write(file, b"one\n")
    assert look(newest, file) is None
    assert newest.look(file, os.fstat(file), reopened=True) is None
    os.ftruncate(file, 0)
    os.write(file, b"one\n")
    written = os.fstat(file).st_mtime_ns + 1  # the clock of the file system may be coarse
    os.utime(file, ns=(written, written))
    assert look(newest, file) == Truncation(b"one\n", 0)
    assert look(newest, file) is None


def test_the_newest_are_in_memory_and_the_others_are_counted(file: int) -> None:
    budget = Budget()
    newest = NewestBytes(budget)
    content = os.urandom(NEWEST * 2 + 5)
    for start in range(0, len(content), 1000):
        os.write(file, content[start : start + 1000])
        assert look(newest, file) is None
    assert budget.used == NEWEST
    os.ftruncate(file, 0)
    assert look(newest, file) == Truncation(content[-NEWEST:], NEWEST + 5)
    assert budget.used == 0


def test_bytes_that_the_daemon_has_freed_are_no_truncation(file: int) -> None:
    newest = NewestBytes(Budget())
    os.write(file, b"a" * 200_000)
    assert look(newest, file) is None
    holes.punch(file, 0, 200_000)
    os.write(file, b"b")
    assert look(newest, file) is None


def test_what_was_saved_comes_before_the_rest_and_nothing_is_left(
    tmp_path: Path, file: int
) -> None:
    path = tmp_path / "a1.err"
    assert not truncated.restore(str(path))
    assert truncated.save(str(path), b"one\n") == truncated.save(str(path), b"two\n") == 0
    os.write(file, b"three\n")
    before = os.fstat(file)
    assert truncated.restore(str(path))
    after = path.stat()
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert [each.name for each in tmp_path.iterdir()] == ["a1.err"]
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


def test_a_file_that_is_truncated_again_and_again_keeps_a_bounded_amount(tmp_path: Path) -> None:
    path = str(tmp_path / "a1.out")
    parts = [truncated.save(path, b"x" * NEWEST) for _ in range(MOST // NEWEST + 3)]
    assert sum(parts) == 3 * NEWEST
    assert os.stat(path + KEPT).st_size == MOST


def test_a_link_that_a_run_made_there_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / f"a1.out{KEPT}").symlink_to(tmp_path / "other")
    (tmp_path / "a1.out").write_text("rest")
    for work in (truncated.restore, lambda path: truncated.save(path, b"theirs")):
        with pytest.raises(OSError, match="symbolic"):
            work(str(tmp_path / "a1.out"))
    assert (tmp_path / "other").read_text() == "mine"

"""Files with secrets: 0600, whole or not there, and the daemon's own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sfad.storage.store import RunFiles
from tests.harness import failing


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "spawns"


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_saved_data_is_read_again(directory: Path) -> None:
    spawns = RunFiles(directory)
    assert (spawns.runs(), spawns.read("a1")) == ([], None)
    spawns.save("b10", b"A=\xff\x00" * 100_000)
    spawns.save("a1", b"")
    spawns.save("a1", b"secret")
    again = RunFiles(directory)
    assert again.runs() == ["a1", "b10"]
    assert (again.read("a1"), again.read("b10")) == (b"secret", b"A=\xff\x00" * 100_000)
    again.forget("a1")
    again.forget("a1")
    assert (again.runs(), again.read("a1"), names(directory)) == (["b10"], None, ["b10.spawn"])


def test_only_the_owner_may_read_the_files(directory: Path) -> None:
    old = os.umask(0)
    try:
        RunFiles(directory).save("a1", b"x")
    finally:
        os.umask(old)
    assert directory.stat().st_mode & 0o7777 == 0o700
    assert (directory / "a1.spawn").stat().st_mode & 0o7777 == 0o600
    directory.chmod(0o755)
    RunFiles(directory)
    assert directory.stat().st_mode & 0o7777 == 0o700


def test_unfinished_files_are_removed(directory: Path) -> None:
    RunFiles(directory).save("a1", b"x")
    (directory / "a1.spawn.new").write_bytes(b"half")
    (directory / "a2.spawn.new").write_bytes(b"half")
    (directory / "notes").write_bytes(b"somebody's")
    (directory / "A1.spawn").write_bytes(b"somebody's")
    assert RunFiles(directory).runs() == ["a1"]
    assert names(directory) == ["A1.spawn", "a1.spawn", "notes"]


@pytest.mark.parametrize(
    "run", ["", "a", "../a1", "a1/../a1", "b01", "A1", "a1.spawn", "a\0", "é1"]
)
def test_text_that_is_not_an_id_is_refused(directory: Path, run: str) -> None:
    spawns = RunFiles(directory)
    calls: list[Callable[[], object]] = [
        lambda: spawns.save(run, b""),
        lambda: spawns.read(run),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="not a run id"):
            call()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("where", ["write", "rename", "open"])
def test_an_error_leaves_nothing_behind(
    directory: Path, monkeypatch: pytest.MonkeyPatch, code: int, where: str
) -> None:
    spawns = RunFiles(directory)
    spawns.save("a1", b"before")

    with monkeypatch.context() as patch:
        patch.setattr(os, where, failing(code))
        for run in ("a1", "a2"):
            with pytest.raises(OSError, match=os.strerror(code)):
                spawns.save(run, b"after")
    assert names(directory) == ["a1.spawn"]
    assert spawns.read("a1") == b"before"


def test_short_writes_are_continued(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def little(descriptor: int, data: memoryview) -> int:
        return write(descriptor, data[:3])

    monkeypatch.setattr(os, "write", little)
    spawns = RunFiles(directory)
    spawns.save("a1", b"0123456789")
    assert spawns.read("a1") == b"0123456789"


def test_links_are_not_followed(directory: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    spawns = RunFiles(directory)
    (directory / "a1.spawn").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic links"):
        spawns.read("a1")
    (directory / "a1.spawn.new").symlink_to(precious)
    spawns.save("a1", b"x")
    assert spawns.read("a1") == b"x"
    spawns.save("a2", b"x")
    (directory / "a2.spawn").unlink()
    (directory / "a2.spawn").symlink_to(precious)
    spawns.forget("a2")
    assert precious.read_bytes() == b"precious"
    os.mkfifo(directory / "a2.spawn")
    with pytest.raises(OSError, match="regular file"):
        spawns.read("a2")


@pytest.mark.parametrize("what", ["symlink", "file", "nothing"])
def test_another_process_replaced_the_directory(tmp_path: Path, what: str) -> None:
    spawns = RunFiles(tmp_path / "spawns")
    for again in (spawns, None):
        (tmp_path / "spawns").rename(tmp_path / f"moved{again}")
        if what == "symlink":
            (tmp_path / "real").mkdir(exist_ok=True)
            (tmp_path / "spawns").symlink_to(tmp_path / "real")
        elif what == "file":
            (tmp_path / "spawns").touch()
        (again or RunFiles(tmp_path / "spawns")).save("a1", b"x")
        assert spawns.read("a1") == b"x"
    assert len(list(tmp_path.glob("spawns.foreign-*"))) == (0 if what == "nothing" else 2)
    assert what != "symlink" or names(tmp_path / "real") == []


def test_directories_and_fifos_in_the_way_of_a_file(directory: Path) -> None:
    spawns = RunFiles(directory)
    for name in ("a1.spawn", "a1.spawn.new", "a2.spawn.new"):
        (directory / name).mkdir()
    os.mkfifo(directory / "a2.spawn")
    os.mkfifo(directory / "a3.spawn.new")
    for run in ("a1", "a2", "a3"):
        assert not spawns.has(run)
        RunFiles(directory).save(run, b"x")
        assert (spawns.read(run), spawns.has(run)) == (b"x", True)
    before = len(os.listdir("/proc/self/fd"))
    (directory / "a4.spawn").mkdir()
    with pytest.raises(OSError, match="regular file"):
        spawns.read("a4")
    assert len(os.listdir("/proc/self/fd")) == before

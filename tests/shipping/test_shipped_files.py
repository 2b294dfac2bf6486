"""The archives and copies that a daemon keeps: pieces, bounds, and what is removed when."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from sfad.durable.maintenance import Old
from sfad.features.fleet.files.kept import (
    MOST_UNCLAIMED,
    STAYS_FREE,
    UNCLAIMED,
    ShippedFiles,
    ShipRefused,
)
from sfad.features.fleet.messages import PIECE
from sfad.protocol.types import Ship

UID = os.getuid()
A, B = "a" * 32, "b" * 32


@pytest.fixture
def files(tmp_path: Path) -> ShippedFiles:
    return ShippedFiles(tmp_path / "state", 1 << 20)


def put(
    files: ShippedFiles,
    archive: str = A,
    offset: int = 0,
    data: bytes = b"",
    *,
    last: bool = False,
    size: int = 1,
) -> tuple[int, bool]:
    return files.put(UID, archive, size, offset, data, last=last, named=())


def ship(archive: str = A) -> Ship:
    return Ship(directory=b"/src", archive=archive)


def test_an_archive_comes_in_pieces_each_of_which_may_be_repeated(files: ShippedFiles) -> None:
    assert put(files) == (0, False)
    assert put(files, data=b"one") == (3, False)
    assert put(files, data=b"one") == (3, False)
    assert put(files, offset=7, data=b"late") == (3, False)
    assert not files.is_whole(UID, A)
    assert put(files, offset=3, data=b"two", last=True) == (6, True)
    assert put(files, offset=3, data=b"two", last=True) == (6, True)
    assert files.is_whole(UID, A)
    assert not files.is_whole(UID + 1, A)
    assert files.piece(UID, A, 0) == (b"onetwo", True)
    assert files.piece(UID, A, 4) == (b"wo", True)


def test_archives_are_bounded(files: ShippedFiles) -> None:
    for wrong in ("", "../../etc", "A" * 32, "a" * 31):
        with pytest.raises(ShipRefused, match="32 hexadecimal digits"):
            put(files, wrong)
    with pytest.raises(ShipRefused, match=r"the files have 2 MiB, and fleet\.ship_max is 1 MiB"):
        put(files, size=2 << 20)
    with pytest.raises(ShipRefused, match="a piece has at most"):
        put(files, data=bytes(PIECE + 1))
    assert not files.directory.exists()
    put(files, data=bytes(PIECE))
    put(files, offset=PIECE, data=bytes(PIECE))
    with pytest.raises(ShipRefused, match="more than twice"):
        put(files, offset=2 * PIECE, data=b"x")
    for number in range(1, MOST_UNCLAIMED):
        put(files, f"{number:032x}")
    with pytest.raises(ShipRefused, match=f"{MOST_UNCLAIMED} archives of uid {UID} wait"):
        put(files, B)
    files.put(UID + 1, B, 1, 0, b"", last=False, named=())


def test_a_full_disk_takes_no_more(files: ShippedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    put(files, data=b"x")
    disk = os.statvfs("/")
    monkeypatch.setattr(
        os, "statvfs", lambda _path: os.statvfs_result((1, 1, 9, 9, STAYS_FREE + 1, *disk[5:]))
    )
    assert put(files, offset=1, data=b"x") == (2, False)
    with pytest.raises(
        OSError, match=r"only 64 MiB are free on the disk, of which 64 MiB stay free; free some"
    ):
        put(files, offset=2, data=b"xx")


def begun(files: ShippedFiles, run: str, archive: str = A) -> Path:
    put(files, archive, data=b"x", last=True)
    return files.begin(run, UID, ship(archive), None)


def test_a_run_has_a_place(files: ShippedFiles) -> None:
    copy = begun(files, "a1")
    assert files.begin("a1", UID, ship(), None) == copy  # a further attempt
    assert (copy / "own").stat().st_mode & 0o777 == 0o700
    found = files.of("a1")
    assert found is not None
    assert (found.copy, found.ship.directory) == (copy.name, b"/src")
    assert files.of("a2") is None


def test_packed_changes_are_read_from_the_runs_own_file_only(
    files: ShippedFiles, tmp_path: Path
) -> None:
    copy = begun(files, "a1")
    found = files.of("a1")
    assert found is not None
    (copy / "own" / A).write_bytes(b"changes")
    assert files.packed(found, A, 0) == b"changes"
    assert files.packed(found, A, 7) == b""
    (tmp_path / "secret").write_bytes(b"secret")
    (copy / "own" / B).symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret", copy / "own" / ("c" * 32))
    for name in (B, "c" * 32, "../../secret", "files"):
        with pytest.raises(
            OSError,
            match=r"symbolic link|is not what the run's user has packed|no changes were packed",
        ):
            files.packed(found, name, 0)


def removed(
    files: ShippedFiles,
    cutoff: float | None,
    ends: Mapping[str, float | None] = {},
    **given: Iterable[str],
) -> int:
    known = {"live": (), "named": ()} | {name: tuple(each) for name, each in given.items()}
    old = Old(
        cutoff,
        lambda runs: {run: ends[run] for run in runs if run in ends},
        known["live"],
        time.time(),
        lambda: None,
    )
    return files.remove_old(old, known["named"])


def aged(copy: Path) -> Path:
    for path in (copy, *copy.iterdir()):
        os.utime(path, (1e9, 1e9))
    return copy


def test_files_go_with_the_output_of_their_run(files: ShippedFiles) -> None:
    copy = aged(begun(files, "a1"))
    assert removed(files, 100, {"a1": None}) == 0
    assert removed(files, 100, {"a1": 50.0}, live=["a1"]) == 0
    assert removed(files, None, {"a1": 50.0}) == 0
    assert removed(files, 100, {"a1": 101.0}) == 0
    assert copy.exists()
    assert removed(files, 100, {"a1": 99.0}) == 1
    assert list(files.directory.iterdir()) == []


def test_what_no_run_has_named_goes_after_a_while(files: ShippedFiles) -> None:
    put(files, data=b"begun")
    copy = files.copy_of(UID, A)
    (files.directory / "a1.new").write_bytes(b"{")  # of a daemon that was killed
    assert removed(files, None) == 0
    assert [path.name for path in files.directory.iterdir()] == [copy.name]
    aged(copy)
    assert removed(files, None, named=[copy.name]) == 0
    assert removed(files, None) == 1
    assert UNCLAIMED > 600


def test_a_place_that_runs_share_goes_with_the_last(files: ShippedFiles) -> None:
    copy = begun(files, "a1")
    files.begin("a2", UID, ship(), None)
    (copy / "own" / "readonly").mkdir(mode=0o500)
    (copy / "own" / "link").symlink_to("/etc")
    assert files.remove(["a1"], dry=False) == 0
    assert copy.exists()
    assert files.remove(["a2"], dry=True) > 0
    assert copy.exists()
    assert files.remove(["a2", "a3"], dry=False) > 0
    assert list(files.directory.iterdir()) == []

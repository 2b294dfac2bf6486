"""Output of runs that ended long ago is deleted; that of live and recent runs, and other files,
stay."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from sfad.core.state.run import run_id
from sfad.storage.output import OutputFiles, files
from sfad.storage.output.files import remove_old

CUTOFF = 1_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> OutputFiles:
    return OutputFiles(tmp_path / "output")


def write(store: OutputFiles, run: str, at: float) -> None:
    for descriptor in store.open_for_run(run):
        os.close(descriptor)
    for suffix in (".out", ".err"):
        os.utime(store.directory / f"{run}{suffix}", (at, at))


def left(store: OutputFiles) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


def remove(store: OutputFiles, known: dict[str, float | None], live: Sequence[str] = ()) -> int:
    ends = lambda runs: {run: known[run] for run in runs if run in known}  # noqa: E731
    return remove_old(store.directory, CUTOFF, ends=ends, live=live, between=lambda: None)


def test_age_counts_from_the_end_of_the_run_or_else_from_the_last_write(store: OutputFiles) -> None:
    for run in ("a1", "a2", "a3", "a4", "a6"):
        write(store, run, CUTOFF - 1)
    write(store, "a5", CUTOFF + 1)
    write(store, "a7", CUTOFF + 1)
    known = {"a1": CUTOFF - 1, "a2": CUTOFF + 1, "a3": None, "a7": CUTOFF - 1}
    assert remove(store, known, live=["a6"]) == 6
    assert left(store) == [
        f"{run}{suffix}" for run in ("a2", "a3", "a5", "a6") for suffix in (".err", ".out")
    ]


def test_other_files_and_targets_of_links_stay(store: OutputFiles, tmp_path: Path) -> None:
    for name in ("notes", "a1.txt", "a1", "A1.out", "a1.out.old", ".out"):
        (store.directory / name).touch()
        os.utime(store.directory / name, (1, 1))
    (tmp_path / "precious").touch()
    (store.directory / "a2.out").symlink_to(tmp_path / "precious")
    os.utime(store.directory / "a2.out", (1, 1), follow_symlinks=False)
    assert remove(store, {}) == 1
    assert len(left(store)) == 6
    assert (tmp_path / "precious").exists()


def test_a_file_that_cannot_be_deleted_does_not_stop_the_others(store: OutputFiles) -> None:
    write(store, "a1", 1)
    (store.directory / "a2.out").mkdir()
    os.utime(store.directory / "a2.out", (1, 1))
    write(store, "a3", 1)
    with pytest.raises(OSError, match=r"a2\.out"):
        remove(store, {})
    assert left(store) == ["a2.out"]


def test_it_works_in_batches_and_can_be_cancelled(
    store: OutputFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BATCH", 10)
    for number in range(1, 31):
        write(store, run_id(number), 1)
    asked: list[int] = []

    def ends(runs: Sequence[str]) -> dict[str, float | None]:
        asked.append(len(runs))
        return {}

    with pytest.raises(ZeroDivisionError):
        remove_old(
            store.directory, CUTOFF, ends=ends, live=(), between=lambda: 1 // (2 - len(asked))
        )
    assert (asked, len(left(store))) == ([10, 10], 40)


def test_the_output_of_named_runs_is_counted_and_removed(store: OutputFiles) -> None:
    for run in ("a1", "a2", "a3"):
        write(store, run, CUTOFF)
    (store.directory / "a1.out").write_bytes(b"x" * 10_000)
    taken = sum(path.lstat().st_blocks * 512 for path in store.directory.glob("a[12].*"))
    for dry in (True, False):
        assert files.remove(store.directory, ["a1", "a2", "a9"], dry=dry, between=lambda: None) == (
            4,
            taken,
        )
        assert left(store) == (["a1.err", "a1.out", "a2.err", "a2.out"] if dry else []) + [
            "a3.err",
            "a3.out",
        ]

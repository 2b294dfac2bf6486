"""The kernel names the runs that have written."""

from __future__ import annotations

import errno
import os
import select
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from sfad.host.linux import displacement
from sfad.storage.output import Inotify, OutputFiles
from tests.output.test_files import put
from tests.output.test_holes import Refusing


def told(growth: Inotify, timeout: float = 0) -> bool:
    return bool(select.select([growth], [], [], timeout)[0])


@pytest.fixture
def store(tmp_path: Path) -> OutputFiles:
    return OutputFiles(tmp_path)


def test_a_writer_is_named_once(store: OutputFiles) -> None:
    with closing(Inotify(store.directory)) as growth:
        for _ in range(5):
            put(store, "a1", b"out", b"err")
            put(store, "c1v0", b"out")
        assert told(growth, 5)
        assert growth.take() == {"a1", "c1v0"}
        assert not told(growth)
        assert growth.take() == set()


def test_an_unwritten_file_is_not_named(store: OutputFiles) -> None:
    with closing(Inotify(store.directory)) as growth:
        for number in range(1, 32):
            for descriptor in store.open_for_run(f"a{'0123456789abcdefghijklmnopqrstuv'[number]}"):
                os.close(descriptor)
        store.tail("a1", 10)
        assert not told(growth)


@pytest.mark.parametrize("how", ["unlink", "rename", "replace"])
def test_the_run_of_a_removed_file_is_named(store: OutputFiles, how: str) -> None:
    put(store, "a1", b"out")
    path, other = store.directory / "a1.out", store.directory / "other"
    other.touch()
    with closing(Inotify(store.directory)) as growth:
        if how == "unlink":
            path.unlink()
        elif how == "rename":
            path.rename(store.directory / "elsewhere")
        else:
            other.replace(path)
        assert growth.take() == {"a1"}


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_removed_directory_is_noticed(tmp_path: Path, how: str) -> None:
    store = OutputFiles(tmp_path / "output")
    with closing(Inotify(store.directory)) as growth:
        put(store, "a1", b"out")
        assert (growth.take(), growth.gone) == ({"a1"}, False)
        shutil.rmtree(store.directory) if how == "removed" else store.directory.rename(
            tmp_path / "away"
        )
        assert told(growth, 5)
        growth.take()
        assert growth.gone


def test_other_file_names_are_ignored(store: OutputFiles) -> None:
    with closing(Inotify(store.directory)) as growth:
        for name in ("note.txt", "a1.out.gz", "ü.out", "x" * 250 + ".err", "a" * 15):
            (store.directory / name).write_bytes(b"x")
        assert growth.take() == set()


def test_dropped_events_mean_any_run(store: OutputFiles) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 1 << 16:
        pytest.skip("it would take long")
    with closing(Inotify(store.directory)) as growth:
        one, two = store.open_for_run("a1")
        for _ in range(limit // 2 + 1):
            os.write(one, b"x")
            os.write(two, b"x")
        told_once = [growth.take() for _ in range(2)]
        os.close(one)
        os.close(two)
    assert None in told_once


def test_names_are_told_without_writes(store: OutputFiles) -> None:
    put(store, "a1", b"")
    with closing(Inotify(store.directory)) as growth:
        assert not growth.tell_writes(True)
        assert growth.tell_writes(False)
        put(store, "a1", b"written")
        assert growth.take() == set()
        os.rename(store.directory / "a1.out", store.directory / "away")
        assert growth.take() == {"a1"}
        assert growth.tell_writes(True)
        put(store, "a2", b"written")
        assert growth.take() == {"a2"}
        shutil.rmtree(store.directory)
        growth.tell_writes(False)
        assert growth.gone


def test_no_inotify_instance_is_left(store: OutputFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(displacement, "libc", Refusing(errno.EMFILE))
    with pytest.raises(OSError, match="Too many") as caught:
        Inotify(store.directory)
    assert caught.value.errno == errno.EMFILE


def test_a_directory_that_cannot_be_watched_leaves_no_descriptor(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Inotify(tmp_path / "missing")

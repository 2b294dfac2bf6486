"""The files of a run, as the run and its readers get them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfad.output import OutputStore
from sfad.output.files import _split_character


@pytest.fixture
def store(tmp_path: Path) -> OutputStore:
    return OutputStore(tmp_path / "output")


def put(store: OutputStore, run_id: str, out: bytes, err: bytes = b"") -> None:
    descriptors = store.open_for_run(run_id)
    for descriptor, data in zip(descriptors, (out, err), strict=True):
        os.write(descriptor, data)
        os.close(descriptor)


def test_attempts_append_and_readers_read_from_the_start(store: OutputStore) -> None:
    put(store, "a1", b"one ", b"x")
    put(store, "a1", b"two")
    out, err = store.open_for_reader("a1")
    assert (os.read(out, 99), os.read(err, 99)) == (b"one two", b"x")
    assert not os.get_inheritable(out)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(out, b"no")
    os.close(out)
    os.close(err)


def test_only_the_owner_reads(store: OutputStore) -> None:
    old = os.umask(0)
    try:
        put(store, "a1", b"")
    finally:
        os.umask(old)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in store.directory.iterdir()}
    assert (modes, stat.S_IMODE(store.directory.stat().st_mode)) == ({0o600}, 0o700)


def test_a_reader_may_come_before_a_live_run_s_output(store: OutputStore) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        store.open_for_reader("a1")
    (store.directory / "a1.out").touch()
    with pytest.raises(FileNotFoundError):
        store.open_for_reader("a1")
    assert sorted(os.listdir("/proc/self/fd")) == before
    for descriptor in store.open_for_reader("a1", create=True):
        os.close(descriptor)


def test_the_tail(store: OutputStore) -> None:
    put(store, "a1", "héllo".encode())
    assert store.tail("a1", 100) == ("héllo".encode(), False)
    assert store.tail("a1", 6) == ("héllo".encode(), False)
    assert store.tail("a1", 4) == (b"llo", True)
    assert store.tail("a1", 0) == (b"", True)
    assert store.tail("a2", 100) == (b"", False)


def test_files_are_removed_with_their_run(store: OutputStore) -> None:
    put(store, "b10", b"x")
    put(store, "a1", b"x")
    (store.directory / "note.txt").touch()
    assert store.highest_number() == 32
    store.remove("b10")
    store.remove("b10")
    assert store.highest_number() == 1


@pytest.mark.parametrize("run_id", ["../a1", "", "a", "a1/x", "a1\0", "b1"])
def test_what_is_no_run_id_is_no_path(store: OutputStore, run_id: str) -> None:
    with pytest.raises(ValueError, match="not a run id"):
        store.open_for_run(run_id)


def test_a_link_in_place_of_a_file_is_not_followed(store: OutputStore, tmp_path: Path) -> None:
    (store.directory / "a1.out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        store.open_for_run("a1")


@given(st.text(), st.integers(0, 50))
def test_a_cut_leaves_whole_characters(text: str, cut: int) -> None:
    data = text.encode()[cut:]
    text_end = data[_split_character(data) :].decode()
    assert text.endswith(text_end)
    assert len(data) - len(text_end.encode()) <= 3


@pytest.mark.parametrize("suffix", [".out", ".err"])
def test_a_run_that_puts_a_fifo_where_its_file_was(store: OutputStore, suffix: str) -> None:
    put(store, "a1", b"x")
    fifo = store.directory / f"a1{suffix}"
    fifo.unlink()
    os.mkfifo(fifo)
    before = len(os.listdir("/proc/self/fd"))
    for attempt in (store.open_for_run, store.open_for_reader):
        with pytest.raises(OSError, match=f"a1{suffix}"):
            attempt("a1")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="not a regular file"):
        store.open_for_run("a1")
    os.close(reader)
    if suffix == ".out":
        with pytest.raises(OSError, match="not a regular file"):
            store.tail("a1", 10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_of_a_run_block(store: OutputStore) -> None:
    for descriptor in store.open_for_run("a1"):
        assert os.get_blocking(descriptor)
        os.close(descriptor)

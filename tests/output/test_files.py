"""The files of a run, as the run and its readers get them."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfad.storage.output import OutputFiles
from sfad.storage.output.files import Replaced


@pytest.fixture
def store(tmp_path: Path) -> OutputFiles:
    return OutputFiles(tmp_path / "output")


def put(store: OutputFiles, run_id: str, out: bytes, err: bytes = b"") -> None:
    descriptors = store.open_for_run(run_id)
    for descriptor, data in zip(descriptors, (out, err), strict=True):
        os.write(descriptor, data)
        os.close(descriptor)


def test_attempts_append_and_readers_read_from_the_start(store: OutputFiles) -> None:
    put(store, "a1", b"one ", b"x")
    put(store, "a1", b"two")
    out, err = store.open_for_reader("a1")
    assert (os.read(out, 99), os.read(err, 99)) == (b"one two", b"x")
    assert not os.get_inheritable(out)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(out, b"no")
    os.close(out)
    os.close(err)


def test_only_the_owner_reads(store: OutputFiles) -> None:
    old = os.umask(0)
    try:
        put(store, "a1", b"")
    finally:
        os.umask(old)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in store.directory.iterdir()}
    assert (modes, stat.S_IMODE(store.directory.stat().st_mode)) == ({0o600}, 0o700)


def test_a_reader_may_come_before_a_live_run_s_output(store: OutputFiles) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        store.open_for_reader("a1")
    (store.directory / "a1.out").touch()
    with pytest.raises(FileNotFoundError):
        store.open_for_reader("a1")
    assert sorted(os.listdir("/proc/self/fd")) == before
    for descriptor in store.open_for_reader("a1", create=True):
        os.close(descriptor)


def test_the_tail(store: OutputFiles) -> None:
    put(store, "a1", "héllo".encode())
    assert store.tail("a1", 100) == ("héllo".encode(), False)
    assert store.tail("a1", 6) == ("héllo".encode(), False)
    assert store.tail("a1", 4) == (b"llo", True)
    assert store.tail("a1", 0) == (b"", True)
    with pytest.raises(FileNotFoundError):
        store.tail("a2", 100)


def test_files_are_removed_with_their_run(store: OutputFiles) -> None:
    put(store, "b10", b"x")
    put(store, "a1", b"x")
    (store.directory / "note.txt").touch()
    assert store.highest_number() == 32
    store.remove("b10")
    store.remove("b10")
    assert store.highest_number() == 1


@pytest.mark.parametrize("run_id", ["../a1", "", "a", "a1/x", "a1\0", "b1"])
def test_text_that_is_not_a_run_id_makes_no_path(store: OutputFiles, run_id: str) -> None:
    with pytest.raises(ValueError, match="not a run id"):
        store.open_for_run(run_id)


def foreign(store: OutputFiles) -> list[str]:
    return sorted(
        path.name.partition(".foreign-")[0] for path in store.directory.glob("*.foreign-*")
    )


def test_a_planted_file_is_not_written_to(store: OutputFiles, tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.write_bytes(b"secret")
    (store.directory / "a1.out").symlink_to(shadow)
    (store.directory / "a1.err").hardlink_to(shadow)
    put(store, "a1", b"out", b"err")
    os.mkfifo(store.directory / "a2.out")
    (store.directory / "a2.err").mkdir()
    put(store, "a2", b"out", b"err")
    assert shadow.read_bytes() == b"secret"
    assert [store.tail(run, 9) for run in ("a1", "a2")] == [(b"out", False)] * 2
    assert foreign(store) == ["a1.err", "a1.out", "a2.err", "a2.out"]


@pytest.mark.parametrize("what", ["symlink", "fifo", "directory", "file", "socket"])
def test_a_file_that_replaced_the_output_of_a_run_is_not_handed_out(
    store: OutputFiles, tmp_path: Path, what: str
) -> None:
    put(store, "a1", b"out")
    path = store.directory / "a1.out"
    path.rename(tmp_path / "away")
    plant(path, what, tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for create in (True, False):
        with pytest.raises(
            Replaced,
            match=r"a1\.out is not the file that the daemon made for run a1: another process has",
        ):
            store.open_for_reader("a1", create=create)
    with pytest.raises(Replaced):
        store.tail("a1", 10)
    again = OutputFiles(store.directory)
    if what != "file":  # a later daemon cannot tell one regular file from another
        with pytest.raises(Replaced):
            again.tail("a1", 10)
    assert len(os.listdir("/proc/self/fd")) == before


def plant(path: Path, what: str, elsewhere: Path) -> None:
    """Put something else in place of a file of the daemon."""
    (elsewhere / "secret").write_bytes(b"secret")
    if what == "symlink":
        path.symlink_to(elsewhere / "secret")
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    else:
        path.write_bytes(b"forged")


def test_the_output_of_a_live_run_that_was_removed_is_not_shown_as_empty(
    store: OutputFiles,
) -> None:
    put(store, "a1", b"out")
    (store.directory / "a1.out").unlink()
    with pytest.raises(Replaced, match=r"a1\.out is not the file"):
        store.open_for_reader("a1", create=True)
    with pytest.raises(FileNotFoundError):
        store.open_for_reader("a1")
    put(store, "a1", b"second attempt")
    assert store.tail("a1", 99) == (b"second attempt", False)


@pytest.mark.parametrize("how", ["removed", "moved", "symlink", "file", "unreadable"])
def test_a_missing_directory_is_made_again(tmp_path: Path, how: str) -> None:
    said: list[str] = []
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    store = OutputFiles(tmp_path / "output", said.append)
    put(store, "a1", b"out")
    if how == "unreadable":
        store.directory.chmod(0)
        store = OutputFiles(tmp_path / "output", said.append)
    else:
        store.directory.rename(tmp_path / "moved")
        if how == "symlink":
            store.directory.symlink_to(elsewhere)
        elif how == "file":
            store.directory.touch()
    put(store, "a2", b"out")
    assert store.tail("a2", 9) == (b"out", False)
    assert list(elsewhere.iterdir()) == []
    assert len(said) == {"removed": 1, "moved": 1, "symlink": 2, "file": 2, "unreadable": 0}[how]
    assert (
        len(list(tmp_path.glob("output.foreign-*"))),
        stat.S_IMODE(store.directory.stat().st_mode),
    ) == (len(said) // 2, 0o700)


def test_foreign_files_do_not_use_up_the_numbers(store: OutputFiles) -> None:
    for name in ("zvvvvvvvvvvvvvvvvvvvvvvvvvv.out", "mvvvvvvvvvvvvv.err", "b10.out"):
        (store.directory / name).touch()
    assert store.highest_number() == 32


@given(text=st.text(), most=st.integers(0, 50))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_cut_leaves_whole_characters(store: OutputFiles, text: str, most: int) -> None:
    data = text.encode()
    (store.directory / "a1.out").write_bytes(data)
    tail, cut = store.tail("a1", most)
    assert text.endswith(tail.decode())
    assert cut == (len(data) > most)
    assert min(len(data), most) - len(tail) in range(4)


def test_descriptors_of_a_run_block(store: OutputFiles) -> None:
    for descriptor in store.open_for_run("a1"):
        assert os.get_blocking(descriptor)
        os.close(descriptor)

"""Files whose oldest bytes are freed, on the disk and in memory."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sfad.storage.output import OutputFiles, holes
from sfad.storage.output.files import SUFFIXES, LeasedError, Suffix
from tests import surroundings
from tests.output.test_files import put

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutputFiles]:
    if request.param == "disk":
        yield OutputFiles(tmp_path / "output")
        return
    if not os.access(surroundings.in_memory(), os.W_OK):
        pytest.skip("no file system in memory")
    with tempfile.TemporaryDirectory(dir=surroundings.in_memory()) as directory:
        yield OutputFiles(Path(directory))


def held(store: OutputFiles, name: str = "a1.out") -> int:
    return os.stat(store.directory / name).st_blocks * 512


def excess(store: OutputFiles, run: str, suffix: Suffix) -> int:
    status = store.status(run, suffix)
    return holes.excess(status, MIB) if status is not None else 0


def numbered(count: int) -> bytes:
    """`count` lines of 64 bytes, no two alike."""
    return b"".join(b"%063d\n" % n for n in range(count))


def test_the_newest_bytes_stay_where_they_are(store: OutputFiles) -> None:
    data = numbered(3 * MIB // 64)
    put(store, "a1", data)
    until = excess(store, "a1", ".out")
    assert until == 2 * MIB
    assert store.free("a1", ".out", MIB, until) == until
    assert held(store) <= MIB + 64 * KIB
    path = store.directory / "a1.out"
    assert path.stat().st_size == len(data)
    assert path.read_bytes()[until:] == data[until:]
    assert excess(store, "a1", ".out") == 0
    assert store.free("a1", ".out", MIB, until) == 0


def test_a_file_within_its_bound_is_left_alone(store: OutputFiles) -> None:
    put(store, "a1", numbered(MIB // 64))
    assert excess(store, "a1", ".out") == 0
    assert excess(store, "a1", ".err") == 0
    assert excess(store, "a2", ".out") == 0
    assert store.free("a2", ".out", MIB, MIB) == 0


def test_another_file_in_its_place_is_left_alone(store: OutputFiles) -> None:
    put(store, "a1", bytes(2 * MIB))
    status = store.status("a1", ".out")
    assert status is not None
    assert store.free("a1", ".out", 0, MIB, inode=status.st_ino + 1) == 0
    assert store.free("a1", ".out", 0, MIB, inode=status.st_ino) == MIB


def test_bytes_written_after_a_truncation_are_not_freed(store: OutputFiles) -> None:
    put(store, "a1", numbered(3 * MIB // 64))
    until = excess(store, "a1", ".out")
    os.truncate(store.directory / "a1.out", 0)
    put(store, "a1", b"new")
    assert store.free("a1", ".out", MIB, until) == 0
    assert store.tail("a1", 10) == (b"new", False)


def test_freeing_can_be_given_up_between_two_pieces(store: OutputFiles) -> None:
    put(store, "a1", bytes(3 * holes.PUNCH))
    with pytest.raises(InterruptedError):
        store.free("a1", ".out", 0, 3 * holes.PUNCH, between=_give_up)
    assert holes.PUNCH <= held(store) <= 2 * holes.PUNCH + 64 * KIB


def test_holes_are_skipped_when_the_rest_is_freed(store: OutputFiles) -> None:
    put(store, "a1", numbered(MIB // 64))
    path = store.directory / "a1.out"
    os.truncate(path, 1 << 43)
    put(store, "a1", numbered(MIB // 64))
    calls = iter(range(4))
    assert store.free("a1", ".out", MIB, 1 << 43, between=lambda: next(calls)) <= 2 * holes.PUNCH
    assert held(store) <= MIB + 64 * KIB


def _give_up() -> None:
    raise InterruptedError


def test_the_tail_contains_nothing_of_a_hole(store: OutputFiles) -> None:
    data = numbered(2 * MIB // 64)
    put(store, "a1", data)
    store.free("a1", ".out", MIB, MIB)
    assert store.tail("a1", 64 * KIB) == (data[-64 * KIB :], True)
    assert store.tail("a1", 10 * MIB) == (data[MIB:], True)


def test_the_tail_of_ten_gigabytes_that_are_mostly_freed(store: OutputFiles) -> None:
    path = store.directory / "a1.out"
    path.touch()
    os.truncate(path, 10_000_000_000 // 4096 * 4096)
    assert store.tail("a1", MIB) == (b"", True)
    put(store, "a1", b"newest\n" * 10_000)
    tail, more = store.tail("a1", 10_000_000)
    assert more
    assert tail == b"newest\n" * 10_000


def test_bytes_that_are_freed_while_they_are_read_are_left_out(
    store: OutputFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The punch comes just before the read, after a reader could have asked where the data
    begins."""
    data = numbered(2 * MIB // 64)
    put(store, "a1", data)
    really = os.preadv

    def late(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        store.free("a1", ".out", MIB // 2, 3 * MIB // 2)
        return really(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", late)
    assert store.tail("a1", 10 * MIB) == (data[3 * MIB // 2 :], True)


def test_a_racing_reader_never_sees_a_hole(store: OutputFiles) -> None:
    line, stop = b"x" * 63 + b"\n", threading.Event()
    out, err = store.open_for_run("a1")
    os.close(err)
    os.write(out, line * 4096)

    def write() -> None:
        while not stop.is_set():
            os.write(out, line * 1024)
            store.free("a1", ".out", 64 * KIB, 1 << 62)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            tail, _ = store.tail("a1", 256 * KIB)
            assert len(tail) % 64 == 0
            assert tail == line * (len(tail) // 64)
    finally:
        stop.set()
        writer.join()
        os.close(out)


def test_a_hole_up_to_the_end_reads_as_nothing(store: OutputFiles) -> None:
    put(store, "a1", b"")
    path = store.directory / "a1.out"
    os.truncate(path, MIB)
    descriptor = store.open_for_meter("a1")
    assert holes.data_from(descriptor, 0) is None
    assert len(holes.read_into(descriptor, memoryview(bytearray(100)), 0)[1]) == 0
    os.close(descriptor)


def test_a_file_system_without_holes_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = OutputFiles(tmp_path)
    put(store, "a1", bytes(MIB))
    monkeypatch.setattr(holes, "libc", Refusing(errno.EOPNOTSUPP))
    with pytest.raises(OSError, match="not supported") as caught:
        store.free("a1", ".out", 0, MIB)
    assert caught.value.errno == errno.EOPNOTSUPP


def test_an_interrupted_call_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = OutputFiles(tmp_path)
    put(store, "a1", bytes(MIB))
    interrupting = Refusing(errno.EINTR, times=2)
    monkeypatch.setattr(holes, "libc", interrupting)
    store.free("a1", ".out", 0, MIB)
    assert interrupting.calls > 2


class Refusing:
    """A C library whose fallocate(2) and inotify_init1(2) fail."""

    def __init__(self, code: int, times: int = 1 << 30) -> None:
        self.calls = 0
        self._code = code
        self._times = times

    def fallocate(self, *_: int) -> int:
        """Fails this many times."""
        self.calls += 1
        if self.calls > self._times:
            return 0
        ctypes.set_errno(self._code)
        return -1

    inotify_init1 = fallocate


def test_a_link_or_a_fifo_is_not_bounded(store: OutputFiles, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(bytes(MIB))
    (store.directory / "a1.out").symlink_to(precious)
    os.mkfifo(store.directory / "a1.err")
    for suffix in SUFFIXES:
        assert store.status("a1", suffix) is None
        with pytest.raises(OSError, match="a1"):
            store.free("a1", suffix, 0, MIB)
    assert precious.stat().st_blocks * 512 >= MIB


ALLOCATIONS = {
    "behind its end": (0, MIB),
    "before its end": (1 << 33, MIB),
    "on both sides": (1 << 33, (1 << 33) - 8 * MIB),
}


@pytest.mark.parametrize("where", ALLOCATIONS)
def test_what_was_allocated_and_never_written_is_freed(store: OutputFiles, where: str) -> None:
    """With FALLOC_FL_KEEP_SIZE blocks are in no size, and SEEK_DATA finds none of them."""
    size, offset = ALLOCATIONS[where]
    put(store, "a1", b"kept")
    descriptor = store.hold("a1", ".out")
    os.truncate(store.directory / "a1.out", max(size, 4))
    allocate(descriptor, offset, 16 * MIB)
    os.close(descriptor)
    status = (store.directory / "a1.out").stat()
    assert held(store) >= 16 * MIB
    assert holes.unwritten(status, 64 * KIB)
    store.free("a1", ".out", 64 * KIB, holes.excess(status, 64 * KIB))
    assert held(store) <= 128 * KIB
    assert (store.directory / "a1.out").stat().st_size == status.st_size


def test_what_a_run_has_written_is_not_taken_for_room_that_it_has_allocated(
    store: OutputFiles,
) -> None:
    """A file in pieces needs blocks for its tree of extents."""
    put(store, "a1", numbered(4 * MIB // 64))
    descriptor = store.hold("a1", ".out")
    for offset in range(0, 4 * MIB, 8 * KIB):
        holes.punch(descriptor, offset, 4 * KIB)
    os.close(descriptor)
    assert not holes.unwritten((store.directory / "a1.out").stat(), 2 * MIB)


def test_no_lease_can_be_had_while_a_file_is_held_and_an_old_one_is_broken(
    store: OutputFiles,
) -> None:
    put(store, "a1", b"x")
    with (store.directory / "a1.out").open("ab") as file:
        held_by_daemon = store.hold("a1", ".out")
        for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
            with pytest.raises(BlockingIOError):
                fcntl.fcntl(file, fcntl.F_SETLEASE, kind)
        os.close(held_by_daemon)
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(LeasedError):
            store.hold("a1", ".out")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(store.break_lease, "a1", ".out")
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            os.close(waiting.result(60))


def test_what_a_write_under_way_has_taken_is_not_taken_for_room_behind_the_end(
    store: OutputFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on ext4, whose blocks count before the size does: the size grows while the inode's lock is
    waited for."""
    put(store, "a1", b"0" * MIB)
    descriptor = os.open(store.directory / "a1.out", os.O_RDWR | os.O_APPEND)
    allocate(descriptor, MIB, 2 * MIB)

    class Ending:
        """A C library in whose first fallocate(2) a write ends."""

        def __init__(self) -> None:
            self._real, self._ended = holes.libc, False

        def fallocate(self, *told: int) -> int:
            if not self._ended:
                self._ended = os.write(descriptor, b"1" * MIB) > 0
            return int(self._real.fallocate(*told))

    monkeypatch.setattr(holes, "libc", Ending())
    store.free("a1", ".out", MIB, 0)
    assert os.pread(descriptor, 3 * MIB, MIB) == b"1" * MIB
    os.close(descriptor)


def test_no_lease_can_be_had_through_a_descriptor_that_the_run_was_given(
    store: OutputFiles,
) -> None:
    opened = store.open_for_run("a1")
    held_by_daemon = [store.hold_too(descriptor) for descriptor in opened]
    for descriptor in opened:
        for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
            with pytest.raises(BlockingIOError):
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
    for descriptor in (*opened, *held_by_daemon):
        os.close(descriptor)


def allocate(descriptor: int, offset: int, length: int) -> None:
    """Allocate blocks that no size tells of."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.fallocate(descriptor, 1, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0

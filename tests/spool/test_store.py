"""A batch whose write has returned survives any end of its writer. Any other batch is there whole
or not at all."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import product
from pathlib import Path
from unittest import mock
from zlib import crc32

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sfad.storage import store as journal
from sfad.storage.store import Store, StoreError
from tests import surroundings
from tests.harness import failing, let_others_into
from tests.tiers import examples, first

ROOT = Path(__file__).parents[2]
KIB, MIB = 1 << 10, 1 << 20

Changes = Mapping[str, bytes | None]

BATCHES: list[Changes] = [
    {"run/a1": b"one", "usage/a1": b""},
    {"run/a2": bytes(20), "run/a1": b"two" * 10},
    {"usage/a1": None},
    {"run/a2": None, "ünïcode": b"\xff" * 40, "": b"an empty key"},
    {"run/a1": b"\x00three\x00"},
]


def after(batches: list[Changes]) -> dict[str, bytes]:
    """The values after these batches."""
    items: dict[str, bytes] = {}
    for batch in batches:
        items |= {key: value for key, value in batch.items() if value is not None}
        for key in [key for key, value in batch.items() if value is None]:
            items.pop(key, None)
    return items


STATES = [after(BATCHES[:count]) for count in range(len(BATCHES) + 1)]


def opened(path: Path) -> Store:
    """The store as the next daemon finds it, closed again."""
    with closing(Store(path)) as one:
        return one


MAGIC = b"sfadjnl\n"
RECORD = struct.Struct("<HI")
DELETED = 0xFFFFFFFF


def frame(batch: bytes) -> bytes:
    """Return a batch as it is in the file."""
    return struct.pack("<III", len(batch), crc32(batch), len(batch) ^ 0xFFFFFFFF) + batch + b"\xff"


def written(path: Path, batches: list[Changes]) -> bytes:
    """Write these batches; return the bytes up to the end of the last frame."""
    with closing(Store(path)) as one:
        for batch in batches:
            one.write(batch)
    return path.read_bytes()[: one.size]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.journal"


def test_a_new_store(path: Path) -> None:
    one = opened(path)
    assert (one.items, one.notes, one.sound, one.found) == ({}, [], True, False)
    assert path.stat().st_mode & 0o7777 == 0o600
    one = opened(path)
    assert (one.items, one.notes, one.sound, one.found) == ({}, [], True, True)


def test_values_are_read_again(path: Path) -> None:
    for count, batch in enumerate(BATCHES):
        with closing(Store(path)) as one:
            assert one.items == STATES[count]
            one.write(batch)
            assert one.items == STATES[count + 1]
    one = opened(path)
    assert (one.items, one.notes, one.sound, one.found) == (STATES[-1], [], True, True)
    assert list(path.parent.iterdir()) == [path]


def test_a_mode_that_is_too_wide_is_narrowed(path: Path) -> None:
    written(path, BATCHES)
    path.chmod(0o644)
    opened(path)
    assert path.stat().st_mode & 0o7777 == 0o600


def test_an_empty_batch_writes_nothing(path: Path) -> None:
    assert written(path, [{}]) == written(path, [])


def test_a_batch_that_is_too_large_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BATCH", 1000)
    with closing(Store(path)) as one:
        with pytest.raises(ValueError, match="65536"):
            one.write({"x" * 65536: b""})
        with pytest.raises(ValueError, match="a batch"):
            one.write({"x": bytes(1000)})
        one.write({"y" * 900: b""})
    assert list(opened(path).items) == ["y" * 900]


@pytest.mark.parametrize("what", ["link", "fifo", "directory"])
def test_anything_but_a_file_is_set_aside(path: Path, what: str) -> None:
    elsewhere = path.with_name("elsewhere")
    written(elsewhere, BATCHES)
    if what == "link":
        path.symlink_to(elsewhere)
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with closing(Store(path)) as one:
        assert (one.items, one.sound) == ({}, False)
        [note] = one.take_notes()
        assert f"{path} was not the daemon's, and is kept as {path}.foreign-" in note
        one.write({"a": b"1"})
    assert opened(path).items == {"a": b"1"}
    assert opened(elsewhere).items == STATES[-1]


@pytest.mark.parametrize("what", ["directory", "fifo", "link"])
def test_a_foreign_entry_does_not_block_a_rewrite(path: Path, what: str) -> None:
    new, precious = path.with_name(f"{path.name}.new"), path.with_name("precious")
    precious.write_bytes(b"precious")
    for _ in range(2):
        if what == "directory":
            new.mkdir()
        elif what == "fifo":
            os.mkfifo(new)
        else:
            new.symlink_to(precious)
        with closing(Store(path)) as one:
            one.write({"a": b"1"})
            path.unlink(missing_ok=True)
            one.write({"b": b"2"})
        assert opened(path).items == {"a": b"1", "b": b"2"}
    assert precious.read_bytes() == b"precious"


@pytest.mark.parametrize(
    "how", ["unlinked", "moved", "replaced", "a directory", "with its directory"]
)
def test_a_removed_store_is_written_again(tmp_path: Path, how: str) -> None:
    path = tmp_path / "spool" / "runs"
    path.parent.mkdir()
    with closing(Store(path)) as one:
        one.write({"a": b"1"})
        assert (one.stay(), one.take_notes()) == (True, [])
        if how == "with its directory":
            shutil.rmtree(path.parent)
        else:
            path.rename(path.with_name("away"))
        if how == "replaced":
            path.write_bytes(b"forged")
        elif how == "a directory":
            path.mkdir()
        if how != "moved":  # noticed by `stay`, else by the next write
            assert not one.stay()
        one.write({"b": b"2"})
        assert any("removed or replaced by another process" in note for note in one.take_notes())
        assert one.stay()
    assert opened(path).items == {"a": b"1", "b": b"2"}


AS_NOBODY = """
import os, sys
from pathlib import Path
from sfad.storage.store import Store
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
path = Path(sys.argv[1])
Store(path).write({"a": b"1"})
path.chmod(0)
print(Store(path).items, oct(path.stat().st_mode))
"""


@pytest.mark.needs("root")
def test_a_store_that_lost_its_mode_bits_is_read(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    os.chown(tmp_path / "spool", 65534, 65534)
    let_others_into(tmp_path / "spool")
    command = [sys.executable, "-c", AS_NOBODY, str(tmp_path / "spool" / "runs")]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PYTHONPATH": os.getcwd()}, timeout=30
    )
    assert done.stdout == "{'a': b'1'} 0o100600\n", done.stderr


# ---- against a dict

KEYS = st.sampled_from([f"run/{letter}" for letter in "abcdefgh"])
VALUES = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.integers(0, 3000).map(bytes),
    st.integers(0, 3000).map(random.Random(1).randbytes),
)


class Against(RuleBasedStateMachine):
    """A store and a dict, with steps so small that the file is extended and rewritten all the
    time."""

    @initialize()
    def begin(self) -> None:
        """An empty batch."""
        self.directory = Path(tempfile.mkdtemp(dir=surroundings.in_memory()))
        self.path = self.directory / "j"
        self.small = mock.patch.multiple(
            journal, STEP=4096, SPARE=2048, ASK_AGAIN=500, COMPACT_ABOVE=6000
        )
        self.small.start()
        self.model: dict[str, bytes] = {}
        self.journal = Store(self.path)

    def _apply(self, changes: Changes) -> None:
        for key, value in changes.items():
            self.model.pop(key, None)
            if value is not None:
                self.model[key] = value

    @rule(changes=st.dictionaries(KEYS, VALUES, max_size=4))
    def write(self, changes: dict[str, bytes | None]) -> None:
        """The values are there."""
        self.journal.write(changes)
        self._apply(changes)

    @rule(
        changes=st.dictionaries(KEYS, VALUES, min_size=1, max_size=4), allowed=st.integers(0, 5000)
    )
    def fail(self, changes: dict[str, bytes | None], allowed: int) -> None:
        """A disk that takes only some bytes of the frame."""
        with mock.patch.object(os, "pwrite", Full(allowed)):
            try:
                self.journal.write(changes)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - it may as well have worked
                return
        self._apply(changes)

    @rule(
        changes=st.dictionaries(KEYS, VALUES, min_size=1, max_size=4), allowed=st.integers(0, 5000)
    )
    def die(self, changes: dict[str, bytes | None], allowed: int) -> None:
        """A death in the middle of a write."""
        with mock.patch.object(os, "pwrite", Full(allowed, Killed)):
            try:
                self.journal.write(changes)
            except Killed:
                self.reopen()
                if self.journal.items != self.model:
                    self._apply(changes)
                return
        self._apply(changes)

    @rule()
    def reopen(self) -> None:
        """Open it as the next daemon does."""
        self.journal.close()
        self.journal = Store(self.path)
        assert self.journal.sound
        assert self.journal.found

    @rule()
    def compact(self) -> None:
        """Rewrite at another time than usual."""
        self.journal.rewrite()

    @invariant()
    def same(self) -> None:
        """Store and dict agree."""
        assert self.journal.items == self.model
        assert self.journal.current_size == sum(
            RECORD.size + len(key) + len(value) for key, value in self.model.items()
        )

    def teardown(self) -> None:
        """Store and dict agree after the last close."""
        try:
            self.reopen()
            self.same()
            self.journal.close()
        finally:
            self.small.stop()
            shutil.rmtree(self.directory)


class Killed(BaseException):
    """A death that no handler catches, like SIGKILL."""


class Full:
    """pwrite(2) on a disk that takes some bytes, and then fails, or ends the process."""

    def __init__(self, allowed: int, then: type[BaseException] | None = None) -> None:
        self._left = allowed
        self._then = then
        self._pwrite = os.pwrite

    def __call__(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        """Zeros count as well, so that blanking can fail, too."""
        if not self._left:
            raise self._then or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = self._pwrite(descriptor, memoryview(data)[: self._left], offset)
        self._left -= done
        return done


def killed_after(count: int) -> Callable[[int, bytes, int], int]:
    """Return a pwrite(2) that writes this many bytes, and whose process is killed before it
    returns."""
    pwrite = os.pwrite

    def killed(descriptor: int, data: bytes, offset: int) -> int:
        pwrite(descriptor, data[:count], offset)
        raise Killed

    return killed


TestAgainst = Against.TestCase
TestAgainst.settings = settings(max_examples=examples(25), stateful_step_count=40, deadline=None)


# ---- torn and damaged files


def test_a_truncation_anywhere_leaves_whole_batches(path: Path) -> None:
    data = written(path, BATCHES)
    ends = [
        len(written(path.with_name(f"j{count}"), BATCHES[:count]))
        for count in range(len(BATCHES) + 1)
    ]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        one = opened(path)
        assert one.items == STATES[max(0, sum(end <= cut for end in ends) - 1)]
        assert one.sound == (cut >= ends[0])
        assert bool(one.notes) == (cut not in ends)
        assert one.found


def test_a_torn_tail_may_be_written_over(path: Path) -> None:
    """The shorter batch that overwrites it contains nothing of it."""
    data = written(path, [*BATCHES, {"long": b"\xff" * 300}])
    for cut in range(len(data) - 310, len(data), 7):
        path.write_bytes(data[:cut] + bytes(100))
        with closing(Store(path)) as one:
            assert one.items == STATES[-1]
            one.write({"short": b"x"})
        one = opened(path)
        assert one.items == STATES[-1] | {"short": b"x"}
        assert (one.sound, one.notes) == (True, [])


@first(1)
@pytest.mark.parametrize(
    ("begun", "again"), [*product([5, 12, 30, 200], [False, True]), (313, False)]
)
def test_a_death_while_a_frame_is_blanked(path: Path, begun: int, again: bool) -> None:
    """Also of the batch that follows. 313 bytes are the whole frame, whose write did not return.
    `again`: another daemon has opened the file before that batch."""
    assert len(frame(RECORD.pack(1, 293) + b"l" + bytes(293))) == 313
    data = written(path, BATCHES)
    for allowed in (*range(1, 16), *range(16, 400, 43)):
        path.write_bytes(data + bytes(1000))
        one = Store(path)
        with mock.patch.object(os, "pwrite", killed_after(begun)), suppress(Killed):
            one.write({"l": b"\xff" * 293})
        if again:
            one.close()
            one = Store(path)
        with closing(one), mock.patch.object(os, "pwrite", Full(allowed, Killed)), suppress(Killed):
            one.write({"short": b"x"})
        one = opened(path)
        assert one.sound
        assert one.items in [STATES[-1], STATES[-1] | {"short": b"x"}]
        with closing(Store(path)) as one:
            one.write({"shorter": b""})
        one = opened(path)
        assert one.sound
        assert one.items["shorter"] == b""


def test_no_flipped_byte_makes_a_value(path: Path) -> None:
    data = written(path, BATCHES) + bytes(50)
    without_one = [after(BATCHES[:left] + BATCHES[left + 1 :]) for left in range(len(BATCHES))]
    for at in range(len(data)):
        for flip in (0x01 if at % 2 else 0x80, data[at]):
            path.write_bytes(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
            one = opened(path)
            assert one.items in STATES or one.items in without_one
            # each byte of a frame is checked; a zero at the end of the last frame looks like an
            # unfinished write
            assert not one.sound or data[at] ^ flip == data[at] or at >= len(data) - 51
            for aside in path.parent.glob("*.corrupt-*"):
                aside.unlink()


def test_a_damaged_file_is_set_aside(path: Path) -> None:
    data = bytearray(written(path, BATCHES))
    data[data.index(b"twotwo")] ^= 1
    kept = after([*BATCHES[:1], *BATCHES[2:]])
    for count in range(1, 4):
        path.write_bytes(data)
        with closing(Store(path)) as one:
            assert (one.items, one.sound, one.found) == (kept, False, True)
            assert (
                f"a damaged frame at byte {len(written(path.with_name('x'), BATCHES[:1]))}"
                in one.notes[0]
            )
            assert f"{len(kept)} other entries" in one.notes[0]
            assert ".corrupt-" in one.notes[1]
            one.write({"more": b"1"})
        asides = list(path.parent.glob("state.journal.corrupt-*"))
        assert len(asides) == count
        assert all(aside.read_bytes() == data for aside in asides)
        assert str(asides[0]) in one.notes[1] or count > 1
        one = opened(path)
        assert (one.items, one.sound) == (kept | {"more": b"1"}, True)
        path.with_name("x").unlink()


@pytest.mark.parametrize("data", [b"", b"x", b"SQLite format 3\0" * 100, bytes(5000)])
def test_another_file_is_set_aside(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    one = opened(path)
    assert (one.items, one.sound, one.found, len(one.notes)) == ({}, False, True, 2)
    assert [aside.read_bytes() for aside in path.parent.glob("*.corrupt-*")] == [data]


def test_a_right_checksum_of_no_batch(path: Path) -> None:
    """A person must have made it; it counts as damage."""
    good = written(path, BATCHES)
    for batch in (b"x", RECORD.pack(10, 5) + b"x", RECORD.pack(1, DELETED) + b"\xff"):
        path.write_bytes(good + frame(batch))
        one = opened(path)
        assert (one.items, one.sound) == (STATES[-1], False)


def test_a_newer_version_is_left_alone(path: Path) -> None:
    version, good = (2).to_bytes(4, "little"), written(path, BATCHES)
    data = MAGIC + version + crc32(MAGIC + version).to_bytes(4, "little") + good[16:]
    path.write_bytes(data)
    with pytest.raises(
        StoreError, match=r"state\.journal is a journal of version 2.*start the sfad"
    ):
        Store(path)
    assert path.read_bytes() == data


def test_a_file_system_without_hard_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(written(path, BATCHES) + b"damage")
    before = path.read_bytes()
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    path.write_bytes(before[:20] + b"!" + before[21:])
    assert not opened(path).sound
    assert len(list(path.parent.glob("*.corrupt-*"))) == 1
    assert opened(path).sound


# ---- killed


class Dying:
    """Ends the process at the n-th system call that changes a file: before it, or after the first
    page of a write."""

    CALLS = ("pwrite", "posix_fallocate", "rename", "link", "unlink", "fchmod")

    def __init__(self, at: int, *, torn: bool) -> None:
        self.left = at
        self._torn = torn
        self._real = {name: getattr(os, name) for name in self.CALLS}

    def __enter__(self) -> Dying:
        for name in self.CALLS:
            setattr(os, name, self._replaced(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def _replaced(self, name: str) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            self.left -= 1
            if self.left < 0:
                if self.left == -1 and name == "pwrite" and self._torn:
                    self._write_a_page(*arguments)  # type: ignore[arg-type]
                raise Killed
            return self._real[name](*arguments, **options)

        return call

    def _write_a_page(self, descriptor: int, data: bytes, offset: int) -> None:
        self._real["pwrite"](descriptor, memoryview(data)[: -offset % 4096], offset)


def dying_of(at: int, torn: bool, work: Callable[[], Store]) -> bool:
    """Do it, and die at a system call. Return whether it got that far."""
    with Dying(at, torn=torn) as dying:
        try:
            work()
        except Killed:
            return True
    assert dying.left >= 0
    return False


def some(count: int) -> list[Changes]:
    """Batches of a few KB; each part of a batch names the batch."""
    return [
        {"n": b"%d" % n, "part": (b"%d," % n) * 900, f"k{n % 5}": (b"%d," % n) * 300}
        for n in range(1, count + 1)
    ]


@pytest.mark.parametrize("torn", [False, True])
def test_a_death_at_every_system_call(
    path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    """A new store is written, extended and rewritten."""
    monkeypatch.setattr(journal, "STEP", 8192)
    monkeypatch.setattr(journal, "SPARE", 4096)
    monkeypatch.setattr(journal, "COMPACT_ABOVE", 20_000)
    batches, states = some(20), [after(some(20)[:count]) for count in range(21)]
    acknowledged = 0

    def work() -> Store:
        nonlocal acknowledged
        acknowledged = 0
        with closing(Store(path)) as one:
            for batch in batches:
                one.write(batch)
                acknowledged += 1
        return one

    at = 0
    while dying_of(at, torn, work):
        one = opened(path)
        # a batch may be there whose write did not return, as when the rewrite after it was
        # interrupted
        assert one.items in states[acknowledged : acknowledged + 2]
        assert one.sound
        with closing(Store(path)) as one:
            one.write({"short": b"x"})
        assert opened(path).items["short"] == b"x"
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        path.unlink()
        at += 1
    assert at > 35


def test_a_death_while_a_damaged_file_is_set_aside(path: Path) -> None:
    data = bytearray(written(path, BATCHES))
    data[-5] ^= 1
    at = 0
    while True:
        path.write_bytes(data)
        died = dying_of(at, False, lambda: opened(path))
        one = opened(path)
        assert one.items == STATES[-2]
        assert [bytes(data)] == list(
            {aside.read_bytes() for aside in path.parent.glob("*.corrupt-*")}
        )
        for file in path.parent.iterdir():
            file.unlink()
        at += 1
        if not died:
            break
    assert at > 4


WRITER = """
import os, sys
from pathlib import Path
from sfad.storage.store import Store
from sfad.storage import store as journal

journal.COMPACT_ABOVE = 300_000
one = Store(Path(sys.argv[1]))
assert one.sound, one.notes
n = int(one.items.get("n", b"0"))
while True:
    n += 1
    size = 1 + n * 7919 % (200_000 if n % 20 == 0 else 2000)
    one.write({
        "n": b"%d" % n, "part": (b"%d," % n) * (size // 8 + 1), f"key{n % 60}": b"%d" % n,
        f"key{(n + 20) % 60}": None,
    })
    os.write(1, b"%d\\n" % n)
"""


@pytest.mark.rest("kills many times")
def test_a_killed_process_loses_no_write_that_returned(path: Path) -> None:
    wait, last = random.Random(7), 0
    for _ in range(25):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, cwd=ROOT
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(wait.random() * 0.02)
            writer.kill()
            told = writer.stdout.read().split()
        promised = int(told[-1]) if told else last + 1
        one = opened(path)
        assert one.sound
        found = int(one.items["n"])
        assert promised <= found <= promised + 1
        assert set(one.items["part"].split(b",")[:-1]) == {b"%d" % found}
        expected = {f"key{n % 60}": b"%d" % n for n in range(found - 39, found + 1) if n > 0}
        assert {key: value for key, value in one.items.items() if key.startswith("key")} == expected
        last = found
    assert last > 1000


# ---- a full disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount")
    directory = tmp_path / "small"
    directory.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", directory], check=False
    ).returncode:
        pytest.skip("no file system can be mounted here")
    yield directory
    subprocess.run(["umount", directory], check=True)


def fill(directory: Path) -> None:
    """Fill the disk."""
    with open(directory / "filler", "ab", buffering=0) as file:
        for size in (MIB, 4 * KIB):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - the other end of the loop


def until_full(one: Store) -> int:
    """Write two records of 400 bytes at a time until that fails. Return how many writes
    succeeded."""
    count = 0
    while True:
        before = dict(one.items)
        try:
            one.write({f"run/{count % 100}": os.urandom(400), "n": b"%400d" % count})
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - it is what ends this
            assert one.items == before
            return count
        count += 1


def test_a_full_disk_does_not_stop_small_changes(small: Path) -> None:
    path = small / "j"
    with closing(Store(path)) as one:
        one.write({"a": b"1"})
        fill(small)
        promised = until_full(one)
        assert promised * 810 > journal.SPARE
        assert until_full(one) == 0
        items = dict(one.items)
        assert opened(path).items == items
        (small / "filler").unlink()
        one.write({"b": b"2"})
    assert opened(path).items == items | {"b": b"2"}


def test_no_write_that_returned_is_lost_wherever_the_disk_fills(small: Path) -> None:
    for before in (100, 600, 660, 700, 1200, 1900):
        with closing(Store(small / "j")) as one:
            for number in range(before):
                one.write({"x": bytes(800), "n": b"%d" % number})
            fill(small)
            assert until_full(one) * 810 > journal.SPARE - 8 * KIB
            items = one.items
        assert opened(small / "j").items == items
        for file in small.iterdir():
            file.unlink()


def test_a_batch_that_is_too_large_for_the_disk(small: Path) -> None:
    with closing(Store(small / "j")) as one:
        one.write({"a": b"1"})
        with pytest.raises(OSError, match="No space left"):
            one.write({"a": b"2", "b": bytes(5 * MIB)})
        assert one.items == {"a": b"1"}
        one.write({"c": b"3"})
    assert opened(small / "j").items == {"a": b"1", "c": b"3"}


def test_a_rewrite_without_room_is_tried_again(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "COMPACT_ABOVE", 200 * KIB)
    with closing(Store(small / "j")) as one:
        one.write({"x": bytes(150 * KIB)})
        # until now it was larger: there is room for 1 MiB
        monkeypatch.setattr(journal, "STEP", 64 * KIB)
        fill(small)
        while one.size < 600 * KIB:
            one.write({"n": b"%800d" % one.size})
        inode = (small / "j").stat().st_ino
        assert [file.name for file in small.iterdir() if file.name != "filler"] == ["j"]
        (small / "filler").unlink()
        while (small / "j").stat().st_ino == inode:
            one.write({"n": b"%800d" % one.size})
            assert one.size < 700 * KIB
    assert len(opened(small / "j").items) == 2


def test_a_new_store_on_a_full_disk(small: Path) -> None:
    fill(small)
    with closing(Store(small / "j")) as one:
        assert (one.found, one.sound, len(one.notes)) == (False, True, 1)
        assert "No space left" in one.notes[0]
        with pytest.raises(OSError, match="No space left"):
            one.write({"a": b"1"})
        assert one.items == {}
        (small / "filler").unlink()
        one.write({"a": b"1"})
    assert opened(small / "j").items == {"a": b"1"}


def test_a_damaged_store_on_a_full_disk(small: Path) -> None:
    path = small / "j"
    data = bytearray(written(path, BATCHES))
    data[-5] ^= 1
    path.write_bytes(data)
    fill(small)
    with closing(Store(path)) as one:
        assert (one.items, one.sound) == (STATES[-2], False)
        with pytest.raises(OSError, match="No space left"):
            one.write({"a": b"1"})
        assert path.read_bytes() == data
        (small / "filler").unlink()
        one.write({"a": b"1"})
        one.write({"b": b"2"})
    assert opened(path).items == STATES[-2] | {"a": b"1", "b": b"2"}
    assert [aside.read_bytes() for aside in small.glob("*.corrupt-*")] == [data]


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_an_error_changes_nothing(path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Store(path)) as one:
        one.write({"a": b"1"})
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", failing(code))
            for _ in range(3):
                with pytest.raises(OSError, match=r".") as raised:
                    one.write({"a": b"22222"})
                assert raised.value.errno == code
        assert one.items == {"a": b"1"}
        assert opened(path).items == {"a": b"1"}
        one.write({"b": b"2"})
    assert opened(path).items == {"a": b"1", "b": b"2"}


def test_an_interrupted_write_is_blanked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler raises after the frame was written, and the next frame is shorter."""

    def interrupted(descriptor: int, data: bytes, offset: int) -> int:
        real(descriptor, data, offset)
        raise KeyboardInterrupt

    real = os.pwrite
    with closing(Store(path)) as one:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", interrupted)
            with pytest.raises(KeyboardInterrupt):
                one.write({"a": b"1" * 100})
        assert one.items == {}
        one.write({"b": b"2"})
    assert opened(path).items == {"b": b"2"}


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_that_cannot_allocate(
    path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(code))
    written(path, BATCHES)
    assert path.stat().st_blocks * 512 >= journal.STEP
    assert opened(path).items == STATES[-1]


# ---- how long it takes


def test_two_thousand_runs_are_rewritten_in_a_moment(path: Path) -> None:
    value = os.urandom(2 * KIB)
    with closing(Store(path)) as one:
        for number in range(2000):
            one.write({f"run/{number}": value})
        began = time.perf_counter()
        one.rewrite()
        assert time.perf_counter() - began < 5  # 8 ms on a quiet machine
        assert path.stat().st_size < 2000 * 2100 + journal.STEP
        began = time.perf_counter()
        for number in range(1000):
            one.write({f"run/{number}": value[:400], f"use/{number}": value[:400]})
        assert time.perf_counter() - began < 5  # 7 µs each


def test_the_file_stays_within_its_bound(path: Path) -> None:
    with closing(Store(path)) as one:
        for number in range(12_000):
            one.write({f"run/{number % 100}": bytes(2000)})
            assert one.size < journal.COMPACT_ABOVE + 3000
    assert len(opened(path).items) == 100

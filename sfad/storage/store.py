"""What lets a daemon that was killed at any instruction find its runs again, without the ledger.

Nothing here waits for a disk: these files guard against the death of the daemon, not of the
machine. What the kernel has taken outlives the process that wrote it, and when the machine dies so
does every run.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from zlib import crc32

from ..core.state.run import number_or_zero, run_number
from ..host.files import (
    create,
    free_name,
    is_regular,
    keep_damaged,
    make_directory,
    read,
    regain,
    set_aside,
)
from ..protocol.types import RunId

# ---- One 0600 file for each run, `ID.spawn`: what it takes to start a run that is queued or may be
# retried, or to continue one
#
# A run's environment is part of it, and may have secrets. So it is in no ledger, log or event, and
# the file is removed as soon as nothing needs it.

_SUFFIX = ".spawn"
_UNFINISHED = ".spawn.new"


class RunFiles:
    """The files of all runs in one directory. Each method raises `ValueError` for text that is not
    an id."""

    def __init__(self, directory: Path) -> None:
        """Make the directory as `make_directory` does, and remove unfinished files of an earlier
        daemon. Raises `OSError`."""
        make_directory(directory)
        self._directory, self._prefix = directory, f"{directory}/"
        for name in os.listdir(directory):
            if name.endswith(_UNFINISHED):
                # not a daemon's: `save` sets it aside if it is in the way
                with suppress(IsADirectoryError, PermissionError):
                    os.unlink(directory / name)
        self.saved = set(self.runs())
        """Runs that may have a file. Most never have one, and need no unlink(2)."""

    def save(self, run: RunId, data: bytes) -> None:
        """Save `data` for the run in place of what was saved before. Raises `OSError`, and then
        changes nothing."""
        path, unfinished = self._path(run, _SUFFIX), self._path(run, _UNFINISHED)
        self.saved.add(run)
        make_directory(self._directory)  # an agent may have removed it
        with ExitStack() as undo:
            descriptor = create(Path(unfinished))
            undo.callback(_unlink, unfinished)
            try:
                _write(descriptor, data)
            finally:
                os.close(descriptor)
            try:
                os.rename(unfinished, path)
            except IsADirectoryError:
                set_aside(Path(path))
                os.rename(unfinished, path)
            undo.pop_all()

    def has(self, run: RunId) -> bool:
        return is_regular(Path(self._path(run, _SUFFIX)))

    def read(self, run: RunId) -> bytes | None:
        """Return what was saved for the run, or `None`. Raises `OSError`, also if the file is not a
        regular one."""
        try:
            return read(self._path(run, _SUFFIX))
        except FileNotFoundError:
            return None

    def keep_damaged(self, run: RunId) -> str:
        """Set aside what is saved for the run. Return where it is, as the end of a sentence."""
        return keep_damaged(Path(self._path(run, _SUFFIX)))

    def forget(self, run: RunId) -> None:
        if run in self.saved:
            _unlink(self._path(run, _SUFFIX))
            self.saved.discard(run)

    def runs(self) -> list[RunId]:
        """Return the runs for which something is saved, in order of their ids. Raises `OSError`."""
        stems = (
            name.removesuffix(_SUFFIX)
            for name in os.listdir(self._directory)
            if name.endswith(_SUFFIX)
        )
        return sorted(stem for stem in stems if number_or_zero(stem))

    def _path(self, run: RunId, suffix: str) -> str:
        run_number(run)  # raises for anything that is not an id, such as a path
        return f"{self._prefix}{run}{suffix}"


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


# ---- Small values by key in one file that a SIGKILL at any instruction cannot break
#
#     magic, version, CRC32 of both │ frame │ frame │ … │ zeros, up to what is allocated
#
#     frame = length, CRC32, ~length │ a batch of changes │ FF
#
# A batch is one frame, appended by one pwrite(2). When the process is killed, the kernel may stop
# the write between two pages. Then the last byte of the frame is missing. That tells an unfinished
# frame, whose write has not returned, from a damaged one. Beyond the last frame there are only
# zeros: an unfinished frame is overwritten with zeros, its head last, before the next one is
# written.

VERSION = 1

STEP = 1 << 20
SPARE = STEP // 2
"""Bytes that are allocated beyond the end while the disk has room, and can still be written when it
is full: 600 batches of two records of 400 bytes."""
ASK_AGAIN = 64 << 10
"""Bytes written on a full disk between two tries to allocate more."""
COMPACT_ABOVE = 4 << 20
"""Bytes below which the file is not rewritten, however few of its values are current."""
COMPACT_RATIO = 3
"""How many times larger than its current values the file may be. On average half a byte is
rewritten for each byte written."""
MAX_BATCH = 256 << 20
"""Bytes of one batch, which is in memory twice."""

_MAGIC = b"sfadjnl\n"
_FILE_HEAD = struct.Struct("<8sII")
_HEAD = struct.Struct("<III")
_RECORD = struct.Struct("<HI")
_DELETED = _ONES = 0xFFFFFFFF
_END = b"\xff"
_ROUND = _HEAD.size + len(_END)

_MAX_KEY = 0xFFFF
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)


class StoreError(Exception):
    """This build must not touch the file; the message names it and says what to do."""


class Store:
    """Values by key in one file of mode 0600, changed in atomic batches. The caller makes sure that
    there is one writer.

    A batch whose `write` has returned survives the death of the process at any instruction. It may
    not survive that of the machine: nothing is synced, because the values describe processes, which
    die with the machine."""

    def __init__(self, path: Path, lost: Callable[[], str | None] = lambda: None) -> None:
        """Read the file, or make it. Raises `StoreError` for a file of another version, and
        `OSError` if it cannot be read.

        `lost` returns why the directory of `path` is elsewhere now, or `None` while it is there. A
        damaged file is set aside as `NAME.corrupt-UNIXTIME`, and all values that can be read are
        used. If no new file can be made, as on a full disk, a note says so, and each `write` tries
        again."""
        self.items: dict[str, bytes] = {}
        """The current values. Only `write` may change them."""
        self.notes: list[str] = []
        """What had to be repaired, as lines for the log."""
        self.sound = True
        """Whether everything in the file could be used, except a batch in whose middle the writer
        was killed."""
        self.found = False
        self.path = path
        self._name = str(path)
        self._lost = lost
        self._new = path.with_name(f"{path.name}.new")
        self._descriptor = -1
        self._identity = (0, 0)
        """Device and inode number of the open file."""
        self._end = 0
        self._dirty = 0
        """Where the bytes end that are not zero. Beyond `_end` they are an unfinished frame."""
        self._room = 0
        self._ask_at = 0
        """A frame that ends beyond this offset makes us ask for more room."""
        self._compact_at = COMPACT_ABOVE
        self.current_size = 0
        """Bytes that the current values take in the file."""
        self._damaged = False
        with suppress(OSError):  # the next rewrite sets aside what cannot be unlinked
            os.unlink(self._new)
        self._open()

    def write(self, changes: Mapping[str, bytes | None], *, look: bool = True) -> None:
        """Set these values; `None` deletes one. If the process dies, either all of them are set or
        none. `look`: as `stay` does.

        Raises `OSError`, as on a full disk: then nothing was changed, and the caller may try again
        at any time. Raises `ValueError` for a key of more than 65 535 bytes, and for a batch of
        more than `MAX_BATCH`."""
        if not changes:
            return
        frame = _frame(changes)
        if len(frame) > MAX_BATCH:
            raise ValueError(f"a batch of {len(frame)} bytes; at most {MAX_BATCH} are allowed")
        if look or self._descriptor < 0:
            self.stay()
        if self._dirty > self._end:
            self._blank()
        end = self._end + len(frame)
        if end > self._ask_at:
            self._make_room(end)
        self._append(frame, end)
        self._apply(changes)
        if end > self._compact_at:
            self._compact()

    def stay(self) -> bool:
        """Write the file again if there is none yet, or if another process has removed or replaced
        it. Raises `OSError`.

        Without this, a daemon that is killed then would leave nothing behind. Return whether the
        file was in its place."""
        # a directory that is elsewhere took the open file along, and its path is not ours to write
        # to
        if self._descriptor >= 0 and (self._in_place() or self._lost() is not None):
            return True
        lost = self._descriptor >= 0
        self.rewrite()
        if lost:
            self.notes.append(
                f"{self.path} was removed or replaced by another process; it was written again"
            )
        return False

    @property
    def size(self) -> int:
        """Bytes of the file up to the end of the last batch. The allocated rest is zeros, or an
        unfinished frame."""
        return self._end

    def take_notes(self) -> list[str]:
        notes, self.notes = self.notes, []
        return notes

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, frame: bytes, end: int) -> None:
        # set before the write: if anything raises in between, as a signal handler may, the frame is
        # blanked before the next
        self._dirty = end
        try:
            # nearly always one call
            done = os.pwrite(self._descriptor, frame, self._end)
            if done < len(frame):
                _write_at(self._descriptor, frame[done:], self._end + done)
        except OSError:
            with suppress(OSError):
                self._blank()
            raise
        self._end = end

    def _blank(self) -> None:
        """Overwrite an unfinished frame with zeros, from its end.

        If the process is killed here, the rest is an unfinished frame as well, and nothing is
        behind a head of zeros."""
        body = min(self._end + _HEAD.size, self._dirty)
        for start, end in (self._dirty - 1, self._dirty), (body, self._dirty), (self._end, body):
            _write_zeros(self._descriptor, start, end)
        self._dirty = self._end

    def _apply(self, changes: Mapping[str, bytes | None]) -> None:
        items = self.items
        for key, value in changes.items():
            # near enough: keys are ASCII
            old, beside = items.pop(key, None), _RECORD.size + len(key)
            if old is not None:
                self.current_size -= beside + len(old)
            if value is not None:
                items[key] = value
                self.current_size += beside + len(value)

    def _make_room(self, end: int) -> None:
        """Allocate a step beyond `end`. Raises `OSError` only if the frame that ends there has no
        room."""
        try:
            _allocate(self._descriptor, self._room, end + STEP)
        except OSError:
            if end > self._room:
                raise
            self._ask_at = min(end + ASK_AGAIN, self._room)
        else:
            self._has_room(end + STEP)

    def _has_room(self, room: int) -> None:
        self._room, self._ask_at = room, room - SPARE

    def _compact(self) -> None:
        bound = max(COMPACT_ABOVE, COMPACT_RATIO * self.current_size)
        if self._end > bound:
            with suppress(OSError):
                self.rewrite()
                return
            bound = self._end + STEP
        self._compact_at = bound

    def rewrite(self) -> None:
        """Write the current values to a new file in place of the old one. Raises `OSError`; then
        the old file stays as it was."""
        data = _FILE_HEAD.pack(*_file_head()) + (_frame(self.items) if self.items else b"")
        room = len(data) + STEP
        make_directory(self.path.parent)
        with ExitStack() as undo:
            descriptor = create(self._new)
            undo.callback(os.close, descriptor)
            undo.callback(os.unlink, self._new)
            _allocate(descriptor, 0, room)
            _write_at(descriptor, data, 0)
            self._put_in_place()
            undo.pop_all()
        self.close()
        self._use(descriptor)
        self._end = self._dirty = len(data)
        self._has_room(room)
        self._compact_at = max(COMPACT_ABOVE, COMPACT_RATIO * self.current_size)

    def _put_in_place(self) -> None:
        if self._damaged:
            self.notes.append(f"{self.path} was damaged, and is kept as {_set_aside(self.path)}")
        elif os.path.lexists(self.path) and not (self._descriptor >= 0 and self._in_place()):
            self.notes.append(
                f"{self.path} was not the daemon's, and is kept as {set_aside(self.path)}"
            )
        os.rename(self._new, self.path)
        self._damaged = False

    def _use(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._descriptor, self._identity = descriptor, (status.st_dev, status.st_ino)

    def _in_place(self) -> bool:
        try:
            found = os.stat(self._name, follow_symlinks=False)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _open(self) -> None:
        with ExitStack() as undo:
            if not self._is_file():
                self._begin()
                return
            descriptor = os.open(self.path, _ALWAYS)
            undo.callback(os.close, descriptor)
            self.found = True
            fault = self._load(_contents(descriptor))
            if not fault:
                os.fchmod(descriptor, 0o600)
                self._use(descriptor)
                self._has_room(os.fstat(descriptor).st_size)
                undo.pop_all()
                return
        self.sound, self._damaged = False, True
        self.notes.append(f"{self.path}: {fault}; {len(self.items)} other entries are used")
        self._begin()

    def _is_file(self) -> bool:
        """Return whether there is a regular file. Anything else counts as damage, and is set aside
        when a new file is made."""
        if is_regular(self.path):
            if not os.access(self.path, os.R_OK | os.W_OK):
                regain(self.path)
            return True
        self.sound = not os.path.lexists(self.path)
        return False

    def _begin(self) -> None:
        try:
            self.rewrite()
        except OSError as error:
            self.notes.append(f"{self.path} cannot be made: {error}; the next write tries again")

    def _load(self, data: memoryview) -> str | None:
        """Take the values from the file, as far as possible. Return what is wrong with the rest,
        unless that is unfinished.

        A damaged frame is left out: each value is whole, and so are those of the frames behind it.
        Behind a damaged head of a frame nothing is looked for, because a value may look like a
        frame."""
        fault = _check_head(self.path, data)
        if fault:
            return fault
        damaged: list[int] = []
        self._dirty = _filled(data)
        self._end = _FILE_HEAD.size
        while _HEAD.size < self._dirty - self._end:
            length, check, inverse = _HEAD.unpack_from(data, self._end)
            if length ^ inverse != _ONES:
                return (
                    f"no frame where one should be, at byte {self._end}, "
                    "and nothing behind it is used"
                )
            end = self._end + length + _ROUND
            if end > self._dirty:
                break
            batch = data[self._end + _HEAD.size : end - 1]
            changes = (
                _unpacked(batch) if crc32(batch) == check and data[end - 1] == _END[0] else None
            )
            if changes is None:
                damaged.append(self._end)
            else:
                self._apply(changes)
            self._end = end
        if self._dirty > self._end:
            self.notes.append(
                f"{self.path}: the writer was killed within a batch, which is not used"
            )
        self._dirty = max(self._dirty, self._end)
        return f"a damaged frame at byte {', '.join(map(str, damaged))}" if damaged else None


def check_version(path: Path) -> None:
    """Raise `StoreError` for a file that this build cannot continue. Changes nothing."""
    if is_regular(path):
        with open(path, "rb") as file:
            _check_head(path, memoryview(file.read(_FILE_HEAD.size)))


def _check_head(path: Path, data: memoryview) -> str | None:
    """Return what is wrong with the head of a file. Raises `StoreError` for another version."""
    if len(data) < _FILE_HEAD.size:
        return f"it ends after {len(data)} bytes, within its head"
    magic, version, check = _FILE_HEAD.unpack_from(data)
    if magic != _MAGIC or check != _file_head(version)[2]:
        return "it does not begin like a journal"
    if version != VERSION:
        raise StoreError(
            f"{path} is a journal of version {version}, "
            f"and this sfad knows only version {VERSION}; "
            "start the sfad that wrote it, or move the file away, which ends the live runs"
        )
    return None


def _file_head(version: int = VERSION) -> tuple[bytes, int, int]:
    return _MAGIC, version, crc32(_MAGIC + version.to_bytes(4, "little"))


def _frame(changes: Mapping[str, bytes | None]) -> bytes:
    parts: list[bytes] = []
    for key, value in changes.items():
        name = key.encode()
        if len(name) > _MAX_KEY:
            raise ValueError(f"a key of {len(name)} bytes; at most {_MAX_KEY} are allowed")
        if value is None:
            parts += _RECORD.pack(len(name), _DELETED), name
        else:
            parts += _RECORD.pack(len(name), len(value)), name, value
    batch = b"".join(parts)
    length = len(batch)
    return b"".join((_HEAD.pack(length, crc32(batch), length ^ _ONES), batch, _END))


def _unpacked(batch: memoryview) -> dict[str, bytes | None] | None:
    changes: dict[str, bytes | None] = {}
    at = 0
    try:
        while at < len(batch):
            named, valued = _RECORD.unpack_from(batch, at)
            start = at + _RECORD.size + named
            at = start if valued == _DELETED else start + valued
            changes[str(batch[start - named : start], "utf-8")] = (
                None if valued == _DELETED else bytes(batch[start:at])
            )
    except (struct.error, UnicodeDecodeError):
        return None
    return changes if at == len(batch) else None


def _filled(data: memoryview) -> int:
    """Return where the zeros at the end begin. Works by slices, because `rstrip` of the whole would
    copy it."""
    end = len(data)
    while end and not (part := bytes(data[max(0, end - STEP) : end]).rstrip(b"\0")):
        end = max(0, end - STEP)
    return max(0, end - STEP) + len(part) if end else 0


# a symlink, or a FIFO on which open(2) would wait, may have taken the file's place a moment ago
_ALWAYS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def _contents(descriptor: int) -> memoryview:
    data, size = bytearray(), os.fstat(descriptor).st_size
    while len(data) < size and (part := os.pread(descriptor, size - len(data), len(data))):
        data += part
    return memoryview(data)


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    # on a full disk pwrite(2) may write only a part; the next call then raises
    done = os.pwrite(descriptor, data, offset)
    while done < len(data):
        done += os.pwrite(descriptor, memoryview(data)[done:], offset + done)


def _write_zeros(descriptor: int, start: int, end: int) -> None:
    for offset in range(start, end, STEP):
        _write_at(descriptor, bytes(min(STEP, end - offset)), offset)


def _allocate(descriptor: int, start: int, end: int) -> None:
    """Allocate room beyond the end of the file, which reads as zeros. Raises `OSError`."""
    try:
        os.posix_fallocate(descriptor, start, end - start)
    except OSError as error:
        # glibc writes zeros itself then; other C libraries do not
        if error.errno not in _UNSUPPORTED:
            raise
        _write_zeros(descriptor, start, end)


def _set_aside(path: Path) -> Path:
    """Give a damaged file a second name. It keeps its own until the new file takes its place, so
    that there is always a file.

    Raises `OSError`."""
    aside = free_name(path, "corrupt")
    try:
        os.link(path, aside, follow_symlinks=False)
    except OSError:  # a file system without hard links
        os.rename(path, aside)
    return aside

"""Small values by key in one file that a SIGKILL at any instruction cannot break.

    magic, version, CRC32 of both │ frame │ frame │ … │ zeros, up to what is allocated

    frame = length, CRC32, ~length │ a batch of changes │ FF

A batch is one frame, appended by one pwrite(2). The kernel may stop that between two pages when the process is killed: then the
last byte of the frame is missing, which is what tells an unfinished frame, one that nobody was promised, from a damaged one.
Beyond the last frame there are only zeros, and what was begun there is blanked before the next one, its head last.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from zlib import crc32

from ..host.private_files import create, is_regular, make_directory, regain, set_aside

VERSION = 1

STEP = 1 << 20
"""Bytes allocated at once."""
SPARE = STEP // 2
"""Bytes that are allocated beyond the end whenever the disk has room: how much can be written while it is full. 600 batches of
two records of 400 bytes."""
ASK_AGAIN = 64 << 10
"""Bytes written between two tries to allocate more on a full disk."""
COMPACT_ABOVE = 4 << 20
"""Bytes of a log below which it is not rewritten, however little of it stands."""
COMPACT_RATIO = 3
"""How many times what stands a log may be: on average half a byte is rewritten for each byte that is written."""
MAX_BATCH = 256 << 20
"""Bytes of one batch, which is held in memory twice."""

_MAGIC = b"sfadjnl\n"
_FILE_HEAD = struct.Struct("<8sII")
_HEAD = struct.Struct("<III")
_RECORD = struct.Struct("<HI")
_DELETED = _ONES = 0xFFFFFFFF
_END = b"\xff"
_ROUND = _HEAD.size + len(_END)
"""Bytes of a frame that are not its batch."""

_MAX_KEY = 0xFFFF
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)


class StoreError(Exception):
    """A journal must not be touched by this build; the message names it and what to do."""


class Store:
    """Values by key, in one file of mode 0600, changed in atomic batches. One writer; who that is, is decided elsewhere.

    What `write` has returned from survives the death of the process, at any instruction; not that of the machine: nothing is
    synced, because what is told here is which processes there are, and they die with the machine.
    """

    def __init__(self, path: Path, lost: Callable[[], str | None] = lambda: None) -> None:
        """Reads the journal, or begins one. `lost` says why the directory that `path` was in is elsewhere now; `None` while it is
        there. A damaged one is set aside as `NAME.corrupt-UNIXTIME`, and what came before the damage
        is kept. Raises `StoreError` for a file of another version, and `OSError` where the file cannot be read.

        Where no new file can be made, as on a full disk, that is noted, and each `write` tries again."""
        self.items: dict[str, bytes] = {}
        """What stands. Not to be changed but by `write`."""
        self.notes: list[str] = []
        """What had to be mended, as lines for the log."""
        self.sound = True
        """Whether all that was in the file could be used, but for a batch whose writer was killed within it."""
        self.found = False
        """Whether there was a file."""
        self._path = path
        self._lost = lost
        self._new = path.with_name(f"{path.name}.new")
        self._descriptor = -1
        self._end = 0
        self._dirty = 0
        """Where the bytes end that are not zero: a frame that was begun and not finished, if it is beyond `_end`."""
        self._room = 0
        self._ask_at = 0
        """Where the end of a frame makes us ask for more room."""
        self._compact_at = COMPACT_ABOVE
        self._standing = 0
        """Bytes of a batch of all items."""
        self._damaged = False
        """The file that bears the name is to be set aside."""
        with suppress(OSError):  # what cannot be unlinked is set aside by the next rewrite
            os.unlink(self._new)
        self._open()

    def write(self, changes: Mapping[str, bytes | None]) -> None:
        """Sets these values; `None` deletes. After the death of the process, whenever that is, all of them are there or none.

        Raises `OSError`, as on a full disk; then nothing was changed, in the file or in `items`, and it can be tried again at any
        time. `ValueError` for a key of more than 65 535 bytes, and for more than `MAX_BATCH` in all."""
        if not changes:
            return
        frame = _frame(_packed(changes))
        if len(frame) > MAX_BATCH:
            raise ValueError(f"a batch of {len(frame)} bytes; there may be {MAX_BATCH}")
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
        """Writes the file again if there is none yet, or if another process has removed or replaced it: who is killed then leaves
        nothing behind. Returns whether it was there. Raises `OSError`."""
        # a directory that is elsewhere took the open file along: at its path there is nothing of ours to write to
        if self._descriptor >= 0 and (self._in_place() or self._lost() is not None):
            return True
        lost = self._descriptor >= 0
        self._rewrite()
        if lost:
            self.notes.append(f"{self._path} was removed or replaced by another process; it was written again")
        return False

    def take_notes(self) -> list[str]:
        """Returns the notes since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def close(self) -> None:
        """Gives the descriptor back. Nothing is to be written after that."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # ---- writing

    def _append(self, frame: bytes, end: int) -> None:
        # told before it is written: whatever raises in between, as a signal handler may, the frame is blanked before the next
        self._dirty = end
        try:
            _write_at(self._descriptor, frame, self._end)
        except OSError:
            with suppress(OSError):
                self._blank()
            raise
        self._end = end

    def _blank(self) -> None:
        """From behind: what it leaves if we are killed here is an unfinished frame, too, and nothing is behind a head of zeros."""
        body = min(self._end + _HEAD.size, self._dirty)
        for start, end in (self._dirty - 1, self._dirty), (body, self._dirty), (self._end, body):
            _write_zeros(self._descriptor, start, end)
        self._dirty = self._end

    def _apply(self, changes: Mapping[str, bytes | None]) -> None:
        items = self.items
        for key, value in changes.items():
            old = items.pop(key, None)
            if old is not None:
                self._standing -= _record_size(key, old)
            if value is not None:
                items[key] = value
                self._standing += _record_size(key, value)

    def _make_room(self, end: int) -> None:
        """Allocates a step beyond `end`. Raises `OSError` only if there is no room for what ends there."""
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

    # ---- rewriting

    def _compact(self) -> None:
        bound = max(COMPACT_ABOVE, COMPACT_RATIO * self._standing)
        if self._end > bound:
            with suppress(OSError):
                self._rewrite()
                return
            bound = self._end + STEP
        self._compact_at = bound

    def _rewrite(self) -> None:
        """What stands, in a new file in the place of the old one. Raises `OSError`; then the old one is as it was."""
        data = _FILE_HEAD.pack(*_file_head()) + (_frame(_packed(self.items)) if self.items else b"")
        room = len(data) + STEP
        make_directory(self._path.parent)
        with ExitStack() as undo:
            descriptor = create(self._new)
            undo.callback(os.close, descriptor)
            undo.callback(os.unlink, self._new)
            _allocate(descriptor, 0, room)
            _write_at(descriptor, data, 0)
            self._put_in_place()
            undo.pop_all()
        self.close()
        self._descriptor = descriptor
        self._end = self._dirty = len(data)
        self._has_room(room)
        self._compact_at = max(COMPACT_ABOVE, COMPACT_RATIO * self._standing)

    def _put_in_place(self) -> None:
        if self._damaged:
            self.notes.append(f"{self._path} was damaged, and is kept as {_set_aside(self._path)}")
        elif os.path.lexists(self._path) and not (self._descriptor >= 0 and self._in_place()):
            self.notes.append(f"{self._path} was not the daemon's, and is kept as {set_aside(self._path)}")
        os.rename(self._new, self._path)
        self._damaged = False

    def _in_place(self) -> bool:
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(found, os.fstat(self._descriptor))

    # ---- opening

    def _open(self) -> None:
        with ExitStack() as undo:
            if not self._is_file():
                self._begin()
                return
            descriptor = os.open(self._path, _ALWAYS)
            undo.callback(os.close, descriptor)
            self.found = True
            fault = self._load(_contents(descriptor))
            if not fault:
                os.fchmod(descriptor, 0o600)
                self._descriptor = descriptor
                self._has_room(os.fstat(descriptor).st_size)
                undo.pop_all()
                return
        self.sound, self._damaged = False, True
        self.notes.append(f"{self._path}: {fault}; {len(self.items)} entries from before that are used")
        self._begin()

    def _is_file(self) -> bool:
        """Whether there is a file that may be the journal. Anything else is set aside when it is begun, and counts as damage."""
        if is_regular(self._path):
            if not os.access(self._path, os.R_OK | os.W_OK):
                regain(self._path)
            return True
        self.sound = not os.path.lexists(self._path)
        return False

    def _begin(self) -> None:
        try:
            self._rewrite()
        except OSError as error:
            self.notes.append(f"{self._path} cannot be begun: {error}; this is tried again when something is to be written")

    def _load(self, data: memoryview) -> str | None:
        """Takes what the file says, as far as it can be used. What is wrong with the rest; an unfinished frame is not wrong."""
        fault = _check_head(self._path, data)
        if fault:
            return fault
        self._dirty = _filled(data)
        self._end = _FILE_HEAD.size
        while _HEAD.size < self._dirty - self._end:
            length, check, inverse = _HEAD.unpack_from(data, self._end)
            if length ^ inverse != _ONES:
                return f"no frame where one should be, at byte {self._end}"
            end = self._end + length + _ROUND
            if end > self._dirty:
                break
            batch = data[self._end + _HEAD.size : end - 1]
            changes = _unpacked(batch) if crc32(batch) == check and data[end - 1] == _END[0] else None
            if changes is None:
                return f"a damaged frame at byte {self._end}"
            self._apply(changes)
            self._end = end
        if self._dirty > self._end:
            self.notes.append(f"{self._path}: its writer ended within a batch, of which nothing is used")
        self._dirty = max(self._dirty, self._end)
        return None


def check_version(path: Path) -> None:
    """Raises `StoreError` for a journal that this build cannot go on with; nothing is changed in it."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        _check_head(path, memoryview(file.read(_FILE_HEAD.size)))


def _check_head(path: Path, data: memoryview) -> str | None:
    """What is wrong with it. Raises `StoreError`."""
    if len(data) < _FILE_HEAD.size:
        return f"it ends after {len(data)} bytes, within its head"
    magic, version, check = _FILE_HEAD.unpack_from(data)
    if magic != _MAGIC or check != _file_head(version)[2]:
        return "it does not begin as a journal"
    if version != VERSION:
        raise StoreError(
            f"{path} is a journal of version {version}, and this sfad knows version {VERSION} only; "
            "start the sfad that wrote it; or move the file away, which ends the runs that are alive"
        )
    return None


# ---- the format


def _file_head(version: int = VERSION) -> tuple[bytes, int, int]:
    return _MAGIC, version, crc32(_MAGIC + version.to_bytes(4, "little"))


def _frame(batch: bytes) -> bytes:
    length = len(batch)
    return b"".join((_HEAD.pack(length, crc32(batch), length ^ _ONES), batch, _END))


def _packed(changes: Mapping[str, bytes | None]) -> bytes:
    parts: list[bytes] = []
    for key, value in changes.items():
        name = key.encode()
        if len(name) > _MAX_KEY:
            raise ValueError(f"a key of {len(name)} bytes; there may be {_MAX_KEY}")
        if value is None:
            parts += _RECORD.pack(len(name), _DELETED), name
        else:
            parts += _RECORD.pack(len(name), len(value)), name, value
    return b"".join(parts)


def _unpacked(batch: memoryview) -> dict[str, bytes | None] | None:
    """`None` where it is no batch, which its checksum ought to have told."""
    changes: dict[str, bytes | None] = {}
    at = 0
    try:
        while at < len(batch):
            named, valued = _RECORD.unpack_from(batch, at)
            start = at + _RECORD.size + named
            at = start if valued == _DELETED else start + valued
            changes[str(batch[start - named : start], "utf-8")] = None if valued == _DELETED else bytes(batch[start:at])
    except (struct.error, UnicodeDecodeError):
        return None
    return changes if at == len(batch) else None


def _record_size(key: str, value: bytes) -> int:
    """Near enough: keys are ASCII."""
    return _RECORD.size + len(key) + len(value)


def _filled(data: memoryview) -> int:
    """Where the zeros at the end begin. A slice at a time, as `rstrip` of the whole would copy it."""
    end = len(data)
    while end and not (part := bytes(data[max(0, end - STEP) : end]).rstrip(b"\0")):
        end = max(0, end - STEP)
    return max(0, end - STEP) + len(part) if end else 0


# ---- the file


# a symlink, or a FIFO, on which open(2) would wait for somebody, may have taken the file's place a moment ago
_ALWAYS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def _contents(descriptor: int) -> memoryview:
    data, size = bytearray(), os.fstat(descriptor).st_size
    while len(data) < size and (part := os.pread(descriptor, size - len(data), len(data))):
        data += part
    return memoryview(data)


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    """pwrite(2) writes less than it was given where the disk is full; the next call says why."""
    done = os.pwrite(descriptor, data, offset)
    while done < len(data):
        done += os.pwrite(descriptor, memoryview(data)[done:], offset + done)


def _write_zeros(descriptor: int, start: int, end: int) -> None:
    for offset in range(start, end, STEP):
        _write_at(descriptor, bytes(min(STEP, end - offset)), offset)


def _allocate(descriptor: int, start: int, end: int) -> None:
    """Room on the disk for zeros, beyond the end of the file. Raises `OSError`."""
    try:
        os.posix_fallocate(descriptor, start, end - start)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:  # glibc writes zeros itself then; other libraries leave that to us
            raise
        _write_zeros(descriptor, start, end)


def _set_aside(path: Path) -> Path:
    """Gives a damaged file another name, and leaves it where it is until the new one takes its place: at no instruction is there
    none. Raises `OSError`."""
    aside = path.with_name(f"{path.name}.corrupt-{int(time.time())}")
    number = 0
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{int(time.time())}-{number}")
    try:
        os.link(path, aside, follow_symlinks=False)
    except OSError:  # a file system without hard links
        os.rename(path, aside)
    return aside

"""Frees the oldest bytes of a file while a run writes it: a hole grows from the beginning, and no
offset changes.

Freed as well is what a run has allocated with fallocate(2) and never written, also behind the end
of its file. Such blocks are not in the file's size, and SEEK_DATA takes them for a hole. Only the
count of blocks tells of them.

This relies on two facts about ext4, xfs, btrfs and tmpfs. Punching a hole and answering SEEK_DATA
take the same lock of the inode, so SEEK_DATA sees all of a punch or nothing. And a file that is
only appended to gets no data where a hole was. So bytes that are data *after* they were read were
data when they were read. See fallocate(2) and lseek(2).
"""

import ctypes
import errno
import os
from collections.abc import Callable

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h

SPARE = 64 << 10
"""Bytes that a file may take beyond what it holds: ext4 counts the blocks of its tree of extents,
too, one for up to 340."""
_MAX = (1 << 63) - 1

PUNCH = 4 << 20
"""Bytes freed by one system call: 0.8 ms on tmpfs, 0.3 ms on ext4. The run's own writes wait for
the lock that long."""

# CDLL and not PyDLL: other threads run meanwhile. Before Linux 6.14, ext4 writes dirty pages to the
# disk before it frees them.
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
"""The C library. A test puts one in its place whose calls fail."""


def free(
    descriptor: int, keep: int, until: int, between: Callable[[], object] = lambda: None
) -> int:
    """Free the whole blocks before offset `until` and before the newest `keep` bytes; return how
    many bytes.

    `between` is called between system calls, and may raise to give up. Raises `OSError`;
    `EOPNOTSUPP` if the file system cannot free bytes."""
    # the file may have been truncated, and written again, since `until` was chosen
    status = os.fstat(descriptor)
    end = whole_blocks(min(until, status.st_size - keep), status)
    freed = 0
    offset = data_from(descriptor, 0)
    while offset is not None and offset < end:
        length = min(PUNCH, end - offset)
        punch(descriptor, offset, length)
        between()
        freed += length
        # past holes: a run may extend its file to 8 EiB
        offset = data_from(descriptor, offset + length)
    return freed + _free_unwritten(descriptor, max(0, end), keep)


def unwritten(status: os.stat_result, kept: int) -> bool:
    """Whether a file of which the newest `kept` bytes are kept takes more of the disk than these
    can."""
    return status.st_blocks * 512 > kept + (kept >> 7) + SPARE


def _free_unwritten(descriptor: int, end: int, keep: int) -> int:
    """If the file takes more than `keep` bytes, and than all from offset `end` on, free blocks that
    were allocated and not written before `end`, and behind the end of the file. Return how many
    bytes."""

    def too_large(status: os.stat_result) -> bool:
        return unwritten(status, max(keep, status.st_size - end))

    before = os.fstat(descriptor)
    if end and too_large(before):
        punch(descriptor, 0, end)
    # What the run writes between the look and what follows is lost, a few microseconds' worth of a
    # run that has allocated room behind its end. xfs allocates there by itself, but is done by now
    if too_large(status := os.fstat(descriptor)) and _at_rest(descriptor, status):
        _free_behind(descriptor, status)
        # on ext4 a hole is not punched behind the end
        if too_large(status := os.fstat(descriptor)) and _at_rest(descriptor, status):
            os.ftruncate(descriptor, status.st_size)
    return max(0, before.st_blocks - os.fstat(descriptor).st_blocks) * 512


def _at_rest(descriptor: int, status: os.stat_result) -> bool:
    """Whether no write was under way when the status was read: the size is the same after a call
    that waits for the inode's lock, which a write holds. A write has its blocks before they count
    in the size (ext4: up to 2 MiB of them), and looks like room that is allocated behind the end.
    The call allocates a byte that is there."""
    try:
        _fallocate(descriptor, _KEEP_SIZE, max(0, status.st_size - 1), 1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return os.fstat(descriptor).st_size == status.st_size


def _free_behind(descriptor: int, status: os.stat_result) -> None:
    start = -(-status.st_size // status.st_blksize) * status.st_blksize
    if start < _MAX:
        try:
            punch(descriptor, start, _MAX - start)
        except OSError as error:
            if error.errno not in (errno.EFBIG, errno.EINVAL):  # the file system has shorter files
                raise


def excess(status: os.stat_result, keep: int) -> int:
    """Return the offset before which whole blocks are older than the newest `keep` bytes; 0 if no
    block is to be freed."""
    if status.st_size <= keep or status.st_blocks * 512 <= keep + status.st_blksize:
        return 0
    return max(0, whole_blocks(status.st_size - keep, status))


def whole_blocks(offset: int, status: os.stat_result) -> int:
    """Round `offset` down to the beginning of its block: freeing a part of a block loses its bytes
    and frees no room."""
    return offset // status.st_blksize * status.st_blksize


def data_from(descriptor: int, offset: int) -> int | None:
    """Return the first offset at or after `offset` with data; `None` if there is none."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        if error.errno == errno.EINVAL:  # a file system without holes
            return offset
        raise


def read_into(descriptor: int, buffer: memoryview, offset: int) -> tuple[int, memoryview]:
    """Read from the first data at or after `offset`. Return the offset of what was read, and the
    bytes, in `buffer`.

    They contain nothing of a hole, even one that is punched meanwhile. Without bytes there is no
    data after that offset yet."""
    while count := os.preadv(descriptor, [buffer], offset):
        start = data_from(descriptor, offset)
        if start is None:
            break
        if start < offset + count:
            return start, buffer[start - offset : count]
        offset = start
    return offset, buffer[:0]


def punch(descriptor: int, offset: int, length: int) -> None:
    """Free so many bytes from an offset on; the size of the file stays. Raises `OSError`."""
    _fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length)


def _fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    while libc.fallocate(descriptor, mode, offset, length) != 0:
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def read(descriptor: int, offset: int, length: int) -> tuple[int, bytes]:
    """Return the offset of what was read, and at most `length` bytes: `read_into` a buffer of its
    own."""
    start, data = read_into(descriptor, memoryview(bytearray(length)), offset)
    return start, bytes(data)

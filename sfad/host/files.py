"""The daemon's own files in directories that its agents can write to: private names, and what is
damaged."""

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# ---- The daemon's own names in the state directory, where its agents can put anything, because
# they have its uid
#
# Anything else that has such a name is renamed, never deleted and never followed.


def is_regular(path: Path) -> bool:
    """Return whether a regular file has this name: not a symlink to one, and nothing that open(2)
    could wait for."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def read(path: Path | str) -> bytes:
    """Return what one of our files contains. Raises `OSError`, also if it is no regular file: a
    symlink is not followed, and the other end of a FIFO is not waited for."""
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    )
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    with open(descriptor, "rb") as file:
        return file.read()


def identity(path: Path | str) -> tuple[int, int] | None:
    """Return device and inode number of what has this name, of a symlink itself; `None` if nothing
    can be found."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def free_name(path: Path, why: str) -> Path:
    """Return NAME.WHY-UNIXTIME, with the next second whose name is free."""
    stamp = int(time.time())
    while os.path.lexists(target := path.with_name(f"{path.name}.{why}-{stamp}")):
        stamp += 1
    return target


def set_aside(path: Path) -> Path | None:
    """Rename what has this name to NAME.foreign-UNIXTIME, and return that; `None` if nothing has
    it. Raises `OSError`.

    Of a symlink, the link itself is renamed."""
    target = free_name(path, "foreign")
    try:
        path.rename(target)
    except FileNotFoundError:
        return None
    return target


def make_directory(path: Path) -> Path | None:
    """Make a directory of mode 0700, or give that mode to the present one. Raises `OSError`.

    Set aside anything else of this name, a symlink to a directory included, and return where it is
    now."""
    aside = None
    if os.path.lexists(path) and not stat.S_ISDIR(path.lstat().st_mode):
        aside = set_aside(path)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if stat.S_IMODE(path.lstat().st_mode) != 0o700:
        path.chmod(0o700)
    return aside


def create(path: Path) -> int:
    """Return a descriptor for writing a new file of mode 0600. Raises `OSError`.

    A file of this name is unlinked, because it may be a hard link to a file that must not be
    written. A directory is set aside."""
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):  # the errno for a directory, of Linux and of POSIX
        set_aside(path)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def regain(path: Path) -> None:
    """Make one of our files readable and writable again after it has lost its mode bits. Raises
    `OSError`."""
    # chmod(2) would follow a symlink that has taken the file's place since; O_PATH needs no
    # permission to read
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.chmod(f"/proc/self/fd/{descriptor}", 0o600)
    finally:
        os.close(descriptor)


# ---- What is damaged in the state directory: how that shows when it is decoded, where it is kept,
# and what is told of it


UNDECODABLE = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    MemoryError,
    NotImplementedError,
)
"""What decoding raises for damaged data. msgspec raises `ValidationError` for a wrong type,
`DecodeError` for a truncation, `UnicodeDecodeError` for bad UTF-8 (all are `ValueError`), and
`RecursionError` for deep nesting. What is made of the data, such as a time, raises the others."""


class Damages:
    """Tells of damage: the log at once, and an event from `tell_events` on."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self._log = log
        self._event: Callable[[str], object] | None = None
        self._waiting: list[str] = []

    def __call__(self, message: str) -> None:
        self._log(message)
        if self._event is not None:
            self._event(message)
        else:
            self._waiting.append(message)

    def tell_events(self, event: Callable[[str], object]) -> None:
        self._event = event
        for message in self._waiting:
            event(message)
        self._waiting.clear()


def keep_damaged(path: Path, data: bytes | None = None) -> str:
    """Rename a damaged file, or write a damaged record, to NAME.corrupt-UNIXTIME. Return where it
    is, as the end of a sentence."""
    try:
        aside = free_name(path, "corrupt")
        if data is None:
            path.rename(aside)
        else:
            with open(create(aside), "wb") as file:
                file.write(data)
    except OSError as error:
        if data is not None:
            with suppress(OSError, UnboundLocalError):
                os.unlink(aside)
        return f"it cannot be set aside: {error}"
    return f"it is kept as {aside}"

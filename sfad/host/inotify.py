"""inotify(7), which Python does not have."""

import ctypes
import os
from pathlib import Path

ATTRIB, MODIFY, MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF = 0x4, 0x2, 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
DONT_FOLLOW, MASK_ADD = 0x02000000, 0x20000000

_libc = ctypes.CDLL(None, use_errno=True)


def new_instance() -> int:
    """Return the descriptor of an instance without watches. Raises `OSError`: `EMFILE` if the user has none left
    (fs.inotify.max_user_instances, 128)."""
    descriptor: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    return _checked(descriptor)


def add_watch(instance: int, path: Path, mask: int) -> None:
    """Raises `OSError`."""
    _checked(_libc.inotify_add_watch(instance, os.fsencode(path), mask), path)


def _checked(result: int, path: Path | None = None) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path and str(path))
    return result

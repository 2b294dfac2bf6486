"""Files whose file system is a program of another user, which may never answer.

dup2(2) and execve(2) close descriptors, and close(2) asks a FUSE server (FUSE_FLUSH). A child that waits there before it executes
its command has the daemon wait, too: posix_spawn(3) is a vfork(2).
"""

import ctypes
import os
from pathlib import Path

_SUPER_MAGIC = 0x65735546
"""FUSE_SUPER_MAGIC of linux/magic.h."""
_libc = ctypes.CDLL(None, use_errno=True)


def of_another_user(descriptor: int) -> bool:
    """Return whether a file is on a FUSE mount that root has not made, as far as can be told without asking its server.

    /proc tells about mounts that this process sees. For others there is only fstatfs(2): it does not ask the server of a mount
    in another user namespace, because the kernel lets no process outside use that."""
    try:
        info = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        mount = next(line.split()[1] for line in info.splitlines() if line.startswith("mnt_id:"))
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            where, _, what = line.partition(" - ")
            if where.split(" ", 1)[0] == mount:
                kind, _source, options = what.split(" ")
                return kind.startswith("fuse") and "user_id=0" not in options.split(",")
        return _is_fuse(descriptor)
    except OSError:
        return True


def _is_fuse(descriptor: int) -> bool:
    found = (ctypes.c_long * 32)()
    if _libc.fstatfs(descriptor, found):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return bool(found[0] == _SUPER_MAGIC)

"""System calls that Python 3.11 does not have, or that need a larger import. Each raises `OSError`."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from contextlib import suppress

TYPE_CHECKING = False  # as in `typing`, whose import takes as long as all others
if TYPE_CHECKING:
    from collections.abc import Iterable

SIGINT, SIGQUIT, SIGPIPE, SIGXFSZ = 2, 3, 13, 25
_SIG_DFL, _SIG_IGN = 0, 1
_PR_SET_NO_NEW_PRIVS = 38
_KEYCTL = {"x86_64": 250}
_KEYCTL_GENERIC = 219
_JOIN_SESSION_KEYRING = 1
_CAPABILITY_VERSION = 0x20080522
"""linux/capability.h, version 3"""
_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_SLAVE = 1 << 12, 1 << 14, 1 << 18, 1 << 19
"""linux/mount.h"""
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_SCOPE_ABSTRACT_UNIX_SOCKET = 1
"""linux/landlock.h, ABI 6 (Linux 6.12)"""
_libc = ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments: object) -> int:
    result: int = getattr(_libc, function)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def join_namespace(descriptor: int) -> None:
    _call("setns", descriptor, 0)


def join_new_keyring() -> None:
    """Leave the session keyring, which may hold keys of the user's login. Where a container or the kernel forbids that, the command
    has no keyring either."""
    number = _KEYCTL.get(os.uname().machine, _KEYCTL_GENERIC)
    try:
        _call("syscall", ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), ctypes.c_void_p())
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS):
            raise


def give_up_capabilities() -> None:
    """Look at files with the rights that the command will have: root's too has no capability in its sandbox, so it cannot enter the
    directories of others, and nothing can be mounted there. bubblewrap, as another program of root's, has them again."""
    _use_capabilities(used=False)


def _use_capabilities(*, used: bool) -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    _call("capget", header, data)
    words = struct.unpack("=6I", data.raw)
    low, high = (words[1], words[4]) if used else (0, 0)
    _call("capset", header, struct.pack("=6I", low, *words[1:3], high, *words[4:6]))


def keep_later_mounts_away(directories: Iterable[str]) -> None:
    """Have what is mounted on the machine from now on not appear in these directories, where it could be written: systemd mounts
    /sys/kernel/config and /proc/sys/fs/binfmt_misc when a process first looks there. What is unmounted elsewhere is unmounted for
    this process, too. Only root may do so; users cannot write to those two."""
    _use_capabilities(used=True)
    with suppress(PermissionError):  # of root in a container
        _call("unshare", _CLONE_NEWNS)
        _mount(None, "/", _MS_REC | _MS_SLAVE)
        _mount(None, "/proc", _MS_PRIVATE)  # another mount in it would forbid the sandbox a /proc of its own
        for directory in directories:
            _mount(directory, directory, _MS_REC | _MS_BIND)
            _mount(None, directory, _MS_REC | _MS_PRIVATE)
    _use_capabilities(used=False)


def _mount(source: str | None, target: str, flags: int) -> None:
    _call("mount", None if source is None else os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None)


def default(*numbers: int) -> None:
    _handle(_SIG_DFL, numbers)


def ignore(*numbers: int) -> None:
    _handle(_SIG_IGN, numbers)


def _handle(how: int, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        _libc.signal(number, ctypes.c_void_p(how))


def leave_abstract_sockets() -> bool:
    """Close off the abstract Unix sockets of processes outside, which no mount namespace hides. Return whether the kernel can:
    it takes Linux 6.12, with Landlock."""
    try:
        _scope(_SCOPE_ABSTRACT_UNIX_SOCKET)
    except OSError as error:
        if error.errno in {errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.E2BIG}:
            return False
        raise OSError(error.errno, f"Landlock: {error.strerror}; a container may forbid it") from None
    return True


def _scope(scopes: int) -> None:
    rules = struct.pack("=QQQ", 0, 0, scopes)
    made = _call("syscall", ctypes.c_long(_LANDLOCK_CREATE_RULESET), rules, ctypes.c_size_t(len(rules)), ctypes.c_uint(0))
    try:
        _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _call("syscall", ctypes.c_long(_LANDLOCK_RESTRICT_SELF), ctypes.c_int(made), ctypes.c_uint(0))
    finally:
        os.close(made)

"""System calls that Python does not have, and the filter of those that an isolated run may make."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from contextlib import suppress

# ---- System calls that Python 3.11 does not have, or that need a larger import. Each raises
# `OSError`.


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
    """Leave the session keyring, which may hold keys of the user's login. Where a container or the
    kernel forbids that, the command has no keyring either."""
    number = _KEYCTL.get(os.uname().machine, _KEYCTL_GENERIC)
    try:
        _call(
            "syscall",
            ctypes.c_long(number),
            ctypes.c_long(_JOIN_SESSION_KEYRING),
            ctypes.c_void_p(),
        )
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS):
            raise


def give_up_capabilities() -> None:
    """Look at files with the rights that the command will have: root's too has no capability in its
    sandbox, so it cannot enter the directories of others, and nothing can be mounted there.
    bubblewrap, as another program of root's, has them again."""
    _use_capabilities(used=False)


def _use_capabilities(*, used: bool) -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    _call("capget", header, data)
    words = struct.unpack("=6I", data.raw)
    low, high = (words[1], words[4]) if used else (0, 0)
    _call("capset", header, struct.pack("=6I", low, *words[1:3], high, *words[4:6]))


def keep_later_mounts_away(directories: Iterable[str]) -> None:
    """Have what is mounted on the machine from now on not appear in these directories, where it
    could be written: systemd mounts /sys/kernel/config and /proc/sys/fs/binfmt_misc when a process
    first looks there. What is unmounted elsewhere is unmounted for this process, too. Only root may
    do so; users cannot write to those two."""
    _use_capabilities(used=True)
    with suppress(PermissionError):  # of root in a container
        _call("unshare", _CLONE_NEWNS)
        _mount(None, "/", _MS_REC | _MS_SLAVE)
        # another mount in it would forbid the sandbox a /proc of its own
        _mount(None, "/proc", _MS_PRIVATE)
        for directory in directories:
            _mount(directory, directory, _MS_REC | _MS_BIND)
            _mount(None, directory, _MS_REC | _MS_PRIVATE)
    _use_capabilities(used=False)


def _mount(source: str | None, target: str, flags: int) -> None:
    _call(
        "mount",
        None if source is None else os.fsencode(source),
        os.fsencode(target),
        None,
        ctypes.c_ulong(flags),
        None,
    )


def default(*numbers: int) -> None:
    _handle(_SIG_DFL, numbers)


def ignore(*numbers: int) -> None:
    _handle(_SIG_IGN, numbers)


def _handle(how: int, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        _libc.signal(number, ctypes.c_void_p(how))


def leave_abstract_sockets() -> bool:
    """Close off the abstract Unix sockets of processes outside, which no mount namespace hides.
    Return whether the kernel can: it takes Linux 6.12, with Landlock, which some containers
    forbid (systemd-nspawn; EPERM)."""
    try:
        _scope(_SCOPE_ABSTRACT_UNIX_SOCKET)
    except OSError as error:
        if error.errno in _WITHOUT_LANDLOCK:
            return False
        raise OSError(error.errno, f"Landlock: {error.strerror}") from None
    return True


_WITHOUT_LANDLOCK = frozenset({
    errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.E2BIG, errno.EPERM, errno.EACCES
})  # fmt: skip


def _scope(scopes: int) -> None:
    rules = struct.pack("=QQQ", 0, 0, scopes)
    made = _call(
        "syscall",
        ctypes.c_long(_LANDLOCK_CREATE_RULESET),
        rules,
        ctypes.c_size_t(len(rules)),
        ctypes.c_uint(0),
    )
    try:
        _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _call(
            "syscall", ctypes.c_long(_LANDLOCK_RESTRICT_SELF), ctypes.c_int(made), ctypes.c_uint(0)
        )
    finally:
        os.close(made)


# ---- The seccomp filter of isolated runs: system calls that agents do not need, that lead out of a
# sandbox or deep into the
# kernel
#
# It is a list of what is forbidden, like those of Docker and Flatpak. Capabilities are gone
# already, so it forbids only what an ordinary user may call. Numbers: asm/unistd.h of the machine;
# aarch64, riscv64 and loongarch64 share the generic table.


_AUDIT_ARCH = {
    "x86_64": 0xC000003E,
    "aarch64": 0xC00000B7,
    "riscv64": 0xC00000F3,
    "loongarch64": 0xC0000102,
}
"""linux/audit.h"""
_X86_64 = {
    "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "fcntl": 72, "syslog": 103,
    "pivot_root": 155, "mount": 165, "umount2": 166, "add_key": 248, "request_key": 249,
    "keyctl": 250, "unshare": 272, "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308,
    "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_GENERIC = {
    "fcntl": 25, "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "unshare": 97,
    "syslog": 116, "socket": 198, "socketpair": 199, "add_key": 217, "request_key": 218,
    "keyctl": 219, "clone": 220, "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268,
    "bpf": 280, "userfaultfd": 282,
}  # fmt: skip
_EVERYWHERE = {
    # io_uring opens sockets that no filter of socket(2) sees
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435,
    "mount_setattr": 442, "open_tree_attr": 467,
}  # fmt: skip
_NEWEST = 469
"""file_setattr, of Linux 6.17. Newer calls could lead out, too, and programs do without them on
older kernels. The numbers of x32 are larger."""
_FORBIDDEN = (
    "syslog", "pivot_root", "mount", "umount2", "add_key", "request_key", "keyctl",
    "perf_event_open", "open_by_handle_at", "setns", "bpf", "userfaultfd", "io_uring_setup",
    "io_uring_enter", "io_uring_register", "open_tree", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "open_tree_attr",
)  # fmt: skip
_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. A user namespace would give
capabilities back."""
_NEW_TIME = 0x80
"""CLONE_NEWTIME; in clone(2) these bits are the exit signal."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
"""Type into the terminal, paste on the console."""
_F_SETLEASE = 1024
"""With a lease on a file, who opens it for writing waits 45 seconds. A read-only mount does not
prevent one."""
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
"""getifaddrs(3) needs it. Other families are refused: AF_VSOCK, AF_PACKET, AF_ALG, and rare
ones."""

_LOAD, _IF_EQUAL, _IF_GREATER_OR_EQUAL, _IF_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF_LD|W|ABS, BPF_JMP|JEQ|K, |JGE|K, |JSET|K, BPF_RET|K of linux/bpf_common.h."""
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
"""In `struct seccomp_data`. All machines here are little-endian: the lower half of an argument
comes first."""
_FAIL = 0x00050000
_ALLOWED = (_RETURN, 0, 0, 0x7FFF0000)
"""SECCOMP_RET_ERRNO and SECCOMP_RET_ALLOW."""

_Program = list[tuple[int, int, int, int]]


def compiled(machine: str) -> bytes:
    """Return the filter as an array of `struct sock_filter`. Raise `ValueError` for a machine whose
    system calls are not known."""
    arch = _AUDIT_ARCH.get(machine)
    if arch is None:
        raise ValueError(
            f"no system call filter is known for the machine '{machine}', "
            f"only for {', '.join(_AUDIT_ARCH)}"
        )
    numbers = (_X86_64 if machine == "x86_64" else _GENERIC) | _EVERYWHERE
    program: _Program = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_IF_EQUAL, 1, 0, arch),
        _fail(errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    program += [(_IF_GREATER_OR_EQUAL, 0, 1, _NEWEST + 1), _fail(errno.ENOSYS)]
    for name in _FORBIDDEN:
        program += _when(numbers[name], [_fail(errno.EPERM)])
    # its flags are in memory, which no filter can read; the C library calls clone(2) instead
    program += _when(numbers["clone3"], [_fail(errno.ENOSYS)])
    program += _when(numbers["clone"], _refusing_flags(_NAMESPACES))
    program += _when(numbers["unshare"], _refusing_flags(_NAMESPACES | _NEW_TIME))
    refused = [_fail(errno.EPERM)]
    program += _when(
        numbers["ioctl"],
        [_argument(1), *_when(_TIOCSTI, refused), *_when(_TIOCLINUX, refused), _ALLOWED],
    )
    program += _when(numbers["fcntl"], [_argument(1), *_when(_F_SETLEASE, refused), _ALLOWED])
    program += _when(numbers["socket"], _families())
    program += _when(
        numbers["socketpair"], [_argument(0), *_when(_UNIX, [_ALLOWED]), _fail(errno.EAFNOSUPPORT)]
    )
    return b"".join(struct.pack("=HBBI", *one) for one in [*program, _ALLOWED])


def _refusing_flags(flags: int) -> _Program:
    return [_argument(0), (_IF_SET, 0, 1, flags), _fail(errno.EPERM), _ALLOWED]


def _families() -> _Program:
    route = [_argument(2), *_when(_NETLINK_ROUTE, [_ALLOWED]), _fail(errno.EAFNOSUPPORT)]
    known = [step for family in (_UNIX, _INET, _INET6) for step in _when(family, [_ALLOWED])]
    return [_argument(0), *known, *_when(_NETLINK, route), _fail(errno.EAFNOSUPPORT)]


def _when(value: int, steps: _Program) -> _Program:
    """Return the steps, skipped unless `value` is loaded. Steps that load another value must end
    the program."""
    return [(_IF_EQUAL, 0, len(steps), value), *steps]


def _argument(index: int) -> tuple[int, int, int, int]:
    return _LOAD, 0, 0, _ARGUMENTS_AT + 8 * index


def _fail(number: int) -> tuple[int, int, int, int]:
    return _RETURN, 0, 0, _FAIL | number

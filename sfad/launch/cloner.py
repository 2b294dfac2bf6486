"""clone3(2) straight into a cgroup, without forking the daemon: what posix_spawn(3) cannot do before glibc 2.39.

Attaching a process to a cgroup takes the kernel's threadgroup lock for writing. That waits 6 ms when nobody has done it
lately, and stops every fork on the machine meanwhile. A child that is *born* in its cgroup (CLONE_INTO_CGROUP) needs none
of it: measured here, twice the runs a second, and an isolated start some 8 ms sooner.

glibc has no wrapper for clone3, and a vforked child must not return into Python. So this is a function of a few dozen
instructions, mapped from a sealed memfd: it calls clone3(CLONE_VM | CLONE_VFORK), and the child works through a list of
system calls that ends with execve. The child shares the daemon's memory and stack until then, and touches neither, but
for the number of the call that failed, which it leaves in the list. Signals are blocked around it, and their handlers
cleared in the child (CLONE_CLEAR_SIGHAND), because a handler would run on the shared stack.

With CLONE_VFORK and not without: the kernel's OOM killer ends every process that shares the victim's memory, and leaves
vforked children alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable, Sequence

_X86_64 = """
00  b8 b3 01 00 00  mov eax, 435            ; clone3(rdi, rsi)
05  0f 05           syscall
07  48 85 c0        test rax, rax
0a  74 01           jz 0d
0c  c3              ret                     ; the daemon: pid or -errno
0d  48 89 d3        mov rbx, rdx            ; the child: the list of calls
10  48 8b 03        mov rax, [rbx]
13  48 8b 7b 08     mov rdi, [rbx+8]
17  48 8b 73 10     mov rsi, [rbx+16]
1b  48 8b 53 18     mov rdx, [rbx+24]
1f  4c 8b 53 20     mov r10, [rbx+32]
23  4c 8b 43 28     mov r8, [rbx+40]
27  0f 05           syscall
29  48 85 c0        test rax, rax
2c  78 06           js 34
2e  48 83 c3 30     add rbx, 48             ; the next call
32  eb dc           jmp 10
34  48 89 03        mov [rbx], rax          ; -errno in place of the call's number
37  bf 7f 00 00 00  mov edi, 127            ; exit(127)
3c  b8 3c 00 00 00  mov eax, 60
41  0f 05           syscall
"""
_AARCH64 = """
00  d2803668        mov x8, #435            ; clone3(x0, x1)
04  d4000001        svc #0
08  b4000040        cbz x0, 10
0c  d65f03c0        ret                     ; the daemon: pid or -errno
10  aa0203f3        mov x19, x2             ; the child: the list of calls
14  a9400268        ldp x8, x0, [x19]
18  a9410a61        ldp x1, x2, [x19, #16]
1c  a9421263        ldp x3, x4, [x19, #32]
20  d4000001        svc #0
24  b7f80060        tbnz x0, #63, 30
28  9100c273        add x19, x19, #48       ; the next call
2c  17fffffa        b 14
30  f9000260        str x0, [x19]           ; -errno in place of the call's number
34  d2800fe0        mov x0, #127            ; exit(127)
38  d2800ba8        mov x8, #93
3c  d4000001        svc #0
"""

_NUMBERS = {
    "x86_64": {"setsid": 112, "fchdir": 81, "dup3": 292, "openat": 257, "prlimit64": 302, "rt_sigaction": 13,
               "rt_sigprocmask": 14, "execve": 59, "exit": 60},
    "aarch64": {"setsid": 157, "fchdir": 50, "dup3": 24, "openat": 56, "prlimit64": 261, "rt_sigaction": 134,
                "rt_sigprocmask": 135, "execve": 221, "exit": 93},
}  # fmt: skip
"""System call numbers, from the kernel's tables for each machine."""

_CLONE_VM, _CLONE_VFORK, _CLONE_CLEAR_SIGHAND, _CLONE_INTO_CGROUP = 0x100, 0x4000, 1 << 32, 1 << 33
_CLONE_ARGS = struct.Struct("=11Q")
_SIGSET = 8
_PROT_READ_EXEC = 0x1 | 0x4
_MAP_PRIVATE = 0x2
_FAILED = ctypes.c_void_p(-1).value

Call = tuple[int, ...]
"""A system call of the child: its number and up to five arguments; memory that they point to is the caller's to keep."""


class CloneImpossible(Exception):
    """This machine, kernel or sandbox has no clone3 that could be used; the message says why."""


class Cloner:
    """Starts children in a cgroup. Raises `CloneImpossible`."""

    def __init__(self) -> None:
        machine = platform.machine()
        if machine not in _NUMBERS:
            raise CloneImpossible(f"not written for {machine}")
        self.number = _NUMBERS[machine]
        self._ignored = _ignored_signals()
        self._call = _function(machine)
        self._default = ctypes.create_string_buffer(32)  # struct sigaction of the kernel: SIG_DFL, no flags, empty mask
        self._nothing = ctypes.create_string_buffer(_SIGSET)
        self._probe()

    def clone(self, calls: Sequence[Call], *, cgroup: int | None) -> int:
        """The pid of a child, born in the cgroup whose directory is open as `cgroup`, that has worked through `calls` up to
        an execve. Raises `OSError`: clone3's (EBUSY, EAGAIN, EOPNOTSUPP …), or a call's, the child then being reaped."""
        flags = _CLONE_VM | _CLONE_VFORK | _CLONE_CLEAR_SIGHAND | (_CLONE_INTO_CGROUP if cgroup is not None else 0)
        arguments = _CLONE_ARGS.pack(flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, cgroup if cgroup is not None else 0)
        program = (ctypes.c_int64 * (6 * len(calls)))(*(word for call in calls for word in (*call, *[0] * (6 - len(call)))))
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = self._call(arguments, len(arguments), program)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        failed = next((program[at] for at in range(0, len(program), 6) if program[at] < 0), 0)
        if failed:
            os.waitid(os.P_PID, pid, os.WEXITED)  # our own child, and it has exited
            raise OSError(-failed, os.strerror(-failed))
        return pid

    def default_signals(self) -> list[Call]:
        """Calls that give the child every signal at its default and unblocked. The last before execve: handlers are gone by
        then, but a pending signal that kills would otherwise do it with the list half done."""
        sigaction, sigprocmask = self.number["rt_sigaction"], self.number["rt_sigprocmask"]
        default, nothing = ctypes.addressof(self._default), ctypes.addressof(self._nothing)
        reset: list[Call] = [(sigaction, number, default, 0, _SIGSET) for number in self._ignored]
        return [*reset, (sigprocmask, signal.SIG_SETMASK, nothing, 0, _SIGSET)]

    def _probe(self) -> None:
        try:
            pid = self.clone([(self.number["exit"], 0)], cgroup=None)
        except OSError as error:
            raise CloneImpossible(f"clone3: {error.strerror}") from error  # ENOSYS: a container's seccomp filter
        os.waitid(os.P_PID, pid, os.WEXITED)


def _ignored_signals() -> list[int]:
    """What CLONE_CLEAR_SIGHAND leaves ignored: SIGPIPE and SIGXFSZ by Python, SIGHUP by nohup, …"""
    with open("/proc/self/status", "rb") as status:
        mask = next(int(line.split()[1], 16) for line in status if line.startswith(b"SigIgn:"))
    return [number for number in range(1, 65) if mask >> (number - 1) & 1]


def _function(machine: str) -> Callable[[bytes, int, object], int]:
    """The code as a function. It keeps the interpreter's lock: the child is on its way for a fraction of a millisecond."""
    code = _assemble(_X86_64 if machine == "x86_64" else _AARCH64, little_words=machine == "aarch64")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    image = os.memfd_create("sfad-clone", os.MFD_CLOEXEC)
    try:
        os.write(image, code)
        # from a file and never writable: anonymous memory that becomes executable is what hardened units forbid
        address = libc.mmap(None, len(code), _PROT_READ_EXEC, _MAP_PRIVATE, image, 0)
    finally:
        os.close(image)
    if address == _FAILED:
        raise CloneImpossible(f"code cannot be mapped: {os.strerror(ctypes.get_errno())}")
    prototype = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
    return prototype(address)


def _assemble(listing: str, *, little_words: bool) -> bytes:
    words = [part for line in listing.strip().split("\n") for part in line[4:20].split()]
    return b"".join(bytes.fromhex(word)[:: -1 if little_words else 1] for word in words)

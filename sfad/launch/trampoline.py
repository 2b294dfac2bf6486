"""The trampoline: a few dozen instructions between posix_spawn(3) and a run's command.

The daemon cannot attach a child to a cgroup itself before the child runs (glibc < 2.39 has no
POSIX_SPAWN_SETCGROUP), cannot wait the 6 ms that an attach takes, and must not fork itself. So what it spawns is this
program, which attaches *itself* and then becomes the command. It never runs the command uncontained. Its contract:

    argv    /bin/sh  UMASK(octal)  PATH  ARGV0 ARGV1 …      environment: the command's, not looked at
    fd 0-2  the command's
    fd 3    what to write "0" to in order to be contained: the run's cgroup.procs, or /dev/null
    fd 4    where failure is reported: 16 bytes, the stage and -errno, in the machine's order
    fd 5    this program, when it is an ELF image

It sets the umask, writes "0" to fd 3, marks every descriptor above 2 close-on-exec, and execs PATH. So the other end
of fd 4 reads end-of-file if the command runs. What the kernel calls ENOEXEC is given to /bin/sh, as execvp(3) does.

Tried and rejected: clone3(2) straight into the cgroup, from a few instructions mapped into the daemon. Throughput and
latency under load were the same, isolated starts some milliseconds sooner; but a vforked child that is born in a frozen
cgroup stands still before its execve, and the daemon with it. (The same holds for posix_spawn's POSIX_SPAWN_SETCGROUP.)

There are two of them: a static ELF image (x86_64, aarch64; about 0.1 ms) and, for other machines, `trampoline_py`.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ATTACH, CLOSE, EXEC = 1, 2, 3
"""Stages of a failure: writing to fd 3, close_range(2), execve(2)."""

REPORT = struct.Struct("=qq")
SHELL = b"/bin/sh"
FD_DOOR, FD_REPORT, FD_IMAGE, FD_FREE = 3, 4, 5, 6

_LOAD = 0x400000
_X86_64 = """
00  31 ff           xor edi, edi
02  48 8b 74 24 10  mov rsi, [rsp+16]       ; argv[1], octal digits
07  ac              lodsb
08  84 c0           test al, al
0a  74 08           jz 14
0c  83 e0 07        and eax, 7
0f  8d 3c f8        lea edi, [rax+rdi*8]
12  eb f3           jmp 07
14  6a 5f           push 95                 ; umask(edi)
16  58              pop rax
17  0f 05           syscall
19  6a 01           push 1                  ; stage = ATTACH
1b  5b              pop rbx
1c  6a 03           push 3                  ; write(3, "0", 1)
1e  5f              pop rdi
1f  6a 30           push '0'
21  54              push rsp
22  5e              pop rsi
23  6a 01           push 1
25  5a              pop rdx
26  6a 01           push 1
28  58              pop rax
29  0f 05           syscall
2b  59              pop rcx
2c  85 c0           test eax, eax
2e  78 50           js 80
30  ff c3           inc ebx                 ; stage = CLOSE
32  6a 04           push 4                  ; close_range(3, ~0, CLOSE_RANGE_CLOEXEC)
34  5a              pop rdx
35  83 ce ff        or esi, -1
38  b8 b4 01 00 00  mov eax, 436
3d  0f 05           syscall
3f  85 c0           test eax, eax
41  78 3d           js 80
43  ff c3           inc ebx                 ; stage = EXEC
45  48 8b 7c 24 18  mov rdi, [rsp+24]       ; execve(argv[2], &argv[3], envp)
4a  48 8d 74 24 20  lea rsi, [rsp+32]
4f  48 8b 04 24     mov rax, [rsp]          ; argc
53  48 8d 54 c4 10  lea rdx, [rsp+rax*8+16]
58  6a 3b           push 59
5a  58              pop rax
5b  0f 05           syscall
5d  83 f8 f8        cmp eax, -8             ; ENOEXEC
60  75 1e           jne 80
62  48 8b 44 24 18  mov rax, [rsp+24]       ; argv[3] = argv[2]; argv[2] = argv[0]
67  48 89 44 24 20  mov [rsp+32], rax
6c  48 8b 7c 24 08  mov rdi, [rsp+8]
71  48 89 7c 24 18  mov [rsp+24], rdi
76  48 8d 74 24 18  lea rsi, [rsp+24]       ; execve(argv[0], &argv[2], envp)
7b  6a 3b           push 59
7d  58              pop rax
7e  0f 05           syscall
80  50              push rax                ; write(4, {stage, -errno}, 16)
81  53              push rbx
82  6a 04           push 4
84  5f              pop rdi
85  54              push rsp
86  5e              pop rsi
87  6a 10           push 16
89  5a              pop rdx
8a  6a 01           push 1
8c  58              pop rax
8d  0f 05           syscall
8f  6a 7f           push 127                ; exit(127)
91  5f              pop rdi
92  6a 3c           push 60
94  58              pop rax
95  0f 05           syscall
"""
_AARCH64 = """
00  52800000        mov w0, #0
04  f9400be2        ldr x2, [sp, #16]       ; argv[1], octal digits
08  38401443        ldrb w3, [x2], #1
0c  34000083        cbz w3, 1c
10  12000863        and w3, w3, #7
14  0b000c60        add w0, w3, w0, lsl #3
18  17fffffc        b 08
1c  d28014c8        mov x8, #166            ; umask(w0)
20  d4000001        svc #0
24  d2800033        mov x19, #1             ; stage = ATTACH
28  d2800060        mov x0, #3              ; write(3, "0", 1)
2c  10000481        adr x1, bc
30  d2800022        mov x2, #1
34  d2800808        mov x8, #64
38  d4000001        svc #0
3c  b7f802e0        tbnz x0, #63, 98
40  d2800053        mov x19, #2             ; stage = CLOSE
44  d2800060        mov x0, #3              ; close_range(3, ~0, CLOSE_RANGE_CLOEXEC)
48  12800001        mov w1, #-1
4c  d2800082        mov x2, #4
50  d2803688        mov x8, #436
54  d4000001        svc #0
58  b7f80200        tbnz x0, #63, 98
5c  d2800073        mov x19, #3             ; stage = EXEC
60  f9400fe0        ldr x0, [sp, #24]       ; execve(argv[2], &argv[3], envp)
64  910083e1        add x1, sp, #32
68  f94003e3        ldr x3, [sp]            ; argc
6c  8b236fe2        add x2, sp, x3, lsl #3
70  91004042        add x2, x2, #16
74  d2801ba8        mov x8, #221
78  d4000001        svc #0
7c  b100201f        cmn x0, #8              ; ENOEXEC
80  540000c1        b.ne 98
84  f9400fe3        ldr x3, [sp, #24]       ; argv[3] = argv[2]; argv[2] = argv[0]
88  f94007e0        ldr x0, [sp, #8]
8c  a9018fe0        stp x0, x3, [sp, #24]
90  910063e1        add x1, sp, #24         ; execve(argv[0], &argv[2], envp)
94  d4000001        svc #0
98  a9bf03f3        stp x19, x0, [sp, #-16]!
9c  d2800080        mov x0, #4              ; write(4, {stage, -errno}, 16)
a0  910003e1        mov x1, sp
a4  d2800202        mov x2, #16
a8  d2800808        mov x8, #64
ac  d4000001        svc #0
b0  d2800fe0        mov x0, #127            ; exit(127)
b4  d2800ba8        mov x8, #93
b8  d4000001        svc #0
bc  30000000        .ascii "0"
"""
_MACHINES = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}
_MNEMONIC = 20


def image(machine: str) -> bytes:
    """The ELF file for `machine` (`platform.machine()`): a header, two segments (code; a stack that is not executable)
    and the instructions of the table. Raises `KeyError` where there is no table."""
    number, table = _MACHINES[machine]
    code = b"".join(_instruction(line) for line in table.strip().splitlines())
    size = 64 + 2 * 56 + len(code)
    entry = _LOAD + size - len(code)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, number, 1, entry, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOAD, _LOAD, size, size, 0x1000)
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    return header + load + stack + code


def _instruction(line: str) -> bytes:
    written = line[4:_MNEMONIC].strip()
    octets = bytes.fromhex(written)
    # A64 listings show words; memory holds them little-endian. The last line is data and shown as it lies.
    return octets if " " in written or len(octets) != 4 or ".ascii" in line else octets[::-1]


@dataclass(frozen=True, slots=True)
class Trampoline:
    """What posix_spawn(3) is given: a path, what comes before the contract's argv, and the image's descriptor."""

    path: bytes
    prefix: tuple[bytes, ...] = ()
    image: int | None = None

    def argv(self, umask: int, path: bytes, argv: list[bytes]) -> list[bytes]:
        """The trampoline's own argument list for a command."""
        return [*self.prefix, SHELL, b"%03o" % umask, path, *argv]

    def close(self) -> None:
        """Gives the image back."""
        if self.image is not None:
            os.close(self.image)


def elf() -> Trampoline:
    """The ELF trampoline of this machine. Raises `KeyError` where there is none, `OSError` if it cannot be stored."""
    return Trampoline(b"/proc/self/fd/%d" % FD_IMAGE, image=_stored(image(platform.machine())))


def python() -> Trampoline:
    """The trampoline in Python, for machines without an image: 10 to 20 ms a start, in the child."""
    program = Path(__file__).with_name("trampoline_py.py")
    words = (sys.executable, "-I", "-S", "-X", "utf8", str(program))
    return Trampoline(os.fsencode(sys.executable), tuple(os.fsencode(word) for word in words))


def best() -> Trampoline:
    """The ELF trampoline where there is one and the kernel has CLOSE_RANGE_CLOEXEC (5.11), else the one in Python."""
    release = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
    return elf() if platform.machine() in _MACHINES and release >= (5, 11) else python()


def _stored(content: bytes) -> int:
    """A descriptor that can be executed. `vm.memfd_noexec` and some security modules forbid a memfd: then an unlinked file."""
    fd = _memfd(content)
    if fd is not None and os.access(f"/proc/self/fd/{fd}", os.X_OK):
        return fd
    if fd is not None:
        os.close(fd)
    return _unlinked(content)


def _memfd(content: bytes) -> int | None:
    mfd_exec = 0x10
    for flags in (mfd_exec, 0):  # before Linux 6.3 the flag is EINVAL; with vm.memfd_noexec=2 it is EACCES
        try:
            fd = os.memfd_create("sfad-trampoline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
        except OSError:
            continue
        os.write(fd, content)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return _high(fd)
    return None


def _unlinked(content: bytes) -> int:
    with tempfile.TemporaryDirectory(prefix="sfad-", dir=os.environ.get("XDG_RUNTIME_DIR")) as directory:
        file = Path(directory, "trampoline")
        file.write_bytes(content)
        file.chmod(0o500)
        return _high(os.open(file, os.O_RDONLY | os.O_CLOEXEC))  # a writable descriptor would be ETXTBSY


def _high(fd: int) -> int:
    """The same file above the descriptors that the contract names."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FD_FREE)
    os.close(fd)
    return moved

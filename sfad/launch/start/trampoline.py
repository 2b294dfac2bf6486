"""The trampoline: a few dozen instructions between posix_spawn(3) and a run's command.

The daemon cannot attach a child to a cgroup before the child runs (glibc < 2.39 has no POSIX_SPAWN_SETCGROUP), cannot wait
the 6 ms that attaching takes, and must not fork itself. So it spawns this program, which attaches *itself* and then becomes
the command. It never runs the command uncontained. Its contract:

    argv    /bin/sh  UMASK(octal)  CWD  FILE…  ""  ARGV0 ARGV1 …      environment: the command's, not looked at
    fd 0-2  the command's
    fd 3    what to write "0" to in order to be contained: the run's cgroup.procs, or /dev/null
    fd 4    where failure is reported: 16 bytes, the stage and -errno, in the machine's order
    fd 5    the gate: a byte comes when the daemon has saved which process this is; end-of-file if it died before that
    fd 6    this program, when it is an ELF image

It sets the umask, writes "0" to fd 3, enters CWD, marks every descriptor above 2 close-on-exec, waits at the gate, and
executes the first FILE that is there, much as execvp(3) does: it skips a file whatever is wrong with it, unless the command
itself is wrong (E2BIG, EAGAIN, ENOMEM, ETXTBSY), and gives a file to /bin/sh if the kernel says ENOEXEC. When the command
runs, the other end of fd 4 reads end-of-file. At a gate that stays shut the trampoline exits without a report: it executes
nothing that the next daemon would not know of.

The directory and the files are first touched here, not by the daemon: on a mount that does not answer, this process hangs,
within its run, where it can be stopped.

Tried and rejected: clone3(2) straight into the cgroup, from a few instructions mapped into the daemon. Throughput and
latency under load were the same, and isolated starts some milliseconds sooner; but a vforked child that is born in a frozen
cgroup stands still before its execve(2), and the daemon with it. (The same is true of POSIX_SPAWN_SETCGROUP.)

There are two trampolines. One is a static ELF image, for x86_64 and aarch64 (about 0.1 ms); tests/launch/test_trampoline.py
runs both images, the other machine's under qemu, which .ci/run installs. The other is `trampoline_py`, for other machines
and for commands with a terminal: there it also starts the processes that let Ctrl-Z stop the command.
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

ATTACH, ENTER, CLOSE, EXEC, INTERPRET = 1, 2, 3, 4, 5
"""Stages of a failure: writing to fd 3, chdir(2), close_range(2), execve(2), and execve(2) of a file that is there (if that
fails with ENOENT, the interpreter is missing)."""

REPORT = struct.Struct("=qq")
SHELL = b"/bin/sh"
FD_DOOR, FD_REPORT, FD_GATE, FD_IMAGE, FD_FREE = 3, 4, 5, 6, 7

_NAME = "sfad-trampoline"
_LOAD = 0x400000
_X86_64 = """
000 31 ff             xor edi, edi
002 48 8b 74 24 10    mov rsi, [rsp+16]         ; argv[1], octal digits
007 ac                lodsb
008 84 c0             test al, al
00a 74 08             jz 014
00c 83 e0 07          and eax, 7
00f 8d 3c f8          lea edi, [rax+rdi*8]
012 eb f3             jmp 007
014 6a 5f             push 95                   ; umask(edi)
016 58                pop rax
017 0f 05             syscall
019 6a 01             push 1                    ; stage = ATTACH
01b 5b                pop rbx
01c 6a 03             push 3                    ; write(3, "0", 1)
01e 5f                pop rdi
01f 6a 30             push '0'
021 54                push rsp
022 5e                pop rsi
023 6a 01             push 1
025 5a                pop rdx
026 6a 01             push 1
028 58                pop rax
029 0f 05             syscall
02b 59                pop rcx
02c 85 c0             test eax, eax
02e 0f 88 f6 00 00 00 js 12a
034 ff c3             inc ebx                   ; stage = ENTER
036 48 8b 7c 24 18    mov rdi, [rsp+24]         ; chdir(argv[2])
03b 6a 50             push 80
03d 58                pop rax
03e 0f 05             syscall
040 85 c0             test eax, eax
042 0f 88 e2 00 00 00 js 12a
048 ff c3             inc ebx                   ; stage = CLOSE
04a 6a 03             push 3                    ; close_range(3, ~0, CLOSE_RANGE_CLOEXEC)
04c 5f                pop rdi
04d 6a 04             push 4
04f 5a                pop rdx
050 83 ce ff          or esi, -1
053 b8 b4 01 00 00    mov eax, 436
058 0f 05             syscall
05a 85 c0             test eax, eax
05c 0f 88 c8 00 00 00 js 12a
062 ff c3             inc ebx                   ; stage = EXEC
064 53                push rbx                  ; read(5, …, 1): 1, or the daemon has died
065 6a 05             push 5
067 5f                pop rdi
068 54                push rsp
069 5e                pop rsi
06a 6a 01             push 1
06c 5a                pop rdx
06d 31 c0             xor eax, eax
06f 0f 05             syscall
071 59                pop rcx
072 83 f8 01          cmp eax, 1
075 0f 85 be 00 00 00 jne 139
07b 48 8b 04 24       mov rax, [rsp]            ; r15 = envp
07f 4c 8d 7c c4 10    lea r15, [rsp+rax*8+16]
084 4c 8d 64 24 20    lea r12, [rsp+32]         ; r12 = &argv[3], the files
089 4d 89 e5          mov r13, r12              ; r13 = what follows the empty one, ARGV
08c 49 8b 7d 00       mov rdi, [r13]
090 49 83 c5 08       add r13, 8
094 80 3f 00          cmp byte [rdi], 0
097 75 f3             jne 08c
099 6a fe             push -2                   ; r14 = -ENOENT
09b 41 5e             pop r14
09d 49 8b 3c 24       mov rdi, [r12]            ; execve(*r12, r13, r15)
0a1 80 3f 00          cmp byte [rdi], 0
0a4 74 5c             je 102
0a6 4c 89 ee          mov rsi, r13
0a9 4c 89 fa          mov rdx, r15
0ac 6a 3b             push 59
0ae 58                pop rax
0af 0f 05             syscall
0b1 83 f8 f8          cmp eax, -8               ; ENOEXEC
0b4 74 27             je 0dd
0b6 49 83 c4 08       add r12, 8                ; the next one, after
0ba 83 f8 fe          cmp eax, -2               ; ENOENT,
0bd 74 de             je 09d
0bf 83 f8 ec          cmp eax, -20              ; ENOTDIR,
0c2 74 d9             je 09d
0c4 49 89 c6          mov r14, rax              ; and, to be reported in the end, all but
0c7 83 f8 f9          cmp eax, -7               ; E2BIG,
0ca 74 36             je 102
0cc 83 f8 f5          cmp eax, -11              ; EAGAIN,
0cf 74 31             je 102
0d1 83 f8 f4          cmp eax, -12              ; ENOMEM,
0d4 74 2c             je 102
0d6 83 f8 e6          cmp eax, -26              ; ETXTBSY
0d9 75 c2             jne 09d
0db eb 25             jmp 102
0dd 49 8b 04 24       mov rax, [r12]            ; argv[0] = the file, after argv[-1] = SHELL
0e1 49 89 45 00       mov [r13], rax
0e5 49 83 ed 08       sub r13, 8
0e9 48 8b 7c 24 08    mov rdi, [rsp+8]
0ee 49 89 7d 00       mov [r13], rdi
0f2 4c 89 ee          mov rsi, r13              ; execve(SHELL, r13, r15)
0f5 4c 89 fa          mov rdx, r15
0f8 6a 3b             push 59
0fa 58                pop rax
0fb 0f 05             syscall
0fd 49 89 c6          mov r14, rax
100 eb 23             jmp 125
102 41 83 fe fe       cmp r14d, -2              ; after ENOENT: access(*file, F_OK)?
106 75 1f             jne 127
108 4c 8d 64 24 20    lea r12, [rsp+32]
10d 49 8b 3c 24       mov rdi, [r12]
111 80 3f 00          cmp byte [rdi], 0
114 74 11             je 127
116 31 f6             xor esi, esi
118 6a 15             push 21
11a 58                pop rax
11b 0f 05             syscall
11d 49 83 c4 08       add r12, 8
121 85 c0             test eax, eax
123 75 e8             jne 10d
125 ff c3             inc ebx                   ; stage = INTERPRET
127 4c 89 f0          mov rax, r14
12a 50                push rax                  ; write(4, {stage, -errno}, 16)
12b 53                push rbx
12c 6a 04             push 4
12e 5f                pop rdi
12f 54                push rsp
130 5e                pop rsi
131 6a 10             push 16
133 5a                pop rdx
134 6a 01             push 1
136 58                pop rax
137 0f 05             syscall
139 6a 7f             push 127                  ; exit(127)
13b 5f                pop rdi
13c 6a 3c             push 60
13e 58                pop rax
13f 0f 05             syscall
"""
_AARCH64 = """
000 52800000          mov w0, #0
004 f9400be2          ldr x2, [sp, #16]         ; argv[1], octal digits
008 38401443          ldrb w3, [x2], #1
00c 34000083          cbz w3, 01c
010 12000863          and w3, w3, #7
014 0b000c60          add w0, w3, w0, lsl #3
018 17fffffc          b 008
01c d28014c8          mov x8, #166              ; umask(w0)
020 d4000001          svc #0
024 d2800033          mov x19, #1               ; stage = ATTACH
028 d2800060          mov x0, #3                ; write(3, "0", 1)
02c 10000b21          adr x1, 190
030 d2800022          mov x2, #1
034 d2800808          mov x8, #64
038 d4000001          svc #0
03c b7f80980          tbnz x0, #63, 16c
040 d2800053          mov x19, #2               ; stage = ENTER
044 f9400fe0          ldr x0, [sp, #24]         ; chdir(argv[2])
048 d2800628          mov x8, #49
04c d4000001          svc #0
050 b7f808e0          tbnz x0, #63, 16c
054 d2800073          mov x19, #3               ; stage = CLOSE
058 d2800060          mov x0, #3                ; close_range(3, ~0, CLOSE_RANGE_CLOEXEC)
05c 12800001          mov w1, #-1
060 d2800082          mov x2, #4
064 d2803688          mov x8, #436
068 d4000001          svc #0
06c b7f80800          tbnz x0, #63, 16c
070 d2800093          mov x19, #4               ; stage = EXEC
074 d28000a0          mov x0, #5                ; read(5, …, 1): 1, or the daemon has died
078 d10043e1          sub x1, sp, #16
07c d2800022          mov x2, #1
080 d28007e8          mov x8, #63
084 d4000001          svc #0
088 f100041f          cmp x0, #1
08c 540007c1          b.ne 184
090 f94003e3          ldr x3, [sp]              ; x20 = envp
094 8b236ff4          add x20, sp, x3, lsl #3
098 91004294          add x20, x20, #16
09c 910083f5          add x21, sp, #32          ; x21 = &argv[3], the files
0a0 aa1503f6          mov x22, x21              ; x22 = what follows the empty one, ARGV
0a4 f84086c0          ldr x0, [x22], #8
0a8 39400003          ldrb w3, [x0]
0ac 35ffffc3          cbnz w3, 0a4
0b0 92800037          mov x23, #-2              ; x23 = -ENOENT
0b4 d2801ba8          mov x8, #221
0b8 f94002a0          ldr x0, [x21]             ; execve(*x21, x22, x20)
0bc 39400003          ldrb w3, [x0]
0c0 340003c3          cbz w3, 138
0c4 aa1603e1          mov x1, x22
0c8 aa1403e2          mov x2, x20
0cc d4000001          svc #0
0d0 b100201f          cmn x0, #8                ; ENOEXEC
0d4 54000200          b.eq 114
0d8 910022b5          add x21, x21, #8          ; the next one, after
0dc b100081f          cmn x0, #2                ; ENOENT,
0e0 54fffec0          b.eq 0b8
0e4 b100501f          cmn x0, #20               ; ENOTDIR,
0e8 54fffe80          b.eq 0b8
0ec aa0003f7          mov x23, x0               ; and, to be reported in the end, all but
0f0 b1001c1f          cmn x0, #7                ; E2BIG,
0f4 54000220          b.eq 138
0f8 b1002c1f          cmn x0, #11               ; EAGAIN,
0fc 540001e0          b.eq 138
100 b100301f          cmn x0, #12               ; ENOMEM,
104 540001a0          b.eq 138
108 b100681f          cmn x0, #26               ; ETXTBSY
10c 54fffd61          b.ne 0b8
110 1400000a          b 138
114 f94002a3          ldr x3, [x21]             ; argv[0] = the file, after argv[-1] = SHELL
118 f90002c3          str x3, [x22]
11c f94007e0          ldr x0, [sp, #8]
120 f81f8ec0          str x0, [x22, #-8]!
124 aa1603e1          mov x1, x22               ; execve(SHELL, x22, x20)
128 aa1403e2          mov x2, x20
12c d4000001          svc #0
130 aa0003f7          mov x23, x0
134 1400000c          b 164
138 b1000aff          cmn x23, #2               ; after ENOENT: access(*file, F_OK)?
13c 54000161          b.ne 168
140 910083f5          add x21, sp, #32
144 d2800608          mov x8, #48
148 f84086a1          ldr x1, [x21], #8
14c 39400023          ldrb w3, [x1]
150 340000c3          cbz w3, 168
154 92800c60          mov x0, #-100
158 d2800002          mov x2, #0
15c d4000001          svc #0
160 b5ffff40          cbnz x0, 148
164 d28000b3          mov x19, #5               ; stage = INTERPRET
168 aa1703e0          mov x0, x23
16c a9bf03f3          stp x19, x0, [sp, #-16]!  ; write(4, {stage, -errno}, 16)
170 d2800080          mov x0, #4
174 910003e1          mov x1, sp
178 d2800202          mov x2, #16
17c d2800808          mov x8, #64
180 d4000001          svc #0
184 d2800fe0          mov x0, #127              ; exit(127)
188 d2800ba8          mov x8, #93
18c d4000001          svc #0
190 30000000          .ascii "0"
"""
_MACHINES = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}
_MNEMONIC = 22


def image(machine: str) -> bytes:
    """Return the ELF file for `machine` (`platform.machine()`): a header, two segments (code, and a stack that is not executable)
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
    # A64 listings show words; memory has them little-endian. The last line is data, shown as it is in memory.
    return octets if " " in written or len(octets) != 4 or ".ascii" in line else octets[::-1]


@dataclass(frozen=True, slots=True)
class Trampoline:
    """What posix_spawn(3) executes: a path, arguments before the contract's argv, and the image's descriptor."""

    path: bytes
    prefix: tuple[bytes, ...] = ()
    image: int | None = None

    def argv(self, umask: int, cwd: bytes, files: list[bytes], argv: list[bytes]) -> list[bytes]:
        """Return the trampoline's own argument list for a command. None of the files may be empty."""
        return [*self.prefix, SHELL, b"%03o" % umask, cwd, *files, b"", *argv]

    def close(self) -> None:
        """Close the image."""
        if self.image is not None:
            os.close(self.image)


def elf() -> Trampoline:
    """Return the ELF trampoline of this machine. Raises `KeyError` if there is none, `OSError` if it cannot be stored."""
    return Trampoline(b"/proc/self/fd/%d" % FD_IMAGE, image=_stored(image(platform.machine())))


def python() -> Trampoline:
    """Return the trampoline in Python, which takes 10 to 20 ms for each start, in the child."""
    return Trampoline(os.fsencode(sys.executable), tuple(map(os.fsencode, _python())))


def is_one(pid: int) -> bool:
    """Return whether a process is still a trampoline, of any daemon."""
    try:
        executed = os.readlink(f"/proc/{pid}/exe")
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:  # it has ended
        return False
    return executed.startswith((f"/memfd:{_NAME}", f"{_directory()}/{_NAME}")) or words[1:6] == [*map(os.fsencode, _python()[1:])]


def best() -> Trampoline:
    """Return the ELF trampoline if there is one and the kernel has CLOSE_RANGE_CLOEXEC (5.11), else the one in Python."""
    release = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
    return elf() if platform.machine() in _MACHINES and release >= (5, 11) else python()


def _stored(content: bytes) -> int:
    """Return a descriptor that can be executed: an unlinked file where `vm.memfd_noexec` or a security module forbids a memfd."""
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
            fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
        except OSError:
            continue
        os.write(fd, content)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return _high(fd)
    return None


def _unlinked(content: bytes) -> int:
    with tempfile.TemporaryDirectory(prefix=_NAME, dir=_directory()) as directory:
        file = Path(directory, "trampoline")
        file.write_bytes(content)
        file.chmod(0o500)
        return _high(os.open(file, os.O_RDONLY | os.O_CLOEXEC))  # a writable descriptor would be ETXTBSY


def _python() -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-X", "utf8", str(Path(__file__).with_name("trampoline_py.py")))


def _directory() -> str:
    return os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()


def _high(fd: int) -> int:
    """Move a descriptor above those that the contract names."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FD_FREE)
    os.close(fd)
    return moved

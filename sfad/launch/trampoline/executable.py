"""Which trampoline is executed: the image, or the one in Python."""

import fcntl
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from .. import procfs
from .contract import FD_FREE, FD_IMAGE, SHELL
from .elf_image import image

_NAME = "sfad-trampoline"


@dataclass(frozen=True, slots=True)
class Trampoline:
    """What a new child executes: a path, arguments before the contract's argv, and the image's descriptor."""

    path: bytes
    prefix: tuple[bytes, ...] = ()
    image: int | None = None

    def argv(self, umask: int, cwd: bytes, files: list[bytes], argv: list[bytes]) -> list[bytes]:
        """Return the trampoline's own argument list for a command. None of the files may be empty."""
        return [*self.prefix, SHELL, b"%03o" % umask, cwd, *files, b"", *argv]

    def close(self) -> None:
        if self.image is not None:
            os.close(self.image)


def python() -> Trampoline:
    """Return the trampoline in Python, which takes 10 to 20 ms for each start, in the child."""
    return Trampoline(os.fsencode(sys.executable), tuple(map(os.fsencode, _python())))


def is_one(pid: int) -> bool:
    """Return whether a process is still a trampoline, of any daemon, or a child that is to execute one."""
    try:
        executed = os.readlink(f"/proc/{pid}/exe")
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:  # it has ended
        return False
    if executed.startswith(f"/memfd:{_NAME}") or words[1:6] == [*map(os.fsencode, _python()[1:])]:
        return True
    return not procfs.executed(pid) and procfs.is_alive(pid)


def best() -> Trampoline:
    """Return the image on x86_64 with CLOSE_RANGE_CLOEXEC (Linux 5.11), if a memfd can be executed; else the one in Python."""
    release = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
    fd = _memfd() if platform.machine() == "x86_64" and release >= (5, 11) else None
    return python() if fd is None else Trampoline(b"/proc/self/fd/%d" % FD_IMAGE, image=fd)


def _memfd() -> int | None:
    """Return the image as a descriptor; `None` where `vm.memfd_noexec` or a security module forbids to execute that."""
    mfd_exec = 0x10
    for flags in (mfd_exec, 0):  # before Linux 6.3 the flag is EINVAL; with vm.memfd_noexec=2 it is EACCES
        try:
            fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
        except OSError:
            continue
        os.write(fd, image())
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FD_FREE)  # above the descriptors that the contract names
        os.close(fd)
        if os.access(f"/proc/self/fd/{high}", os.X_OK):
            return high
        os.close(high)
    return None


def _python() -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-X", "utf8", str(Path(__file__).with_name("in_python.py")))

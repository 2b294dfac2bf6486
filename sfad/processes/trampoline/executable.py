"""Which trampoline is executed: the image, or the one in Python."""

import errno
import fcntl
import os
import platform
import struct
import sys
from pathlib import Path

from msgspec import Struct

from .. import kernel
from ..launcher import LaunchError
from .image import IMAGE

# ---- The trampoline: a few hundred instructions between the daemon and a run's command
#
# The daemon must not fork itself, nor wait for a mount that does not answer. So it starts this
# program, in the run's cgroup if that is possible (`Cloner.clone`); else the program attaches
# *itself*, which takes 6 to 17 ms. Then it becomes the command. It never runs the command
# uncontained. Its contract:
#
#     argv    /bin/sh  UMASK(octal)  CWD  FILE…  ""  ARGV0 ARGV1 …
#     environ the command's, not looked at; for a trampoline that has a dynamic loader,
#             `credentials.sealed`
#     fd 0-2  the command's
#     fd 3    what to write "0" to in order to be contained: the run's cgroup.procs, or /dev/null
#     fd 4    where failure is reported: 16 bytes, the stage and -errno, in the machine's order
#     fd 5    the gate: a byte comes when the daemon has saved which process this is; end-of-file
#             if it died before that. After the byte "u" come credentials: uid, gid, 1 for
#             no_new_privs, the number of supplementary groups (4 bytes each), soft and hard limit
#             of the 16 kinds of setrlimit(2) (8 bytes each), and the groups (4 bytes each)
#     fd 6    this program, when it is an ELF image
#
# It sets the umask, writes "0" to fd 3, marks every descriptor above 2 close-on-exec, waits at the
# gate, becomes the user if it was given credentials, with a session keyring of its own and without
# capabilities, and enters CWD. Then it executes the first FILE that is there, much as execvp(3)
# does: it skips a file whatever is wrong with it, unless the command itself is wrong (E2BIG,
# EAGAIN, ENOMEM, ETXTBSY), and gives a file to /bin/sh if the kernel says ENOEXEC. When the command
# runs, the other end of fd 4 reads end-of-file. At a gate that stays shut the trampoline exits
# without a report: it executes nothing that the next daemon would not know of. It is root's until
# the gate opens, so no process of the user can stop or trace it before that.
#
# The directory and the files are first touched here, not by the daemon: on a mount that does not
# answer, this process hangs, within its run, where it can be stopped.
#
# There are two trampolines. One is a static ELF image, for x86_64 (about 0.1 ms). The other is
# `in_python` (10 to 20 ms), for other machines, for machines that forbid to execute the image, and
# for commands with a person's terminal: there it also starts the processes that let Ctrl-Z stop the
# command.


ATTACH, ENTER, CLOSE, EXEC, INTERPRET, BECOME, START = 1, 2, 3, 4, 5, 6, 7
"""Stages of a failure: writing to fd 3, chdir(2), close_range(2), execve(2), and execve(2) of a
file that is there (if that fails with ENOENT, the interpreter is missing), becoming the user, and
what `Cloner.clone` does before the program is executed."""
AS_IT_IS, AS_USER = b"\n", b"u"
"""What opens the gate."""
REPORT = struct.Struct("=qq")
SHELL = b"/bin/sh"
ITS_COMMAND, ITS_DIRECTORY = b"its command", b"its directory"
"""How an error names the command and the directory of an adopted run: their names are not saved."""
FD_DOOR, FD_REPORT, FD_GATE, FD_IMAGE, FD_FREE = 3, 4, 5, 6, 7


def reported(report: bytes, name: bytes = ITS_COMMAND, cwd: bytes = ITS_DIRECTORY) -> LaunchError:
    """Return the error that a trampoline reported of a command and its working directory."""
    stage, number = REPORT.unpack(report)
    if stage == ATTACH:
        return LaunchError(-number, "cannot contain", name)
    if stage == START:
        return LaunchError(-number, "cannot start", name)
    if stage == BECOME:
        return LaunchError(-number, "cannot become the user that is to execute", name)
    if stage == ENTER:
        return LaunchError(-number, "cannot enter directory", cwd, about="directory")
    missing = stage == INTERPRET and number == -errno.ENOENT
    return LaunchError(
        -number, "cannot execute", name, " (its interpreter is missing)" if missing else ""
    )


# ---- Which trampoline is executed


_NAME = "sfad-trampoline"


class Trampoline(Struct, frozen=True):
    """What a new child executes: a path, arguments before the contract's argv, and the image's
    descriptor."""

    path: bytes
    prefix: tuple[bytes, ...] = ()
    image: int | None = None

    def close(self) -> None:
        if self.image is not None:
            os.close(self.image)


def python() -> Trampoline:
    """Return the trampoline in Python, which takes 10 to 20 ms for each start, in the child."""
    return Trampoline(os.fsencode(sys.executable), tuple(map(os.fsencode, _python())))


def is_one(pid: int) -> bool:
    """Return whether a process is still a trampoline, of any daemon, or a child that is to execute
    one."""
    try:
        executed = os.readlink(f"/proc/{pid}/exe")
    except OSError:  # it has ended
        return False
    if executed.startswith(f"/memfd:{_NAME}") or kernel.command(pid)[1:6] == [*_python()[1:]]:
        return True
    return not kernel.executed(pid) and kernel.is_alive(pid)


def best() -> Trampoline:
    """Return the image on x86_64, if a memfd can be executed; else the one in Python."""
    fd = in_memory(IMAGE, _NAME)
    return python() if fd is None else Trampoline(b"/proc/self/fd/%d" % FD_IMAGE, image=fd)


def in_memory(image: bytes, name: str) -> int | None:
    """Return a program for x86_64 as a descriptor; `None` on another machine, and where
    `vm.memfd_noexec` or a security module forbids to execute that."""
    if platform.machine() != "x86_64":
        return None
    mfd_exec = 0x10
    # before Linux 6.3 the flag is EINVAL; with vm.memfd_noexec=2 it is EACCES
    for flags in (mfd_exec, 0):
        try:
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
        except OSError:
            continue
        os.write(fd, image)
        fcntl.fcntl(
            fd,
            fcntl.F_ADD_SEALS,
            fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL,
        )
        # above the descriptors that the contract names
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FD_FREE)
        os.close(fd)
        if os.access(f"/proc/self/fd/{high}", os.X_OK):
            return high
        os.close(high)
    return None


def _python() -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-X", "utf8", str(Path(__file__).with_name("in_python.py")))

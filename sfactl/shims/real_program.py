"""The program that a shim stands in for: where it is, and to become it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from typing import NoReturn

from sfad.protocol.stand_ins import is_stand_in

from ..exits import ExitCode, Quit

DEFAULT_PATH = b"/bin:/usr/bin"
"""What execvp(3) searches without PATH."""
NAME = "SFA_CHILD_NAME"
"""The name of a shim's child run, because the command line belongs to the program."""
PASSED = b"SFA_SHIMMED"
"""The pid of a process in which a shim has become the program. If that leads to a shim again, it
must not become it once more."""


def found(program: bytes, path: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield each directory of a PATH that has an executable file of this name, and the file."""
    for directory in path.split(b":"):
        file = os.path.join(directory or b".", program)
        if os.path.isfile(file) and os.access(file, os.X_OK):
            yield directory, file


def search(program: bytes, path: bytes) -> tuple[bytes | None, Sequence[bytes]]:
    """Return the first file of a PATH that is not a shim, and the directories before it that have a
    shim of the program."""
    passed: list[bytes] = []
    for directory, file in found(program, path):
        if not is_stand_in(file):
            return file, passed
        passed.append(directory)
    return None, passed


def environment() -> list[bytes]:
    """Return the environment as execve(2) got it: Python adds LC_CTYPE in some locales, and drops
    what has no `=`."""
    try:
        with open("/proc/self/environ", "rb") as file:
            return file.read().split(b"\0")[:-1]
    except OSError:
        return [key + b"=" + value for key, value in os.environb.items()]


def unnamed_environment() -> list[bytes]:
    """Return that environment for a child run: a name is for one child, and not for what that
    starts."""
    return [item for item in environment() if not item.startswith(f"{NAME}=".encode())]


def become(program: str, arguments: Sequence[str], *, below: bool) -> NoReturn:
    """Execute the program in this process. Raise `Quit`. `below`: what it starts shall find the
    shims too; else they leave its PATH, so that a wrapper which searches the program again does not
    find them."""
    env: dict[bytes, bytes] = {}
    for item in environment():
        key, equals, value = item.partition(b"=")
        if equals:
            env.setdefault(key, value)
    path = env.get(b"PATH", DEFAULT_PATH)
    file, shims = search(os.fsencode(program), path)
    if file is None:
        raise Quit(ExitCode.NOT_FOUND, f"{program} is not installed: PATH has only its shim")
    if below:
        own = b"%d" % os.getpid()
        if env.get(PASSED) == own:
            why = (
                f"{os.fsdecode(file)} leads back to the shim of {program}; "
                "have it call the program by its path"
            )
            raise Quit(ExitCode.NOT_EXECUTABLE, why)
        env[PASSED] = own
    else:
        env[b"PATH"] = b":".join(
            directory for directory in path.split(b":") if directory not in shims
        )
    # Python ignores these two, and the program would inherit that
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(file, [program, *arguments], env)
    except OSError as error:
        raise Quit(
            ExitCode.NOT_EXECUTABLE, f"cannot execute {os.fsdecode(file)}: {error.strerror}"
        ) from None

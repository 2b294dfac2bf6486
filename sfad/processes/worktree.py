"""The programs that make the worktree of a run. A bare interpreter executes them as the run's user: one looks at the repository
before the run is admitted, the other is the first step of each attempt, in the run's own containment, and becomes the command.

So git and the hooks of the repository have no more rights than the run, count against its limits, end with it, and a killed daemon
changes nothing: the next one adopts the run whatever it is doing.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from .. import worktrees
from .credentials import unsealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

_PACKAGES = str(Path(__file__).parents[2])
_START = "import sys; sys.path.append(sys.argv[1]); from sfad.processes import worktree; worktree.{}(sys.argv[2:])"
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
ANSWER = b"sfad: "
"""Begins the last line that `look` prints."""


def _python(function: str) -> list[bytes]:
    words = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _START.format(function), _PACKAGES]
    return [os.fsencode(word) for word in words]


# ---- Before the run is admitted


def look_words(branch: str | None, again: bytes) -> list[bytes]:
    """Return the command that looks at the repository around its working directory. It prints JSON after `ANSWER`: `error`, or what
    `worktrees.look` returns."""
    return [*_python("look"), b"=" if branch is None else os.fsencode(f"={branch}"), b"1" if branch is None else b"", again]


def look(words: Sequence[str]) -> None:
    import json

    branch, default, again = words
    try:
        found = worktrees.look(os.getcwd(), None if default else branch[1:], again, os.environ)
    except (worktrees.GitError, OSError) as error:
        found = {"error": str(error)}
    os.write(1, b"\n" + ANSWER + json.dumps(found).encode() + b"\n")


# ---- The first step of an attempt


def step_words(wanted: worktrees.Record, *, origin: bytes, cwd: bytes, sealed: bool, found: bool) -> list[bytes]:
    """Return the command that `first_step` completes."""
    given = {
        "path": wanted.path, "repository": wanted.repository, "branch": wanted.branch, "start": wanted.start, "run": wanted.run,
        "socket": wanted.socket, "isolated": "1" if wanted.isolated else "", "origin": os.fsdecode(origin),
        "cwd": os.fsdecode(cwd), "sealed": "1" if sealed else "", "found": "1" if found else "",
    }  # fmt: skip
    return [*_python("enter"), *(os.fsencode(f"{name}={value}") for name, value in given.items())]


def first_step(step: Sequence[bytes], files: Sequence[bytes], argv: Sequence[bytes]) -> list[bytes]:
    """Return the command that makes the worktree and becomes another. It executes the first of `files` that can be executed."""
    return [*step, *(b"file=" + file for file in files), b"--", *argv]


def enter(words: list[str]) -> None:
    """Make the worktree, enter it, and become the command. Return only by `SystemExit`, after a line on stderr."""
    at = words.index("--")
    pairs = [word.partition("=")[::2] for word in words[:at]]
    given, files, argv = dict(pairs), [value for name, value in pairs if name == "file"], words[at + 1 :]
    wanted = worktrees.Record(
        path=given["path"], repository=given["repository"], branch=given["branch"], start=given["start"], run=given["run"],
        socket=given["socket"], isolated=bool(given["isolated"]),
    )  # fmt: skip
    found = unsealed(os.environb) if given["sealed"] else os.environb
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in found.items()}
    try:
        worktrees.make(wanted, given["origin"], env, found=bool(given["found"]))
        if wanted.isolated:  # the sandbox can only show what is there
            for below in ("refs/heads", "logs/refs/heads"):
                os.makedirs(f"{wanted.repository}/{below}/{os.path.dirname(wanted.branch)}", exist_ok=True)
        os.makedirs(given["cwd"], exist_ok=True)  # git keeps no empty directory
        os.chdir(given["cwd"])
    except (worktrees.GitError, OSError) as error:
        _fail(_NOT_EXECUTABLE, f"the run has no worktree: {error}")
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # Python has changed these, and the command would inherit it
    _execute(files, argv)


def _execute(files: Sequence[str], argv: list[str]) -> NoReturn:
    """Execute the command as execvp(3) does."""
    denied = None
    for file in files:
        try:
            os.execve(file, argv, os.environb)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
        except OSError as error:
            _fail(_NOT_EXECUTABLE, f"cannot execute {file}: {error.strerror}")
    name = argv[0] if argv else "''"
    if denied is not None:
        _fail(_NOT_EXECUTABLE, f"cannot execute {denied.filename or name}: {denied.strerror}")
    _fail(_NOT_FOUND, f"cannot execute {name}: no such file")


def _fail(code: int, message: str) -> NoReturn:
    os.write(2, f"sfad: {message}\n".encode(errors="surrogateescape"))
    raise SystemExit(code)

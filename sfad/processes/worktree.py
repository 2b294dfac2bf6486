"""The programs that make the worktree of a run. A bare interpreter executes them as the run's user:
one looks at the repository before the run is admitted, the other is the first step of each attempt,
in the run's own containment, and becomes the command.

So git and the hooks of the repository have no more rights than the run, count against its limits,
end with it, and a killed daemon changes nothing: the next one adopts the run whatever it is doing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from .. import worktrees
from ..git import GitError
from .helper import ANSWER, NOT_EXECUTABLE, become, environment, fail, python_words, understood

# ---- Before the run is admitted


def look_words(branch: str | None, again: bytes) -> list[bytes]:
    """Return the command that looks at the repository around its working directory. It prints JSON
    after `ANSWER`: `error`, or what `worktrees.look` returns."""
    return [
        *python_words("worktree", "look"),
        b"=" if branch is None else os.fsencode(f"={branch}"),
        b"1" if branch is None else b"",
        again,
    ]


def look(words: Sequence[str]) -> None:
    import json

    branch, default, again = words
    try:
        found = worktrees.look(os.getcwd(), None if default else branch[1:], again, os.environ)
    except (GitError, OSError) as error:
        found = {"error": str(error)}
    os.write(
        1,
        b"\n"
        + ANSWER
        + json.dumps(found, ensure_ascii=False).encode(errors="surrogateescape")
        + b"\n",
    )


# ---- The first step of an attempt


def step_words(
    wanted: worktrees.Record, *, origin: bytes, cwd: bytes, sealed: bool, found: bool
) -> list[bytes]:
    """Return the command that `first_step` completes."""
    given = {
        "path": wanted.path, "repository": wanted.repository, "branch": wanted.branch,
        "start": wanted.start, "run": wanted.run, "socket": wanted.socket,
        "isolated": "1" if wanted.isolated else "", "origin": os.fsdecode(origin),
        "cwd": os.fsdecode(cwd), "sealed": "1" if sealed else "", "found": "1" if found else "",
    }  # fmt: skip
    return [
        *python_words("worktree", "enter"),
        *(os.fsencode(f"{name}={value}") for name, value in given.items()),
    ]


def enter(words: list[str]) -> None:
    """Make the worktree, enter it, and become the command. Return only by `SystemExit`, after a
    line on stderr."""
    given, files, argv = understood(words)
    wanted = worktrees.Record(
        path=given["path"], repository=given["repository"], branch=given["branch"],
        start=given["start"], run=given["run"], socket=given["socket"],
        isolated=bool(given["isolated"]), origin=given["origin"],
    )  # fmt: skip
    env = environment(sealed=bool(given["sealed"]))
    try:
        worktrees.make(wanted, given["origin"], env, found=bool(given["found"]))
        if wanted.isolated:  # the sandbox can only show what is there
            for below in ("refs/heads", "logs/refs/heads"):
                os.makedirs(
                    f"{wanted.repository}/{below}/{os.path.dirname(wanted.branch)}", exist_ok=True
                )
        os.makedirs(given["cwd"], exist_ok=True)  # git keeps no empty directory
        os.chdir(given["cwd"])
    except (GitError, OSError) as error:
        fail(NOT_EXECUTABLE, f"the run has no worktree: {error}")
    become(files, argv)

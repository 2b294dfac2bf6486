"""The programs that make the worktree of a run. A bare interpreter executes them as the run's user:
one looks at the repository before the run is admitted, the other is the first step of each attempt,
in the run's own containment, and becomes the command.

So git and the hooks of the repository have no more rights than the run, count against its limits,
end with it, and a killed daemon changes nothing: the next one adopts the run whatever it is doing.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence

from ...git.commands import GitError
from ...processes.helper import (
    ANSWER,
    NOT_EXECUTABLE,
    become,
    environment,
    fail,
    python_words,
    understood,
)
from . import private, worktrees
from .record import Record

# ---- Before the run is admitted


def look_words(branch: str | None, again: bytes, most: int | None) -> list[bytes]:
    """Return the command that looks at the repository around its working directory. It prints JSON
    after `ANSWER`: `error`, or what `worktrees.look` returns. `most`: bytes that the worktrees of
    the user may take before another is made."""
    return [
        *python_words(__name__, "look"),
        b"=" if branch is None else os.fsencode(f"={branch}"),
        b"1" if branch is None else b"",
        again,
        b"%d" % (most or 0),
    ]


def look(words: Sequence[str]) -> None:
    branch, default, again, most = words
    try:
        found = worktrees.look(os.getcwd(), None if default else branch[1:], again, os.environ)
        if int(most) and not (again and found.get("whole")):
            worktrees.check_room(int(most), os.environ)
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
    wanted: Record, *, origin: bytes, cwd: bytes, sealed: bool, found: bool
) -> list[bytes]:
    """Return the command that `helper.completed` completes."""
    given = {
        "path": wanted.path, "repository": wanted.repository, "branch": wanted.branch,
        "start": wanted.start, "run": wanted.run, "socket": wanted.socket,
        "isolated": "1" if wanted.isolated else "", "origin": os.fsdecode(origin),
        "cwd": os.fsdecode(cwd), "sealed": "1" if sealed else "", "found": "1" if found else "",
        "alternates": json.dumps(wanted.alternates), "sandbox": json.dumps(wanted.sandbox),
    }  # fmt: skip
    return [
        *python_words(__name__, "enter"),
        *(os.fsencode(f"{name}={value}") for name, value in given.items()),
    ]


def enter(words: list[str]) -> None:
    """Make the worktree, enter it, and become the command. Return only by `SystemExit`, after a
    line on stderr."""
    given, files, argv = understood(words)
    wanted = Record(
        path=given["path"], repository=given["repository"], branch=given["branch"],
        start=given["start"], run=given["run"], socket=given["socket"],
        isolated=bool(given["isolated"]), origin=given["origin"],
        alternates=json.loads(given["alternates"]), sandbox=json.loads(given["sandbox"]),
    )  # fmt: skip
    env = environment(sealed=bool(given["sealed"]))
    try:
        worktrees.make(wanted, given["origin"], env, found=bool(given["found"]))
        os.makedirs(given["cwd"], exist_ok=True)  # git keeps no empty directory
        os.chdir(given["cwd"])
    except (GitError, OSError) as error:
        fail(NOT_EXECUTABLE, f"the run has no worktree: {error}")
    if wanted.isolated:
        _wait(wanted.path, env)
    become(files, argv)


_ENDING = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGALRM, signal.SIGXCPU,
)  # fmt: skip


def _wait(path: str, env: dict[str, str]) -> None:
    """Return in a new process, which becomes the sandbox. This one stays outside, brings what the
    run commits into the repository, and ends as the sandbox has ended."""
    signals = set(signal.valid_signals())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    for number in _ENDING:  # what ends the run comes to this process, too
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # else a pipe of the run's would stay open
        os.dup2(nowhere, descriptor)
    status = os.waitpid(child, 0)[1]  # noqa: TID251 - its own child
    try:
        record = worktrees.read_record(path)
        if record is not None:
            private.bring(record, env)
    except (GitError, OSError) as error:
        said = f"sfad: what the run has committed is not in the repository: {error}\n"
        os.write(2, said.encode(errors="surrogateescape"))
    if os.WIFSIGNALED(status):
        _end_by(os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _end_by(number: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)

"""How git is invoked, by the daemon's helpers and by `sfactl`.

Nothing goes through a shell, and git asks nothing. Variables that belong to another repository are
left out. The config, the hooks and the attributes that git obeys are those of the directory where
it is executed (`At`), so a caller names a directory that no isolated run could write:
`private` makes one of what such a run has left.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO

LOCAL = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_PREFIX", "GIT_NAMESPACE", "GIT_CEILING_DIRECTORIES",
    "GIT_CONFIG", "GIT_GRAFT_FILE", "GIT_SHALLOW_FILE", "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_IMPLICIT_WORK_TREE", "GIT_NO_REPLACE_OBJECTS", "GIT_REPLACE_REF_BASE",
    "GIT_QUARANTINE_PATH",
)  # fmt: skip
"""Variables that belong to one repository (git rev-parse --local-env-vars), such as a hook of git
sets. In another checkout they would lead git back."""

SETTINGS = ("GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT")
"""Variables with settings of a person, which `git -c` sets, too. They belong to no repository."""

SWITCHES = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
"""Before the words of a command that only looks: it executes no program for that."""


SPARSE = ("-c", "core.sparseCheckout=true", "-c", "sparse.expectFilesOutsideOfPatterns=false")
"""Before the words of a command that is to notice files which a sparse checkout leaves out."""
WHOLE = ("-c", "core.sparseCheckout=false")
"""Before those of a command that is to add such files."""


class GitError(Exception):
    """Git refuses, or is missing. The message says why."""


class TooLong(GitError):
    """Git was ended because it took too long."""


PATIENCE = 120.0
"""Seconds for git, and for each step, that reads what a run has left."""
GLANCE = 20.0
"""The same for a line that tells what is there: nobody waits minutes for the end of a run."""

_bound: ContextVar[float] = ContextVar("bound", default=PATIENCE)


@contextmanager
def glancing() -> Iterator[None]:
    """Have what is read meanwhile take `GLANCE` seconds at most."""
    token = _bound.set(GLANCE)
    try:
        yield
    finally:
        _bound.reset(token)


def bounded(patience: float) -> float:
    return min(patience, _bound.get())


class At:
    """Where git is executed."""

    def __init__(self, cwd: str, env: Mapping[str, str], git_dir: str = "") -> None:
        """`env`: what the command gets, without `LOCAL` unless it is meant. `git_dir`: the
        repository, if it is not the one around `cwd`."""
        self.cwd = cwd
        self.env = env
        self.git_dir = git_dir

    def command(self, *words: str) -> list[str]:
        return ["git", *([f"--git-dir={self.git_dir}"] if self.git_dir else []), *words]


def own(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what belongs to one repository."""
    return {name: value for name, value in env.items() if name not in LOCAL}


def git(*words: str, at: At, codes: Sequence[int] = (0,), patience: float | None = None) -> str:
    """Return what git prints. Raise `GitError` for an exit code that is not among `codes`, and
    after `patience` seconds."""
    return os.fsdecode(raw(words, at, codes, patience=patience)[1]).removesuffix("\n")


def run(words: Sequence[str], at: At, codes: Sequence[int] = (0,)) -> tuple[int, str]:
    """Return git's exit code and what it prints. Raise `GitError`."""
    code, said = raw(words, at, codes)
    return code, os.fsdecode(said).removesuffix("\n")


def raw(
    words: Sequence[str],
    at: At,
    codes: Sequence[int] = (0,),
    *,
    stdin: IO[bytes] | None = None,
    patience: float | None = None,
) -> tuple[int, bytes]:
    """Return git's exit code and the bytes that it prints. Raise `GitError`, also after `patience`
    seconds."""
    done = execute(words, at, stdin=stdin, patience=patience)
    if done.returncode not in codes:
        raise GitError(complaint(done.stderr) or f"git {words[0]} ended with {done.returncode}")
    return done.returncode, done.stdout


def execute(
    words: Sequence[str], at: At, *, stdin: IO[bytes] | None = None, patience: float | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Return how git has ended, whatever its exit code. Raise `GitError` if it was not executed, or
    took longer than `patience` seconds."""
    if not os.path.isdir(at.cwd):
        raise GitError(f"{at.cwd} is not a directory")
    try:
        with subprocess.Popen(
            at.command(*words),
            cwd=at.cwd,
            env={**at.env, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as running:
            patience = None if patience is None else bounded(patience)
            try:
                out, err = running.communicate(timeout=patience)
            except subprocess.TimeoutExpired:
                running.kill()
                raise TooLong(f"{_named(words)} took longer than {patience:.0f} s") from None
            except BaseException:
                running.terminate()  # git removes its locks then
                raise
        return subprocess.CompletedProcess(running.args, running.returncode, out, err)
    except FileNotFoundError:
        raise GitError("git is not in the PATH; install it") from None


def _named(words: Sequence[str]) -> str:
    """Return `git VERB`, without the settings before it."""
    rest = list(words)
    while rest[:1] == ["-c"]:
        del rest[:2]
    return f"git {rest[0]}"


def complaint(stderr: bytes) -> str:
    """Return what git says of a failure. Advice may follow in more lines."""
    lines = os.fsdecode(stderr).strip().splitlines() or [""]
    faults = [line[7:] for line in lines if line.startswith(("fatal: ", "error: "))]
    said = faults[-1] if faults else lines[-1]
    if said.endswith(" files failed"):  # of `git add`; the first one says which, and why
        said = faults[0]
    return f"{said}; to trust it: {lines[-1].strip()}" if "dubious ownership" in said else said

"""The record of a worktree, a JSON file beside it. It is written before anything is made: whatever
is killed, the next attempt or `prune` finds what is there."""

from __future__ import annotations

import os
from typing import Self

INITIALISING = "initializing"
"""What git writes into `locked` while it makes a worktree."""


_MOST = 1 << 16


class Record:
    """What the file beside a worktree says."""

    def __init__(
        self, *, path: str, repository: str, branch: str, start: str, run: str, socket: str,
        starts: dict[str, str] | None = None, isolated: bool = False,
        alternates: list[str] | None = None, sandbox: list[str] | None = None, brought: str = "",
        origin: str = "", landed: dict[str, dict[str, str]] | None = None,
    ) -> None:  # fmt: skip
        self.path = path
        self.repository = repository
        self.branch = branch
        self.start = start
        """The commit that the worktree began with."""
        self.run = run
        """The last run that was given the worktree."""
        self.socket = socket
        """Of the daemon of that run."""
        self.starts = starts or {}
        """For each run: the commit or tree that it began with."""
        self.isolated = isolated
        """Whether a run in a sandbox has worked there, so that nothing in it is obeyed."""
        self.origin = origin
        """The directory in which the run was asked for."""
        self.alternates = alternates or []
        """Directories from which the repository borrows objects, as before the first run."""
        self.sandbox = sandbox or []
        """Words of the sandbox in which sfad reads what such a run has left."""
        self.brought = brought
        """The commit of the branch when the repository and the run last had the same."""
        self.landed = landed or {}
        """For each branch on which the work has landed: `tip`, the commit that had all of it;
        `became`, the commit that has it there; and `how`. That of a patch is in no branch."""

    @property
    def file(self) -> str:
        return f"{self.path}.json"

    def save(self) -> None:
        import json

        text = json.dumps({name: getattr(self, name) for name in FIELDS})
        new = f"{self.file}.new"
        try:
            with open(new, "w", encoding="ascii") as file:
                file.write(text)
            os.rename(new, self.file)
        except OSError:  # the disk may be full
            with Ignoring():
                os.unlink(new)
            raise

    @property
    def admin(self) -> str | None:
        """The directory that git keeps for the worktree; `None` if there is none."""
        at = f"{self.repository}/worktrees/{os.path.basename(self.path)}"
        # git writes a path that is relative to `at` if worktree.useRelativePaths is set
        named = os.path.normpath(os.path.join(at, content(f"{at}/gitdir") or ""))
        return at if self.unfinished or named == f"{self.path}/.git" else None

    @property
    def moved(self) -> str | None:
        """Where the worktree is if a person has moved it (git worktree move); `None` if it is not
        known to have been moved."""
        at = f"{self.repository}/worktrees/{os.path.basename(self.path)}"
        named = os.path.normpath(os.path.join(at, content(f"{at}/gitdir") or ""))
        if named == f"{self.path}/.git" or content(named) != f"gitdir: {at}":
            return None
        return os.path.dirname(named)

    @property
    def unfinished(self) -> bool:
        """Whether git was ended while it made the worktree."""
        return (
            content(f"{self.repository}/worktrees/{os.path.basename(self.path)}/locked")
            == INITIALISING
        )

    @property
    def whole(self) -> bool:
        """Whether git has made all of the worktree."""
        return (
            self.admin is not None and not self.unfinished and os.path.isfile(f"{self.path}/.git")
        )

    @property
    def gone(self) -> bool:
        """Whether the worktree was removed, and only its record is there."""
        return self.admin is None and not os.path.lexists(self.path)

    @property
    def holds_nothing(self) -> bool:
        """Whether nothing in it can be an agent's."""
        return (
            self.unfinished
            or not os.path.lexists(self.path)
            or (os.path.isdir(self.path) and not os.listdir(self.path))
        )


def content(file: str, most: int = _MOST) -> str | None:
    """Return the line in a file, or its first `most` bytes; `None` if there is none. A run may have
    put it there, or a pipe in its place."""
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fsdecode(os.read(opened, most)).removesuffix("\n")
    except OSError:
        return None
    finally:
        os.close(opened)


FIELDS = (
    "path", "repository", "branch", "start", "run", "socket", "starts", "isolated", "alternates",
    "sandbox", "brought", "origin", "landed",
)  # fmt: skip


class Ignoring:
    """Ignores that a file is missing, or holds something else."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        return kind is not None and issubclass(kind, (OSError, ValueError, KeyError, TypeError))

"""What a run has put aside in git: commits that neither its worktree nor its branch has, so that
they do not land with these.

The log of the worktree's HEAD says where it has been. A commit that `git commit --amend`, `rebase`
or `reset` has replaced is not put aside: git warns of none either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...git.commands import At, git, own, run
from .private import directory
from .record import Ignoring, Record, content

_MOST = 1 << 20
"""Bytes of a log that are read, and so many of a run that writes without an end."""
_MOST_BRANCHES = 100
_MOVED = re.compile("checkout: moving from (.+) to (.+)")
_COMMIT = re.compile("[0-9a-f]{40,64}")
_STASH = re.compile(r"(?:WIP on|On) (\(no branch\)|[^:]+): ")


@dataclass
class Aside:
    """One of these."""

    words: str
    """What it is, and the command that shows or brings it."""
    commit: str = ""
    """Which goes with the worktree, because no ref has it."""
    lost: bool = False
    """It goes with the worktree, and the repository does not have it."""


@dataclass
class _Move:
    old: str
    new: str
    time: int
    message: str


def aside(record: Record, env: Mapping[str, str]) -> list[Aside]:
    """Return what the runs of a worktree have put aside; nothing is known of that without the
    repository. Raise `GitError`."""
    if not os.path.isdir(record.repository):
        return []
    at = At("/", own(env), record.repository)
    if record.isolated:
        moves = list(_moves(f"{directory(record.path)}/admin"))
        return [*_own_branches(record, at), *_on_no_branch(moves, at, lost=True)]
    moves = [] if record.admin is None else list(_moves(record.admin))
    return [
        *_stashes(record, moves, at),
        *_branches(record, moves, at),
        *_on_no_branch(moves, at, lost=False),
    ]


def _moves(admin: str) -> Iterator[_Move]:
    for line in (content(f"{admin}/logs/HEAD", _MOST) or "").splitlines():
        entry, _, message = line.partition("\t")
        fields = entry.split(" ")
        if len(fields) > 4 and all(map(_COMMIT.fullmatch, fields[:2])) and fields[-2].isdecimal():
            yield _Move(fields[0], fields[1], int(fields[-2]), message)


def _commits(count: int) -> str:
    return "1 commit" if count == 1 else f"{count} commits"


def _stashes(record: Record, moves: list[_Move], at: At) -> Iterator[Aside]:
    """Yield the stashes, which all worktrees of a repository share: those of the branches on which
    the run has worked."""
    if run(["show-ref", "--verify", "--quiet", "refs/stash"], at, (0, 1))[0]:
        return
    names, since = {record.branch}, moves[0].time if moves else 0
    for move in moves:
        if (found := _MOVED.fullmatch(move.message)) is not None:
            names.update(found.groups())
    been = {commit for move in moves for commit in (move.old, move.new)}
    count = 0
    listed = git("log", "-g", "--format=%ct %P%x09%gs", "refs/stash", "--", at=at)
    for line in listed.splitlines():
        about, _, message = line.partition("\t")
        time, parent, *_ = [*about.split(" "), "", ""]
        on = _STASH.match(message)
        if on is not None and int(time) >= since:
            count += parent in been if on[1] == "(no branch)" else on[1] in names
    if count:
        yield Aside(f"{'1 stash' if count == 1 else f'{count} stashes'} (git stash list)")


def _branches(record: Record, moves: list[_Move], at: At) -> Iterator[Aside]:
    """Yield the branches that the run has left again, if they have commits that no other has."""
    left: dict[str, str] = {}
    for move in moves:
        if (found := _MOVED.fullmatch(move.message)) is not None:
            left.setdefault(found[2], move.new)
    head = content(f"{record.admin}/HEAD") or ""
    here = head.removeprefix("ref: refs/heads/")
    for name, base in [*left.items()][:_MOST_BRANCHES]:
        ref = f"refs/heads/{name}"
        if (
            name in (record.branch, here)
            or run(["show-ref", "--verify", "--quiet", ref], at, (0, 1))[0]
        ):
            continue
        others = [base, f"--exclude={name}", "--branches", "--remotes", "--tags"]
        if count := int(git("rev-list", "--count", ref, "--not", *others, at=at)):
            yield Aside(f"{_commits(count)} on the branch '{name}'")


def _on_no_branch(moves: list[_Move], at: At, *, lost: bool) -> Iterator[Aside]:
    """Yield the commits that a checkout has left while no branch was checked out (git-checkout(1),
    DETACHED HEAD), the newest first."""
    known = ["--all", *([moves[-1].new] if moves and not lost else [])]
    for move in reversed(moves[-_MOST_BRANCHES:]):
        found = _MOVED.fullmatch(move.message)
        if found is None or not _COMMIT.fullmatch(found[1]):
            continue
        missing = _is_missing(move.old, at)
        if missing and lost:
            yield Aside(f"commit {move.old[:12]} on no branch", lost=True)
        if missing:
            continue
        if count := int(git("rev-list", "--count", move.old, "--not", *known, at=at)):
            words = f"{_commits(count)} on no branch (git branch NAME {move.old[:12]})"
            yield Aside(words, move.old)
            known.append(move.old)


def _own_branches(record: Record, at: At) -> Iterator[Aside]:
    """Yield the branches that an isolated run has made beside its own, which are not brought."""
    above = os.path.dirname(record.branch)
    place = f"{directory(record.path)}/refs/heads/{above}"
    with Ignoring():
        for name in sorted(os.listdir(place))[:_MOST_BRANCHES]:
            branch = f"{above}/{name}" if above else name
            commit = content(f"{place}/{name}")
            if branch == record.branch or commit is None or not _COMMIT.fullmatch(commit):
                continue
            words = ["rev-parse", "--verify", "--quiet", f"refs/heads/{branch}"]
            if run(words, at, (0, 1, 128))[1] != commit and _is_missing(commit, at):
                yield Aside(f"the branch '{branch}', which is not brought", lost=True)


def _is_missing(commit: str, at: At) -> bool:
    return run(["cat-file", "-e", f"{commit}^{{commit}}"], at, (0, 1, 128))[0] != 0


def keep(record: Record, found: Aside, env: Mapping[str, str], *, dry_run: bool) -> str:
    """Give commits that no ref has a ref, and return that. Raise `GitError`."""
    ref = f"refs/sfad/{os.path.basename(record.path)}.{found.commit[:12]}"
    if not dry_run:
        git("update-ref", ref, found.commit, at=At("/", own(env), record.repository))
    return ref

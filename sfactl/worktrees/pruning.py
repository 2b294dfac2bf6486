"""Removes git worktrees. They belong to the caller: git removes them, and the daemon only knows
which runs have ended."""

import os
import sys
import time
from datetime import datetime

from sfad.features.worktrees import aside, worktrees
from sfad.features.worktrees.landing import alone as alone_in
from sfad.features.worktrees.record import Record
from sfad.git.commands import GitError
from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.daemon import Prune
from sfad.protocol.requests.listing import Info, List, RunList
from sfad.protocol.types import ErrorCode

from .. import output
from ..connecting.connection import Client, DaemonError
from .landing import living_in
from .pruned import Named, PrunedWorktrees


def prune(client: Client, wanted: Prune, *, every: bool, alone: bool, yes: bool) -> PrunedWorktrees:
    """Remove worktrees of the caller's runs that were removed, or with `alone` have ended.
    `every`: also those with changes; `yes`: also with those that no commit can keep."""
    done = PrunedWorktrees()
    for record in worktrees.records(os.environ):
        if os.path.realpath(record.socket) != os.path.realpath(client.path):
            continue
        named = {
            "path": output.utf8(record.path),
            "branch": output.utf8(record.branch),
            "run": record.run,
        }
        try:
            asked = _attempt(client, record, named, wanted, done, every=every, alone=alone, yes=yes)
            if asked is None:
                continue
            if not wanted.dry_run and _agreed(asked):  # a run may have begun there meanwhile
                _attempt(client, record, named, wanted, done, every=every, alone=alone, yes=True)
            else:
                done.kept.append(asked)
        except (GitError, OSError) as error:
            done.failed.append({**named, "why": output.utf8(str(error))})
    return done


def _attempt(
    client: Client, record: Record, named: Named, wanted: Prune, done: PrunedWorktrees,
    *, every: bool, alone: bool, yes: bool,
) -> Named | None:  # fmt: skip
    """Remove a worktree whose run is over, unless another lives in it. Return what no commit can
    keep of it if that is not to be removed without a question."""
    with alone_in(os.path.dirname(record.path)), worktrees.claimed(record):
        now = worktrees.read_record(record.path)
        if now is None:
            return None
        named["run"] = now.run
        over, known = _is_over(client, now.run, wanted, alone=alone)
        if not over:
            return None
        live = client.call(List(id=0, rows=0), RunList).runs
        if (other := living_in(named["path"], live)) is not None:
            done.kept.append({**named, "live": other, "why": f"run {other} works in it"})
            return None
        return _remove(now, named, known, wanted, done, every=every, yes=yes)


def _remove(
    record: Record,
    named: Named,
    known: bool,
    wanted: Prune,
    done: PrunedWorktrees,
    *,
    every: bool,
    yes: bool,
) -> Named | None:
    commits = worktrees.has_commits(record, os.environ)
    kept = {**named, "known": "1" if known else ""}
    if record.gone:  # it was removed before, and its record tells where its work is kept
        if not known and (ref := _not_landed(record)):
            done.branches.append({**kept, "ref": output.utf8(ref)})
        if not wanted.dry_run:
            landed = worktrees.forget(record, os.environ)
            if not known or (landed and not commits):
                worktrees.remove(record, os.environ, branch=not commits)
        return None
    why = worktrees.changes(record, os.environ) or (
        "it has commits that only branches of runs have" if commits else None
    )
    if why is not None and not every:
        done.kept.append({**named, "why": why})
        return None
    try:
        ref = worktrees.keep(record, os.environ, dry_run=wanted.dry_run)
    except worktrees.NotKept as error:
        unkept = {**named, "why": output.utf8(str(error))}
        if not yes:
            return unkept
        ref = None
        done.lost.append(unkept)
    if ref is not None:
        done.saved.append({**kept, "ref": output.utf8(ref)})
    elif commits and _not_landed(record):
        done.branches.append(kept)
    for each in aside.aside(record, os.environ):
        if each.commit:
            ref = aside.keep(record, each, os.environ, dry_run=wanted.dry_run)
            done.branches.append({**named, "known": "", "ref": output.utf8(ref)})
    if not wanted.dry_run:
        noted = known and (commits or ref is not None)
        worktrees.remove(record, os.environ, branch=not commits, noted=noted)
    done.removed.append(named["path"])
    return None


def _not_landed(record: Record) -> str | None:
    """Return the branch or ref that has commits of the run which have not landed."""
    try:
        left = worktrees.left(record, os.environ)
    except GitError:
        return record.branch  # it stays, and whether it has landed is not known
    return (left.kept or record.branch) if left.commits else None


def _agreed(named: Named) -> bool:
    """Return whether the person at the terminal has work removed that nothing keeps."""
    if not (os.isatty(0) and os.isatty(2)):
        return False
    output.note(output.plain(f"{named['path']} (run {named['run']}): {named['why']}"))
    sys.stderr.write("Remove it, with what is in it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _is_over(client: Client, run: str, wanted: Prune, *, alone: bool) -> tuple[bool, bool]:
    """Return whether a run has ended and is, or with --dry-run would be, removed, and whether the
    daemon knows it."""
    try:
        info = client.call(Info(id=0, run=run), RunReply).run
    except DaemonError as error:
        if error.error != ErrorCode.NO_SUCH_RUN:
            raise
        return True, False  # it was removed
    if not info.status.terminal or info.ended_at is None:
        return False, True
    would = wanted.dry_run and not wanted.keep and _age(info.ended_at) > (wanted.older_than or 0)
    return alone or would, alone


def _age(moment: datetime) -> float:
    return time.time() - moment.timestamp()

import os
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from shlex import quote
from typing import Annotated

from sfad.git import worktrees
from sfad.git.commands import GitError
from sfad.git.landing import alone as alone_in
from sfad.git.record import Record
from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.daemon import Prune, Pruned
from sfad.protocol.requests.listing import Info, List, RunList
from sfad.protocol.types import ErrorCode
from sfad.protocol.units import counted

from .. import output
from ..app import app
from ..connection import Client, DaemonError, connect
from ..exits import ExitCode, UsageError
from ..landing import living_in
from ..options import COUNT, TIME, Json, Socket, flag


@app.command()
def prune(
    socket: Socket = None,
    json: Json = False,
    older_than: Annotated[
        float | None, TIME.option("Remove trees that ended longer ago: 7d, 12h")
    ] = None,
    keep: Annotated[int | None, COUNT.option("Keep the newest N trees (default: 0)")] = None,
    worktrees: Annotated[
        bool, flag("Also remove worktrees with changes; alone, those of all ended runs")
    ] = False,
    yes: Annotated[
        bool, flag("With --worktrees, remove also what no commit can keep", "--yes", "-y")
    ] = False,
    dry_run: Annotated[bool, flag("Only print what would be removed")] = False,
) -> int:
    """Remove ended runs, with their output.

    Removes the git worktrees of removed runs as well, with their branches, if these have no
    changes and no commits of their own. It names the others; --worktrees removes these too, but
    no branch with commits: those that have not landed are named. Alone, it removes the
    worktrees of all ended runs.

    No work is lost: what is not committed becomes a commit under refs/sfad, where `sfactl land`
    finds it. Files that git ignores go. A worktree with what no commit can keep, such as a
    repository within it, stays; at a terminal sfactl asks, and --yes removes it.

    A tree is removed as a whole, with its rows and events in the ledger, and never while one of
    its runs is alive. --older-than 7d --keep 100 removes trees that ended more than 7 days ago,
    except the newest 100. Root removes the trees of all users, another user only their own.

    Exit codes: 0 removed; 2 neither --older-than, --keep nor --worktrees; 75 not everything
    could be removed; 77 not permitted inside a run.
    """
    if older_than is None and keep is None and not worktrees:
        raise UsageError(
            "say what to remove: --older-than 7d, --keep 100, "
            "or --keep 0 for everything that has ended"
        )
    wanted = Prune(id=0, older_than=older_than, keep=keep or 0, dry_run=dry_run)
    alone = older_than is None and keep is None
    if yes and not worktrees:
        raise UsageError("--yes needs --worktrees")
    with connect(socket) as client:
        nothing = Pruned(id=0, trees=0, runs=0, events=0, files=0, output_bytes=0, ledger_bytes=0)
        found = nothing if alone else client.call(wanted, Pruned)
        done = _worktrees(client, wanted, every=worktrees, alone=alone, yes=yes)
    removed, kept, failed = done.removed, done.kept, done.failed
    if json:
        names = {
            "worktrees_removed": removed,
            "worktrees_saved": done.saved,
            "worktrees_lost": done.lost,
            "worktrees_kept": kept,
            "worktrees_failed": failed,
            "branches_kept": done.branches,
        }
        output.print_json({**output.content(found), "dry_run": dry_run, **names})
    else:
        if not alone:
            _tell(found, dry_run=dry_run)
        if removed:
            print(f"{'would remove' if dry_run else 'removed'} {counted(len(removed), 'worktree')}")
            for path in removed if dry_run else ():
                print(output.plain(f"  {path}"))
        verb = "would keep" if dry_run else "kept"
        for each in done.saved:
            changes = f"the changes of run {each['run']} as {each['ref']}"
            print(output.plain(f"  {verb} {changes}: {_next_step(each)}"))
        for each in done.branches:
            print(
                output.plain(
                    f"  {verb} {each.get('ref', each['branch'])}, which has commits that have not "
                    f"landed: {_next_step(each)}"
                )
            )
        for each in done.lost:
            print(
                output.plain(
                    f"  with its changes: {each['path']} (branch {each['branch']}, "
                    f"run {each['run']}): {each['why']}"
                )
            )
        for each in kept:
            output.note(
                output.plain(
                    f"kept the worktree {each['path']} (branch {each['branch']}): {each['why']}"
                )
            )
        removable = [each for each in kept if "live" not in each]
        if removable and not worktrees:
            output.note(
                "sfactl prune --worktrees removes them, and those of all other ended runs, and "
                "keeps changes as commits; --dry-run shows which"
            )
        elif removable:
            output.note("sfactl prune --worktrees --yes removes them, with what is in them")
    for each in failed:
        output.note(
            output.plain(f"sfactl: the worktree {each['path']} cannot be removed: {each['why']}")
        )
    return ExitCode.UNAVAILABLE if failed else ExitCode.DONE


def _tell(found: Pruned, *, dry_run: bool) -> None:
    ledger = (
        f", {output.size(found.ledger_bytes)} of the ledger's file" if found.ledger_bytes else ""
    )
    print(
        f"{'would remove' if dry_run else 'removed'} {counted(found.runs, 'run')} in "
        f"{counted(found.trees, 'tree')}, {counted(found.events, 'event')}, "
        f"{counted(found.files, 'output file')} of {output.size(found.output_bytes)}{ledger}"
    )


# ---- Worktrees, which belong to the caller: git removes them, and the daemon only knows which runs
# have ended


Named = dict[str, str]


@dataclass
class _Done:
    removed: list[str] = field(default_factory=list)
    saved: list[Named] = field(default_factory=list)
    """Of these, what was not committed is now a commit."""
    branches: list[Named] = field(default_factory=list)
    """Of these, the branch stays, or the ref of what was not committed, and has not landed."""
    lost: list[Named] = field(default_factory=list)
    """These had what no commit can keep."""
    kept: list[Named] = field(default_factory=list)
    failed: list[Named] = field(default_factory=list)


def _worktrees(client: Client, wanted: Prune, *, every: bool, alone: bool, yes: bool) -> _Done:
    """Remove worktrees of the caller's runs that were removed, or with `alone` have ended.
    `every`: also those with changes; `yes`: also with those that no commit can keep."""
    done = _Done()
    live = client.call(List(id=0, rows=0), RunList).runs
    for record in worktrees.records(os.environ):
        if os.path.realpath(record.socket) != os.path.realpath(client.path):
            continue
        over, known = _is_over(client, record.run, wanted, alone=alone)
        if not over:
            continue
        named = {
            "path": output.utf8(record.path),
            "branch": output.utf8(record.branch),
            "run": record.run,
        }
        if (other := living_in(named["path"], live)) is not None:
            done.kept.append({**named, "live": other, "why": f"run {other} works in it"})
            continue
        try:
            with alone_in(os.path.dirname(record.path)):
                _remove(record, named, known, wanted, done, every=every, yes=yes)
        except (GitError, OSError) as error:
            done.failed.append({**named, "why": output.utf8(str(error))})
    return done


def _remove(
    record: Record,
    named: Named,
    known: bool,
    wanted: Prune,
    done: _Done,
    *,
    every: bool,
    yes: bool,
) -> None:
    commits = worktrees.has_commits(record, os.environ)
    kept = {**named, "known": "1" if known else ""}
    if record.gone:  # it was removed before, and its record tells where its work is kept
        if not known and (ref := _not_landed(record)):
            done.branches.append({**kept, "ref": output.utf8(ref)})
        if not wanted.dry_run:
            landed = worktrees.forget(record, os.environ)
            if not known or (landed and not commits):
                worktrees.remove(record, os.environ, branch=not commits)
        return
    why = worktrees.changes(record, os.environ) or (
        "it has commits that only branches of runs have" if commits else None
    )
    if why is not None and not every:
        done.kept.append({**named, "why": why})
        return
    try:
        ref = worktrees.keep(record, os.environ, dry_run=wanted.dry_run)
    except worktrees.NotKept as error:
        named |= {"why": output.utf8(str(error))}
        if not (yes or (not wanted.dry_run and _agreed(named))):
            done.kept.append(named)
            return
        ref = None
        done.lost.append(named)
    if ref is not None:
        done.saved.append({**kept, "ref": output.utf8(ref)})
    elif commits and _not_landed(record):
        done.branches.append(kept)
    if not wanted.dry_run:
        noted = known and (commits or ref is not None)
        worktrees.remove(record, os.environ, branch=not commits, noted=noted)
    done.removed.append(named["path"])


def _next_step(kept: Named) -> str:
    """Return the command that brings home what was kept."""
    if kept["known"]:
        return f"sfactl land {kept['run']}"
    return f"git merge {quote(kept.get('ref', kept['branch']))}"


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

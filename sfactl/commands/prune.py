from shlex import quote
from typing import Annotated

from sfad.protocol.requests.daemon import Prune, Pruned
from sfad.protocol.texts.units import counted

from .. import output
from ..app import app
from ..connecting.connection import Client, connect
from ..exits import ExitCode, UsageError
from ..features import has
from ..options.shared import COUNT, TIME, Json, Socket, flag
from ..worktrees.pruned import Named, PrunedWorktrees


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


def _worktrees(
    client: Client, wanted: Prune, *, every: bool, alone: bool, yes: bool
) -> PrunedWorktrees:
    if not has("worktrees"):
        return PrunedWorktrees()
    from ..worktrees import pruning

    return pruning.prune(client, wanted, every=every, alone=alone, yes=yes)


def _next_step(kept: Named) -> str:
    """Return the command that brings home what was kept."""
    if kept["known"]:
        return f"sfactl land {kept['run']}"
    return f"git merge {quote(kept.get('ref', kept['branch']))}"

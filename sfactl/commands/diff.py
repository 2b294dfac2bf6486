import os
from shlex import quote
from typing import Annotated

from sfad.features.worktrees import worktrees
from sfad.git.commands import GitError
from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.listing import Info

from .. import output
from ..app import app
from ..connecting.history import connect
from ..exits import ExitCode, Quit
from ..options.shared import Json, Run, Socket, flag
from ..worktrees.landing import become_owner, unlanded


@app.command()
def diff(
    run: Run,
    socket: Socket = None,
    json: Json = False,
    stat: Annotated[bool, flag("Only the names of files, and how many lines have changed")] = False,
) -> None:
    """Show what a run has changed in its git worktree since its start.

    Committed or not, with untracked files that git does not ignore. Git shows it, with your
    pager and colours, and nothing in the worktree changes. A run has a worktree with --worktree
    (docs/going-on.md); `sfactl land` brings its work home.

    Exit codes: 0 shown; 1 the run has no worktree, or it is gone; 66 no such run; 77 the
    worktree is another user's.
    """
    with connect(socket) as client:
        found = client.call(Info(id=0, run=run), RunReply).run
    if found.worktree is None:
        raise Quit(
            ExitCode.REFUSED, f"run {found.id} has no worktree of its own; it worked in {found.cwd}"
        )
    become_owner(found)
    record = worktrees.read_record(found.worktree)
    if record is not None and record.moved is not None:
        raise Quit(
            ExitCode.REFUSED,
            f"{worktrees.is_gone(record)}: git -C {quote(record.moved)} diff {record.start[:12]}",
        )
    if record is None or record.gone:
        work = unlanded(found)
        raise Quit(
            ExitCode.REFUSED,
            f"the worktree {found.worktree} of run {found.id} is gone; its branch was "
            f"{found.branch}{f'; {work}' if work else ''}",
        )
    try:
        text = worktrees.diff(record, found.id, os.environ, stat=stat, text=json)
    except (GitError, OSError) as error:
        raise Quit(
            ExitCode.REFUSED, f"what run {found.id} has changed cannot be shown: {error}"
        ) from None
    if text is not None:
        output.print_json(
            {
                "id": found.id,
                "worktree": found.worktree,
                "branch": found.branch,
                "diff": output.utf8(text),
            }
        )

import os
import pwd
from typing import Annotated

from sfad import worktrees
from sfad.git import GitError
from sfad.protocol.requests.base import RunReply
from sfad.protocol.requests.listing import Info
from sfad.protocol.types import RunInfo

from .. import output
from ..app import app
from ..exits import ExitCode, Quit
from ..history import connect
from ..options import Json, Run, Socket, flag


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
    (docs/going-on.md); merging is git's: git merge BRANCH.

    Exit codes: 0 shown; 1 the run has no worktree, or it is gone; 66 no such run; 77 the
    worktree is another user's.
    """
    with connect(socket) as client:
        found = client.call(Info(id=0, run=run), RunReply).run
    if found.worktree is None:
        raise Quit(
            ExitCode.REFUSED, f"run {found.id} has no worktree of its own; it worked in {found.cwd}"
        )
    _become_owner(found)
    record = worktrees.read_record(found.worktree)
    if record is None:
        raise Quit(
            ExitCode.REFUSED,
            (
                f"the worktree {found.worktree} of run {found.id} is gone; "
                f"its branch was {found.branch}"
            ),
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


def _become_owner(run: RunInfo) -> None:
    """Have git executed as the run's user: it obeys the settings of the repository, which may name
    programs. Raise `Quit`."""
    try:
        user = pwd.getpwnam(run.user)
    except KeyError:
        return  # a user without a name, as in a container: git can read only what the caller can
    if user.pw_uid == os.geteuid():
        return
    if os.geteuid() != 0:
        raise Quit(
            ExitCode.NOT_PERMITTED,
            f"the worktree of run {run.id} belongs to {run.user}, who can show it",
        )
    os.initgroups(user.pw_name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    os.chdir("/")
    kept = {
        name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TERM") if name in os.environ
    }
    os.environ.clear()
    os.environ.update({**kept, "HOME": user.pw_dir})

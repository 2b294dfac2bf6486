import os
from typing import Annotated

from sfad.features.fleet.messages import FilesPacked

from .. import output
from ..app import app
from ..connecting.connection import connect
from ..exits import ExitCode, Quit
from ..options.shared import DIR, Json, Run, Socket, flag
from ..worktrees import shipping


@app.command()
def fetch(
    run: Run,
    socket: Socket = None,
    json: Json = False,
    patch: Annotated[bool, flag("Print a patch instead")] = False,
    force: Annotated[bool, flag("Overwrite files that have changed since they were sent")] = False,
    to: Annotated[str | None, DIR.option("Another directory to write to")] = None,
) -> None:
    """Bring back what a run has changed in the files that were sent with it.

    The run was started with --ship DIR (docs/fleet.md#files), and may be named NODE/ID. Its new
    and changed files are written to DIR, and what it has deleted is deleted there. A file of
    DIR that has changed since it was sent is a conflict: all such files are named, and nothing
    is brought back. The run may still be live; its files stay on its node as long as its output
    does.

    With --patch, the changes are printed as a patch for `git apply`, and nothing is written.

    Exit codes: 0 done; 1 files have changed since, or the changes are too large; 66 no such
    run; 75 its node does not answer.
    """
    with connect(socket) as client:
        packed, archive = shipping.fetched(client, run, patch=patch)
        own = client.fleet.node if client.fleet is not None else packed.asked
    with archive:
        if patch:
            shipping.show_patch(archive)
            return
        root = _root(packed, to, own)
        done = shipping.bring_back(archive, root, force=force, elsewhere=to is not None)
    if json:
        output.print_json({"run": run, "directory": output.utf8(root), **done})
    else:
        shipping.tell(done)


def _root(packed: FilesPacked, to: str | None, own: str) -> str:
    """Return the directory to write to. `own`: the node of this machine. Raise `Quit`."""
    if to is not None:
        os.makedirs(to, exist_ok=True)
        return os.path.abspath(to)
    root = os.fsdecode(packed.directory)
    if packed.node != own:
        raise Quit(
            ExitCode.REFUSED,
            (
                f"the files came from {root} on node {packed.node}: "
                "fetch them there, or name a directory with --to"
            ),
        )
    if not os.path.isdir(root):
        raise Quit(
            ExitCode.REFUSED,
            f"{root}, from which the files came, is not there any more: name another with --to",
        )
    return root

from typing import Annotated, Any

from sfad.landing import How

from .. import landing, output
from ..app import app
from ..exits import UsageError
from ..history import connect
from ..options import BRANCH, TEXT, Json, Run, Socket, flag


@app.command()
def land(
    run: Run,
    socket: Socket = None,
    json: Json = False,
    onto: Annotated[str | None, BRANCH.option("Another branch (default: the one here)")] = None,
    merge: Annotated[bool, flag("Merge, also if merge.ff = only (default: as your git)")] = False,
    squash: Annotated[bool, flag("One commit, without those of the run")] = False,
    patch: Annotated[bool, flag("Change files only, and commit nothing")] = False,
    message: Annotated[str | None, TEXT.option("Message of new commits", "--message", "-m")] = None,
) -> None:
    """Bring the work of an ended run to your branch.

    Commits what is uncommitted in its git worktree, as you, with your hooks and signature, and
    merges its branch into the one that is checked out here. A branch that --onto names may be
    checked out elsewhere or nowhere. The worktree stays until `sfactl prune`.

    Of an isolated run no hook is executed, and it is refused if your git config names a program in
    the checkout, because that may be the run's.

    It lands as a whole or not at all: where it conflicts, or a file that you have not committed
    is in the way, nothing changes, and the files are named. Landing twice is harmless.

    Exit codes: 0 landed, or there already; 1 refused, such as a conflict or a live run; 66 no
    such run; 77 the worktree is another user's.
    """
    given: dict[How, bool] = {"merge": merge, "squash": squash, "patch": patch}
    chosen = [how for how, asked in given.items() if asked]
    if len(chosen) > 1:
        raise UsageError("--merge, --squash and --patch exclude each other")
    if patch and message is not None:
        raise UsageError("--patch makes no commit: leave out --message")
    how = chosen[0] if chosen else None
    cwd = landing.own_cwd()
    with connect(socket) as client:
        found = landing.find(client.call, run)
        busy = landing.busy(client.call, found)
        if client.welcome.run is not None:  # a run brings home what its child has done
            busy = {top: by for top, by in busy.items() if not f"{cwd}/".startswith(f"{top}/")}
    landing.become_owner(found)
    try:
        landed = landing.land(found, cwd, onto=onto, how=how, message=message, busy=busy)
    except landing.Refused as error:
        if json:
            output.print_json(_told(found.id, "refused", files=error.files, why=error.message))
        raise
    if json:
        output.print_json(
            _told(
                found.id,
                (how or "merge") if landed.worked else "nothing",
                onto=landed.onto,
                commit=landed.commit,
                committed=landed.committed,
                files=landed.files,
                notes=landed.notes,
            )
        )
        return
    print(output.plain(landing.said(found, landed, how)))
    for note in landed.notes:
        output.note(output.plain(note))


def _told(run: str, landed: str, **more: Any) -> dict[str, Any]:
    return {"id": run, "landed": landed} | {name: _utf8(value) for name, value in more.items()}


def _utf8(value: Any) -> Any:
    if isinstance(value, list):
        return [output.utf8(each) for each in value]
    return output.utf8(value) if isinstance(value, str) else value

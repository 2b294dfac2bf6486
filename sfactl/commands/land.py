from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from sfad.features.worktrees.landing import How
from sfad.protocol.types import RunInfo

from .. import exits, output
from ..app import app
from ..connecting.history import connect
from ..exits import UsageError
from ..options.shared import BRANCH, TEXT, Json, Runs, Socket, flag
from ..worktrees import landing


@app.command()
def land(
    runs: Runs,
    socket: Socket = None,
    json: Json = False,
    onto: Annotated[str | None, BRANCH.option("Another branch (default: the one here)")] = None,
    merge: Annotated[bool, flag("Merge, also if merge.ff = only (default: as your git)")] = False,
    squash: Annotated[bool, flag("One commit, without those of the run")] = False,
    patch: Annotated[bool, flag("Change files only, and commit nothing")] = False,
    message: Annotated[str | None, TEXT.option("Message of new commits", "--message", "-m")] = None,
) -> int:
    """Bring the work of ended runs to your branch.

    Commits what is uncommitted in its git worktree, as you, with your hooks and signature, and
    merges its branch into the one that is checked out here. A branch that --onto names may be
    checked out elsewhere or nowhere. The worktree stays until `sfactl prune`.

    Of an isolated run no hook is executed, and it is refused if your git config names a program in
    the checkout, because that may be the run's.

    It lands as a whole or not at all: where it conflicts, or a file that you have not committed
    is in the way, nothing changes, and the files are named. Landing twice is harmless. Several
    runs land one after the other; where one is refused, the others land.

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
    found: list[tuple[RunInfo, Mapping[str, str]]] = []
    codes: list[int] = []
    with connect(socket) as client:
        # all at first: as a run's user, this process may not reach the daemon any more
        for name in runs:
            with _others_land(len(runs) > 1, codes):
                run = landing.find(client.call, name)
                busy = landing.busy(client.call, run)
                if client.welcome.run is not None:  # a run brings home what its child has done
                    busy = {
                        top: by for top, by in busy.items() if not f"{cwd}/".startswith(f"{top}/")
                    }
                found.append((run, busy))
    for run, busy in found:
        with _others_land(len(runs) > 1, codes):
            landing.become_owner(run)
            _land(run, busy, cwd, json, onto=onto, how=how, message=message)
    return exits.worst(codes)


@contextmanager
def _others_land(several: bool, codes: list[int]) -> Iterator[None]:
    """Print the error of one of `several` runs, and append its exit code."""
    try:
        yield
    except exits.Quit as quit_:
        if not several:
            raise
        output.note(f"sfactl: {output.harmless(quit_.message)}")
        codes.append(quit_.code)


def _land(
    run: RunInfo,
    busy: Mapping[str, str],
    cwd: str,
    json: bool,
    *,
    onto: str | None,
    how: How | None,
    message: str | None,
) -> None:
    try:
        landed = landing.land(run, cwd, onto=onto, how=how, message=message, busy=busy)
    except landing.Refused as error:
        if json:
            output.print_json(_told(run.id, "refused", files=error.files, why=error.message))
        raise
    if json:
        output.print_json(
            _told(
                run.id,
                (how or "merge") if landed.worked else "nothing",
                onto=landed.onto,
                commit=landed.commit,
                committed=landed.committed,
                files=landed.files,
                notes=landed.notes,
            )
        )
        return
    print(output.plain(landing.said(run, landed, how)))
    for note in landed.notes:
        output.note(output.plain(note))


def _told(run: str, landed: str, **more: Any) -> dict[str, Any]:
    return {"id": run, "landed": landed} | {name: _utf8(value) for name, value in more.items()}


def _utf8(value: Any) -> Any:
    if isinstance(value, list):
        return [output.utf8(each) for each in value]
    return output.utf8(value) if isinstance(value, str) else value

"""The work of ended runs in git worktrees: what is there, and how it lands."""

from __future__ import annotations

import codecs
import importlib
import os
import pwd
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from msgspec.structs import replace

from sfad.features.worktrees import landing, worktrees
from sfad.features.worktrees.landing import How, Landed, NotLanded, Work
from sfad.git.commands import GitError, glancing
from sfad.protocol.requests.base import Reply, Request, RunReply
from sfad.protocol.requests.listing import Info, List, RunList
from sfad.protocol.requests.starting import Recall, Recalled
from sfad.protocol.texts.units import counted
from sfad.protocol.types import RunId, RunInfo

from .. import output
from ..connecting.connection import Client, DaemonError
from ..exits import ExitCode, Quit

R = TypeVar("R", bound=Reply)


class Refused(Quit):
    """Nothing has changed where the work was to land."""

    def __init__(self, message: str, files: list[str]) -> None:
        super().__init__(ExitCode.REFUSED, message)
        self.files = files


# ---- What is there


def left(run: RunInfo) -> worktrees.Left | None:
    """Return what an ended run has left in its worktree; `None` if there is nothing, if it is
    another user's, or another run has worked there since. Raise `GitError`, `OSError`."""
    if run.worktree is None or not run.status.terminal or run.user != output.own_user():
        return None
    record = worktrees.read_record(run.worktree)
    if record is None or record.run != run.id:
        return None
    with glancing():
        found = worktrees.left(record, os.environ)
    return found if found.files or found.commits or found.aside else None


def unlanded(run: RunInfo) -> str | None:
    """Return what an ended run has left in its worktree, and how it lands, in a line."""
    work, aside = work_left(run)
    lands = f"{work}: sfactl land {run.id}" if work else ""
    also = f"{'also' if work else 'it has left'} {aside}" if aside else ""
    return "; ".join(filter(None, (lands, also))) or None


def work_left(run: RunInfo) -> tuple[str, str]:
    """Return what an ended run has left in its worktree to land, and what it has put aside, in
    words."""
    try:
        found = left(run)
    except (GitError, OSError) as error:
        return output.plain(f"what it has left in {run.worktree} is not known ({error})"), ""
    if found is None:
        return "", ""
    files = f"{counted(found.files, 'file')} changed, not committed" if found.files else ""
    commits = f"{counted(found.commits, 'commit')} to land" if found.commits else ""
    kept = f", kept as {found.kept}" if found.kept else ""
    work = " and ".join(filter(None, (commits, files))) + kept
    return output.plain(work), output.plain(", ".join(found.aside))


def unlanded_json(run: RunInfo) -> dict[str, object]:
    """Return what an ended run has left in its worktree, for JSON; empty if there is nothing, or it
    is not known."""
    try:
        found = left(run)
    except (GitError, OSError):
        return {}
    if found is None:
        return {}
    more: dict[str, object] = {"kept": output.utf8(found.kept)} if found.kept else {}
    if found.aside:
        more["aside"] = [output.utf8(each) for each in found.aside]
    return {"unlanded": {"files": found.files, "commits": found.commits} | more}


LOOKED_AT = 20
"""Ended runs whose worktrees `summary` looks at, which takes git."""
LOOKED_FOR = 30.0
"""Seconds after which it looks at no more."""
NAMED = 5
"""Of these, that have a line each."""
_PAGES = 5


def to_land(client: Client, wanted: List) -> Iterator[tuple[list[str], str, str]]:
    """Yield what the newest ended runs that `wanted` matches have to land: for each of the newest,
    and once for the others, the runs, a message and a command. Raise `DaemonError`."""
    kept = {record.path for record in worktrees.records(os.environ)}
    if not kept:
        return
    runs, older = _ended(client, wanted, kept)
    left: list[tuple[RunInfo, str, str]] = []
    until = time.monotonic() + LOOKED_FOR
    for number, run in enumerate(runs):
        if time.monotonic() > until:
            older = [each.id for each in runs[number:]] + older
            break
        if any(both := work_left(run)):
            left.append((run, *both))
    for run, work, aside in left[:NAMED]:
        words = f"{work}; also {aside}" if work and aside else work or f"it has left {aside}"
        message = f"{run.id} ({output.plain(run.name)}) has ended: {words}"
        yield [run.id], message, f"sfactl {'land' if work else 'why'} {run.id}"
    if rest := [run.id for run, *_ in left[NAMED:]]:
        message = counted(len(rest), "more ended run has", "more ended runs have")
        yield rest, f"{message} work to land", f"sfactl why {' '.join(rest)}"
    if older:
        message = counted(len(older), "older run has a worktree", "older runs have worktrees")
        message = f"{message} that sfactl has not looked at"
        yield older, message, f"sfactl why {' '.join(older[:LOOKED_AT])}"


def _ended(client: Client, wanted: List, kept: Container[str]) -> tuple[list[RunInfo], list[str]]:
    """Return the newest of the caller's ended runs with worktrees that are here, and the ids of
    those before them."""
    found: list[RunInfo] = []
    user, before = output.own_user(), None
    for _ in range(_PAGES):
        page = client.call(replace(wanted, rows=1000, before=before), RunList)
        found += [
            run
            for run in page.runs
            if run.worktree in kept and run.status.terminal and run.user == user
        ]
        before = page.next
        if before is None:
            break
    found.sort(key=lambda run: (len(run.id), run.id), reverse=True)
    return found[:LOOKED_AT], [run.id for run in found[LOOKED_AT:]]


def led(cwd: str) -> dict[str, str] | None:
    """Return variables with which git obeys no file that an isolated run has left around a
    directory; `None` if there is none. Raise `OSError`."""
    record = worktrees.around(cwd)
    if record is None:
        return None
    if record.admin is None:
        raise OSError(f"git does not know the worktree {record.path} any more")
    return {"GIT_DIR": record.admin, "GIT_WORK_TREE": record.path}


# ---- How it lands


class Ask(Protocol):
    """Asks the daemon, as `Client.call` does."""

    def __call__(self, request: Request, expected: type[R]) -> R: ...


def find(ask: Ask, name: str) -> RunInfo:
    """Return an ended run that had a worktree. Raise `Quit`."""
    run = ask(Info(id=0, run=name), RunReply).run
    if run.fleet is not None or (run.worktree is None and _was_shipped(ask, run)):
        raise Quit(
            ExitCode.REFUSED,
            f"run {run.id} worked in files that were sent with it: sfactl fetch {run.id} brings "
            "back what it has changed in them; commit that yourself",
        )
    if run.worktree is None:
        raise Quit(
            ExitCode.REFUSED, f"run {run.id} has no worktree of its own; it worked in {run.cwd}"
        )
    if run.reason is not None and run.reason.kind == "no_daemon":
        raise Quit(
            ExitCode.REFUSED,
            f"whether run {run.id} has ended is not known, because no daemon is running: start one "
            f"(sfad serve), then: sfactl land {run.id}",
        )
    if not run.status.terminal:
        raise Quit(
            ExitCode.REFUSED,
            f"run {run.id} has not ended: wait for it (sfactl wait {run.id}) or stop it first",
        )
    return run


def _was_shipped(ask: Ask, run: RunInfo) -> bool:
    try:
        return ask(Recall(id=0, run=run.id), Recalled).request.ship is not None
    except DaemonError:  # no daemon is running, or it is another user's
        return False


def busy(ask: Ask, run: RunInfo) -> Mapping[str, str]:
    """Return the live runs that work in worktrees, by these. Raise `Quit` if one works in that of
    an ended run."""
    assert run.worktree is not None
    live = ask(List(id=0, rows=0), RunList).runs
    if (other := living_in(run.worktree, live)) is not None:
        raise Quit(
            ExitCode.REFUSED,
            f"run {other} works in the worktree of run {run.id}: wait for it "
            f"(sfactl wait {other}) or stop it first",
        )
    return {each.worktree: each.id for each in live if each.worktree is not None}


def living_in(worktree: str, live: Iterable[RunInfo]) -> RunId | None:
    """Return the live run that works in a worktree, which may have been started by hand there;
    `None` if there is none."""
    return next(
        (
            each.id
            for each in live
            if each.worktree == worktree or f"{each.cwd}/".startswith(f"{worktree}/")
        ),
        None,
    )


def land(
    run: RunInfo,
    cwd: str | None,
    *,
    onto: str | None = None,
    how: How | None = None,
    message: str | None = None,
    busy: Mapping[str, str],
) -> Landed:
    """Bring the work of an ended run to the branch that is checked out at `cwd`, else where the run
    was asked for. Raise `Quit`."""
    assert run.worktree is not None
    record = worktrees.read_record(run.worktree)
    if cwd is None and record is None:
        raise Quit(
            ExitCode.REFUSED,
            f"the worktree of run {run.id} is gone: in your checkout, sfactl land {run.id}",
        )
    try:
        with landing.alone(os.path.dirname(run.worktree)):
            record = worktrees.read_record(run.worktree)  # as the `land` before this has left it
            isolated = run.isolation is not None if record is None else record.isolated
            work = Work(
                run.id, output.plain(run.name), run.branch or "", run.worktree, record, isolated
            )
            return landing.land(
                work,
                cwd if cwd is not None or record is None else record.origin,  # type: ignore[arg-type]
                os.environ,
                onto=onto,
                how=how,
                message=message,
                busy=busy,
            )
    except NotLanded as error:
        raise Refused(f"run {run.id} has not landed: {error}", error.files) from None
    except (GitError, OSError) as error:
        raise Refused(f"run {run.id} has not landed: {error}", []) from None


def said(run: RunInfo, landed: Landed, how: How | None) -> str:
    """Return what has come of it, in a line."""
    if not landed.worked and landed.notes:
        return f"nothing else of {run.id} can land on '{landed.onto}'"
    if not landed.worked:
        return f"nothing to land: '{landed.onto}' has everything of {run.id}"
    files = counted(landed.changed, "file")
    if how == "patch":
        return f"{run.id} landed: {files} changed, not committed, on '{landed.onto}'"
    return f"{run.id} landed on '{landed.onto}', now at {landed.commit[:12]}: {files} changed"


def own_cwd() -> str:
    """Return the current directory; `/` if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def from_afar(ask: Ask, name: str) -> str:
    """Land the work of an ended run where the run was asked for, because `top` and the console have
    no working directory of the person. Return the result. Raise `Quit`."""
    if "/" in name:
        raise Quit(ExitCode.REFUSED, f"the worktree of run {name} is on its node: land it there")
    run = find(ask, name)
    if run.user != output.own_user():
        raise Quit(ExitCode.NOT_PERMITTED, f"the worktree of run {run.id} belongs to {run.user}")
    landed = land(run, None, busy=busy(ask, run))
    return "\n".join([said(run, landed, None), *landed.notes])


def become_owner(run: RunInfo) -> None:
    """Have git executed as the run's user: it obeys the settings of the repository, which may name
    programs. Raise `Quit`."""
    try:
        user = pwd.getpwnam(run.user)
        name, uid, gid, home = user.pw_name, user.pw_uid, user.pw_gid, user.pw_dir
    except KeyError:  # a user without a name, as in a container
        name, uid, gid, home = "", int(run.user), os.stat(run.worktree or "/").st_gid, "/"
    if uid == os.geteuid():
        return
    if os.geteuid() != 0:
        raise Quit(ExitCode.NOT_PERMITTED, f"the worktree of run {run.id} belongs to {run.user}")
    # the user may not be able to read this Python, so what it would import later comes now
    codecs.lookup("ascii")
    importlib.import_module("json")
    if name:
        os.initgroups(name, gid)
    else:
        os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    os.chdir("/")
    kept = {
        name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TERM") if name in os.environ
    }
    os.environ.clear()
    os.environ.update({**kept, "HOME": home})

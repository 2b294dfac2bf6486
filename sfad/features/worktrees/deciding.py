"""Worktrees of runs: which run gets one, where, and what its launch needs. Git itself is executed
as the run's user, in a contained helper before the run is admitted, and as the first step of each
attempt (`steps`)."""

import json
import os
import secrets
import shlex
from collections.abc import Awaitable, Mapping

import msgspec
import trio
from msgspec import Struct
from msgspec.structs import replace

from ...agents.command import Command
from ...core.state.naming import derive_name
from ...core.state.policy import Invalid
from ...daemon.lookup import find_run
from ...daemon.loop.seam import Heart
from ...git.commands import LOCAL
from ...processes.contained_commands import ContainedCommand
from ...processes.credentials import Credentials
from ...processes.helper import ANSWER
from ...processes.launcher import LaunchSpec
from ...protocol.errors import bad_request, check_most, unavailable, wrong_state
from ...protocol.messages import Spawn
from ...protocol.types import Isolation, RunId, RunInfo, Worktree
from ...runs.live import Live, Parts
from ...start.prepared import Prepared, Surroundings
from .feature import WORKTREE, AgentWorktrees, WorktreesConfig, branch_of, slug
from .record import Record
from .steps import look_words, step_words

LOOK_SECONDS = 20.0
"""Seconds that git may take to look at a repository, which may be on a slow network."""

_LOCAL = tuple(f"{name}=".encode() for name in LOCAL)


class _Looked(Struct):
    """What `worktrees.look` returns."""

    repository: str = ""
    prefix: str = ""
    start: str = ""
    directory: str = ""
    alternates: list[str] = []
    found: bool = False
    whole: bool = True
    """An earlier run's worktree is there."""
    kept: str = ""
    """The ref with what was not committed in one that is gone."""
    error: str | None = None


class WorktreeImpossible(Exception):
    """Git could not look at the repository now. The message says why."""


class Worktrees:
    def __init__(self, heart: Heart) -> None:
        self._heart = heart
        self._live = heart.catalogue.live
        self._turns: dict[int, trio.Lock] = {}
        """Of each user, one helper at a time."""
        self.reconfigure()

    def reconfigure(self) -> None:
        agents = self._heart.section("agents", AgentWorktrees)
        self._agents = {name for name, agent in agents.items() if agent.worktree}
        """Those whose entries give their runs worktrees."""
        self._most = self._heart.section("worktrees", WorktreesConfig).size

    def make(self, p: Prepared, around: Surroundings) -> Awaitable[None] | None:
        """Have git look at the repository of a run that asks for a worktree, or whose agent's entry
        does."""
        order, caller = around.order, around.caller
        asked = order.worktree
        isolated = caller is not None and caller.parts.sandbox is not None
        if asked is None:
            if isolated or order.agent not in self._agents:
                return None  # an isolated one stays in its worktree
            return self._make(p, Worktree(), None, around)
        check_most("characters of --worktree", len(asked.branch or ""), 200)
        earlier = None
        if asked.of is not None:
            heart = self._heart
            run = find_run(heart.catalogue, asked.of, heart.machine.scope(around.peer))
            earlier = heart.catalogue.info(run)
            if earlier is not None and earlier.user != around.peer.user:
                raise bad_request(
                    f"run {earlier.id} belongs to {earlier.user}, "
                    "and only a run of theirs may work in its worktree"
                )
        if caller is not None and isolated:
            # git would execute hooks that the run could write, outside of its sandbox
            raise Invalid(
                f"run {caller.run.id} is isolated, so what it starts works in its worktree: "
                "leave out --worktree"
            )
        return self._make(
            p,
            Worktree(branch=asked.branch, of=None if earlier is None else earlier.id),
            earlier,
            around,
        )

    async def _make(
        self, p: Prepared, asked: Worktree, earlier: RunInfo | None, around: Surroundings
    ) -> None:
        await around.aside()
        try:
            await self.look(p, asked, earlier, around)
        except (WorktreeImpossible, OSError) as error:
            raise unavailable(str(error)) from None

    async def look(
        self, p: Prepared, asked: Worktree, earlier: RunInfo | None, around: Surroundings
    ) -> None:
        """Decide where the worktree of a run will be, and have it work there. `earlier`: the run
        that had it before. Raise `Invalid`, `RequestError`, `WorktreeImpossible`, `OSError`."""
        order = around.order
        branch, path = asked.branch, b""
        if earlier is not None:
            branch, path = earlier.branch, self._free(earlier)
        found = await self._look(p.command, branch, path, around.peer.uid, around.user)
        if found.error is not None:
            raise Invalid(
                f"--worktree: {os.fsencode(found.error).decode(errors='backslashreplace')}"
            )
        if not found.whole and earlier is not None and order.continues is not None:
            p.task = _in_fresh_one(p.task, earlier, found, wanted=order.continues.fresh)
        if not path:
            name = order.name or order.agent or derive_name(tuple(map(os.fsdecode, order.argv)))
            path = os.fsencode(f"{found.directory}/{slug(name)}-{secrets.token_hex(4)}")
        worktree = Worktree(
            branch=branch, of=asked.of, path=path, repository=os.fsencode(found.repository),
            start=found.start, origin=order.cwd, found=found.found,
            there=earlier is not None and found.whole,
            alternates=list(map(os.fsencode, found.alternates)),
        )  # fmt: skip
        p.parts.decide(WORKTREE, worktree)
        p.command.cwd = os.path.join(path, os.fsencode(found.prefix)).rstrip(b"/")

    # ---- further moments

    def share(self, p: Prepared, around: Surroundings) -> None:
        """Have a run work in the worktree of the run above it, if it starts there and asks for
        none. Show one of its own to its sandbox. Raise `Invalid`."""
        caller, own = around.caller, _of(p.parts)
        inherited = _of(caller.parts) if caller is not None else None
        if own is not None:
            if p.parts.sandbox is not None:
                p.parts.sandbox = isolated(p.parts.sandbox, own)
        elif (
            caller is not None
            and inherited is not None
            and f"{os.fsdecode(p.command.cwd)}/".startswith(f"{os.fsdecode(inherited.path)}/")
        ):
            shared = replace(inherited, branch=_branch(caller, inherited), shared=True)
            p.parts.decide(WORKTREE, shared)

    def check(self, p: Prepared, around: Surroundings) -> None:
        """Refuse the worktree of an earlier run that another request has taken while something was
        waited for."""
        worktree: Worktree = p.parts.of(WORKTREE)
        if around.order.placing is not None:
            raise bad_request(
                "--worktree and --fleet exclude each other: "
                "a worktree is made where the repository is"
            )
        if worktree.of is not None and not worktree.shared:
            check_free(worktree.path, worktree.of, around.live)

    def launch(self, live: Live, spec: LaunchSpec, _: list[int]) -> LaunchSpec:
        """Return what a run is launched with: a step that makes its worktree, and its environment
        without what would lead git elsewhere, and with its directory."""
        worktree: Worktree = live.parts.of(WORKTREE)
        env = [
            b"PWD=" + live.command.cwd if item.startswith(b"PWD=") else item
            for item in spec.env
            if not item.startswith(_LOCAL)
        ]
        if worktree.shared:
            return replace(spec, env=env)
        return replace(
            spec,
            env=env,
            first_step=_first_step(live, worktree, self._heart.resources.socket),
            cwd=worktree.origin,
        )

    def again(self, kept: Spawn, run: RunInfo) -> Spawn:
        """Return what a run was started with as a further run is: in the same worktree, or, while
        the run lives, in another."""
        if run.worktree is None or not (kept.worktree or kept.agent in self._agents):
            return kept
        return replace(kept, worktree=Worktree(of=run.id if run.status.terminal else None))

    def _free(self, earlier: RunInfo) -> bytes:
        """Return the path of an earlier run's worktree, if no run works there. Raise `Invalid`."""
        if earlier.worktree is None:
            raise Invalid(f"run {earlier.id} had no worktree: leave out --worktree-of")
        path = os.fsencode(earlier.worktree)
        check_free(path, earlier.id, self._live)
        return path

    async def _look(
        self, asked: Command, branch: str | None, again: bytes, uid: int, user: Credentials | None
    ) -> _Looked:
        command = ContainedCommand(
            look_words(branch, again, self._most), asked.cwd, asked.env, b"", LOOK_SECONDS, user
        )
        async with self._turns.setdefault(uid, trio.Lock()):
            result = await self._heart.commands.run(command, trio.CancelScope(), operators=False)
        answer = result.output.rpartition(b"\n" + ANSWER)[2]
        try:
            # not by msgspec: paths need not be UTF-8
            return msgspec.convert(json.loads(answer.decode(errors="surrogateescape")), _Looked)
        except (ValueError, msgspec.ValidationError):
            said = result.output.decode(errors="replace").strip()[-200:]
            raise WorktreeImpossible(
                f"git could not look at the repository: {said or result.how}"
            ) from None


def _in_fresh_one(
    task: str | None, earlier: RunInfo, found: _Looked, *, wanted: bool
) -> str | None:
    """Return the task of a run that continues one whose worktree is gone. Raise `RequestError`
    unless a fresh one is wanted."""
    gone = f"the worktree of run {earlier.id} is gone"
    lost = (
        f"what was not committed there is kept as {found.kept}"
        if found.kept
        else "what was not committed there is lost"
    )
    if not wanted:
        way = (
            "start another session"
            if earlier.session
            else f"sfactl continue {earlier.id} --fresh makes it again, and tells the agent"
        )
        raise wrong_state(f"{gone}, and {lost}: {way}")
    if task is None:
        return None
    begins = (
        f"with that as a commit on the branch '{earlier.branch}'"
        if found.kept
        else f"from its branch '{earlier.branch}'"
        if found.found
        else f"from the commit {found.start[:12]}, because its branch is gone, too"
    )
    told = (
        f"T{gone[1:]}, and {lost}. It was made again {begins}: "
        "check which of your changes are there.\n"
    )
    return told + task


def check_free(path: bytes, of: RunId, live: Mapping[RunId, Live]) -> None:
    """Raise `Invalid` if a live run works in the worktree of the ended run `of`."""
    for each in live.values():
        worktree = _of(each.parts)
        if worktree is not None and worktree.path == path:
            raise Invalid(
                f"run {each.run.id} works in the worktree of run {of}: "
                "wait for its end, or take another"
            )


def isolated(isolation: Isolation, worktree: Worktree | None) -> Isolation:
    """Return the isolation of a run that has a worktree of its own: it may write there, and reads
    the repository. Raise `Invalid`."""
    if worktree is None or worktree.shared:
        return isolation
    above = os.path.dirname(worktree.branch or "sfad/")
    if not above:
        raise Invalid(
            "--isolate needs a branch in a directory of its own, "
            f"as in --worktree=work/{worktree.branch}: "
            f"the run could write to each branch beside '{worktree.branch}'"
        )
    seen = [*isolation.readable, *isolation.writable]
    for path in worktree.alternates:
        # any run that may write to a repository can name a directory there
        if path not in seen:
            text = os.fsencode(path).decode(errors="backslashreplace")
            raise Invalid(
                f"the repository borrows objects from {text} (objects/info/alternates), "
                f"which an isolated run does not see: add --readable {shlex.quote(text)}"
            )
    return replace(
        isolation,
        directory=worktree.path,
        readable=[*isolation.readable, worktree.repository],
        repository=worktree.repository,
        branches=os.fsencode(above),
    )


def _of(parts: Parts) -> Worktree | None:
    worktree: Worktree | None = parts.of(WORKTREE)
    return worktree


def _branch(live: Live, worktree: Worktree) -> str:
    return branch_of(worktree.branch, live.run.name, live.run.id)


def _first_step(live: Live, worktree: Worktree, socket: str) -> list[bytes]:
    """Return `LaunchSpec.first_step` of a run."""
    isolation = live.parts.sandbox
    record = Record(
        path=os.fsdecode(worktree.path), repository=os.fsdecode(worktree.repository),
        branch=_branch(live, worktree), start=worktree.start, run=live.run.id, socket=socket,
        isolated=isolation is not None,
        alternates=list(map(os.fsdecode, worktree.alternates)),
        sandbox=[] if isolation is None else _reader(isolation, worktree),
    )  # fmt: skip
    return step_words(
        record, origin=worktree.origin, cwd=live.command.cwd, sealed=isolation is not None,
        found=worktree.found,
    )  # fmt: skip


def _reader(isolation: Isolation, worktree: Worktree) -> list[str]:
    """Return the words of the sandbox in which sfad reads what a run has left."""
    words = [
        b"home=" + isolation.home,
        b"program=git",
        *(b"variable=" + item for item in isolation.variables),
        *(b"read=" + path for path in worktree.alternates),
    ]
    return list(map(os.fsdecode, words))

"""Git worktrees of runs: how git looks at a repository, makes a worktree, compares it and removes
it (docs/going-on.md).

The user of a run executes all of this: as a helper of the daemon and as the first step of the run
(`sfad.processes.worktree`), and in `sfactl diff` and `sfactl prune`. Nothing goes through a shell,
and no path or name can be an option. Beside each worktree is its record, a JSON file, which is
written before anything is made: whatever is killed, the next attempt or `prune` finds what is
there.

An isolated run writes to its worktree and to the directory that git keeps for it, so nothing in
them may name a program. Therefore git gets a directory of its own for each look (`Look`), with
copies of HEAD and index, and takes its config from the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from .git import SWITCHES, At, GitError, git, own, run

_INITIALISING = "initializing"
"""What git writes into `locked` while it makes a worktree."""


def branch_of(branch: str | None, name: str, run: str) -> str:
    """Return the branch of a run's worktree: the one that was asked for, else `sfad/NAME-ID`."""
    return branch or f"sfad/{slug(name)}-{run}"


def slug(name: str) -> str:
    """Return a name as it can be in a branch and a path: git-check-ref-format(1) forbids `..`, and
    a `.` at the beginning."""
    return (
        re.sub(r"\.{2,}", ".", re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)).strip("-.")[:64]
        or "run"
    )


def directory(env: Mapping[str, str]) -> str:
    """Return the directory of a user's worktrees."""
    data = env.get("XDG_DATA_HOME", "")
    return (
        f"{data if data.startswith('/') else os.path.expanduser('~/.local/share')}/sfad/worktrees"
    )


# ---- What git knows of the repository of a directory, before anything is made


def look(cwd: str, branch: str | None, again: str, env: Mapping[str, str]) -> dict[str, object]:
    """Return what the daemon needs to know of the repository around `cwd`. `branch`: the new one.
    `again`: the path of an earlier run's worktree, whose branch may exist. Raise `GitError` if no
    worktree can be made."""
    at = At(cwd, own(env))
    if git("rev-parse", "--is-bare-repository", at=at) == "true":
        raise GitError(f"the repository around {cwd} is bare: start the run in a checkout of it")
    if git("rev-parse", "--is-inside-work-tree", at=at) != "true":
        raise GitError(f"{cwd} belongs to the repository itself: start the run in a checkout of it")
    missing, head = run(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], at, (0, 1, 128))
    if missing:
        raise GitError(f"the repository around {cwd} has no commit yet")
    found = _check_branch(branch, again, at)
    counted = git("count-objects", "-v", at=at).splitlines()
    return {
        "repository": os.path.realpath(
            git("rev-parse", "--path-format=absolute", "--git-common-dir", at=at)
        ),
        "prefix": git("rev-parse", "--show-prefix", at=at),
        "start": head,
        "directory": os.path.realpath(directory(env)),
        "alternates": [line[11:].strip('"') for line in counted if line.startswith("alternate: ")],
        "found": found,
        **(_state_of(again, at) if again else {}),
    }


def _state_of(path: str, at: At) -> dict[str, object]:
    """Return whether an earlier run's worktree is there, and if it is not, the ref that has what
    was not committed in it."""
    record, ref = read_record(path), kept_ref(path)
    if record is not None and record.whole:
        return {"whole": True}
    kept = run(["show-ref", "--verify", "--quiet", ref], at, (0, 1))[0] == 0
    return {"whole": False, "kept": ref if kept else ""}


def _check_branch(branch: str | None, again: str, at: At) -> bool:
    """Return whether the branch exists, which only that of an earlier run may. Raise `GitError`."""
    parts = [] if branch is None else branch.split("/")
    if branch is not None:
        refused = branch.startswith("-") or branch == "HEAD"
        if refused or run(["check-ref-format", f"refs/heads/{branch}"], at, (0, 1))[0]:
            raise GitError(
                f"{branch[:200]!r} cannot be the name of a branch (git check-ref-format)"
            )
    for above in (
        ["sfad"] if branch is None else ["/".join(parts[:count]) for count in range(1, len(parts))]
    ):
        if exists(above, at):
            raise GitError(
                f"the branch '{above}' exists, so git can make none below it: "
                "name another, as in --worktree=NAME"
            )
    found = branch is not None and exists(branch, at)
    if found and not again:
        raise GitError(f"the branch '{branch}' exists: name a new one, as in --worktree=NAME")
    return found


def exists(branch: str, at: At) -> bool:
    return run(["show-ref", "--verify", "--quiet", f"refs/heads/{branch}"], at, (0, 1))[0] == 0


# ---- A worktree with its record


class Record:
    """What the file beside a worktree says."""

    def __init__(
        self, *, path: str, repository: str, branch: str, start: str, run: str, socket: str,
        starts: dict[str, str] | None = None, isolated: bool = False, origin: str = "",
    ) -> None:  # fmt: skip
        self.path = path
        self.repository = repository
        self.branch = branch
        self.start = start
        """The commit that the worktree began with."""
        self.run = run
        """The last run that was given the worktree."""
        self.socket = socket
        """Of the daemon of that run."""
        self.starts = starts or {}
        """For each run: the commit or tree that it began with."""
        self.isolated = isolated
        self.origin = origin
        """The directory in which the run was asked for."""

    @property
    def file(self) -> str:
        return f"{self.path}.json"

    def save(self) -> None:
        import json

        text = json.dumps({name: getattr(self, name) for name in _FIELDS})
        with open(f"{self.file}.new", "w", encoding="ascii") as file:
            file.write(text)
        os.rename(f"{self.file}.new", self.file)

    @property
    def admin(self) -> str | None:
        """The directory that git keeps for the worktree; `None` if there is none."""
        at = f"{self.repository}/worktrees/{os.path.basename(self.path)}"
        # git writes a path that is relative to `at` if worktree.useRelativePaths is set
        named = os.path.normpath(os.path.join(at, _content(f"{at}/gitdir") or ""))
        return at if self.unfinished or named == f"{self.path}/.git" else None

    @property
    def unfinished(self) -> bool:
        """Whether git was ended while it made the worktree."""
        return (
            _content(f"{self.repository}/worktrees/{os.path.basename(self.path)}/locked")
            == _INITIALISING
        )

    @property
    def whole(self) -> bool:
        """Whether git has made all of the worktree."""
        return (
            self.admin is not None and not self.unfinished and os.path.isfile(f"{self.path}/.git")
        )

    @property
    def holds_nothing(self) -> bool:
        """Whether nothing in it can be an agent's."""
        return (
            self.unfinished
            or not os.path.lexists(self.path)
            or (os.path.isdir(self.path) and not os.listdir(self.path))
        )


def _content(file: str) -> str | None:
    with _Ignoring(), open(file, encoding="utf-8", errors="surrogateescape") as opened:
        return opened.read().removesuffix("\n")
    return None


_FIELDS = (
    "path", "repository", "branch", "start", "run", "socket", "starts", "isolated", "origin",
)  # fmt: skip


def read_record(path: str) -> Record | None:
    """Return the record of the worktree at a path; `None` if there is none that can be read."""
    import json

    with _Ignoring(), open(f"{path}.json", encoding="ascii") as file:
        found = json.load(file)
        return Record(**{name: found[name] for name in _FIELDS}) if found["path"] == path else None
    return None


def records(env: Mapping[str, str]) -> Iterator[Record]:
    """Yield the records of the user's worktrees."""
    top = os.path.realpath(directory(env))
    with _Ignoring():
        for name in sorted(os.listdir(top)):
            if (
                name.endswith(".json")
                and (record := read_record(f"{top}/{name.removesuffix('.json')}")) is not None
            ):
                yield record


class _Ignoring:
    """Ignores that a file is missing, or holds something else."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        return kind is not None and issubclass(kind, (OSError, ValueError, KeyError, TypeError))


# ---- Making a worktree


def make(wanted: Record, origin: str, env: Mapping[str, str], *, found: bool) -> None:
    """Make the worktree for `wanted.run`, or use what an earlier run or attempt has made. `found`:
    its branch may exist. Git prints on stderr. Raise `GitError`, `OSError`; then nothing new is
    left."""
    env = own(env)
    known = read_record(wanted.path)
    record = wanted if known is None else known
    record.run, record.socket, record.isolated = (
        wanted.run,
        wanted.socket,
        wanted.isolated or record.isolated,
    )
    if known is not None and record.whole:
        _check_top(record, env)
        if wanted.run not in record.starts:
            record.starts = {**record.starts, wanted.run: _state(record, env)}
        record.save()
        return
    os.makedirs(os.path.dirname(wanted.path), mode=0o700, exist_ok=True)
    if not record.holds_nothing:
        raise GitError(
            f"{wanted.path} is there, and git does not know it as a worktree: move it away"
        )
    at = At(origin, env) if os.path.isdir(origin) else At("/", env, record.repository)
    kept = _kept_commit(record, at)
    again = bool(found or kept or (known is not None and not record.unfinished))
    fresh = False
    try:
        record.save()
        _clear(record)
        if not exists(record.branch, at):
            git("branch", "--no-track", record.branch, kept or record.start, at=at)
            fresh = True
        elif not found and known is None:
            raise GitError(
                f"the branch '{record.branch}' exists: name another, as in --worktree=NAME"
            )
        elif kept:
            _forward(record, kept, env, at)
        begun = git("rev-parse", f"refs/heads/{record.branch}", at=at)
        record.starts = {wanted.run: begun, **record.starts}
        record.save()
        _add(record, at)
        if again:
            said = f"the worktree was gone, and is made again on its branch '{record.branch}'"
            os.write(2, f"sfad: {said}\n".encode(errors="surrogateescape"))
    except (GitError, OSError):
        if fresh or known is None:
            remove(record, env, branch=fresh)
        raise


def _kept_commit(record: Record, at: At) -> str:
    """Return the commit that `keep` has made of what was not committed; empty if there is none."""
    return git("for-each-ref", "--format=%(objectname)", kept_ref(record.path), at=at)


def _forward(record: Record, kept: str, env: Mapping[str, str], at: At) -> None:
    """Bring a branch to what was kept of its worktree, if that follows it."""
    old = checked_branch(record, env)
    if old and not run(["merge-base", "--is-ancestor", old, kept], at, (0, 1))[0]:
        git("update-ref", f"refs/heads/{record.branch}", kept, old, at=at)


def _add(record: Record, at: At) -> None:
    if not _is_bound(record, at):
        code = _loudly(at, "worktree", "add", "--quiet", record.path, record.branch)
        if not record.whole:
            raise GitError(f"git worktree add ended with {code}")
        # else a hook of the repository has failed, after which a person has the worktree as well
        _check_top(record, at.env)
        return
    # Files and hooks come last: a hook would change the checkout to which git is bound until then.
    # The lock says that the worktree is not whole.
    locked = ["--no-checkout", "--lock", "--reason", _INITIALISING]
    git("worktree", "add", "--quiet", *locked, record.path, record.branch, at=at)
    inside = At(record.path, at.env)
    admin = f"{record.repository}/worktrees/{os.path.basename(record.path)}"
    for name, value in (("core.bare", "false"), ("core.worktree", record.path)):
        git("config", "--file", f"{admin}/config.worktree", name, value, at=inside)
    _check_top(record, at.env)
    git("reset", "--quiet", "--hard", at=inside)
    git("worktree", "unlock", record.path, at=at)
    _loudly(inside, "checkout", "--quiet", record.branch, "--")


def _loudly(at: At, *words: str) -> int:
    """Have git print what it and its hooks say where a person would see it."""
    return subprocess.run(
        at.command(*words), cwd=at.cwd, env=at.env, stdin=subprocess.DEVNULL, stdout=2, check=False
    ).returncode


def _is_bound(record: Record, at: At) -> bool:
    """Return whether the config that all worktrees share says where the working tree is, or that
    there is none. With extensions.worktreeConfig, also if that is set later, git obeys it in each
    worktree whose own config says nothing (git-worktree(1), CONFIGURATION FILE)."""
    shared = ["config", "--file", f"{record.repository}/config", "--includes"]
    tree, _ = run([*shared, "--get", "core.worktree"], at, (0, 1))
    _, bare = run([*shared, "--type=bool", "--get", "core.bare"], at, (0, 1))
    return tree == 0 or bare == "true"


def _check_top(record: Record, env: Mapping[str, str]) -> None:
    """Raise `GitError` if what git does in the worktree would be done elsewhere."""
    top = git("rev-parse", "--show-toplevel", at=At(record.path, env))
    if os.path.realpath(top) != os.path.realpath(record.path):
        raise GitError(
            f"git takes {top} for the top level of the worktree {record.path}, so the run would "
            "change that: see core.worktree in git-config(1)"
        )


def _state(record: Record, env: Mapping[str, str]) -> str:
    """Return the tree of what is in the worktree now, untracked files included; of an isolated
    run's, the commit."""
    with Look(record, env) as look:
        if record.isolated:
            return look.git("rev-parse", "HEAD")
        look.git("add", "--all", "--ignore-errors", "--", ".", codes=(0, 1, 128))
        return look.git("write-tree")


def _clear(record: Record) -> None:
    """Remove what git had begun to make."""
    admin = record.admin
    shutil.rmtree(record.path, ignore_errors=True)
    if admin is not None:
        shutil.rmtree(admin, ignore_errors=True)


# ---- Looking at a worktree without changing anything of it, its index included


class Look:
    """A directory that git takes for the worktree's own."""

    def __init__(self, record: Record, env: Mapping[str, str]) -> None:
        self._record = record
        self._place = ""
        self._env = dict(own(env))

    def __enter__(self) -> Self:
        record, admin = self._record, self._record.admin
        if admin is None or not os.path.isdir(record.path):
            raise GitError(f"the worktree {record.path} is gone")
        self._place = tempfile.mkdtemp(prefix="sfad-worktree-")
        # an index may have its larger part in another file (git-update-index(1), SPLIT INDEX)
        parts = [name for name in os.listdir(admin) if name.startswith("sharedindex.")]
        for name in ("HEAD", "index", *parts):
            if os.path.isfile(f"{admin}/{name}") and not os.path.islink(f"{admin}/{name}"):
                # with its time: git compares the content of files that are not older than the index
                # (its racy-git.txt), because a change within the same second may leave size and
                # time as they were
                shutil.copy2(f"{admin}/{name}", f"{self._place}/{name}", follow_symlinks=False)
        with open(
            f"{self._place}/commondir", "w", encoding="utf-8", errors="surrogateescape"
        ) as file:
            file.write(f"{record.repository}\n")
        self._env |= {
            "GIT_DIR": self._place,
            "GIT_COMMON_DIR": record.repository,
            "GIT_WORK_TREE": record.path,
        }
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._place, ignore_errors=True)

    def words(self, *words: str) -> list[str]:
        return [*SWITCHES, "-c", "advice.addEmbeddedRepo=false", *words]

    @property
    def at(self) -> At:
        return At(self._record.path, self._env)

    def modules(self) -> list[str]:
        """Return the paths of sub-modules."""
        entries = self.git("ls-files", "--stage", "-z").split("\0")
        return [entry.partition("\t")[2] for entry in entries if entry.startswith("160000 ")]

    def dirty_modules(self) -> list[str]:
        """Return the paths of sub-modules with changes that no commit has."""
        words = ["--porcelain=v2", "--untracked-files=no", "--no-renames", "-z", self.submodules]
        found = (entry.split(" ", 8) for entry in self.git("status", *words).split("\0"))
        return [
            entry[8]
            for entry in found
            if entry[0] == "1" and entry[2].startswith("S") and entry[2][2:] != ".."
        ]

    def embedded(self) -> list[str]:
        """Return the paths of repositories that somebody has made within the worktree, which no
        commit of the worktree can have."""
        words = ["--others", "--exclude-standard", "-z"]
        return [name for name in self.git("ls-files", *words).split("\0") if name.endswith("/")]

    @property
    def submodules(self) -> str:
        """How git looks into sub-modules. It obeys their config, which an isolated run may have
        written."""
        return f"--ignore-submodules={'dirty' if self._record.isolated else 'none'}"

    def git(self, *words: str, codes: Sequence[int] = (0,)) -> str:
        return git(*self.words(*words), at=self.at, codes=codes)

    def show(self, *words: str) -> int:
        """Have git print, with the user's pager and colours. Return its exit code."""
        return subprocess.run(
            ["git", *self.words(*words)], cwd=self._record.path, env=self._env, check=False
        ).returncode


def diff(record: Record, run: str, env: Mapping[str, str], *, stat: bool, text: bool) -> str | None:
    """Show what a run has changed since its start, or return it as `text`. Raise `GitError`."""
    with Look(record, env) as look:
        look.git("add", "--intent-to-add", "--ignore-errors", "--", ".", codes=(0, 1, 128))
        words = [
            "diff",
            look.submodules,
            *(["--stat"] if stat else []),
            record.starts.get(run, record.start),
            "--",
        ]
        if text:
            found = look.git(*words)
            return found and f"{found}\n"  # git apply takes no patch whose last line does not end
        if code := look.show(*words):
            raise GitError(f"git diff ended with {code}")
        return None


def changes(record: Record, env: Mapping[str, str]) -> str | None:
    """Return what would be lost with a worktree beside its commits, in words; `None` if nothing
    would. Raise `GitError`."""
    if not record.whole:
        return None if record.holds_nothing else "git does not know it as a worktree any more"
    with Look(record, env) as look:
        found = look.git("status", "--porcelain", "--untracked-files=all", look.submodules)
        if found and not _is_landed(record, env):
            return "it has changes that are not committed"
    if record.isolated and os.path.isdir(f"{record.admin}/modules"):
        return "it has sub-modules, into which nothing looks because its run was isolated"
    return None


@dataclass
class Left:
    """What of a run is in its worktree and in no other branch."""

    files: int
    """That are not committed."""
    commits: int


def left(record: Record, env: Mapping[str, str]) -> Left:
    """Return what is to be landed. Raise `GitError`."""
    if not record.whole:
        return Left(0, _count(record, env, []))
    with Look(record, env) as look:
        words = ["--porcelain", "--untracked-files=all", "--no-renames", "-z", look.submodules]
        entries = look.git("status", *words).split("\0")
        # a repository within it, which no commit can have, is told by `land` and `prune`
        files = [entry for entry in entries if entry and not entry.endswith("/")]
        commits = _count(record, env, [look.git("rev-parse", "HEAD")])
    return Left(0 if files and _is_landed(record, env) else len(files), commits)


def _is_landed(record: Record, env: Mapping[str, str]) -> bool:
    """Return whether a branch has what is not committed in the worktree, which has landed as
    `kept` keeps it."""
    at, ref = At("/", own(env), record.repository), kept_ref(record.path)
    tree = git("for-each-ref", "--format=%(tree)", ref, at=at)
    if not tree or git("rev-list", "--max-count=1", ref, "--not", "--branches", at=at):
        return False
    found = snapshot(record, env)
    return (found.tree, found.left_out) == (tree, [])


def has_commits(record: Record, env: Mapping[str, str]) -> bool:
    """Return whether the worktree or its branch has commits that were made there and are in no
    other branch. Raise `GitError`."""
    if not os.path.isdir(record.repository):
        return False
    tips = []
    if record.whole:
        with Look(record, env) as look:
            tips.append(look.git("rev-parse", "HEAD"))
    return _count(record, env, tips) > 0


def _count(record: Record, env: Mapping[str, str], tips: list[str]) -> int:
    at = At("/", own(env), record.repository)
    tips += [f"refs/heads/{record.branch}"] if exists(record.branch, at) else []
    others = [record.start, f"--exclude={record.branch}", "--branches", "--remotes", "--tags"]
    return int(git("rev-list", "--count", *tips, "--not", *others, at=at)) if tips else 0


def checked_branch(record: Record, env: Mapping[str, str]) -> str | None:
    """Return the commit of a worktree's branch; `None` if there is none. Raise `GitError` if the
    run has made it another name of a branch, which a commit would move."""
    at, ref = At("/", own(env), record.repository), f"refs/heads/{record.branch}"
    code, other = run(["symbolic-ref", "--quiet", ref], at, (0, 1))
    if not code:
        raise GitError(f"the branch '{record.branch}' was made another name of {other}")
    code, found = run(["rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"], at, (0, 1, 128))
    return None if code else found


class NotKept(GitError):
    """No commit can have what is there. The message says why."""


@dataclass
class Snapshot:
    """Everything in a worktree that a commit can have, git-ignored files apart."""

    head: str
    """The commit that is checked out."""
    tree: str
    left_out: list[str]
    """What is changed and no commit can have, in words."""


def snapshot(record: Record, env: Mapping[str, str]) -> Snapshot:
    """Return what is in a worktree now, without changing anything of it. Raise `GitError`."""
    with Look(record, env) as look:
        words, left_out = everything(record, look)
        look.git(*words)
        return Snapshot(look.git("rev-parse", "HEAD"), look.git("write-tree"), left_out)


def everything(record: Record, look: Look) -> tuple[list[str], list[str]]:
    """Return the words after `git` that stage everything that a commit can have, and what none
    can."""
    embedded = look.embedded()
    left_out = [f"{each} is a git repository of its own" for each in embedded]
    if record.isolated:  # git would look into them, and obey what the run has written there
        modules = [each for each in look.modules() if os.path.lexists(f"{record.path}/{each}/.git")]
        left_out += [f"{each} is a sub-module, and the run was isolated" for each in modules]
        embedded += modules
    else:
        dirty = look.dirty_modules()
        left_out += [f"the sub-module {each} has changes that are not committed" for each in dirty]
    return [
        "add",
        "--all",
        "--",
        ".",
        *(f":(exclude,literal){each}" for each in embedded),
    ], left_out


def kept_ref(path: str) -> str:
    """Return the ref under which `kept` keeps what was in a worktree."""
    return f"refs/sfad/{os.path.basename(path)}"


def kept(record: Record, found: Snapshot, env: Mapping[str, str], message: str) -> str:
    """Keep what is in a worktree as a commit under `kept_ref`, without hooks, and return it. Raise
    `GitError`."""
    at, ref = _with_name(record, env), kept_ref(record.path)
    words = ["for-each-ref", "--format=%(objectname) %(tree) %(parent)", ref]
    commit, *rest = git(*words, at=at).split(" ")
    if rest == [found.tree, found.head]:
        return commit
    commit = git("commit-tree", found.tree, "-p", found.head, "-m", message, at=at)
    git("update-ref", ref, commit, at=at)
    return commit


def keep(record: Record, env: Mapping[str, str], *, dry_run: bool) -> str | None:
    """Keep what would be lost with a worktree, and return the ref that has it; `None` if nothing
    would be. Raise `NotKept`, `GitError`."""
    if record.holds_nothing:
        return None
    if not os.path.isdir(record.repository):
        raise NotKept(f"no commit can keep it: its repository {record.repository} is gone")
    if record.admin is None:
        raise NotKept("no commit can keep it: git does not know it as a worktree any more")
    found = snapshot(record, env)
    if os.path.isdir(f"{record.admin}/modules"):
        found.left_out.append("the repositories of its sub-modules are in it")
    if found.left_out:
        raise NotKept(f"no commit can keep all of it: {found.left_out[0]}")
    at = At("/", own(env), record.repository)
    if found.tree != git("rev-parse", f"{found.head}^{{tree}}", at=at):
        if not dry_run and not _is_landed(record, env):
            kept(record, found, env, f"{record.branch}: what run {record.run} left uncommitted")
        return kept_ref(record.path)
    tips = [f"refs/heads/{record.branch}"] if exists(record.branch, at) else [record.start]
    if not git("rev-list", "--max-count=1", found.head, "--not", *tips, at=at):
        return None
    if not dry_run:
        git("update-ref", kept_ref(record.path), found.head, at=at)
    return kept_ref(record.path)


def _with_name(record: Record, env: Mapping[str, str]) -> At:
    """Return where commits are made, with a name for them if the person has none."""
    at = At("/", own(env), record.repository)
    if run(["var", "GIT_COMMITTER_IDENT"], at, (0, 128))[0] == 0:
        return at
    who = {"NAME": "sfad", "EMAIL": "sfad@localhost"}
    given = {f"GIT_{of}_{k}": v for of in ("AUTHOR", "COMMITTER") for k, v in who.items()}
    return At("/", {**own(env), **given}, record.repository)


def remove(record: Record, env: Mapping[str, str], *, branch: bool) -> None:
    """Remove a worktree and its record, and with `branch` its branch. Raise `GitError`,
    `OSError`."""
    at = At("/", own(env), record.repository) if os.path.isdir(record.repository) else None
    if at is not None and record.admin is not None:
        # twice, because git has locked one that it has not finished; git then does not look at what
        # is in it
        git("worktree", "remove", "--force", "--force", record.path, at=at, codes=(0, 128))
    _clear(record)
    if os.path.lexists(record.path):
        raise GitError(f"{record.path} cannot be removed")
    if at is not None and branch and exists(record.branch, at):
        git("branch", "--quiet", "-D", record.branch, at=at)
    with _Ignoring():
        os.unlink(record.file)

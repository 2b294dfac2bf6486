"""Git worktrees of runs: how git looks at a repository, makes a worktree, compares it and removes
it (docs/going-on.md).

The user of a run executes all of this: as a helper of the daemon and as the first step of the run
(`steps`), and in `sfactl diff` and `sfactl prune`. Nothing goes through a shell,
and no path or name can be an option. Beside each worktree is its record (`worktree_record`).

Git gets a directory of its own for each look (`Look`), with copies of HEAD and index, so that
nothing of the worktree changes. Where an isolated run has worked, git of the person looks at
nothing: `private` reads what is there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

from ...git import obeyed
from ...git.commands import (
    PATIENCE,
    SPARSE,
    SWITCHES,
    At,
    GitError,
    complaint,
    execute,
    git,
    own,
    raw,
    run,
)
from . import private
from .aside import aside
from .record import FIELDS, INITIALISING, Ignoring, Record, content


def directory(env: Mapping[str, str]) -> str:
    """Return the directory of a user's worktrees."""
    data = env.get("XDG_DATA_HOME", "")
    return (
        f"{data if data.startswith('/') else os.path.expanduser('~/.local/share')}/sfad/worktrees"
    )


def check_room(most: int, env: Mapping[str, str]) -> None:
    """Raise `GitError` if the worktrees of a user take more than `most` bytes on the disk."""
    taken = 0
    for place, directories, names in os.walk(directory(env)):
        for name in (*directories, *names):
            with suppress(OSError):  # removed meanwhile
                taken += os.lstat(os.path.join(place, name)).st_blocks * 512
        if taken > most:
            raise GitError(
                f"your worktrees take more than {most} bytes (worktrees.size): "
                "sfactl prune --worktrees removes those of ended runs"
            )


# ---- What git knows of the repository of a directory, before anything is made


def look(cwd: str, branch: str | None, again: str, env: Mapping[str, str]) -> dict[str, object]:
    """Return what the daemon needs to know of the repository around `cwd`. `branch`: the new one.
    `again`: the path of an earlier run's worktree, whose branch may exist. Raise `GitError` if no
    worktree can be made."""
    if (record := around(cwd)) is not None:
        return _look_within(record, cwd, branch, again, env)
    at = At(cwd, own(env))
    if git("rev-parse", "--is-bare-repository", at=at) == "true":
        raise GitError(f"the repository around {cwd} is bare: start the run in a checkout of it")
    if git("rev-parse", "--is-inside-work-tree", at=at) != "true":
        raise GitError(f"{cwd} belongs to the repository itself: start the run in a checkout of it")
    missing, head = run(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], at, (0, 1, 128))
    if missing:
        raise GitError(f"the repository around {cwd} has no commit yet")
    return {
        "repository": os.path.realpath(
            git("rev-parse", "--path-format=absolute", "--git-common-dir", at=at)
        ),
        "prefix": git("rev-parse", "--show-prefix", at=at),
        "start": head,
        **_places(branch, again, env, at),
    }


def _look_within(
    record: Record, cwd: str, branch: str | None, again: str, env: Mapping[str, str]
) -> dict[str, object]:
    """Return what `look` does for a directory that an isolated run could write. Git looks at the
    repository alone, because the run has said there which repository it is, and with which
    config."""
    private.bring(record, env)
    at = At("/", own(env), record.repository)
    prefix = os.path.relpath(os.path.realpath(cwd), record.path)
    return {
        "repository": record.repository,
        "prefix": "" if prefix == "." else f"{prefix}/",
        "start": private.branch_commit(record.branch, at),
        **_places(branch, again, env, at),
    }


def _places(branch: str | None, again: str, env: Mapping[str, str], at: At) -> dict[str, object]:
    if run(["config", "--get", "extensions.refStorage"], at, (0, 1))[1] == "reftable":
        # sfad reads and copies HEAD, refs and their logs as files
        raise GitError(
            "the repository keeps its refs in reftables, in which sfad finds no work of a run: "
            "git refs migrate --ref-format=files"
        )
    counted = git("count-objects", "-v", at=at).splitlines()
    return {
        "directory": os.path.realpath(directory(env)),
        "alternates": [line[11:].strip('"') for line in counted if line.startswith("alternate: ")],
        "found": _check_branch(branch, again, at),
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


def read_record(path: str) -> Record | None:
    """Return the record of the worktree at a path; `None` if there is none that can be read."""
    import json

    with Ignoring(), open(f"{path}.json", encoding="ascii") as file:
        found = json.load(file)
        return Record(**{name: found[name] for name in FIELDS}) if found["path"] == path else None
    return None


def around(cwd: str) -> Record | None:
    """Return the record of the worktree around a directory if an isolated run has worked there. The
    outermost counts: a run can write another record into its own worktree."""
    path = ""
    for name in os.path.realpath(cwd).split("/")[1:]:
        path = f"{path}/{name}"
        if os.path.isfile(f"{path}.json") and (record := read_record(path)) is not None:
            return record if record.isolated else None
    return None


def records(env: Mapping[str, str]) -> Iterator[Record]:
    """Yield the records of the user's worktrees."""
    return _records_in(os.path.realpath(directory(env)))


def _records_in(top: str) -> Iterator[Record]:
    with Ignoring():
        for name in sorted(os.listdir(top)):
            if (
                name.endswith(".json")
                and (record := read_record(f"{top}/{name.removesuffix('.json')}")) is not None
            ):
                yield record


# ---- Making a worktree


def make(wanted: Record, origin: str, env: Mapping[str, str], *, found: bool) -> None:
    """Make the worktree for `wanted.run`, or use what an earlier run or attempt has made. `found`:
    its branch may exist. Git prints on stderr. Raise `GitError`, `OSError`; then nothing new is
    left."""
    env = own(env)
    known = read_record(wanted.path)
    record = wanted if known is None else known
    if wanted.isolated:
        private.check(record.repository)
    elif record.isolated:
        raise GitError(
            f"run {record.run} was isolated, and what it has left in {record.path} would be obeyed "
            "without a sandbox: add --isolate, or start a run with --worktree of its own"
        )
    earlier = record.run, record.socket
    record.run, record.socket = wanted.run, wanted.socket
    if known is not None and _claim(record):
        try:
            _use(record, wanted, env)
        except BaseException:
            record.run, record.socket = earlier
            record.save()
            raise
        return
    os.makedirs(os.path.dirname(wanted.path), mode=0o700, exist_ok=True)
    if not record.holds_nothing:
        raise GitError(
            f"{wanted.path} is there, and git does not know it as a worktree: move it away"
        )
    inside = os.path.isdir(origin) and around(origin) is None
    at = At(origin, env) if inside else At("/", env, record.repository)
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
        begun = private.branch_commit(record.branch, at)
        record.starts = {wanted.run: begun, **record.starts}
        record.save()
        if (again and wanted.isolated) or around(origin) is not None:
            at = _disobedient(record, at)
        _add(record, at)
        if wanted.isolated:
            record.alternates, record.sandbox = wanted.alternates, wanted.sandbox
            _give_private(record, env, new=True)
            record.save()
        if again:
            said = f"the worktree was gone, and is made again on its branch '{record.branch}'"
            os.write(2, f"sfad: {said}\n".encode(errors="surrogateescape"))
    except (GitError, OSError):
        if fresh or known is None:
            remove(record, env, branch=fresh)
        raise


@contextmanager
def claimed(record: Record) -> Iterator[None]:
    """Keep a further run from beginning in a worktree, as long as it has not saved the record. What
    an isolated run could lock is not locked."""
    descriptor = _lock(record.file)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(file: str) -> int | None:
    """Return a descriptor of the file, locked; `None` if there is none."""
    while True:
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(file)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was saved meanwhile


def _claim(record: Record) -> bool:
    """Save which run works in a worktree, so that `prune` leaves it, and return whether it is
    whole."""
    with claimed(record):
        if whole := record.whole:
            record.save()
        return whole


def _use(record: Record, wanted: Record, env: Mapping[str, str]) -> None:
    """Have a further run work in a worktree that is whole."""
    if not record.isolated:
        _check_top(record, env)
    if wanted.run not in record.starts:
        record.starts = {**record.starts, wanted.run: _state(record, env)}
    if wanted.isolated:
        record.alternates, record.sandbox = wanted.alternates, wanted.sandbox
        _give_private(record, env, new=False)
    record.save()


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
    locked = ["--no-checkout", "--lock", "--reason", INITIALISING]
    git("worktree", "add", "--quiet", *locked, record.path, record.branch, at=at)
    inside = At(record.path, at.env)
    admin = f"{record.repository}/worktrees/{os.path.basename(record.path)}"
    for name, value in (("core.bare", "false"), ("core.worktree", record.path)):
        git("config", "--file", f"{admin}/config.worktree", name, value, at=inside)
    _check_top(record, at.env)
    git("reset", "--quiet", "--hard", at=inside)
    git("worktree", "unlock", record.path, at=at)
    _loudly(inside, "checkout", "--quiet", record.branch, "--")


def _disobedient(record: Record, at: At) -> At:
    """Return where git makes a worktree of what an isolated run has committed, without hooks: one
    may be a file of it, as below `.husky`. Raise `GitError` if a filter may be."""
    names = git(
        "ls-tree", "-r", "--full-tree", "--name-only", "-z", f"refs/heads/{record.branch}", at=at
    )
    env = obeyed.without(obeyed.unhooked(at.env), obeyed.hooks(at))
    at = At(at.cwd, env, at.git_dir)
    if (found := obeyed.check(at, record.path, names.split("\0"))) is not None:
        raise GitError(
            f"{found}, a file of the branch '{record.branch}', and an isolated run has worked on "
            "that: git would execute what the run has committed there. Let your config name a "
            "program elsewhere"
        )
    return at


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


def _give_private(record: Record, env: Mapping[str, str], *, new: bool) -> None:
    """Make what git of an isolated run writes to, unless that of an earlier attempt is up to
    date."""
    if record.isolated and not new:
        private.bring(record, env)
    if new or not record.isolated or not private.is_current(record, env):
        private.make(record)
    record.isolated = True
    record.brought = private.branch_commit(record.branch, At("/", env, record.repository))


def _state(record: Record, env: Mapping[str, str]) -> str:
    """Return the tree of what is in the worktree now, untracked files included."""
    if record.isolated:
        return snapshot(record, env).tree
    with Look(record, env) as look:
        look.git("add", "--all", "--ignore-errors", "--", ".", codes=(0, 1, 128))
        return look.git("write-tree")


def _clear(record: Record) -> None:
    """Remove what git had begun to make, and the directory that it keeps for the worktree, unless a
    person has moved the worktree: a run may have written another path into `gitdir`, and then git
    does not remove the branch."""
    admin = f"{record.repository}/worktrees/{os.path.basename(record.path)}"
    private.delete(record.path)
    if record.moved is None:
        shutil.rmtree(admin, ignore_errors=True)
    private.remove(record)


# ---- Looking at a worktree without changing anything of it, its index included


def _without_repository(record: Record) -> str:
    return f"its repository {record.repository} is gone: move it back"


def is_gone(record: Record) -> str:
    """Return what is said of a worktree that is not there."""
    moved = record.moved
    return f"the worktree {record.path} " + (
        "is gone" if moved is None else f"was moved to {moved}"
    )


class Look:
    """A directory that git takes for the worktree's own."""

    def __init__(self, record: Record, env: Mapping[str, str]) -> None:
        self._record = record
        self._place = ""
        self._env = dict(own(env))

    def __enter__(self) -> Self:
        record, admin = self._record, self._record.admin
        if not os.path.isdir(record.repository):
            raise GitError(_without_repository(record))
        if admin is None or not os.path.isdir(record.path):
            raise GitError(is_gone(record))
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
        try:
            show_changes(self.at)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._place, ignore_errors=True)

    def words(self, *words: str) -> list[str]:
        return [*SWITCHES, "-c", "advice.addEmbeddedRepo=false", *words]

    @property
    def at(self) -> At:
        return At(self._record.path, self._env)

    def dirty_modules(self) -> list[str]:
        """Return the paths of sub-modules with changes that no commit has."""
        words = ["--porcelain=v2", "--untracked-files=no", "--no-renames", "-z", _SUBMODULES]
        found = (entry.split(" ", 8) for entry in self.git("status", *words).split("\0"))
        return [
            entry[8]
            for entry in found
            if entry[0] == "1" and entry[2].startswith("S") and entry[2][2:] != ".."
        ]

    def left_out(self) -> tuple[list[str], list[str]]:
        """Return the paths of repositories within the worktree, such as a clone, which no commit of
        the worktree can contain, and of directories that git cannot read."""
        words = self.words("ls-files", "--others", "--exclude-standard", "-z")
        done = execute(words, self.at, patience=PATIENCE)
        if done.returncode:
            raise GitError(complaint(done.stderr))
        names = os.fsdecode(done.stdout).split("\0")
        closed = _CLOSED.findall(os.fsdecode(done.stderr))
        return [name for name in names if name.endswith("/")], closed

    def git(self, *words: str, codes: Sequence[int] = (0,)) -> str:
        return git(*self.words(*words), at=self.at, codes=codes, patience=PATIENCE)


_CLOSED = re.compile(r"^warning: could not open directory '(.*?)/?': ", re.MULTILINE)


def show_changes(at: At) -> None:
    """Have the index say of no file that is there that it is not to be compared, as an agent may
    have said (git-update-index(1), --assume-unchanged and --skip-worktree). With
    core.sparseCheckout, git does so itself for what a sparse checkout leaves out."""
    tagged = git("ls-files", "-v", "-z", at=at, patience=PATIENCE).split("\0")
    paths = [entry[2:] for entry in tagged if entry[:1] in ("h", "s", "S")]
    if not paths:
        return
    with tempfile.TemporaryFile() as names:
        names.write(b"".join(os.fsencode(path) + b"\0" for path in paths))
        names.seek(0)
        words = ["update-index", "-z", "--no-assume-unchanged", "--stdin"]
        raw([*SPARSE, *words], at, stdin=names, patience=PATIENCE)


def diff(record: Record, run: str, env: Mapping[str, str], *, stat: bool, text: bool) -> str | None:
    """Show what a run has changed since its start, or return it as `text`. Raise `GitError`."""
    start = record.starts.get(run, record.start)
    words = ["diff", _SUBMODULES, *(["--stat"] if stat else []), start]
    if record.isolated:
        with private.left(record, env, uncommitted=True) as found:
            found.based_on(start)
            return _shown([*words, found.tree, "--"], found.at, text=text)
    with Look(record, env) as look:
        look.git("add", "--intent-to-add", "--ignore-errors", "--", ".", codes=(0, 1, 128))
        return _shown([*look.words(*words), "--"], look.at, text=text)


_SUBMODULES = "--ignore-submodules=none"
"""Changes in sub-modules are the run's, too, whatever .gitmodules says."""


def _shown(words: list[str], at: At, *, text: bool) -> str | None:
    """Return what git prints, or have git print it, with the user's pager and colours."""
    if text:
        found = git(*words, at=at)
        return found and f"{found}\n"  # git apply takes no patch whose last line does not end
    done = subprocess.run(at.command(*words), cwd=at.cwd, env=at.env, check=False)
    if done.returncode:
        raise GitError(f"git diff ended with {done.returncode}")
    return None


def changes(record: Record, env: Mapping[str, str]) -> str | None:
    """Return what would be lost with a worktree beside its commits, in words; `None` if nothing
    would."""
    if not record.whole:
        return None if record.holds_nothing else "git does not know it as a worktree any more"
    try:
        if _is_changed(record, env) and not _is_landed(record, env):
            return "it has changes that are not committed"
        if going := [each.words for each in aside(record, env) if each.commit or each.lost]:
            return f"it has {', '.join(going)}"
    except GitError as error:
        return str(error)  # a run must not be able to keep its worktree from being removed
    if record.isolated and os.path.isdir(_modules(record)):
        return "it has sub-modules, into which nothing looks because its run was isolated"
    return None


def _is_changed(record: Record, env: Mapping[str, str]) -> bool:
    if record.isolated:
        found = snapshot(record, env)
        at = At("/", own(env), record.repository)
        same = found.tree == git("rev-parse", f"{found.head}^{{tree}}", at=at)
        return not same or bool(found.left_out)
    with Look(record, env) as look:
        words = ["status", "--porcelain", "--untracked-files=all", _SUBMODULES]
        return bool(look.git(*words)) or any(look.left_out())


def _modules(record: Record) -> str:
    """Return the directory in which git keeps the repositories of sub-modules."""
    return f"{git_files(record)}/modules"


def git_files(record: Record) -> str:
    """Return the directory in which git of the run keeps HEAD and what it has begun."""
    if record.isolated:
        return f"{private.directory(record.path)}/admin"
    return record.admin or ""


@dataclass
class Left:
    """What of a run is in its worktree and in no branch but those of runs."""

    files: int
    """That are not committed."""
    commits: int
    kept: str = ""
    """The ref that has what was not committed, if the worktree is gone."""
    aside: list[str] = field(default_factory=list)
    """What does not land with it, in words."""


def left(record: Record, env: Mapping[str, str]) -> Left:
    """Return what is to be landed. Raise `GitError`."""
    found = _left(record, env)
    found.aside = [each.words for each in aside(record, env)]
    return found


def _left(record: Record, env: Mapping[str, str]) -> Left:
    if not os.path.isdir(record.repository):
        if os.path.lexists(record.path):
            raise GitError(_without_repository(record))
        return Left(0, 0)
    if record.moved is not None:
        raise GitError(is_gone(record))
    at = At("/", own(env), record.repository)
    landed = landed_tips(record, at)
    if not record.whole:
        kept = kept_ref(record.path) if _kept_commit(record, at) else ""
        return Left(0, _count(record, env, [kept] if kept else [], landed), kept)
    if record.isolated:
        found = snapshot(record, env)
        head = found.head
        words = ["-r", "--find-renames", "--name-only", "-z", head, found.tree]
        files = git("diff-tree", *words, at=at).count("\0")
    else:
        with Look(record, env) as look:
            files, head = _changed(look), look.git("rev-parse", "HEAD")
    commits = _count(record, env, [head], [*landed, *_of_switch(record)])
    if landed and (files or commits) and snapshot(record, env).tree in _trees(landed, at):
        return Left(0, _count(record, env, [], [*landed, head]))
    return Left(0 if files and _is_landed(record, env) else files, commits)


def _of_switch(record: Record) -> list[str]:
    """Return words for rev-list where the run works on another branch than its own: no work has
    landed there. What that branch had before the run is not the run's."""
    head = content(f"{record.admin}/HEAD") or ""
    branch = head.removeprefix("ref: refs/heads/")
    if record.isolated or branch in (head, record.branch):
        return []
    words = [f"--exclude={branch}"]
    for line in (content(f"{record.admin}/logs/HEAD") or "").splitlines():
        entry, _, message = line.partition("\t")
        if message == f"Branch: renamed refs/heads/{record.branch} to refs/heads/{branch}":
            return words
        if message.startswith("checkout: ") and message.endswith(f" to {branch}"):
            old, new, *_ = [*entry.split(" "), "", ""]
            return words if new == old or not _COMMIT.fullmatch(new) else [new, *words]
    return []


_COMMIT = re.compile("[0-9a-f]{40,64}")


def _changed(look: Look) -> int:
    """Return how many files are not committed, as `git diff --stat` counts them."""
    words = ["--porcelain", "--untracked-files=all", "--no-renames", "-z", _SUBMODULES]
    entries = look.git("status", *words).split("\0")
    # a repository within it, which no commit can have, is told by `land` and `prune`
    files = [entry for entry in entries if entry and not entry.endswith("/")]
    kinds = "".join(entry[:2] for entry in files)
    if "D" not in kinds or not {"A", "?"}.intersection(kinds):
        return len(files)  # none was renamed
    words, _ = everything(look)
    look.git("add", "--intent-to-add", "--ignore-errors", *words[2:], codes=(0, 1, 128))
    found = look.git("diff", "--name-only", "--find-renames", "-z", _SUBMODULES, "HEAD", "--")
    return len({*found.split("\0")} - {""})


def landed_tips(record: Record, at: At, *, patches: bool = True) -> list[str]:
    """Return the commits that had all work when it landed, unless the branch has lost it since.
    `patches`: also what was written as uncommitted changes, which no branch may have."""
    found = []
    for each in record.landed.values():
        if run(["cat-file", "-e", f"{each['tip']}^{{commit}}"], at, (0, 1, 128))[0]:
            continue
        if each["how"] == "patch":
            found += [each["tip"]] if patches else []
            continue
        others = [f"--exclude={record.branch}", "--branches", "--remotes", "--tags"]
        words = ["rev-list", "--max-count=1", each["became"], "--not", *others]
        if run(words, at, (0, 128)) == (0, ""):
            found.append(each["tip"])
    return found


def _trees(commits: Sequence[str], at: At) -> list[str]:
    return [git("rev-parse", f"{commit}^{{tree}}", at=at) for commit in commits]


def _is_landed(record: Record, env: Mapping[str, str]) -> bool:
    """Return whether a branch has what is not committed in the worktree."""
    at, ref = At("/", own(env), record.repository), kept_ref(record.path)
    trees = _trees(landed_tips(record, at, patches=False), at)
    tree = git("for-each-ref", "--format=%(tree)", ref, at=at)
    if tree and not git("rev-list", "--max-count=1", ref, "--not", "--branches", at=at):
        trees.append(tree)
    if not trees:
        return False
    found = snapshot(record, env)
    return found.tree in trees and not found.left_out


def has_commits(record: Record, env: Mapping[str, str]) -> bool:
    """Return whether the worktree or its branch has commits that were made there and are in no
    branch but those of runs. Raise `GitError`."""
    if not os.path.isdir(record.repository):
        return False
    tips = []
    if record.isolated and record.admin is not None:
        with suppress(GitError):  # `changes` tells it
            private.bring(record, env)
        tips.append(git("rev-parse", "HEAD", at=At("/", own(env), record.admin)))
    elif record.whole:
        with suppress(GitError), Look(record, env) as look:  # as above
            tips.append(look.git("rev-parse", "HEAD"))
    return _count(record, env, tips) > 0


def _count(
    record: Record, env: Mapping[str, str], tips: list[str], landed: Sequence[str] = ()
) -> int:
    at = At("/", own(env), record.repository)
    tips += [f"refs/heads/{record.branch}"] if exists(record.branch, at) else []
    # The branch of a child begins with the commits of its parent. If each counted as the other's
    # place for them, both would be removed as branches without commits of their own.
    siblings = _records_in(os.path.dirname(record.path))
    runs = {each.branch for each in siblings if each.repository == record.repository}
    others = [record.start, *landed]
    others += [f"--exclude={branch}" for branch in sorted({record.branch, *runs})]
    others += ["--branches", "--remotes", "--tags"]
    return int(git("rev-list", "--count", *tips, "--not", *others, at=at)) if tips else 0


def checkout_of(branch: str, at: At) -> str:
    """Return the worktree in which a branch is checked out; empty if there is none."""
    for entry in git("worktree", "list", "--porcelain", at=at).split("\n\n"):
        lines = entry.split("\n")
        path = lines[0].removeprefix("worktree ")
        if f"branch refs/heads/{branch}" in lines and os.path.isdir(path):
            return path
    return ""


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
    if record.isolated:
        private.bring(record, env)
        at = At("/", own(env), record.repository)
        with private.left(record, env, uncommitted=True, into=at) as found:
            return Snapshot(found.head, *found.without_repositories(at))
    with Look(record, env) as look:
        words, left_out = everything(look)
        look.git(*words)
        return Snapshot(look.git("rev-parse", "HEAD"), look.git("write-tree"), left_out)


def everything(look: Look) -> tuple[list[str], list[str]]:
    """Return the words after `git` that stage everything that a commit can have, and what none
    can."""
    embedded, closed = look.left_out()
    left_out = [f"{each} is a git repository of its own" for each in embedded]
    left_out += [f"the directory {each} may not be read" for each in closed]
    dirty = look.dirty_modules()
    left_out += [f"the sub-module {each} has changes that are not committed" for each in dirty]
    return [
        "add",
        "--all",
        "--",
        ".",
        *(f":(exclude,literal){each}" for each in (*embedded, *closed)),
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
    try:
        found = snapshot(record, env)
    except GitError as error:
        raise NotKept(f"no commit can keep it: {error}") from None
    if os.path.isdir(_modules(record)):
        found.left_out.append("the repositories of its sub-modules are in it")
    found.left_out += [f"it has {each.words}" for each in aside(record, env) if each.lost]
    if found.left_out:
        raise NotKept(f"no commit can keep all of it: {found.left_out[0]}")
    at = At("/", own(env), record.repository)
    if found.tree != git("rev-parse", f"{found.head}^{{tree}}", at=at) and not _is_landed(
        record, env
    ):
        if not dry_run:
            kept(record, found, env, f"{record.branch}: what run {record.run} left uncommitted")
        return kept_ref(record.path)
    tips = [f"refs/heads/{record.branch}"] if exists(record.branch, at) else [record.start]
    tips += landed_tips(record, at, patches=False)
    if not git("rev-list", "--max-count=1", found.head, "--not", *tips, at=at):
        if not dry_run:
            forget(record, env)
        return None
    if not dry_run:
        git("update-ref", kept_ref(record.path), found.head, at=at)
    return kept_ref(record.path)


def forget(record: Record, env: Mapping[str, str]) -> bool:
    """Delete the ref of what was kept if a branch has that, and return whether there is none then.
    False if its repository is not there, which may be on a disk that is not mounted. Raise
    `GitError`."""
    if not os.path.isdir(record.repository):
        return False
    at, ref = At("/", own(env), record.repository), kept_ref(record.path)
    if not _kept_commit(record, at):
        return True
    tips = landed_tips(record, at, patches=False)
    if git("rev-list", "--max-count=1", ref, "--not", "--branches", *tips, at=at):
        return False
    git("update-ref", "-d", ref, at=at)
    return True


def _with_name(record: Record, env: Mapping[str, str]) -> At:
    """Return where commits are made, with a name for them if the person has none."""
    at = At("/", own(env), record.repository)
    if run(["var", "GIT_COMMITTER_IDENT"], at, (0, 128))[0] == 0:
        return at
    who = {"NAME": "sfad", "EMAIL": "sfad@localhost"}
    given = {f"GIT_{of}_{k}": v for of in ("AUTHOR", "COMMITTER") for k, v in who.items()}
    return At("/", {**own(env), **given}, record.repository)


def remove(record: Record, env: Mapping[str, str], *, branch: bool, noted: bool = False) -> None:
    """Remove a worktree and its record, and with `branch` its branch. `noted`: the record stays, so
    that the work that is kept is found. Raise `GitError`, `OSError`."""
    at = At("/", own(env), record.repository) if os.path.isdir(record.repository) else None
    _clear(record)
    if os.path.lexists(record.path):
        raise GitError(f"{record.path} cannot be removed")
    # a person may have moved the worktree, or checked the branch out elsewhere
    if (
        at is not None
        and branch
        and exists(record.branch, at)
        and not checkout_of(record.branch, at)
    ):
        git("branch", "--quiet", "-D", record.branch, at=at)
    if noted:
        return
    with Ignoring():
        os.unlink(record.file)

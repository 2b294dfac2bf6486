"""How the work of an ended run comes home: what is uncommitted in its worktree becomes a commit,
which is merged, squashed, or written as uncommitted changes (`sfactl land`, docs/going-on.md).

The person who types it executes all of this. The new commit of the branch is made before a working
tree is touched, and a working tree changes only as `git merge --ff-only` changes one: as a whole,
or, if an uncommitted file is in the way, not at all.

Of an isolated run nothing is obeyed: its uncommitted files become a commit without hooks, which is
kept beside its branch (`worktrees.kept`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Literal

from ...git import obeyed
from ...git.commands import SWITCHES, WHOLE, At, GitError, complaint, execute, git, own, raw, run
from . import private
from .aside import aside
from .record import Record
from .worktrees import (
    Look,
    around,
    checked_branch,
    checkout_of,
    everything,
    exists,
    git_files,
    is_gone,
    kept,
    kept_ref,
    landed_tips,
    read_record,
    show_changes,
    snapshot,
)  # fmt: skip

How = Literal["merge", "squash", "patch"]

UNFINISHED = {
    "MERGE_HEAD": "merge", "CHERRY_PICK_HEAD": "cherry-pick", "REVERT_HEAD": "revert",
    "rebase-merge": "rebase", "rebase-apply": "rebase",
}  # fmt: skip
"""What git keeps in its directory during an operation of several steps, and its name."""


class NotLanded(Exception):
    """Nothing was changed where the work was to land. The message says why, and how to go on."""

    def __init__(self, message: str, files: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.files = list(files)


@dataclass
class Work:
    """What is to land."""

    run: str
    """Its id."""
    name: str
    branch: str
    worktree: str
    """Where it was, if `record` is None."""
    record: Record | None
    isolated: bool = False
    """Whether nothing that it has written is obeyed."""

    @property
    def inside(self) -> bool:
        """Whether a person can go on in the worktree."""
        record = self.record
        return record is not None and not self.isolated and os.path.isdir(record.path)

    @property
    def again(self) -> str:
        return f"sfactl land {self.run}"


@dataclass
class Landed:
    """What has come of it."""

    onto: str
    """The branch."""
    commit: str
    """What the branch is at now."""
    worked: bool = True
    """False: there was nothing that was not there already."""
    committed: str | None = None
    """The commit of what was uncommitted in the worktree."""
    files: list[str] = field(default_factory=list)
    """What has changed on the branch, or of a patch in the working tree. A file that was renamed
    is there with both names."""
    changed: int = 0
    """How many files these are, as `git diff --stat` counts them."""
    notes: list[str] = field(default_factory=list)
    """What has not landed, and why."""


@contextmanager
def alone(directory: str) -> Iterator[None]:
    """Wait until no other `land` or `prune` is at work in a directory of worktrees. Raise
    `OSError`."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def land(
    work: Work,
    cwd: str,
    env: Mapping[str, str],
    *,
    onto: str | None = None,
    how: How | None = None,
    message: str | None = None,
    busy: Mapping[str, str] | None = None,
) -> Landed:
    """Bring the work of an ended run to the branch that is checked out at `cwd`, or to another.
    `how`: None is a merge, as the person's merge.ff allows. `message`: of new commits. `busy`: the
    live runs that work in worktrees, by these. Raise `NotLanded`, `GitError`, `OSError`."""
    env = own(env)
    target = _target(work, cwd, env, onto)
    if (other := (busy or {}).get(target.top or "")) is not None:
        raise NotLanded(
            f"run {other} works in {target.top}, where '{target.branch}' is checked out: "
            "wait for its end"
        )
    if how == "patch" and target.top is None:
        raise NotLanded(
            f"--patch needs a working tree, and '{target.branch}' is checked out nowhere"
        )
    landed = Landed(onto=target.branch, commit=target.commit)
    not_executed: list[str] = []
    if work.isolated:
        not_executed = obeyed.hooks(target.at)
        env = obeyed.without(obeyed.unhooked(env, target.top), not_executed)
        if target.top is not None:
            _check_obeyed(work, target, [])
        target = replace(target, at=At(target.at.cwd, env, target.at.git_dir))
    tip = _tip(work, target, env, landed, message, commit=how != "patch")
    if work.record is not None:
        landed.notes += [f"left out: {each.words}" for each in aside(work.record, env)]
    became = _bring(work, target, tip, landed, how, message)
    if landed.worked and not_executed:
        landed.notes.append(
            f"hooks of this repository were not executed: the run was isolated; they are "
            f"{', '.join(not_executed)}"
        )
    if work.record is not None and became is not None:
        done = "patch" if how == "patch" and became != target.commit else "merge"
        work.record.landed[target.branch] = {"tip": tip, "became": became, "how": done}
        try:
            work.record.save()
        except OSError as error:
            landed.notes.append(f"sfactl cannot save that it has landed: {error}")
    return landed


# ---- Where it is to land


@dataclass
class _Target:
    at: At
    repository: str
    branch: str
    commit: str
    top: str | None
    """The top level of the working tree where the branch is checked out."""


def _target(work: Work, cwd: str, env: Mapping[str, str], onto: str | None) -> _Target:
    here = At(cwd, env)
    # there git would obey what the run has made its repository
    theirs = around(cwd)
    top, common = _checkout_at(here) if theirs is None else ("", "")
    repository = common if work.record is None else work.record.repository
    if not repository or not os.path.isdir(repository):
        raise NotLanded(
            f"{repository} is gone, to which the worktree belonged: move it back, then: "
            f"{work.again}"
            if repository
            else f"the worktree of run {work.run} is gone, and {cwd} is in no checkout of its "
            f"repository: cd there, then: {work.again}"
        )
    if onto is None:
        if theirs is not None:
            raise NotLanded(
                f"{theirs.path} is the worktree of run {theirs.run}, which was isolated: cd to a "
                "checkout of yours, or name a branch with --onto"
            )
        if not top or common != repository:
            origin = "" if work.record is None else work.record.origin
            there = quote(origin) if os.path.isdir(origin) else "to one"
            raise NotLanded(
                f"{cwd} is in no checkout of {repository}, which the run worked on: cd {there}, or "
                "name a branch with --onto"
            )
        code, ref = run(["symbolic-ref", "--quiet", "HEAD"], here, (0, 1))
        if code or not ref.startswith("refs/heads/"):
            raise NotLanded(
                f"no branch is checked out in {top}: git switch BRANCH, or name one with --onto"
            )
        branch, place = ref.removeprefix("refs/heads/"), At(top, env)
    else:
        branch = onto
        place = At(top, env) if top and common == repository else At("/", env, repository)
        if branch.startswith("-") or not exists(branch, place):
            raise NotLanded(
                f"there is no branch '{branch}' in {repository}; "
                f"to make it: git branch {quote(branch)}"
            )
        if run(["symbolic-ref", "--quiet", f"refs/heads/{branch}"], place, (0, 1))[0] == 0:
            raise NotLanded(f"'{branch}' is another name of a branch: name that with --onto")
        top = checkout_of(branch, place)
        place = At(top, env) if top else place
    if branch == work.branch or (top and _same(top, work.worktree)):
        raise NotLanded(
            f"'{branch}' is where the run worked itself: cd to a checkout of yours, or name "
            "another branch with --onto"
        )
    if top and (found := _record_at(top)) is not None and found.isolated:
        raise NotLanded(f"{top} is the worktree of run {found.run}, which was isolated")
    commit = git("rev-parse", "--verify", f"refs/heads/{branch}^{{commit}}", at=place)
    return _Target(place, repository, branch, commit, top or None)


def _check_obeyed(work: Work, target: _Target, files: Sequence[str]) -> None:
    """Raise `NotLanded` if git would execute a program that may be the run's."""
    found = obeyed.check(target.at, target.top or "", files)
    if found is not None:
        raise NotLanded(
            f"{found}, which lies in {target.top}, and the run was isolated: git would obey what "
            f"the run has written there. Move it out of the checkout, then: {work.again}; or name "
            "a branch that is checked out nowhere with --onto"
        )


def _checkout_at(here: At) -> tuple[str, str]:
    """Return the top level of the checkout around a directory, and its repository; empty if there
    is none."""
    found = []
    for word in ("--show-toplevel", "--git-common-dir"):
        done = execute(["rev-parse", "--path-format=absolute", word], here)
        if done.returncode:
            if b"not a git repository" in done.stderr or b"work tree" in done.stderr:
                return "", ""
            raise GitError(complaint(done.stderr))
        found.append(os.fsdecode(done.stdout).removesuffix("\n"))
    return found[0], os.path.realpath(found[1])


def _record_at(top: str) -> Record | None:
    return read_record(os.path.realpath(top))


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


# ---- What is to land, as a commit


def _tip(
    work: Work,
    target: _Target,
    env: Mapping[str, str],
    landed: Landed,
    message: str | None,
    *,
    commit: bool,
) -> str:
    """Return the commit with all of the run's work. `commit`: it stays in the worktree."""
    record = work.record
    if record is None or not os.path.isdir(record.path) or record.admin is None:
        if record is not None and record.moved is not None:
            landed.notes.append(f"left out: what is not committed there, because {is_gone(record)}")
        return _tip_without_worktree(work, target)
    private.bring(record, env)
    branch = checked_branch(record, env)
    with Look(record, env) as look:
        _check_finished(work, record, look)
        if not record.isolated and commit:
            head = _committed(work, record, look, env, landed, message)
            return _with_branch(work, record, head, branch, look.at)
    found = snapshot(record, env)
    landed.notes += [f"left out: {each}, in {record.path}" for each in found.left_out]
    at = At("/", env, record.repository)
    head = found.head
    if found.tree != git("rev-parse", f"{head}^{{tree}}", at=at):
        head = kept(record, found, env, _message(work, message))
        if commit:
            landed.committed = head
    return _with_branch(work, record, head, branch, at)


def _with_branch(work: Work, record: Record, head: str, branch: str | None, at: At) -> str:
    if branch is None or _contains(head, branch, at):
        return head
    if _contains(branch, head, at):
        return branch
    way = (
        f'sfactl continue {work.run} "merge your branch {quote(record.branch)}"'
        if work.isolated
        else f"git -C {quote(record.path)} merge {quote(record.branch)}"
    )
    raise NotLanded(
        f"{record.path} is at {head[:12]}, which lacks commits of its branch '{record.branch}': "
        f"{way}, then: {work.again}"
    )


def _tip_without_worktree(work: Work, target: _Target) -> str:
    kept = kept_ref(work.worktree)
    found = []
    for ref in (kept, f"refs/heads/{work.branch}"):
        verify = ["rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"]
        code, commit = run(verify, target.at, (0, 1, 128))
        found += [] if code else [commit]
    if found:
        tips = [] if work.record is None else landed_tips(work.record, target.at)
        old = found[0] in tips or _contains(found[-1], found[0], target.at)
        return found[-1] if old else found[0]
    raise NotLanded(
        f"the worktree of run {work.run} is gone, and {target.repository} has neither its branch "
        f"'{work.branch}' nor {kept}: sfactl prune removes all three once everything has landed"
    )


def _contains(commit: str, other: str, at: At) -> bool:
    return run(["merge-base", "--is-ancestor", other, commit], at, (0, 1))[0] == 0


def _check_finished(work: Work, record: Record, look: Look) -> None:
    found = next(
        (UNFINISHED[name] for name in UNFINISHED if os.path.lexists(f"{git_files(record)}/{name}")),
        None,
    )
    if found is None and not look.git("ls-files", "--unmerged", "-z"):
        return
    way = (
        f"have it finished (sfactl continue {work.run})"
        if record.isolated
        else f"finish it (git -C {quote(record.path)} status says how)"
    )
    raise NotLanded(
        f"its worktree is in the middle of a {found or 'merge'}: {way}, then: {work.again}"
    )


def _message(work: Work, message: str | None) -> str:
    line = f"{work.name}: work of run {work.run}"
    return f"{message}\n\n{line}" if message else line


def _committed(
    work: Work,
    record: Record,
    look: Look,
    env: Mapping[str, str],
    landed: Landed,
    message: str | None,
) -> str:
    """Commit as git does for a person, with hooks and signature, and return the commit that is
    checked out then."""
    inside = {**env, "GIT_DIR": record.admin or "", "GIT_WORK_TREE": record.path}
    at = At(record.path, inside)
    words, left_out = everything(look)
    landed.notes += [f"left out: {each}, in {record.path}" for each in left_out]
    show_changes(at)
    git(*WHOLE, *words, at=at)
    if run(["diff", "--cached", "--quiet"], at, (0, 1))[0]:
        done = execute(["commit", "--quiet", "-m", _message(work, message)], at)
        if done.returncode:
            said = os.fsdecode(done.stdout + done.stderr).strip()
            raise NotLanded(
                f"git commit ended with {done.returncode} in {record.path}: a hook may have "
                "refused, or the signature failed. Nothing has landed, and nothing is lost. "
                f"Repair it there, or commit there yourself, then: {work.again}"
                + "".join(f"\n  {line}" for line in said.splitlines()[-_SAID:])
            )
        landed.committed = git("rev-parse", "HEAD", at=at)
    return git("rev-parse", "HEAD", at=at)


_SAID = 40
"""Lines of a hook that are shown."""


# ---- Bringing it there


def _bring(
    work: Work,
    target: _Target,
    tip: str,
    landed: Landed,
    how: How | None,
    message: str | None,
) -> str | None:
    """Return the commit that has the work now; `None` if that is known."""
    at, ours = target.at, target.commit
    if _contains(ours, tip, at):
        landed.worked = False
        return ours
    if _has_landed(work, target, tip):
        landed.worked = False
        return None
    forward = _contains(tip, ours, at)
    tree = (
        git("rev-parse", f"{tip}^{{tree}}", at=at) if forward else _merged(work, target, tip, how)
    )
    same = tree == git("rev-parse", f"{ours}^{{tree}}", at=at)
    if same and not (forward and how in (None, "merge")):
        landed.worked = False
        return ours
    if how == "patch":
        new = _new_commit(target, tree, [ours], _message(work, message), sign=False)
    elif how == "squash":
        new = _new_commit(target, tree, [ours], _message(work, message))
    else:
        new = _merge(work, target, tip, tree, how, message, forward=forward)
    landed.files = _names(git("diff", "--name-only", "--no-renames", "-z", ours, new, at=at))
    landed.changed = len(_names(git("diff", "--name-only", "-z", ours, new, at=at)))
    if how == "patch" and _is_there(target, new, landed.files):
        landed.worked, landed.files = False, []
        return new
    if work.isolated and target.top is not None:
        _check_obeyed(work, target, landed.files)
    landed.notes += _missing_modules(work, target, new)
    if target.top is None:
        reason = f"{work.again}: {landed.onto}"
        git("update-ref", "-m", reason, f"refs/heads/{target.branch}", new, ours, at=at)
    elif how == "patch":
        with _shadow(target) as shadow:
            _advance(work, target, shadow, new, landed.files)
        return new
    else:
        named = At(at.cwd, {**at.env, "GIT_REFLOG_ACTION": work.again})
        _advance(work, target, named, new, landed.files)
    landed.commit = new
    return new


def _has_landed(work: Work, target: _Target, tip: str) -> bool:
    """Return whether the branch was given all of this already, squashed or as a patch that was
    committed since."""
    at = target.at
    known = None if work.record is None else work.record.landed.get(target.branch)
    if known is None or work.record is None:
        return False
    if known["tip"] not in landed_tips(work.record, at):
        return False
    if git("diff-tree", "--name-only", known["tip"], tip, at=at):
        return False
    became = known["became"]
    if run(["cat-file", "-e", f"{became}^{{commit}}"], at, (0, 1, 128))[0]:
        return False
    if known["how"] != "patch":
        return _contains(target.commit, became, at)
    files = {*_names(git("diff-tree", "-r", "--name-only", "-z", f"{became}^", became, at=at))}
    since = [f"--max-count={_LOOKED_AT}", target.commit, "--not", f"{became}^"]
    return any(
        files.isdisjoint(_names(git("diff-tree", "-r", "--name-only", "-z", became, each, at=at)))
        for each in git("rev-list", *since, at=at).split()
    )


_LOOKED_AT = 100
"""Commits among which that of a patch is looked for."""


def _is_there(target: _Target, new: str, files: Sequence[str]) -> bool:
    """Return whether these files of the working tree are those of a commit already."""
    at, top = target.at, target.top or ""
    gone = _names(git("diff-tree", "-r", "--name-only", "--diff-filter=D", "-z", target.commit, new,
                      at=at))  # fmt: skip
    if any(os.path.lexists(f"{top}/{name}") for name in gone):
        return False
    with _shadow(target) as shadow:
        if run(["read-tree", "-i", "-m", new], shadow, (0, 128))[0]:
            return False  # a merge is under way there
        words = [*SWITCHES, "diff", "--no-ext-diff", "--name-only", "--no-renames", "-z", new, "--"]
        code, other = run(words, shadow, (0, 128))
        return not code and {*files}.isdisjoint(_names(other))


def _names(text: str) -> list[str]:
    return [name for name in text.split("\0") if name]


def _merged(work: Work, target: _Target, tip: str, how: How | None) -> str:
    """Return the tree of the merge. Raise `NotLanded` if it conflicts."""
    words = ["merge-tree", "--write-tree", "--name-only", "--no-messages", "-z"]
    code, said = raw([*words, target.commit, tip], target.at, (0, 1, 129))
    tree, *files = os.fsdecode(said).split("\0")
    inside = work.inside and how != "patch"
    where = quote(work.worktree if inside else target.top or target.repository)
    branch = quote(target.branch)
    if code == 129:  # git's code for an option that it does not know
        way = f"rebase {branch}, then: {work.again}" if inside else f"merge {tip[:12]}"
        raise NotLanded(
            f"'{target.branch}' has moved on, and only git 2.38 and later can merge without a "
            f"working tree: git -C {where} {way}"
        )
    if not code:
        return tree
    names = list(dict.fromkeys(_names("\0".join(files))))
    steps = f"git -C {where} merge {tip[:12]}, and resolve them there"
    if inside:
        steps = (
            f"git -C {where} merge {branch}, resolve them there, git -C {where} commit, "
            f"then: {work.again}"
        )
    raise NotLanded(
        f"it conflicts with '{target.branch}' in {_listed(names)}. Nothing has changed there. "
        f"To go on: {steps}",
        names,
    )


def _merge(
    work: Work,
    target: _Target,
    tip: str,
    tree: str,
    how: How | None,
    message: str | None,
    *,
    forward: bool,
) -> str:
    wanted = _setting(target, "merge.ff")
    if forward and wanted not in ("false", "no", "off", "0"):
        return tip
    if wanted == "only" and how is None:
        rebase = f"git -C {quote(work.worktree)} rebase {quote(target.branch)}, then: {work.again}"
        raise NotLanded(
            f"'{target.branch}' has moved on, and merge.ff = only in your config forbids a merge: "
            + (f"{rebase}; or with --merge or --squash" if work.inside
               else f"{work.again} --merge, or --squash")
        )  # fmt: skip
    line = message or f"Merge branch '{work.branch}': {work.name}, run {work.run}"
    return _new_commit(target, tree, [target.commit, tip], line)


def _new_commit(
    target: _Target, tree: str, parents: Sequence[str], message: str, *, sign: bool = True
) -> str:
    signs = sign and _setting(target, "--type=bool", "commit.gpgSign") == "true"
    above = [word for parent in parents for word in ("-p", parent)]
    return git("commit-tree", tree, *above, *(["-S"] if signs else []), "-m", message, at=target.at)


def _setting(target: _Target, *words: str) -> str:
    return run(["config", *words[:-1], "--get", words[-1]], target.at, (0, 1))[1]


@contextmanager
def _shadow(target: _Target) -> Iterator[At]:
    """Have git take a directory of our own for that of the working tree, so that the files change,
    and neither the branch nor the index."""
    own_dir = git("rev-parse", "--absolute-git-dir", at=target.at)
    place = tempfile.mkdtemp(prefix="sfad-worktree-")
    try:
        parts = [name for name in os.listdir(own_dir) if name.startswith("sharedindex.")]
        for name in ("index", "config.worktree", "info/sparse-checkout", *parts):
            if os.path.isfile(f"{own_dir}/{name}"):
                os.makedirs(os.path.dirname(f"{place}/{name}"), exist_ok=True)
                shutil.copy2(f"{own_dir}/{name}", f"{place}/{name}")
        for name, text in (("HEAD", target.commit), ("commondir", target.repository)):
            with open(f"{place}/{name}", "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(f"{text}\n")
        own_env = {
            "GIT_DIR": place, "GIT_COMMON_DIR": target.repository,
            "GIT_WORK_TREE": target.top or "",
        }  # fmt: skip
        at = At(target.at.cwd, {**target.at.env, **own_env})
        yield at
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _restored(target: _Target, files: Sequence[str]) -> Iterator[None]:
    """Have these files be as they were if the body raises: git may end in the middle, as on a full
    disk. It does not write to a file that is there, but makes another, so a link keeps the old
    one."""
    own_dir = git("rev-parse", "--absolute-git-dir", at=target.at)
    place, top = tempfile.mkdtemp(prefix="sfad-land-", dir=own_dir), target.top or ""
    try:
        for number, name in enumerate(files):
            if os.path.islink(f"{top}/{name}") or os.path.isfile(f"{top}/{name}"):
                _link(f"{top}/{name}", f"{place}/{number}")
        try:
            yield
        except BaseException:
            pairs = [(f"{place}/{n}", f"{top}/{name}") for n, name in enumerate(files)]
            for kept, path in pairs:
                if not os.path.lexists(kept) and (os.path.islink(path) or os.path.isfile(path)):
                    os.unlink(path)
            for kept, path in pairs:
                if os.path.lexists(kept):
                    _give_back(kept, path)
            raise
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _link(path: str, link: str) -> None:
    try:
        os.link(path, link, follow_symlinks=False)
    except OSError:  # on another file system, or one without links
        shutil.copy2(path, link, follow_symlinks=False)


def _give_back(kept: str, path: str) -> None:
    if os.path.lexists(path) and os.path.samestat(os.lstat(kept), os.lstat(path)):
        return
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)  # where a file was, everything is git's
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.replace(kept, path)


def _advance(work: Work, target: _Target, at: At, new: str, files: Sequence[str]) -> None:
    """Bring the working tree to a commit that follows its own, or raise `NotLanded` with nothing
    changed."""
    switches = list(SWITCHES) if "GIT_COMMON_DIR" in at.env else []
    merge = ["merge", "--ff-only", "--no-stat", "--quiet", "--no-autostash"]
    kept = ["--no-overwrite-ignore", "--no-verify-signatures"]
    with _restored(target, files):
        done = execute([*switches, *merge, *kept, new], at)
        if done.returncode:
            raise _refused(work, target, done.stderr)


def _refused(work: Work, target: _Target, stderr: bytes) -> NotLanded:
    said = os.fsdecode(stderr)
    files = [line[1:] for line in said.splitlines() if line.startswith("\t")]
    if not files:
        why = complaint(stderr).rstrip(".")
        return NotLanded(f"git merge fails in {target.top}: {why}. Nothing has changed there")
    ignored = _ignored(target, files)
    edited = [name for name in files if name not in ignored]
    said_of: list[str] = []
    steps: list[str] = []
    if edited:
        have = "has" if len(edited) == 1 else "have"
        said_of.append(
            f"{_listed(edited)} in {target.top} {have} changes that are not committed, and would "
            "be overwritten"
        )
        steps += _shown_again(target, edited)
        steps.append(
            "commit or stash them (git stash --include-untracked; afterwards: git stash pop)"
        )
    if ignored:
        are, them = ("is", "it") if len(ignored) == 1 else ("are", "them")
        said_of.append(
            f"{_listed(ignored)} in {target.top} {are} ignored by git, and would be overwritten"
        )
        steps.append(f"move or remove {them}")
    way = " and ".join(steps)
    return NotLanded(
        f"{'; '.join(said_of)}. Nothing has changed there. {way[0].upper()}{way[1:]}, then: "
        f"{work.again}; or name another branch with --onto",
        files,
    )


def _shown_again(target: _Target, files: Sequence[str]) -> Iterator[str]:
    """Yield the commands after which git stashes files that its index says not to look at."""
    paths = [f":(top,literal){name}" for name in files]
    tags = _names(git(*SWITCHES, "ls-files", "-v", "-z", "--", *paths, at=target.at))
    for option, tagged in (("assume-unchanged", "hs"), ("skip-worktree", "Ss")):
        if names := [quote(tag[2:]) for tag in tags if tag[0] in tagged][:_SHOWN]:
            where = quote(target.top or "")
            command = f"git -C {where} update-index --no-{option} {' '.join(names)}"
            yield f"have git look at what you hide from it ({command})"


def _ignored(target: _Target, files: Sequence[str]) -> list[str]:
    """Return those of the files that git ignores."""
    with tempfile.TemporaryFile() as names:
        names.write(b"".join(os.fsencode(name) + b"\0" for name in files))
        names.seek(0)
        code, said = raw(["check-ignore", "-z", "--stdin"], target.at, (0, 1, 128), stdin=names)
    return [] if code else _names(os.fsdecode(said))


def _missing_modules(work: Work, target: _Target, new: str) -> list[str]:
    """Return what to do about sub-modules at commits that only the worktree may have."""
    raw_diff = git("diff", "--raw", "--no-abbrev", "--no-renames", "-z", target.commit, new,
                   at=target.at)  # fmt: skip
    fields = raw_diff.split("\0")
    found = []
    for meta, path in zip(fields[::2], fields[1::2], strict=False):
        _, mode, _, commit, _ = meta.lstrip(":").split(" ")
        if mode != "160000":
            continue
        module = f"{target.top}/{path}"
        if target.top and os.path.lexists(f"{module}/.git"):
            there = At(module, target.at.env)
            if run(["cat-file", "-e", f"{commit}^{{commit}}"], there, (0, 1, 128))[0] == 0:
                continue
        said = f"the sub-module {path} is now at {commit[:12]}: git submodule update"
        if not work.isolated:
            fetch = f"git -C {quote(path)} fetch {quote(f'{work.worktree}/{path}')} {commit}"
            said += f"; if no remote has that commit: {fetch}"
        found.append(said)
    return found


_SHOWN = 20


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more

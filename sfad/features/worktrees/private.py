"""What git writes for an isolated run, and how that comes into the repository.

An isolated run works in a worktree, and its commits need objects, refs and an index. Git of the
sandbox finds them where they always are, but what it writes goes to a directory of the run's own,
beside the worktree (`PATH.git`), which bubblewrap shows in their place:

`objects`  in place of the repository's, which are read-only, at `shared`, as its alternates
`refs`     a copy of the repository's, of which the run may change those beside its branch
`logs`     of these refs
`admin`    the directory that git keeps for the worktree: HEAD, index

So nothing that the run writes is a file of the repository: no object, ref, config, hook or list of
alternates. sfad reads what the run has left in another sandbox, which can write nothing and reach
nothing (`_READ`). The result is a pack. Git computes the ids of its objects itself, and checks that
none is missing, before the repository gets them and the run's branch moves (`bring`).
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ...git.commands import (
    PATIENCE,
    At,
    GitError,
    TooLong,
    bounded,
    complaint,
    git,
    own,
    raw,
    run,
)
from ...host.probe import bubblewrap
from .record import Record, content

_PACKAGES = str(Path(__file__).parents[3])
_START = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from sfad.features.isolation.outside import main; main(sys.argv[2:])"
)
_SEAL = "."
"""`processes.credentials.SEAL`, which a module that `sfactl` imports cannot."""
_LARGE = 1 << 30
"""Bytes of a file that is not committed, of which git would take minutes to make an object."""
_MOST_UNREAD = 100
"""Of these, and of what may not be read, that git is asked about."""
_hopeless: dict[str, str] = {}
"""The worktrees that this process was not able to read within its patience, and what it has said:
it waits once for each."""
_ID = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


# ---- Where it is


def directory(path: str) -> str:
    """Return what belongs to the worktree at a path."""
    return f"{path}.git"


def check(repository: str) -> None:
    """Raise `GitError` for a repository in which a sandbox would show what a link names."""
    for name in ("objects", "refs", "logs", "worktrees"):
        if os.path.islink(f"{repository}/{name}"):
            raise GitError(
                f"{repository}/{name} is a link, so an isolated run cannot work in a worktree of "
                "this repository: leave out --isolate, or put the directory in its place"
            )


def make(record: Record) -> None:
    """Make the directory of a worktree that is there. Raise `GitError`, `OSError`."""
    check(record.repository)
    private, repository = directory(record.path), record.repository
    remove(record)
    new = f"{private}.new"
    os.makedirs(f"{new}/objects/info", mode=0o700)
    for name in ("objects/pack", "logs", "shared"):
        os.mkdir(f"{new}/{name}")
    with open(f"{new}/objects/info/alternates", "wb") as file:
        file.write(b"".join(_quoted(path) for path in (f"{private}/shared", *record.alternates)))
    shutil.copytree(f"{repository}/refs", f"{new}/refs", symlinks=True)
    os.makedirs(f"{new}/refs/heads/{os.path.dirname(record.branch)}", exist_ok=True)
    shutil.copytree(
        f"{repository}/worktrees/{os.path.basename(record.path)}", f"{new}/admin", symlinks=True
    )
    os.makedirs(f"{repository}/logs", exist_ok=True)  # the sandbox can cover only what is there
    os.rename(new, private)


def remove(record: Record) -> None:
    """Remove the directory of a worktree, and what an earlier `make` had begun."""
    for each in (directory(record.path), f"{directory(record.path)}.new"):
        delete(each)


def delete(path: str) -> None:
    """Remove a directory with all that a run has made in it, also what it has closed to itself.
    What cannot be removed stays."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        for above, names, _ in os.walk(path):
            for name in names:
                if not os.path.islink(f"{above}/{name}"):
                    os.chmod(f"{above}/{name}", 0o700)
        shutil.rmtree(path, ignore_errors=True)


def _quoted(path: str) -> bytes:
    """Return a line of a file of alternates, where git takes a name in quotes for one with
    escapes."""
    escaped = (
        b"\\%03o" % byte if byte < 32 or byte in b'"\\' else bytes([byte])
        for byte in os.fsencode(path)
    )
    return b'"' + b"".join(escaped) + b'"\n'


# ---- Reading what a run has left

_READ = r"""
set -e
repository=$1 tree=$2 admin=$3 branch=$4 start=$5 known=$6 uncommitted=$7 partial=$8
here=$PWD
git() { command git -c core.fsmonitor=false "$@"; }
export GIT_DIR="$here/git" GIT_COMMON_DIR="$repository" GIT_WORK_TREE="$tree"
export GIT_OBJECT_DIRECTORY="$here/objects"
for each in HEAD index; do if [ -f "$admin/$each" ]; then cp -p "$admin/$each" git/; fi; done
git rev-parse --git-dir >/dev/null 2>&1 || echo "ref: refs/heads/$branch" > git/HEAD
cd "$tree"
tip=$(git rev-parse --verify --quiet "refs/heads/$branch^{commit}" || echo "$known")
head=$(git rev-parse --verify --quiet 'HEAD^{commit}' || echo "$tip")
name=$(git symbolic-ref --quiet HEAD || :)
left() {
  git ls-files -z | git -c core.sparseCheckout=true -c sparse.expectFilesOutsideOfPatterns=false \
    update-index -z --no-assume-unchanged --stdin >&2 || :
  git -c advice.addEmbeddedRepo=false add --all --ignore-errors -- . >&2 || :
  git write-tree
}
made= found=
shift 8
if [ "$uncommitted" ]; then
  while [ "$2" ]; do
    case "$1" in
      */) git check-ignore --quiet -- "./$1" || found=$1 ;;
      *) found=$(git ls-files --others --modified --exclude-standard -- ":(top,literal)$1") ;;
    esac
    if [ "$found" ]; then echo "fatal: $1 $2, and git does not ignore it: $3" >&2; exit 1; fi
    shift 3
  done
  made=$(left) || { rm -f "$GIT_DIR/index"; git read-tree "$head"; made=$(left); }
fi
printf '%s\n' "$tip" "$head" $made "^$start" "^$known" |
  git pack-objects --quiet --revs --stdout $partial > "$here/pack"
attached=
if [ "$name" = "refs/heads/$branch" ]; then attached=1; fi
printf '%s:%s:%s:%s' "$tip" "$head" "$made" "$attached"
"""
"""Executed in a sandbox where only its directory is writable. `git` obeys the repository's config
there, and the attributes that the run has left."""


class Left:
    """What a run has left, as git objects of this process's own."""

    def __init__(self, record: Record, env: Mapping[str, str], place: str, answer: str) -> None:
        self._record = record
        self._place = place
        tip, head, tree, attached = answer.split(":")
        self.tip = tip
        """The commit of its branch."""
        self.head = head
        """The commit that is checked out."""
        self.tree = tree
        """The tree of all its files, committed or not; empty if it was not asked for."""
        self.attached = bool(attached)
        """Whether the branch is checked out."""
        own_objects = {
            "GIT_DIR": f"{place}/git", "GIT_COMMON_DIR": record.repository,
            "GIT_WORK_TREE": f"{place}/empty", "GIT_OBJECT_DIRECTORY": f"{place}/objects",
        }  # fmt: skip
        self.at = At(f"{place}/empty", {**own(env), **own_objects})
        """Where git knows these objects, beside the repository's: an empty directory. It obeys the
        repository's config, and the attributes of the commit `based_on`."""

    def based_on(self, commit: str) -> None:
        """Take the attributes of this commit."""
        git("read-tree", commit, at=self.at)

    def without_repositories(self, at: At) -> tuple[str, list[str]]:
        """Return the tree without the repositories in the worktree, which no commit can have, and
        what these are, in words. `at`: where the objects are."""
        listed = git("ls-tree", "-r", "-z", self.tree, at=at).split("\0")
        paths = [each.partition("\t")[2] for each in listed if each.startswith("160000 ")]
        made = [each for each in paths if os.path.lexists(f"{self._record.path}/{each}/.git")]
        if not made:
            return self.tree, []
        place = At(at.cwd, {**at.env, "GIT_INDEX_FILE": f"{self._place}/index"}, at.git_dir)
        git("read-tree", self.tree, at=place)
        left_out = []
        for path in made:
            before = git("ls-tree", "-z", self.head, "--", f":(top,literal){path}", at=at)
            if before.startswith("160000 "):
                commit = before.split()[2]
                words = ["--cacheinfo", f"160000,{commit},{path}"]
                left_out.append(f"{path} is a sub-module, and the run was isolated")
            else:
                words = ["--force-remove", "--", path]
                left_out.append(f"{path}/ is a git repository of its own")
            git("update-index", "--add", *words, at=place)
        return git("write-tree", at=place), left_out

    def receive(self, at: At) -> None:
        """Have git read the objects, and check them. Raise `GitError`."""
        record = self._record
        pack = f"{self._place}/read/pack"
        with open(os.open(pack, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            count = int.from_bytes(os.pread(file.fileno(), 4, 8), "big")
            if count:
                strict = ["--strict"] if _is_set("transfer.fsckObjects", at) else []
                raw(["index-pack", "--stdin", *strict], at, stdin=file, patience=PATIENCE)
        found = [each for each in (self.tip, self.head, self.tree) if each]
        git(
            "rev-list", "--objects", "--quiet", *_of_partial_clone(at), *found,
            "--not", record.start, at=at, patience=PATIENCE,
        )  # fmt: skip


def _is_set(key: str, at: At) -> bool:
    return run(["config", "--type=bool", "--get", key], at, (0, 1))[1] == "true"


def _of_partial_clone(at: At) -> list[str]:
    """Return the option for git to pass over objects that a server has promised."""
    missing, _ = run(["config", "--get", "extensions.partialClone"], at, (0, 1))
    return [] if missing else ["--exclude-promisor-objects"]


@contextmanager
def left(
    record: Record, env: Mapping[str, str], *, uncommitted: bool, into: At | None = None
) -> Iterator[Left]:
    """Yield what a run has left. `into`: where its objects go; without it they are gone afterwards.
    Raise `GitError`, `OSError`."""
    if not os.path.isdir(record.path) or not os.path.isdir(directory(record.path)):
        raise GitError(f"the worktree {record.path} is gone")
    if (why := _hopeless.get(record.path)) is not None:
        raise GitError(why)
    place = tempfile.mkdtemp(prefix="sfad-worktree-")
    try:
        unread = _check_kinds(record)
        for name in ("read/git", "read/objects/info", "git", "objects/info", "empty"):
            os.makedirs(f"{place}/{name}")
        for name in ("read/objects", "objects"):
            with open(f"{place}/{name}/info/alternates", "wb") as file:
                file.write(_quoted(f"{record.repository}/objects"))
        for name in ("read/git", "git"):
            with open(f"{place}/{name}/commondir", "wb") as file:
                file.write(os.fsencode(f"{record.repository}\n"))
        found = Left(
            record, env, place, _read(record, env, f"{place}/read", unread, uncommitted=uncommitted)
        )
        with open(f"{place}/git/HEAD", "w") as file:
            file.write(f"{record.start}\n")
        found.receive(found.at if into is None else into)
    except TooLong as error:
        delete(place)
        why = f"what run {record.run} has left in {record.path} takes too long to read: {error}"
        if bounded(PATIENCE) == PATIENCE:
            _hopeless[record.path] = why
        raise GitError(why) from None
    except BaseException:
        delete(place)
        raise
    try:
        yield found
    finally:
        delete(place)


def _check_kinds(record: Record) -> list[str]:
    """Raise `GitError` if something is there for which git would wait, such as a pipe in place of a
    ref, or that leads elsewhere. Return three words for each path of the worktree that git does not
    read, or not in time: the path, which ends with a slash if it is a directory, why, and what to
    do."""
    private = directory(record.path)
    for name in ("refs", "logs", "admin", "objects"):
        for path, mode, _ in _walk(f"{private}/{name}"):
            closed = stat.S_ISDIR(mode)
            if not (closed or stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and _is_name_of_ref(path))):
                raise GitError(_unread(record, path, mode))
    found = []
    for path, mode, size in _walk(record.path):
        if stat.S_ISFIFO(mode) and "/.git" in path.removeprefix(record.path):
            raise GitError(_unread(record, path, mode))
        name = os.path.relpath(path, record.path)
        if stat.S_ISREG(mode) and size > _LARGE:
            found += [name, "has more than 1 GiB", "remove it, or commit it yourself"]
        elif stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and not os.access(path, os.R_OK)):
            slash = "/" if stat.S_ISDIR(mode) else ""
            found += [f"{name}{slash}", "may not be read", f"chmod -R u+rwX {shlex.quote(path)}"]
    return found[: 3 * _MOST_UNREAD]


def _is_name_of_ref(link: str) -> bool:
    """Return whether git takes a link for another ref (core.preferSymlinkRefs)."""
    text = os.readlink(link)
    return text.startswith("refs/") and ".." not in text


def _unread(record: Record, path: str, mode: int) -> str:
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFLNK: "a link", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(mode), "no regular file")
    return (
        f"what run {record.run} has left is not read: {path} is {kind}, and git would wait for it "
        f"or follow it; remove it: rm {shlex.quote(path)}"
    )


def _walk(top: str) -> Iterator[tuple[str, int, int]]:
    """Yield each file below a directory, its mode and its size, and each directory that may not be
    read. Raise `GitError`."""
    try:
        found = os.lstat(top)
    except OSError as error:
        raise GitError(f"{top} cannot be read: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        yield top, found.st_mode, found.st_size
        return
    patience = bounded(PATIENCE)
    above, until = [top], time.monotonic() + patience
    while above:
        try:
            place = above.pop()
            with os.scandir(place) as entries:
                for each in entries:
                    if each.is_dir(follow_symlinks=False):
                        above.append(each.path)
                    else:
                        found = os.lstat(each.path)
                        yield each.path, found.st_mode, found.st_size
        except OSError as error:
            if error.errno == errno.EACCES:
                yield place, stat.S_IFDIR, 0
            elif error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):  # as for git
                raise GitError(f"{error.filename} cannot be read: {error.strerror}") from None
        if time.monotonic() > until:
            raise TooLong(f"{top} has too many files to look at within {patience:.0f} s")


def _read(
    record: Record, env: Mapping[str, str], place: str, unread: list[str], *, uncommitted: bool
) -> str:
    """Read what a run has left, in a sandbox. Return the answer of `_READ`."""
    at = At("/", own(env), record.repository)
    promised = "--exclude-promisor-objects" if _of_partial_clone(at) else ""
    command = [
        sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, _PACKAGES,
        f"bwrap={bubblewrap() or ''}", "net", "looks", *record.sandbox,
        f"read={record.path}", f"read={record.repository}",
        f"repository={record.repository}", f"worktree={record.path}",
        f"branches={os.path.dirname(record.branch)}",
        "file=/bin/sh", "--", "sh", "-c", _READ, "sh",
        record.repository, record.path,
        f"{record.repository}/worktrees/{os.path.basename(record.path)}",
        record.branch, record.start, record.brought or record.start,
        "1" if uncommitted else "", promised, *unread,
    ]  # fmt: skip
    inside = {**own(env), "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    patience = bounded(PATIENCE)
    with subprocess.Popen(
        command,
        cwd=place,
        env={f"{_SEAL}{name}": value for name, value in inside.items()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as reader:
        try:
            said, complained = reader.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            raise TooLong(f"it was not read within {patience:.0f} s") from None
        finally:  # the sandbox ends with it, whatever the run has had git start there
            reader.kill()
    answer = said.decode("ascii", "replace")
    if reader.returncode or not all(map(_ID.fullmatch, filter(None, answer.split(":")[:3]))):
        why = complaint(complained) or f"exit code {reader.returncode}"
        raise GitError(f"what the run has left cannot be read in a sandbox: {why}")
    return answer


# ---- Into the repository


def branch_commit(branch: str, at: At) -> str:
    """Return the commit of a branch in the repository. Raise `GitError` if there is none, and if it
    stands for another branch."""
    name = f"refs/heads/{branch}"
    other = run(["symbolic-ref", "--quiet", name], at, (0, 1, 128))[1]
    if other:
        raise GitError(
            f"the branch '{branch}' stands for {other}, so nothing is done with it: "
            f"git symbolic-ref --delete {shlex.quote(name)} removes it"
        )
    return git("rev-parse", "--verify", f"{name}^{{commit}}", at=at)


def bring(record: Record, env: Mapping[str, str]) -> None:
    """Bring the commits of an isolated run into the repository, and move its branch; if a person
    has moved that, they are on the branch BRANCH-COMMIT. Raise `GitError`, `OSError`."""
    if not os.path.isdir(directory(record.path)):
        return
    at = At("/", own(env), record.repository)
    known = branch_commit(record.branch, at)
    if _is_unchanged(record, known):
        return
    with left(record, env, uncommitted=False, into=at) as found:
        if found.tip != record.brought:
            _move(record, found.tip, known, at)
        if found.tip == branch_commit(record.branch, at):
            check_out(record, found.head, env, attached=found.attached)


def _move(record: Record, commit: str, known: str, at: At) -> None:
    """Move the run's branch. If a person has moved it elsewhere meanwhile, make another one."""
    moved = known not in (record.brought, commit)
    branch = f"{record.branch}-{commit[:12]}" if moved else record.branch
    git(
        "update-ref", "--no-deref", "-m", f"run {record.run}", f"refs/heads/{branch}", commit,
        *([] if moved else [known]), at=at,
    )  # fmt: skip
    record.brought = commit
    record.save()


def check_out(record: Record, commit: str, env: Mapping[str, str], *, attached: bool) -> None:
    """Have the worktree be at a commit, for git outside of the sandbox. No file of it changes."""
    at = At("/", own(env), record.admin or "")
    name = f"refs/heads/{record.branch}"
    if attached:
        git("symbolic-ref", "HEAD", name, at=at)
    else:
        git("update-ref", "--no-deref", "HEAD", commit, at=at)
    git("read-tree", "-i", "-m", "HEAD", at=at)


def _is_unchanged(record: Record, known: str) -> bool:
    """Return whether HEAD and branch of the run are those that the repository has."""
    private = directory(record.path)
    return (
        content(f"{private}/admin/HEAD") == f"ref: refs/heads/{record.branch}"
        and content(f"{private}/refs/heads/{record.branch}") == known == record.brought
    )


def is_current(record: Record, env: Mapping[str, str]) -> bool:
    """Return whether a further run can go on with the directory: its branch is the repository's."""
    at = At("/", own(env), record.repository)
    known = branch_commit(record.branch, at)
    return content(f"{directory(record.path)}/refs/heads/{record.branch}") == known

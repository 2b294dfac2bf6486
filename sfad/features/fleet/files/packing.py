"""Directories that travel with runs: packed where the run is asked for, unpacked on its node, and
compared there with what was sent (docs/fleet.md#files).

The user of a run executes all of this: in `sfactl spawn --ship` and `sfactl fetch`, and in helpers
on the node (`steps`). An archive is a gzipped tar of regular files, directories
and symlinks. The reader trusts nothing in it: each file is opened below the directory without
following a link, and a link may not lead out of the directory.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import secrets
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Self

from ....git.commands import SETTINGS, At, GitError, own, raw

MOST_FILES = 200_000
"""Files of one directory."""
_PIECE = 1 << 20
_ABSENT = (FileNotFoundError, NotADirectoryError)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ShippingError(Exception):
    """Files cannot be sent, unpacked or brought back. The message says why."""


# ---- Paths and links of an archive


def why_unsafe(path: str) -> str | None:
    """Return why an archive may not have this path; `None` if it may."""
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        return "it is not a path within the directory"
    if any(part.lower() == ".git" for part in parts):
        return "it belongs to a git repository"  # its hooks and its config name programs
    return None


def why_leaves(path: str, target: str) -> str | None:
    """Return why a link at `path` may not lead to `target`; `None` if it stays in the directory. A
    `..` behind another name could lead anywhere, because that name may be a link itself."""
    parts = target.split("/")
    up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    if not target or target.startswith("/") or ".." in parts[up:] or up > path.count("/"):
        return f"the link leads out of the directory, to {target}"
    return None


# ---- A directory whose files are opened without following links


class Tree:
    """A directory. No path leads out of it, whatever another process does with the links in it."""

    def __init__(self, root: str) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    def _parent(self, path: str, *, make: bool = False) -> tuple[int, str]:
        """Return a descriptor of the directory above, the caller's to close, and the name in it."""
        *above, name = path.split("/")
        at = os.dup(self._root)
        for part in above:
            try:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=at)
                below = os.open(part, _DIRECTORY, dir_fd=at)
            finally:
                os.close(at)
            at = below
        return at, name

    def status(self, path: str) -> os.stat_result | None:
        """Return lstat(2) of a file; `None` if there is none."""
        try:
            at, name = self._parent(path)
        except _ABSENT:  # a link in the place of a directory is ENOTDIR, too
            return None
        try:
            return os.lstat(name, dir_fd=at)
        except _ABSENT:
            return None
        finally:
            os.close(at)

    def open(self, path: str) -> IO[bytes]:
        """Return a regular file. Raise `OSError`, `ShippingError`."""
        at, name = self._parent(path)
        try:
            file = os.fdopen(os.open(name, _READ, dir_fd=at), "rb")
        finally:
            os.close(at)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise ShippingError(f"{path} is not a regular file any more")
        return file

    def target(self, path: str) -> str:
        at, name = self._parent(path)
        try:
            return os.readlink(name, dir_fd=at)
        finally:
            os.close(at)

    def identity(self, path: str) -> str | None:
        """Return what tells the content of a file or link from another one, with whether it is
        executable; `None` if there is nothing, or a directory."""
        found = self.status(path)
        if found is None or stat.S_ISDIR(found.st_mode):
            return None
        if stat.S_ISLNK(found.st_mode):
            return _of_link(self.target(path))
        if not stat.S_ISREG(found.st_mode):
            return "special"
        with self.open(path) as file:
            return _of_file(file, executable=bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR))

    def is_directory(self, path: str) -> bool:
        found = self.status(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def below(self, path: str) -> Iterator[str]:
        """Yield the files in a directory and in all below it."""
        for each in self._entries(path):
            if self.is_directory(each):
                yield from self.below(each)
            else:
                yield each

    def _entries(self, path: str) -> list[str]:
        at, _ = self._parent(f"{path}/-")
        try:
            return [f"{path}/{name}" for name in os.listdir(at)]
        finally:
            os.close(at)

    def remove_directories(self, path: str) -> None:
        """Remove a directory in which there is nothing but directories. Raise `OSError` for another
        one."""
        for each in self._entries(path):
            self.remove_directories(each)
        at, name = self._parent(path)
        try:
            os.rmdir(name, dir_fd=at)
        finally:
            os.close(at)

    def obstacle(self, path: str) -> str | None:
        """Return what is in the place of a directory above a path."""
        parts = path.split("/")
        for above in ("/".join(parts[:count]) for count in range(1, len(parts))):
            found = self.status(above)
            if found is not None and not stat.S_ISDIR(found.st_mode):
                return above
        return None

    def make(self, path: str) -> None:
        """Make a directory."""
        at, _ = self._parent(f"{path}/-", make=True)
        os.close(at)

    def write(
        self, path: str, content: IO[bytes], *, executable: bool, modified: float | None = None
    ) -> None:
        """Put a file in its place as a whole. Of a file that is there the other rights stay."""
        before = self.status(path)
        with self._replacing(path) as (at, new):
            made = os.open(
                new,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o666,
                dir_fd=at,
            )
            with os.fdopen(made, "wb") as file:
                while piece := content.read(_PIECE):
                    file.write(piece)
                file.flush()
                mode = (
                    os.fstat(made).st_mode
                    if before is None or not stat.S_ISREG(before.st_mode)
                    else before.st_mode
                )
                os.fchmod(made, (mode & 0o666) | ((mode & 0o444) >> 2 if executable else 0))
                if modified is not None:
                    os.utime(made, (modified, modified))

    def link(self, path: str, target: str) -> None:
        with self._replacing(path) as (at, new):
            os.symlink(target, new, dir_fd=at)

    @contextmanager
    def _replacing(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield the directory of a file, and a name in it. What is made under that name takes the
        file's place as a whole."""
        at, name = self._parent(path, make=True)
        new = f".{secrets.token_hex(8)}.sfad"
        try:
            yield at, new
            os.rename(new, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=at)
            raise
        finally:
            os.close(at)

    def delete(self, path: str) -> None:
        """Delete a file, and the directories above it that are empty then."""
        parts = path.split("/")
        for count in range(len(parts), 0, -1):
            try:
                at, name = self._parent("/".join(parts[:count]))
            except _ABSENT:
                continue
            try:
                if count == len(parts):
                    os.unlink(name, dir_fd=at)
                else:
                    os.rmdir(name, dir_fd=at)
            except FileNotFoundError:
                continue
            except OSError:
                if count == len(parts):
                    raise
                return  # not empty
            finally:
                os.close(at)


def _of_file(file: IO[bytes], *, executable: bool) -> str:
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return f"{'executable' if executable else 'file'} {digest.hexdigest()}"


def _of_link(target: str) -> str:
    return f"link {target}"


# ---- git, which lists what is not ignored, and begins the copy's repository


def _git(*words: str, cwd: str, env: Mapping[str, str], codes: Sequence[int] = (0,)) -> bytes:
    try:
        return raw(words, At(cwd, env), codes)[1]
    except GitError as error:
        raise ShippingError(str(error)) from None


def _in_repository(root: str, env: Mapping[str, str]) -> bool:
    try:
        return _git("rev-parse", "--is-inside-work-tree", cwd=root, env=env).strip() == b"true"
    except ShippingError as error:
        # in no other case may files be sent that git would ignore
        if str(error).startswith(
            ("not a git repository", "git is not in the PATH")
        ) and not os.path.lexists(f"{root}/.git"):
            return False
        raise


def _plain(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which git obeys neither the user's settings nor those of a
    repository around it."""
    unset = {name: value for name, value in own(env).items() if name not in SETTINGS}
    return unset | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "HOME": "/nonexistent",
        "XDG_CONFIG_HOME": "",
    }


def begin_repository(root: str, author: str, env: Mapping[str, str]) -> None:
    """Make a git repository of the unpacked files, with one commit. `author`: NAME <MAIL>."""
    name, _, mail = author.removesuffix(">").partition(" <")
    env = _plain(env)
    _git("init", "--quiet", "--template=", ".", cwd=root, env=env)
    for key, value in (("user.name", name or "sfad"), ("user.email", mail or "sfad@localhost")):
        _git("config", key, value, cwd=root, env=env)
    # sent although git ignores them, as tracked files may be
    _git("add", "--all", "--force", cwd=root, env=env)
    _git(
        "commit", "--quiet", "--allow-empty", "--no-verify", "--message=shipped", cwd=root, env=env
    )


# ---- Where the run is asked for: which files are sent


class Survey:
    """What of a directory is sent."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.size = 0
        """Bytes of all files."""
        self.left_out: list[str] = []
        """What is not sent, with the reason."""
        self.git = False
        self.author = ""

    def see(self, tree: Tree, path: str) -> None:
        found = tree.status(path)
        if found is None:  # tracked and deleted
            return
        why = why_unsafe(path)
        if why is None and stat.S_ISLNK(found.st_mode):
            why = why_leaves(path, tree.target(path))
        elif why is None and stat.S_ISDIR(found.st_mode) and self.git:
            why = "it is a repository of its own"
        elif why is None and not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            why = "it is not a regular file"
        if why is not None:
            self.left_out.append(f"{path}: {why}")
            return
        self.paths.append(path)
        self.size += found.st_size if stat.S_ISREG(found.st_mode) else 0
        if len(self.paths) > MOST_FILES:
            raise ShippingError(f"it has more than {MOST_FILES} files; send a directory within it")


def survey(root: str, env: Mapping[str, str], led: Mapping[str, str] | None = None) -> Survey:
    """Return what of a directory is sent: what git does not ignore, or without git everything.
    `led`: variables of git for a directory of which git must obey no file. Raise `ShippingError`,
    `OSError`."""
    env, found = {**own(env), **(led or {})}, Survey()
    found.git = _in_repository(root, env)
    if found.git:
        listed = _git(
            "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=root, env=env
        )
        paths: Iterable[str] = sorted(
            {os.fsdecode(path).rstrip("/") for path in listed.split(b"\0") if path}
        )
        name, mail = (
            _git("config", key, cwd=root, env=env, codes=(0, 1)).decode(errors="replace").strip()
            for key in _IDENTITY
        )
        found.author = f"{name} <{mail}>" if name and mail else ""
    else:
        paths = _everything(root)
    with Tree(root) as tree:
        for path in paths:
            found.see(tree, path)
    if not found.paths:
        raise ShippingError(
            "it has no files that git does not ignore" if found.git else "it is empty"
        )
    return found


_IDENTITY = ("user.name", "user.email")


def _everything(root: str, below: str = "") -> Iterator[str]:
    """Yield the paths of all files and directories, without following links and without going into
    repositories' own files."""
    with os.scandir(os.path.join(root, below) if below else root) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            path = f"{below}/{entry.name}" if below else entry.name
            yield path
            if entry.is_dir(follow_symlinks=False) and entry.name.lower() != ".git":
                yield from _everything(root, path)


# ---- Archives


_LEVEL = 3
"""Of gzip. Level 9 takes three times as long for a tenth less (measured with a repository of source
text)."""


@contextmanager
def _packing(out: IO[bytes]) -> Iterator[tarfile.TarFile]:
    with (
        gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=_LEVEL, mtime=0) as packed,
        tarfile.open(
            fileobj=packed,
            mode="w|",
            format=tarfile.GNU_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        ) as archive,
    ):
        yield archive


_PADDING = 1 << 20
"""Bytes that may follow the end of an archive: tar fills its last block."""


@contextmanager
def _reading(archive: IO[bytes], *, whole: bool = True) -> Iterator[tarfile.TarFile]:
    """Open an archive. `whole`: it is read to its end, where gzip has a checksum. Raise
    `ShippingError` if it is damaged."""
    try:
        with (
            gzip.GzipFile(fileobj=archive, mode="rb") as plain,
            tarfile.open(
                fileobj=plain, mode="r|", encoding="utf-8", errors="surrogateescape"
            ) as opened,
        ):
            yield opened
            if whole and len(plain.read(_PADDING)) == _PADDING:
                raise ValueError("something follows its end")
    except (
        tarfile.TarError,
        gzip.BadGzipFile,
        zlib.error,
        EOFError,
        OverflowError,
        ValueError,
    ) as error:
        raise ShippingError(f"the archive is damaged: {error}") from None


def pack(root: str, paths: Iterable[str], out: IO[bytes]) -> None:
    """Write an archive of these files. Raise `ShippingError`, `OSError`."""
    with Tree(root) as tree, _packing(out) as archive:
        for path in paths:
            _add(archive, tree, path, path)


def _add(archive: tarfile.TarFile, tree: Tree, path: str, name: str) -> None:
    found = tree.status(path)
    if found is None:
        raise ShippingError(f"{path} was deleted while the directory was packed; start again")
    entry = tarfile.TarInfo(name)
    entry.mtime = int(found.st_mtime)
    if stat.S_ISLNK(found.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, tree.target(path)
        archive.addfile(entry)
    elif stat.S_ISDIR(found.st_mode):
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(entry)
    else:
        with tree.open(path) as file:
            status = os.fstat(file.fileno())
            entry.size, entry.mode = (
                status.st_size,
                0o755 if status.st_mode & stat.S_IXUSR else 0o644,
            )
            try:
                archive.addfile(entry, file)
            except OSError as error:
                if str(error) != "unexpected end of data":
                    raise
                raise ShippingError(
                    f"{path} has become shorter while the directory was packed; start again"
                ) from None


def _members(archive: tarfile.TarFile, most: float) -> Iterator[tarfile.TarInfo]:
    """Yield what an archive has. Raise `ShippingError` for what it may not have, and above `most`
    bytes."""
    size = count = 0
    for member in archive:
        size, count = size + member.size, count + 1
        if size > most or count > 2 * MOST_FILES:
            raise ShippingError(
                f"the archive has more than {most:.0f} bytes or {2 * MOST_FILES} files"
            )
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE):
            raise ShippingError(
                f"{member.name!r} in the archive is neither a file nor a directory nor a symlink"
            )
        yield member


def _put(
    tree: Tree, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, *, dated: bool = False
) -> None:
    """Write what an archive has as `path`. Raise `ShippingError`, `OSError`."""
    if (why := why_unsafe(path)) is not None:
        raise ShippingError(f"{path!r} in the archive: {why}")
    if member.issym():
        if (why := why_leaves(path, member.linkname)) is not None:
            raise ShippingError(f"{path!r} in the archive: {why}")
        tree.link(path, member.linkname)
    elif member.isdir():
        tree.make(path)
    else:
        content = archive.extractfile(member)
        assert content is not None
        tree.write(
            path,
            content,
            executable=bool(member.mode & 0o100),
            modified=member.mtime if dated else None,
        )


def unpack(archive: IO[bytes], root: str, most: int) -> None:
    """Write the files of an archive into an empty directory. Raise `ShippingError`, `OSError`."""
    with Tree(root) as tree, _reading(archive) as opened:
        for member in _members(opened, most):
            _put(tree, opened, member, member.name, dated=True)


# ---- On the node: what has changed since the files were sent


class Change:
    """A file that is not as it was sent."""

    def __init__(self, path: str, base: str | None, new: str | None) -> None:
        self.path = path
        self.base = base
        """`Tree.identity` when it was sent; `None` if it was not."""
        self.new = new

    @property
    def kind(self) -> str:
        return "added" if self.base is None else "deleted" if self.new is None else "changed"


class Changes:
    """What an archive of changes begins with."""

    def __init__(self, changes: Sequence[Change], left_out: Sequence[str]) -> None:
        self.changes = changes
        self.left_out = left_out
        """What is new and cannot be brought back, with the reason."""

    def encoded(self) -> bytes:
        rows = [[each.path, each.base, each.new] for each in self.changes]
        return json.dumps({"changes": rows, "left_out": list(self.left_out)}).encode()


MANIFEST, NEW, BASE = "changes.json", "new/", "base/"
MOST_MANIFEST = 64 << 20


def compare(archive: IO[bytes], root: str, env: Mapping[str, str], *, git: bool) -> Changes:
    """Return what has changed below `root` since the files of the archive were sent. Raise
    `ShippingError`, `OSError`."""
    base = _identities(archive)
    paths = _not_ignored(root, env) if git else _everything(root)
    changes, left_out = [], []
    with Tree(root) as tree:
        for path in sorted({*paths, *base}):
            new = tree.identity(path)
            why = (
                "it is a repository of its own"
                if git and path not in base and tree.is_directory(path)
                else None
            )
            if new == base.get(path) and why is None:
                continue
            why = why or _why_stays(path, new)
            if why is not None:
                left_out.append(f"{path}: {why}")
            else:
                changes.append(Change(path, base.get(path), new))
    return Changes(changes, left_out)


def _why_stays(path: str, new: str | None) -> str | None:
    """Return why a new file cannot be brought back."""
    if new == "special":
        return "it is not a regular file"
    if new is not None and new.startswith("link "):
        return why_unsafe(path) or why_leaves(path, new.removeprefix("link "))
    return why_unsafe(path)


def _identities(archive: IO[bytes]) -> dict[str, str]:
    found = {}
    with _reading(archive) as opened:
        for member in _members(opened, float("inf")):
            if member.issym():
                found[member.name] = _of_link(member.linkname)
            elif not member.isdir():
                content = opened.extractfile(member)
                assert content is not None
                found[member.name] = _of_file(content, executable=bool(member.mode & 0o100))
    return found


def _not_ignored(root: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yield the files that git does not ignore. It gets an empty repository for that: a run may
    have written programs into the config of its own."""
    with tempfile.TemporaryDirectory(prefix="sfad-shipping-") as place:
        env = {**_plain(env), "GIT_DIR": f"{place}/git", "GIT_WORK_TREE": root}
        _git("init", "--quiet", "--template=", cwd=root, env=env)
        listed = _git("ls-files", "--others", "--exclude-standard", "-z", cwd=root, env=env)
        yield from (os.fsdecode(path).rstrip("/") for path in listed.split(b"\0") if path)


def pack_changes(
    archive: IO[bytes], root: str, found: Changes, out: IO[bytes], most: int, *, patch: bool
) -> None:
    """Write an archive of changes: their list, the new files, and with `patch` also the files as
    they were sent. Raise `ShippingError`, `OSError`."""
    with Tree(root) as tree, _packing(out) as packed:
        sizes = [
            found_.st_size
            for each in found.changes
            if each.new is not None and (found_ := tree.status(each.path))
        ]
        if sum(sizes) > most:
            raise ShippingError(
                f"the changes have {sum(sizes)} bytes, and fleet.ship_max of the node is {most}"
            )
        listed = found.encoded()
        entry = tarfile.TarInfo(MANIFEST)
        entry.size = len(listed)
        packed.addfile(entry, _file_of(listed))
        for each in found.changes:
            if each.new is not None:
                _add(packed, tree, each.path, NEW + each.path)
        if patch:
            _add_base(
                archive, {each.path for each in found.changes if each.base is not None}, packed
            )


def _file_of(data: bytes) -> IO[bytes]:
    from io import BytesIO

    return BytesIO(data)


def _add_base(archive: IO[bytes], wanted: set[str], packed: tarfile.TarFile) -> None:
    with _reading(archive) as opened:
        for member in _members(opened, float("inf")):
            if member.name in wanted:
                content = opened.extractfile(member) if member.isreg() else None
                member.name = BASE + member.name
                packed.addfile(member, content)


# ---- Where the files came from: changes are brought back


def read_changes(archive: IO[bytes]) -> Changes:
    """Return the list that an archive of changes begins with. Raise `ShippingError`."""
    archive.seek(0)
    with _reading(archive, whole=False) as opened:
        member = next(_members(opened, float("inf")), None)
        content = (
            opened.extractfile(member)
            if member is not None and member.isreg() and member.name == MANIFEST
            else None
        )
        if member is None or content is None or member.size > MOST_MANIFEST:
            raise ShippingError("the archive of changes is damaged: it has no list")
        try:
            listed = json.loads(content.read())
            changes = [Change(path, base, new) for path, base, new in listed["changes"]]
            return Changes(changes, [str(each) for each in listed["left_out"]])
        except (ValueError, KeyError, TypeError) as error:
            raise ShippingError(f"the archive of changes is damaged: {error}") from None


def conflicts(found: Changes, tree: Tree, *, may_miss: bool = False) -> list[str]:
    """Return the changed files that are neither as they were sent nor as they are on the node.
    `may_miss`: nor missing."""
    deleted = {each.path for each in found.changes if each.new is None}
    return [
        each.path for each in found.changes if not _fits(each, tree, deleted, may_miss=may_miss)
    ]


def _fits(change: Change, tree: Tree, deleted: set[str], *, may_miss: bool) -> bool:
    if change.new is not None and _in_the_way(change.path, tree, deleted) is not None:
        return False
    if tree.obstacle(change.path) is not None or (
        tree.is_directory(change.path) and change.new is not None
    ):
        return True
    now = tree.identity(change.path)
    return now in (change.base, change.new) or (may_miss and now is None)


def _in_the_way(path: str, tree: Tree, deleted: set[str]) -> str | None:
    """Return what stays in the place of a file, or of a directory above it, and is of another kind;
    `None` if nothing does."""
    obstacle = tree.obstacle(path)
    if obstacle is not None:
        return obstacle if obstacle not in deleted else None
    return (
        next((each for each in tree.below(path) if each not in deleted), None)
        if tree.is_directory(path)
        else None
    )


def apply(archive: IO[bytes], found: Changes, tree: Tree) -> list[Change]:
    """Bring changes into a directory. Return those that were not there already. Raise
    `ShippingError`, `OSError`."""
    for each in found.changes:
        if (why := why_unsafe(each.path)) is not None:
            raise ShippingError(f"{each.path!r} in the archive of changes: {why}")
    done = [each for each in found.changes if tree.identity(each.path) != each.new]
    deleted = {each.path for each in found.changes if each.new is None}
    for each in done:  # before anything is written: half of the changes are worse than none
        if each.new is not None and (other := _in_the_way(each.path, tree, deleted)) is not None:
            raise ShippingError(
                f"{other} is in the way of {each.path}; "
                "move it away, or bring the changes elsewhere"
            )
    for each in done:
        if each.new is None and tree.identity(each.path) is not None:
            tree.delete(each.path)
    for each in done:
        if each.new is not None and tree.is_directory(each.path):
            tree.remove_directories(each.path)
    wanted = {NEW + each.path for each in done if each.new is not None}
    archive.seek(0)
    with _reading(archive) as opened:
        for member in _members(opened, float("inf")):
            if member.name in wanted:
                wanted.discard(member.name)
                _put(tree, opened, member, member.name.removeprefix(NEW))
    if wanted:
        raise ShippingError(f"{min(wanted).removeprefix(NEW)} is missing in the archive of changes")
    return done


def patch(archive: IO[bytes], env: Mapping[str, str]) -> bytes:
    """Return changes as a patch for git apply. Raise `ShippingError`, `OSError`."""
    with tempfile.TemporaryDirectory(prefix="sfad-shipping-") as place:
        for name in ("a", "b"):
            os.mkdir(f"{place}/{name}")
        archive.seek(0)
        with Tree(f"{place}/a") as before, Tree(f"{place}/b") as after, _reading(archive) as opened:
            for member in _members(opened, float("inf")):
                for prefix, tree in ((BASE, before), (NEW, after)):
                    if member.name.startswith(prefix):
                        _put(tree, opened, member, member.name.removeprefix(prefix))
        words = [
            "--no-index",
            "--no-prefix",
            "--binary",
            "--no-color",
            "--no-ext-diff",
            "--no-textconv",
            "--no-renames",
            "a",
            "b",
        ]
        return _git("diff", *words, cwd=place, env=_plain(env), codes=(0, 1))

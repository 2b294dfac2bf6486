"""Bubblewrap's words for what a command sees. It begins with nothing; a deeper mount covers what is
above it."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from . import programs, visible
from .visible import ForbiddenError, followed, topmost, within, within_any

# ---- Unix sockets in files, which a read-only mount leaves open to connect(2)


_MOST = 256
MOST_FILES = 100_000
"""A tenth of a second."""


def named() -> set[str]:
    """Return where sockets are by the name that they were bound to. Of one bound by a relative
    path, or renamed, the kernel tells no path."""
    try:
        with open("/proc/net/unix", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return set()
    names = [os.fsdecode(line[line.index(b" /") + 1 :]) for line in lines if b" /" in line]
    return {os.path.realpath(name) for name in names if _is_socket(name)}


def below(directory: str) -> tuple[set[str], bool]:
    """Return the sockets in a directory, whatever they were bound to, and whether it was looked
    through. It is not if it has more than a hundred thousand files."""
    found: set[str] = set()
    left = [directory]
    seen = 0
    while left:
        try:
            entries = list(os.scandir(left.pop()))
        except OSError:  # the command cannot look into it either, or it is a file
            continue
        seen += len(entries)
        if seen > MOST_FILES:
            return found, False
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                left.append(entry.path)
            elif (
                not entry.is_file(follow_symlinks=False)
                and not entry.is_symlink()
                and _is_socket(entry.path)
            ):
                found.add(entry.path)
    return found, True


def check_count(found: set[str]) -> None:
    """Raise `ForbiddenError` for more than can be covered."""
    if len(found) > _MOST:
        raise ForbiddenError(
            f"{len(found)} Unix sockets would have to be covered, and at most {_MOST} can be"
        )


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


# ---- What a command sees


_MOST_PLACES = 512
"""bubblewrap takes 9000 arguments."""


class SandboxView:
    """What the command of an isolated run sees."""

    def __init__(self, settings: SandboxSettings, warn: Callable[[str], None]) -> None:
        self._settings = settings
        self._warn = warn
        self._here = os.getcwd()
        self._top = os.path.normpath(settings.one("directory") or self._here)
        self._said = settings.named("variable")
        home = settings.one("home")
        self._homes = sorted(
            {os.path.realpath(each) for each in (home, _home_by_name()) if each and each != "/"}
        )
        self._links: dict[str, str] = {}
        self._mounts: dict[str, str] = {}
        """What is mounted at a path: `tmpfs`, `ro-bind`, `bind`, `cover`."""
        chosen = self._said_by("own-variable")
        own = chosen or [f"{home}/{name}" for name in settings.all("own")] if home else []
        readable = settings.all("read")
        hides = self._hides([*settings.all("write"), *readable])
        daemons = [os.path.realpath(path) for path in settings.all("hide")]
        code = settings.all("code")  # what is executed outside of the sandbox, for the next run too
        self._writable = visible.writable(
            settings.all("write"), own, self._top, [*self._homes, *hides, *code], [*daemons, *code]
        )
        if any(within(path, self._top) for path in (*daemons, *code)) or within_any(
            self._top, code
        ):
            warn(
                f"the working directory {self._top} is read-only, "
                "because files of sfad itself are there: start elsewhere"
            )
        self._mount(
            "tmpfs",
            [path for path in visible.PRIVATE if os.path.isdir(path) and not os.path.islink(path)],
        )
        self._mount("tmpfs", [home for home in self._homes if visible.can_be_empty(home)])
        self._show([*visible.SYSTEM, *visible.visible_of_private()])
        self._show([*settings.all("keep"), *self._programs()])
        self._show(_checked(readable, daemons))
        if not self._has_home(self._top):
            self._show([self._top])  # of which something is protected, else it is writable
        self._follow([*own, *([home] if home else [])])
        for path in self._writable:
            self._mounts[path] = "bind"
        self._mount(
            "cover",
            [path for path in hides if self.sees(path) and self._mounts.get(path) != "bind"],
        )
        self._cover_sockets(
            [path for path in (*readable, self._top) if self._mounts.get(path) == "ro-bind"]
        )
        if self._here in self._homes and not self.sees(self._here):
            warn(
                f"the working directory {self._here} is the home directory, "
                "of which the command sees nothing: start elsewhere"
            )
        self._show_door(settings.one("door"))
        self._sources: dict[str, str] = {}
        if repository := settings.one("repository"):
            self._show_private(repository, looks=settings.has("looks"))

    def sees(self, path: str) -> bool:
        """Return whether the command sees this file or directory."""
        return self._nearest(path) in ("ro-bind", "bind")

    def has_writable(self, path: str) -> bool:
        """Return whether a directory is there in the sandbox, and can be written."""
        return self._mounts.get(path) == "tmpfs" or self._nearest(path) == "bind"

    def shown(self) -> list[str]:
        """Return the directories that the command can only read, without what lies below another
        one."""
        return topmost(
            path for path, kind in self._mounts.items() if kind == "ro-bind" and os.path.isdir(path)
        )

    def words(self) -> Iterator[str]:
        """Yield the words. Raise `ForbiddenError`."""
        if len(self._mounts) > _MOST_PLACES:
            raise ForbiddenError(
                f"its sandbox would be made of {len(self._mounts)} mounts, "
                f"and at most {_MOST_PLACES} are possible"
            )
        yield from ("--dev", "/dev", "--proc", "/proc")
        for path in visible.SETTINGS:
            if os.path.exists(path):
                yield from ("--ro-bind", path, path)
        closed = ["/"]
        for path in sorted(self._mounts, key=_depth):
            kind = self._mounts[path]
            if kind == "tmpfs" or (kind == "cover" and os.path.isdir(path)):
                yield from ("--tmpfs", path)
                if (
                    kind == "cover"
                    or path == "/run"
                    or (path in self._homes and within(path, self._top))
                ):
                    closed.append(path)
            else:
                yield from (
                    (f"--{kind}", self._sources.get(path, path), path)
                    if kind != "cover"
                    else ("--ro-bind", "/dev/null", path)
                )
        for link, target in self._links.items():
            if not self.sees(link):
                yield from ("--symlink", target, link)
        yield from _own_cgroup()
        yield from self._working_directory()
        for path in closed[::-1]:
            yield from ("--remount-ro", path)
        yield from ("--chdir", self._here)

    def _working_directory(self) -> Iterator[str]:
        if self.sees(self._here) or self._here in self._mounts:
            return
        if not self._has_home(self._here):
            raise ForbiddenError(
                f"it would not see its working directory {self._here}: name it with --readable"
            )
        yield from ("--dir", self._here)

    def _has_home(self, path: str) -> bool:
        """Return whether a directory is a home or above one, so that its files are not shown for
        being the working directory."""
        return path == "/" or any(within(home, path) for home in self._homes)

    def _said_by(self, setting: str) -> list[str]:
        """Return the values of the variables that a setting names."""
        return [path for name in self._settings.all(setting) if (path := self._said.get(name))]

    def _hides(self, asked: Sequence[str]) -> list[str]:
        """Return what is hidden wherever it would be seen."""
        daemons = [os.path.realpath(path) for path in self._settings.all("hide")]
        secrets = visible.secrets(
            self._homes,
            self._settings.all("other"),
            self._said_by("other-variable"),
            root=os.geteuid() == 0,
        )
        return topmost(
            path
            for path in (*daemons, *(path for path in secrets if path not in asked))
            if os.path.lexists(path)
        )

    def _programs(self) -> Iterator[str]:
        return programs.places(
            self._homes, self._said, self._settings.one("program"), self._writable
        )

    def _mount(self, kind: str, paths: Iterable[str]) -> None:
        self._mounts.update(dict.fromkeys(paths, kind))

    def _show(self, paths: Iterable[str]) -> None:
        """Show what is there, read-only, and not seen already."""
        for path in paths:
            real = self._follow([path])
            if (
                os.path.exists(real)
                and not within_any(real, self._writable)
                and not self.sees(real)
            ):
                self._mounts[real] = "ro-bind"

    def _follow(self, paths: Iterable[str]) -> str:
        """Show the links on the way to paths. Return where the last leads."""
        real = ""
        for path in paths:
            real, links = followed(path)
            for link in links:
                if not within_any(link, self._writable):
                    self._links[link] = os.readlink(link)
        return real

    def _nearest(self, path: str) -> str:
        """Return what is mounted at a path or nearest above it."""
        while path not in self._mounts:
            if path == "/":
                return ""
            path = os.path.dirname(path)
        return self._mounts[path]

    def _cover_sockets(self, readable: Iterable[str]) -> None:
        found = named()
        for path in readable:
            more, all_seen = below(path)
            found |= more
            if not all_seen:
                self._warn(
                    f"{path} has more files than are looked through: "
                    "Unix sockets in it may be reached, if they were renamed"
                )
        found = {path for path in found if self._nearest(path) == "ro-bind"}
        check_count(found)
        self._mount("cover", found)

    def _show_door(self, socket: str) -> None:
        """Show the daemon's socket. If nothing else is in its directory, show that: the next daemon
        will make another socket."""
        directory, name = os.path.split(socket)
        try:
            alone = os.listdir(directory) == [name]
        except OSError:
            alone = False
        shown = directory if alone else socket
        if os.path.exists(shown):
            self._follow([shown])
            self._mounts[os.path.realpath(shown)] = "ro-bind"

    def _show_private(self, repository: str, *, looks: bool) -> None:
        """Show what git writes for a worktree in place of the repository's: a directory of the
        run's own beside the worktree, which worktrees make (`private`). `looks`: read-only."""
        worktree, branches = (self._settings.one(name) for name in ("worktree", "branches"))
        private, refs = f"{worktree}.git", f"refs/heads/{branches}"
        for path, source, writes in (
            (f"{repository}/objects", f"{private}/objects", True),
            (f"{repository}/objects/info", f"{private}/objects/info", False),
            (f"{private}/shared", f"{repository}/objects", False),
            # a whole copy, because a mount is gone when git packs refs and removes the directory
            # below it
            (f"{repository}/refs", f"{private}/refs", False),
            (f"{repository}/{refs}", f"{private}/{refs}", True),
            (f"{repository}/logs", f"{private}/logs", True),
            (f"{repository}/worktrees/{os.path.basename(worktree)}", f"{private}/admin", True),
        ):
            self._mounts[path] = "bind" if writes and not looks else "ro-bind"
            self._sources[path] = source


def _checked(readable: Sequence[str], daemons: Sequence[str]) -> Sequence[str]:
    """Return the paths that the caller names. Raise `ForbiddenError` for one that cannot be
    shown."""
    for path in readable:
        real, links = followed(path)
        if links:
            raise ForbiddenError(
                f"{path} is to be readable, but leads to {real} by the link {links[0]}: "
                f"name {real} itself"
            )
        if not os.path.lexists(real):
            raise ForbiddenError(f"{path} is to be readable, and does not exist")
        if within_any(real, daemons):
            raise ForbiddenError(f"{path} cannot be readable: it belongs to the daemon")
    return readable


def _depth(path: str) -> tuple[int, str]:
    return path.rstrip("/").count("/"), path


def _home_by_name() -> str:
    """Return the home directory that the variable HOME cannot change."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # of a user without an entry
        return ""


def _own_cgroup() -> Iterator[str]:
    """Yield the words that hide the cgroups of others, and show the run's own where programs look
    for their limits."""
    if not os.path.isdir("/sys/fs/cgroup"):
        return
    with open("/proc/self/mountinfo") as file:
        mount = next((line.split(" ")[4] for line in file if " - cgroup2 " in line), "")
    with open("/proc/self/cgroup") as file:
        path = next((line[3:].strip() for line in file if line.startswith("0::")), "")
    own = f"{mount}{path}"
    shown = mount and "/sfad-" in path and os.path.isdir(own)
    if mount != "/sys/fs/cgroup" or not shown:
        yield from ("--tmpfs", "/sys/fs/cgroup")
    if shown:
        yield from ("--ro-bind", own, mount)
    if mount != "/sys/fs/cgroup" or not shown:
        yield from ("--remount-ro", "/sys/fs/cgroup")


# ---- The words of `sandbox.Sandbox.words`, before `--` and the command


class SandboxSettings:
    def __init__(self, words: list[str]) -> None:
        at = words.index("--")
        self._pairs = [
            (name, value) for name, _, value in (word.partition("=") for word in words[:at])
        ]
        self.command = words[at + 1 :]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def one(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    def has(self, name: str) -> bool:
        return any(key == name for key, _ in self._pairs)

    def named(self, name: str) -> dict[str, str]:
        """Return `KEY=VALUE` items. Of two with one key, the first counts."""
        return {
            key: value
            for key, _, value in (item.partition("=") for item in reversed(self.all(name)))
        }

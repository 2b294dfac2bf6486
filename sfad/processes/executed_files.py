"""Tells which agent program a process executes by its files, whatever its command line says: by the
path of what it executes, which no link and no `exec -a` changes, and by the script of an
interpreter; a hard link or a copy by comparison with the installed programs.

`told` asks the kernel once for a process, and never waits for a file system. `search` reads files,
so it is for a thread: a file system of a user may not answer.
"""

import ctypes
import json
import os
import pwd
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..core.state.naming import file_program, interpreter_of, script_word
from ..protocol.known import is_helper, is_named_so
from . import kernel

_LEAST = 1 << 20
"""Bytes from which on an executable may be a hard link or a copy: agent programs have a hundred
times as many."""
_END = 64 << 10
"""Bytes at the beginning and the end of a file that are compared."""
_MOST_FILES = 4096
"""Files that are remembered."""
_MOST_DIRECTORIES, _MOST_ENTRIES = 64, 2000
"""Directories of PATH, and files of one package, that are looked at."""
_MOST_ANCESTORS, _MOST_HOMES = 16, 4
_MOST_ABOVE = 3
"""Directories above a script in which its package.json may be."""
_MAX_PACKAGE = 256 << 10
_INTERPRETERS = ("node", "bun", "deno", "python3")
"""Interpreters of agent programs, to recognise a copy of one."""
_PLACES = (".local/bin", "bin", ".bun/bin", ".npm-global/bin")


class File(NamedTuple):
    """What identifies the content of a file. A user cannot set the time of the last change
    (ctime)."""

    device: tuple[int, int]
    inode: int
    size: int
    changed: tuple[int, int]


class Executed(NamedTuple):
    """The agent program that a process executes."""

    program: str
    word: int
    """Which word of its command line stands for the program."""


class Unsure(NamedTuple):
    """A process to `search`, because what it executes has not been looked at yet."""

    pid: int
    words: tuple[str, ...]
    file: File
    interpreter: str | None = None
    """What the executable is, if the script is to be searched."""
    started: int = 0
    main: int | None = None
    """The main process of its run: another one whose PATH may have the program."""


# ---- Asking the kernel without asking the file system

_statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)  # glibc 2.28, musl 1.2.5
_AT_FDCWD, _DONT_SYNC, _BASIC = -100, 0x4000, 0x7FF
_STATX = struct.Struct("=16xI8xH2xQQ48xqI4x16x8xII")
"""Links, mode, inode, size, ctime, device."""
_buffer = ctypes.create_string_buffer(256)
"""For the thread of the loop alone: a new one takes longer than the call."""


def _executable(pid: int) -> tuple[File, int] | None:
    """Return the file that a process executes, and how many names it has, as the kernel remembers
    them: a FUSE server is not asked. `None` if the process is gone, or not ours to see."""
    path = f"/proc/{pid}/exe"
    if _statx is None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return _identified(found), found.st_nlink
    if _statx(_AT_FDCWD, path.encode(), _DONT_SYNC, _BASIC, _buffer):
        return None  # gone or hidden: it takes no descriptor
    links, _, inode, size, seconds, ns, major, minor = _STATX.unpack_from(_buffer)
    return File((major, minor), inode, size, (seconds, ns)), links


def _identified(found: os.stat_result) -> File:
    device = (os.major(found.st_dev), os.minor(found.st_dev))
    changed = divmod(found.st_ctime_ns, 1_000_000_000)
    return File(device, found.st_ino, found.st_size, changed)


def _path(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return ""


class ExecutedFiles:
    def __init__(self, programs: frozenset[str]) -> None:
        self._programs = programs
        self._names: dict[File, str] = {}
        """The program or interpreter that an executable is; empty: another."""
        self._scripts: dict[File, str] = {}
        """The program that a script is."""
        self._searched: dict[Unsure, Executed | None] = {}

    def told(self, pid: int, words: Sequence[str]) -> Executed | Unsure | None:
        """Return which agent program a process executes."""
        found = _executable(pid)
        if found is None:
            return None
        file, links = found
        name = self._names.get(file)
        if not name and (name is None or links > 1):
            # one name of a file may be a program's, and another not
            path = _path(pid)
            by_path = file_program(path, self._programs) or interpreter_of(path)
            if by_path is not None:
                name = by_path
            elif name is None and file.size < _LEAST:
                name = ""
            if name is not None and links == 1:
                _remember(self._names, file, name)
        if name is None:
            return Unsure(pid, tuple(words), file)
        return self._as(name, pid, words, file) if name else None

    def _as(
        self, name: str, pid: int, words: Sequence[str], file: File
    ) -> Executed | Unsure | None:
        if name in self._programs:
            return None if is_helper(words, name) else Executed(name, 0)
        process = kernel.stat(pid) if script_word(name, words) is not None else None
        if process is None:
            return None
        unsure = Unsure(pid, tuple(words), file, name, process.started)
        return self._searched.get(unsure, unsure)

    # ---- In a thread

    def search(self, unsure: Iterable[Unsure]) -> dict[int, Executed]:
        """Return which agent programs these processes execute, as their files and the programs
        installed in the PATH of each, and of the processes above it, tell. Raises `OSError` if no
        descriptor or memory is free."""
        found = {}
        for each in unsure:
            try:
                executed = self._search(each)
            except OSError as error:
                if error.errno in kernel.SHORTAGES:
                    raise
                continue  # not recognised: it has ended, or its files are gone
            if executed is not None:
                found[each.pid] = executed
        return found

    def _search(self, one: Unsure) -> Executed | None:
        told: Executed | Unsure | None = one
        if one.interpreter is None:
            name = self._installed(one).like(f"/proc/{one.pid}/exe", one.file) or ""
            _remember(self._names, one.file, name)
            told = self._as(name, one.pid, one.words, one.file) if name else None
        if not isinstance(told, Unsure):
            return told
        at = script_word(told.interpreter or "", told.words)
        program = self._of_script(one, told.words[at]) if at is not None else None
        executed = Executed(program, at) if program and at is not None else None
        _remember(self._searched, told._replace(main=None), executed)
        return executed

    def _of_script(self, one: Unsure, word: str) -> str | None:
        base = "root" if word.startswith("/") else "cwd"
        descriptor = os.open(f"/proc/{one.pid}/{base}/{word}", os.O_PATH | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if not stat.S_ISREG(status.st_mode):
                return None
            program = file_program(path, self._programs)
            file = _identified(status)
            if program is None and (program := self._scripts.get(file)) is None:
                program = _by_package(path, self._programs)
                program = program or self._installed(one).like(f"/proc/self/fd/{descriptor}", file)
                _remember(self._scripts, file, program or "")
            return program if program in self._programs else None
        finally:
            os.close(descriptor)

    def _installed(self, one: Unsure) -> "_Installed":
        return _Installed(self._programs, [one.pid, *([one.main] if one.main else [])])


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    if len(known) >= _MOST_FILES:
        known.clear()
    known[key] = value


def _by_package(script: str, programs: frozenset[str]) -> str | None:
    """Return the program as which the package of a script installs it."""
    for above in list(Path(script).parents)[:_MOST_ABOVE]:
        with suppress(OSError, ValueError, AttributeError, RecursionError):
            with (above / "package.json").open("rb") as file:
                package = json.loads(file.read(_MAX_PACKAGE))
            if not isinstance(package, dict) or "bin" not in package:
                continue
            bins = package["bin"]
            if isinstance(bins, str):
                bins = {package["name"].rpartition("/")[2]: bins}
            for name, target in bins.items():
                if name in programs and os.path.realpath(above / target) == script:
                    return str(name)
            return None
    return None


# ---- What is installed


class _Installed:
    """The files of agent programs, and of interpreters, that a process could have copied."""

    def __init__(self, programs: frozenset[str], pids: Sequence[int]) -> None:
        self._files: dict[File, tuple[str, str]] = {}
        """With the name and the path of each."""
        paths, homes = _surroundings(pids)
        for program in sorted(programs) + list(_INTERPRETERS):
            for path in _installations(program, paths, homes):
                with suppress(OSError):
                    found = os.stat(path)
                    if stat.S_ISREG(found.st_mode):
                        self._files.setdefault(_identified(found), (program, path))

    def like(self, path: str, file: File) -> str | None:
        """Return the name of the program of which a file is a link or a copy."""
        for known, (name, _) in self._files.items():
            if (known.device, known.inode) == (file.device, file.inode):
                return name
        for known, (name, original) in self._files.items():
            if (
                known.size == file.size
                and (ends := _ends(path, file.size)) is not None
                and ends == _ends(original, file.size)
            ):
                return name
        return None


def _ends(path: str, size: int) -> tuple[bytes, bytes] | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        last = os.pread(descriptor, _END, max(0, size - _END))
        return os.pread(descriptor, _END, 0), last
    finally:
        os.close(descriptor)


def _surroundings(pids: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return the directories of PATH, and the home directories, of this process, and of processes
    and those above them: one with an empty environment has a parent."""
    paths, homes = dict.fromkeys(os.get_exec_path()), dict[str, None]()
    for pid in pids:
        with suppress(OSError, KeyError):
            homes[pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_dir] = None
        for above in _with_ancestors(pid):
            path = os.fsdecode(kernel.variable(above, b"PATH") or b"").split(":")
            paths.update((each, None) for each in path if each.startswith("/"))
            home = os.fsdecode(kernel.variable(above, b"HOME") or b"")
            homes.update({home: None} if home.startswith("/") else {})
    return list(paths)[:_MOST_DIRECTORIES], list(homes)[:_MOST_HOMES]


def _with_ancestors(pid: int) -> Iterator[int]:
    """Yield a process and those above it, up to this one."""
    for _ in range(_MOST_ANCESTORS):
        yield pid
        process = kernel.stat(pid)
        if process is None or process.parent in {0, 1, os.getpid()}:
            return
        pid = process.parent


def _installations(program: str, paths: list[str], homes: list[str]) -> Iterator[str]:
    """Yield the paths of files that are a program, or may be."""
    places = [
        *paths,
        *(f"{home}/{place}" for home in homes for place in (*_PLACES, f".{program}/bin")),
    ]
    for place in places:
        path = os.path.realpath(f"{place}/{program}")
        if os.path.isfile(path) and not is_named_so(path, program):
            yield path
            yield from _natives(path, program)
    for home in homes:
        yield from _entries(f"{home}/.local/share/{program}/versions")


def _natives(path: str, program: str) -> Iterator[str]:
    """Yield the native programs that a package of npm consists of: the one for this machine is in
    a package of its own, beside or within that which has the command."""
    parts = path.split("/")
    if "node_modules" not in parts:
        return
    at = len(parts) - 1 - parts[::-1].index("node_modules")
    scope = [parts[at + 1]] if parts[at + 1].startswith("@") else []
    package = "/".join(parts[: at + 2 + len(scope)])
    beside = "/".join([*parts[: at + 1], *scope])
    for directory in (beside, "/".join([package, "node_modules", *scope])):
        for entry in _entries(directory):
            if os.path.basename(entry).startswith(program):
                yield from _named(entry, program)


def _named(directory: str, program: str) -> Iterator[str]:
    entries = 0
    for above, below, files in os.walk(directory):
        entries += len(below) + len(files)
        if entries > _MOST_ENTRIES:
            return
        below[:] = [each for each in below if each != "node_modules"]
        yield from (f"{above}/{each}" for each in files if each in {program, f"{program}.exe"})


def _entries(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as found:
            return sorted(entry.path for entry in found)[:_MOST_ENTRIES]
    except OSError:
        return []

"""Finds out, when a person starts a root, how the agent programs of its tree are to be routed
through the gateway.

The files are a user's, on file systems that may not answer. So they are read in threads, at most
`MOST_THREADS` of a user at a time, and no start waits longer than `FILES_SECONDS`.
"""

import math
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any, TypeVar

import msgspec
import trio
from msgspec import Struct
from msgspec.structs import replace

from ..host.tasks import in_thread
from ..protocol.known import AGENTS, KNOWN_PROGRAMS
from ..protocol.stand_ins import is_stand_in
from . import setups
from .program import program_called
from .programs import claude, gemini
from .setups import Person, Setup, TreeUpstream, UnreadableError, savable, upwards

# ---- What is known of a tree: how each agent program in it is routed through the gateway


_PROGRAMS = {name: program_called(name) for name in AGENTS}
ANY_PROGRAM = ""


def all_setups(person: Person) -> dict[str, Setup]:
    """Return the setup of each program that has a module here, and that of any other program."""
    if (why := setups.obstacle(person, person.env)) is not None:
        return {program: Setup(program, direct=why) for program in (ANY_PROGRAM, *_PROGRAMS)}
    programs = {name: _of(name, program.setup, person) for name, program in _PROGRAMS.items()}
    any_program = _of(ANY_PROGRAM, setups.setup, person)
    any_program = replace(any_program, certificates=setups.certificates(person, person.env))
    return {ANY_PROGRAM: _beside(any_program, programs["gemini"])} | programs


def _of(program: str, of: Callable[[Person], Setup], person: Person) -> Setup:
    """Return the setup of a program, which goes around the gateway if a file that may have its
    address cannot be read."""
    try:
        return of(person)
    except UnreadableError as error:
        return Setup(program, direct=str(error))


def _beside(any_program: Setup, own: Setup) -> Setup:
    """Return the setup of any program without the variable that would lead Gemini CLI elsewhere
    than its settings do, where it is not known as such: in a script, by its path."""
    env = dict(any_program.env)
    if own.direct is None or any(upstream.name == "gemini" for upstream in any_program.upstreams):
        return any_program
    env.pop(gemini.BASE_URL, None)
    return replace(any_program, env=tuple(env.items()))


_USUAL = all_setups(Person({}, "/", lambda _path: None, {}))
"""Of a person with no settings at all. Trees are not saved with these."""


class TreeSetups(Struct, frozen=True, omit_defaults=True):
    """What was found when a person started the root of a tree. What its agents write into settings
    later changes nothing here."""

    programs: tuple[str, ...] = ()
    """Known agent programs in the root's PATH."""
    unusual: tuple[Setup, ...] = ()

    def of(
        self, program: str, options: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> Setup:
        """Return the setup of a program by its name for the guard, as it is for a command with
        these words after the program and this environment."""
        found = _all(self.unusual)
        setup = found.get(program) or found[ANY_PROGRAM]
        known = _PROGRAMS.get(program)
        return setup if known is None else known.setup_of_command(setup, options, env or {})

    def env_of(self, setup: Setup) -> dict[str, str]:
        """Return the variables to set for a program: its own, and those of any program that it may
        start."""
        env = dict(self.of(ANY_PROGRAM).env) | dict(setup.env)
        return {variable: value for variable, value in env.items() if variable not in setup.unset}

    def followed(self, setup: Setup) -> set[str]:
        """Return the variables that lead the program itself, of those that `env_of` sets."""
        known = _PROGRAMS.get(setup.program)
        return {variable for variable, _ in setup.env} | {
            *(known.also_followed if known is not None else ())
        }

    @property
    def keys(self) -> set[str]:
        """Variables with keys for addresses of the person's own, which some program of the tree may
        need."""
        return {variable for setup in _with_profiles(self.unusual) for variable in setup.keys}

    @property
    def upstreams(self) -> Mapping[str, TreeUpstream]:
        return _upstreams(self.unusual)

    @property
    def certificates(self) -> list[str]:
        """Files of certificates that the gateway must trust for calls of the tree."""
        return list(dict.fromkeys(path for setup in self.unusual for path in setup.certificates))


NO_SETUPS = TreeSetups()


# Each start asks for these several times, and nearly all trees have the same setups


@lru_cache
def _all(unusual: tuple[Setup, ...]) -> Mapping[str, Setup]:
    return _USUAL | {setup.program: setup for setup in unusual}


@lru_cache
def _upstreams(unusual: tuple[Setup, ...]) -> Mapping[str, TreeUpstream]:
    return {
        upstream.name: upstream for setup in _with_profiles(unusual) for upstream in setup.upstreams
    }


def _with_profiles(unusual: tuple[Setup, ...]) -> list[Setup]:
    return [
        each
        for setup in _all(unusual).values()
        for each in (setup, *(profile for _, profile in setup.profiles))
    ]


def tree_setups(person: Person, programs: Iterable[str]) -> TreeSetups:
    """Return what to keep with a tree. `programs`: those of its PATH."""
    found = all_setups(person)
    return TreeSetups(
        tuple(map(savable, programs)),
        tuple(_savable(setup) for name, setup in found.items() if setup != _USUAL[name]),
    )


def _savable(setup: Setup) -> Setup:
    """Return a setup whose texts can all be saved. Variables, directories and settings may hold
    what is not UTF-8."""
    try:
        msgspec.msgpack.encode(setup)
    except UnicodeEncodeError:
        return msgspec.convert(_texts_savable(msgspec.to_builtins(setup)), Setup)
    return setup


def _texts_savable(value: Any) -> Any:
    if isinstance(value, dict):
        return {savable(key): _texts_savable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_texts_savable(each) for each in value]
    return savable(value) if isinstance(value, str) else value


# ---- Reads it, in a process of the user


T = TypeVar("T")

FILES_SECONDS = 1.0
"""Seconds that a start waits for the files."""
MOST_THREADS = 4
KEPT_FOR = 1.0
"""Seconds for which what was found counts for other starts of the same user: a shell loop starts a
hundred runs a second."""
MOST_KEPT = 64
LARGEST = 256 << 10
"""Bytes of a settings file."""
MOST_DIRECTORIES = 64
"""Directories of PATH that are searched."""
MOST_NAMES = 10_000
"""Of a directory with settings."""
_UNREADABLE = "its settings could not be read, because their file system does not answer"


class Root(Struct, frozen=True):
    """Whose root it is, and where it starts. Equal ones have the same setups."""

    uid: int
    cwd: str
    env: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, uid: int, cwd: bytes, env: Sequence[bytes]) -> "Root":
        told = [
            item.decode(errors="surrogateescape").partition("=")
            for item in env
            if item.startswith(_TOLD)
        ]
        return cls(uid, os.fsdecode(cwd), tuple([(name, value) for name, _, value in told]))


_TOLD = (
    b"PATH=", b"HOME=", b"XDG_", b"ANTHROPIC_", b"OPENAI_", b"AZURE_", b"AWS_", b"GOOGLE_",
    b"GEMINI_", b"OPENROUTER_", b"HTTP", b"http", b"ALL_PROXY=", b"all_proxy=", b"NO_PROXY=",
    b"no_proxy=", b"CEREBRAS_", b"DEEPSEEK_", b"GROQ_", b"MINIMAX_", b"MISTRAL_", b"MOONSHOT_",
    b"TOGETHER_", b"XAI_", b"ZHIPU_", b"SSL_", b"NODE_", b"REQUESTS_CA_BUNDLE=", b"CURL_CA_BUNDLE=",
    *(variable.encode() for program in _PROGRAMS.values() for variable in program.variables),
)  # fmt: skip
"""How the variables begin on which a setup depends."""


class SetupReader:
    def __init__(self, find: Callable[[Root], TreeSetups] | None = None) -> None:
        """`find`: what is called in a thread for each reading."""
        self._find = find or _find
        self._known: dict[Root, tuple[float, TreeSetups]] = {}
        self._reading: Counter[int] = Counter()
        """Threads by uid."""
        self._threads = trio.CapacityLimiter(math.inf)  # `MOST_THREADS` of a user is the bound

    def known(self, root: Root) -> TreeSetups | None:
        """Return what was found a moment ago."""
        at, found = self._known.get(root, (-math.inf, NO_SETUPS))
        return found if time.monotonic() - at < KEPT_FOR else None

    async def read(self, root: Root) -> TreeSetups:
        """Return what is found now."""
        try:
            found = await self._in_thread(root.uid, partial(self._find, root))
        except OSError:
            found = None
        if found is None:
            return unknown()
        self._known.pop(root, None)
        self._known[root] = time.monotonic(), found
        if len(self._known) > MOST_KEPT:
            del self._known[next(iter(self._known))]
        return found

    async def why_around(self, uid: int, file: str) -> str | None:
        """Return why Claude Code with `--settings` of this file goes around the gateway; `None` if
        it need not."""
        why = await self._in_thread(uid, partial(_why_around, uid, file))
        return f"{file}: {_UNREADABLE}" if why is None else why or None

    async def _in_thread(self, uid: int, work: Callable[[], T]) -> T | None:
        """Return what `work` finds for a user; `None` if it takes too long."""
        if self._reading[uid] >= MOST_THREADS:
            return None

        def counted() -> T:
            self._reading[uid] += 1
            try:
                return work()
            finally:
                self._reading[uid] -= 1

        with trio.move_on_after(FILES_SECONDS):
            return await in_thread(counted, abandon=True, limiter=self._threads)
        return None


def _find(root: Root) -> TreeSetups:
    env = dict(root.env)
    person = Person(
        env, root.cwd, lambda path: _content(path, root.uid), os.environ, _names(root.uid)
    )
    return tree_setups(person, _programs(env.get("PATH", "")))


def _why_around(uid: int, file: str) -> str:
    """Return why Claude Code with these settings goes around the gateway; empty if it need not."""
    if file.startswith(("/dev/", "/proc/")):  # for the daemon that is another file
        return f"{file} cannot be read by another process, and may name another address"
    try:
        chosen = claude.choice_in((_content(file, uid) or b"").decode(errors="replace"))
    except UnreadableError as error:
        return str(error)
    return f"{chosen} in {file} may lead Claude Code elsewhere" if chosen is not None else ""


def unknown() -> TreeSetups:
    """Return the setups of a root of which nothing could be found out: no credential of its
    programs may go through the gateway."""
    names = all_setups(Person({}, "/", lambda _path: None, {}))
    return TreeSetups(
        unusual=tuple(
            Setup(name, direct=f"{name or 'the command'}: {_UNREADABLE}") for name in names
        )
    )


def _content(path: str, uid: int) -> bytes | None:
    """Return the content of a regular file that the user or root owns; `None` if there is none that
    the user may read. Raise `UnreadableError` for any other file: the user's programs may read it,
    and find an address there."""
    try:
        # first without opening it for reading: opening a device or a FIFO may have an effect
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(handle)
        if (
            stat.S_ISDIR(status.st_mode)
            or _hidden(status, uid)
            or not (reached := _rights_above(handle, status, uid))
        ):
            return None
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_size > LARGEST
            or not _readable(status, uid)
            or not reached & stat.S_IXOTH
        ):
            bounds = f"it must be a file of the user's or root's, of at most {LARGEST >> 10} KiB"
            raise UnreadableError(f"{path} cannot be read: {bounds}")
        with open(f"/proc/self/fd/{handle}", "rb") as file:
            return file.read(LARGEST)
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(handle)


def _hidden(status: os.stat_result, uid: int) -> bool:
    """Return whether only its owner, another user, can read a file."""
    return uid not in {0, status.st_uid} and not status.st_mode & (stat.S_IRGRP | stat.S_IROTH)


def _rights_above(handle: int, status: os.stat_result, uid: int) -> int:
    """Return through which of the rights S_IXGRP and S_IXOTH a user can enter the directories above
    a file, as bits: root, and the owner of the file, need none. The daemon could read there what
    the user cannot."""
    rights = stat.S_IXGRP | stat.S_IXOTH
    if uid in {0, status.st_uid}:
        return rights
    for directory in upwards(os.path.dirname(os.readlink(f"/proc/self/fd/{handle}"))):
        above = os.stat(directory)
        if above.st_uid != uid:
            rights &= above.st_mode
        elif not above.st_mode & stat.S_IXUSR:
            return 0
    return rights


def _names(uid: int) -> Callable[[str], list[str]]:
    """Return what lists the names in a directory of a user, or in one of root's that others may
    read."""

    def names(directory: str) -> list[str]:
        try:
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError):
            return []
        try:
            status = os.fstat(handle)
            if not _readable(status, uid) or not _rights_above(handle, status, uid) & stat.S_IXOTH:
                return []
            with os.scandir(handle) as entries:
                return sorted(entry.name for entry in islice(entries, MOST_NAMES))
        except OSError:
            return []
        finally:
            os.close(handle)

    return names


def _readable(status: os.stat_result, uid: int) -> bool:
    own = uid in {0, status.st_uid}
    return own or (status.st_uid == 0 and bool(status.st_mode & stat.S_IROTH))


def _programs(path: str) -> list[str]:
    """Return the known agent programs that a PATH has, stand-ins aside."""
    directories = [
        directory for directory in path.split(":")[:MOST_DIRECTORIES] if directory.startswith("/")
    ]
    return [
        program
        for program in KNOWN_PROGRAMS
        if any(_is_program(f"{directory}/{program}") for directory in directories)
    ]


def _is_program(path: str) -> bool:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return (
        stat.S_ISREG(status.st_mode)
        and bool(status.st_mode & 0o111)
        and not is_stand_in(os.fsencode(path))
    )

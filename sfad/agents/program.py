"""What is known of an agent program: its command line, the events that it prints, the session files
that it keeps, and how it is routed through the gateway.

Each program has a module with a subclass of `AgentProgram`, and one of `SessionFiles` or
`SessionDatabase` if its sessions can be read.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from ..core.state.naming import program_name
from .counters import Meter, Reading
from .line_meter import LineMeter, SessionMeter, Speech
from .own_server import OwnServer
from .setups import Person, Setup
from .words import SortedWords as SortedWords
from .words import sorted_words as sorted_words

SESSION_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}")
"""A session id that may be put into a file name, and after an option. Agents use UUIDs."""

HEAD_LINES = 100
"""Lines in which a session file must say whose it is: Claude Code does within the first ten."""

FileName = str | re.Pattern[str]
"""A file name, or a pattern that the whole name matches."""

ANY_NAME = re.compile(r"[^.].*")


def arguments(argv: Sequence[str], program: str) -> list[str] | None:
    """Return the words after the program, or `None` if the command is another program's.

    Interpreters and launchers are looked through as for a run's name: `npx -y @openai/codex exec`
    is a codex. Words after `--` are not options and are left out. A shell's `-c` text is not
    examined, because what it runs cannot be known."""
    if program_name(argv) != program:
        return None
    at = next((at for at, word in enumerate(argv) if program in word), len(argv))
    words = list(argv[at + 1 :])
    return words[: words.index("--")] if "--" in words else words


def values(words: Sequence[str], *options: str) -> list[str]:
    """Return the values of the options, in order: `--model x`, `--model=x`, `-m x`, `-mx`."""
    found = []
    for word, following in zip(words, [*words, ""][1:], strict=True):
        for option in options:
            if word == option:
                found.append(following)
            elif word.startswith(f"{option}="):
                found.append(word[len(option) + 1 :])
            elif len(option) == 2 and word.startswith(option):
                found.append(word[2:])
    return found


def is_session_id(text: str) -> bool:
    """Return whether an agent would give a session this id. A run can print any other text, which
    must not become an option or a path of the command that continues the session."""
    return SESSION_ID.fullmatch(text) is not None


def first_id(argv: Sequence[str], program: str, *options: str) -> str | None:
    return next(
        (
            value
            for value in values(arguments(argv, program) or [], *options)
            if is_session_id(value)
        ),
        None,
    )


class SessionPlace(Struct, frozen=True):
    """A place where session files may be: the names, level by level, below a directory."""

    root: str
    names: tuple[FileName, ...]


class SessionHead(Struct, frozen=True):
    session: str
    project: str
    """The working directory, in the form that `SessionFiles.project` returns."""
    began: str
    """In RFC 3339, UTC, so that texts compare like times."""


class SessionSearch(Struct, frozen=True):
    env: Mapping[str, str]
    """Those of `agents.SESSION_VARIABLES` that the run's environment sets."""
    cwd: str
    since: datetime
    session: str | None

    def directory(self, variable: str, default: str) -> str:
        return self.env.get(variable) or f"{self.env.get('HOME', '')}/{default}"


class AgentSessions(ABC):
    """How one program keeps its sessions: in files or in a database. Pure: nothing here opens a
    file."""

    program: str
    variable: str
    """The variable that says where they are."""
    further_variables: tuple[str, ...] = ()
    """Others that do."""
    resume_words: frozenset[str]
    avoidable: bool = False
    """A variable has the program keep none, so other signs of its calls count for as much."""

    @abstractmethod
    def session_id(self, argv: Sequence[str]) -> str | None:
        """Return the session id that the command gives."""

    def resumes(self, argv: Sequence[str]) -> bool:
        return not self.resume_words.isdisjoint(argv)

    def project(self, cwd: str) -> str:
        """Return how a session tells that it was begun in this directory."""
        return cwd


class SessionRow(Struct, frozen=True):
    """What a database has of a part of a session's conversation."""

    number: int
    """By which rows are in the order in which they were inserted."""
    part: bytes
    message: bytes
    """What it says of the message that the part is of."""


class RowMeter(Protocol):
    """Reads what the rows of one session tell of its use."""

    reading: Reading
    after: int
    """The last row that cannot change any more. Those after it are told at each look."""

    def again(self) -> None:
        """Forget what the rows have told that can change; they are told once more."""

    def take(self, row: SessionRow) -> None:
        """Read a row. Never raises, whatever an agent has written."""


class SessionDatabase(AgentSessions):
    """A program that keeps its sessions in an SQLite database."""

    sessions: str
    """Selects the newest sessions: their ids, those of the sessions that have begun them, if any,
    their directories, and when they began and were changed last, in Unix milliseconds."""
    rows: str
    """Selects the rows of a session (`:session`) after a number (`:after`) that were written since
    a time (`:since`, Unix milliseconds), at most `:most` bytes long: `SessionRow`, and when the
    row was written, in Unix milliseconds."""

    @abstractmethod
    def place(self, search: SessionSearch) -> SessionPlace | None:
        """Return where the database is; `None` if the program keeps none."""

    @abstractmethod
    def meter(self) -> RowMeter:
        """Return a meter of one session."""


class SessionFiles(AgentSessions):
    """A program that keeps a file for each session.

    Claude Code, Codex and Gemini CLI save the usage of each call, with the true output tokens,
    whatever they print: in text mode, in a terminal, and before they are killed."""

    meter: type[SessionMeter[Any]]

    def is_main(self, path: str, session: str) -> bool:  # noqa: ARG002 - of a program that has one file for each session
        """Return whether a file has the session itself, and not what its subagents did."""
        return True

    @abstractmethod
    def places(self, search: SessionSearch) -> list[SessionPlace]:
        """Return where the files of the session may be."""

    def process_places(self, search: SessionSearch, pid: int) -> list[SessionPlace]:  # noqa: ARG002 - of a program that tells none
        """Return where a process tells the id of its session, as the field `sessionId` of an
        object."""
        return []

    def head(self, data: bytes) -> SessionHead | None:
        """Return what the first bytes of a file say, or `None` if they do not say whose it is."""
        found = ["", "", ""]
        for line in data.split(b"\n", HEAD_LINES)[:-1][:HEAD_LINES]:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                said = self.said(msgspec.json.decode(line, type=dict[str, Any]))
                found = [
                    known or (text if isinstance(text, str) else "")
                    for known, text in zip(found, said, strict=True)
                ]
            if all(found):
                return SessionHead(*found)
        return None

    @abstractmethod
    def said(self, line: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Return what a line says of the fields of a `SessionHead`, in its order; any other type
        than text counts as nothing."""


def timestamp(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class AgentProgram(ABC):
    """An agent program. Its module has one as `PROGRAM`; what the core and clients know of it is in
    `sfad.protocol.known`."""

    name: str

    # ---- how it is started by its name

    command: tuple[str, ...] = ()
    """Starts it without a terminal, and makes it print the events that its meter reads
    (`registered` has the placeholders)."""
    introduces_task: frozenset[str] = frozenset()
    """Words that a person would type before the task, and that `command` has already."""

    def tool_options(self, allowed: Sequence[str], blocked: Sequence[str]) -> list[str]:  # noqa: ARG002 - of one without options
        """Return the options that hold it to these tools. Each is one word, so that no word after
        it belongs to it."""
        return []

    def tool_variables(self, allowed: Sequence[str], blocked: Sequence[str]) -> dict[str, str]:  # noqa: ARG002
        """Return the variables that hold it to these tools."""
        return {}

    # ---- where its calls go

    variables: tuple[str, ...] = ()
    """How the variables begin on which its setup depends, beside those of `setup_reader`."""
    tells_in_time = True
    """Whether a limit of money can rest on what it tells of its use, where the gateway does not see
    its calls."""
    also_followed: tuple[str, ...] = ()
    """Variables of any program that it follows, too."""

    def setup(self, person: Person) -> Setup:
        """Return how it is routed through the gateway. Raises `UnreadableError`."""
        raise NotImplementedError(self.name)

    def setup_of_command(
        self,
        setup: Setup,
        options: Sequence[str],  # noqa: ARG002
        env: Mapping[str, str],  # noqa: ARG002
    ) -> Setup:
        """Return the setup of a command with these words after the program, which may choose where
        its calls go."""
        return setup

    # ---- how its sessions are continued

    resumes_with_task_in_terminal = True
    """Whether it can be told something at once when it continues a session in a terminal."""

    def resumed(
        self,
        words: Sequence[str],  # noqa: ARG002
        session: str,  # noqa: ARG002
        task: str | None,  # noqa: ARG002
        *,
        terminal: bool,  # noqa: ARG002
    ) -> list[str] | None:
        """Return the words after the program that continue a session with the options of a command,
        of which these are the words before `--`. `task`: what its agent is told first. `terminal`:
        a person sits there. `None`: sfad knows no such command."""
        return None

    def directory(self, words: Sequence[str]) -> str | None:  # noqa: ARG002 - of a program without such an option
        """Return the directory that its command chooses; `None`: it works where it is started."""
        return None

    # ---- how it hands work to others

    own_server: OwnServer | None = None
    """How it hands work to a server of its own, outside of the run."""

    # ---- its events

    names_tools_like_calls = True
    """Whether its events name a tool as its calls of the model do."""
    tells_cost = False
    """Whether the agent itself reports costs, even of models without a known price."""
    event_types: frozenset[str] | None = None
    """The values of `type` by which a line of JSON is an event and not text; `None`: any value."""
    session_files: AgentSessions | None = None
    """How it keeps its sessions, in files or in a database, if sfad can read them."""

    def prints_events(self, words: Sequence[str]) -> bool:  # noqa: ARG002 - of a program that is only chosen by name
        """Return whether these words after the program ask for the format that the meter reads."""
        return False

    def meter(
        self, argv: Sequence[str], saved: bytes | None = None, *, resumed: bool = False
    ) -> Meter:
        """Return a meter for one attempt of this command. With `saved`, it continues where the
        meter was that dumped it. `resumed`: the attempt continues the session of the one before.

        Raises `ValueError` if `saved` is not a dump of such a meter, as a dump of a build whose
        meters knew other things."""
        words = arguments(argv, self.name) or []
        meter = self.new_meter(
            (self.resumed(words, "0", None, terminal=False) or words) if resumed else words
        )
        if saved is not None:
            meter.load(saved)
        return meter

    def new_meter(self, words: Sequence[str]) -> LineMeter[Any, Any]:
        """Return a new meter; `words` are those after the program."""
        raise NotImplementedError(self.name)

    def speech(self, event: dict[str, Any]) -> Iterator[Speech]:  # noqa: ARG002
        """Yield what an event says to the user, for `run --text` and `result`. Any field may be
        missing, or of any type."""
        yield from ()


@cache
def program_called(name: str) -> AgentProgram:
    """Return the program of this name, from its module."""
    found: AgentProgram = import_module(f".programs.{name}", __package__).PROGRAM
    return found


# ---- The short hashes by which accounts are told apart


_DIGITS = 12
"""Hex digits that are kept: 48 bits tell the accounts of one machine apart, and lead back to no
key."""


def digest(secret: str) -> str:
    """Return a short hash of a credential or an organization."""
    return hashlib.sha256(f"sfad plan {secret}".encode()).hexdigest()[:_DIGITS]

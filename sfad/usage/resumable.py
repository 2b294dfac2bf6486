"""Finds out, in a thread, whether the session of an ended run is where its program can continue
it."""

import os
import re
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from ..agents.program import (
    AgentProgram,
    SessionDatabase,
    SessionFiles,
    SessionPlace,
    SessionSearch,
)
from ..protocol.known import KNOWN_PROGRAMS
from .session_database import find_database, sessions_in
from .session_files import OWNER_WITHIN, FileSearch

LAST_LINE = 4 << 20
"""Bytes at the end of a session file in which its last line must begin. Agents write the outputs of
tools in one line."""


class NotResumable(Exception):
    """The message says why, as the end of a sentence that begins with the run."""


class WantedAgentSession(Struct, frozen=True):
    """The session of an ended run."""

    program: AgentProgram
    session: str | None
    """`None`: the program prints no id; its database has it."""
    env: Mapping[str, str]
    """The part of the new run's environment that says where sessions are."""
    cwd: str
    uid: int
    began: datetime
    ended: datetime

    def find(self) -> str:
        """Return its id. Raise `NotResumable`, `OSError`."""
        cwd = os.path.realpath(self.cwd)
        search = SessionSearch(self.env, cwd, self.began.astimezone(UTC), self.session)
        files = self.program.session_files
        if isinstance(files, SessionDatabase):
            return self._in_database(files, search, cwd)
        if self.session is None:
            raise NotResumable(f"no session of {self._title} is known of it")
        # a program that can continue a session has files or a database
        assert isinstance(files, SessionFiles)
        self._check_files(files, files.places(search), self.session, files.project(cwd), cwd)
        return self.session

    @property
    def _title(self) -> str:
        return KNOWN_PROGRAMS[self.program.name].title

    def _check_files(
        self, files: SessionFiles, places: list[SessionPlace], session: str, project: str, cwd: str
    ) -> None:
        for path, descriptor in FileSearch(self.uid, 0.0).found(places):
            if not files.is_main(path, session):
                continue
            size = os.fstat(descriptor).st_size
            head = files.head(os.pread(descriptor, OWNER_WITHIN, 0))
            if head is None and re.search(re.escape(session[:8]), path):
                raise NotResumable(
                    f"its session file {path} is cut: "
                    f"its beginning does not say whose it is ({size} bytes)"
                )
            if head is None or head.session != session:
                continue
            if head.project != project:
                where = head.project if head.project.startswith("/") else "another directory"
                raise NotResumable(
                    f"its session file {path} is of {where}, and the run was in {cwd}"
                )
            if not _is_whole(descriptor, size):
                raise NotResumable(
                    f"its session file {path} is cut: the last line is incomplete; "
                    "remove that line to continue"
                )
            return
        below = "/".join(name for name in places[0].names if isinstance(name, str))
        looked = f"{places[0].root}/{below}".rstrip("/")
        raise NotResumable(
            f"its session file is not there: no session {session} in {looked}. "
            f"It was deleted, or {files.variable} or HOME is not what it was for the run"
        )

    def _in_database(self, kept: SessionDatabase, search: SessionSearch, cwd: str) -> str:
        place = kept.place(search)
        path = f"{place.root}/{place.names[0]}" if place is not None else "memory"
        found = find_database(place, self.uid)
        if found is None:
            raise NotResumable(
                f"{self._title} has no sessions in {path}, "
                "where HOME and XDG_DATA_HOME say that they are"
            )
        try:
            with found.opened() as connection:
                sessions = sessions_in(connection, kept)
        except sqlite3.Error as error:
            raise NotResumable(
                f"the sessions of {self._title} in {path} cannot be read: {error}"
            ) from None
        begun = [each for each in sessions if each.parent is None]
        if self.session is not None:
            directory = next(
                (each.directory for each in begun if each.session == self.session), None
            )
            if directory is None:
                raise NotResumable(
                    f"its session is not there: {path} has no session {self.session}"
                )
            if directory != cwd:
                raise NotResumable(
                    f"its session {self.session} is of {directory}, and the run was in {cwd}"
                )
            return self.session
        own = [
            each.session
            for each in begun
            if each.directory == cwd and self.began <= each.began <= self.ended
        ]
        if len(own) == 1:
            return own[0]
        known = "no session" if not own else f"{len(own)} sessions"
        raise NotResumable(
            f"{known} of {self._title} began in {cwd} while it ran, "
            "so it is not known which is its own"
        )


def _is_whole(descriptor: int, size: int) -> bool:
    """Return whether the last line of a file has come to its end."""
    data = os.pread(descriptor, LAST_LINE, max(0, size - LAST_LINE))
    if not data.endswith(b"\n"):
        return False
    line = data[:-1].rpartition(b"\n")[2]
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return len(line) >= LAST_LINE - 1 and size > LAST_LINE  # longer than what was read
    return True

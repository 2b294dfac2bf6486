"""Whether the session of an ended run is where its program can continue it, with real files."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sfad.agents.program import program_called
from sfad.usage.resumable import NotResumable, WantedAgentSession

ID, OTHER = "01a21656-55de-7543-8daa-8bccd3ed9a0e", "5f3c1d6e-0000-4000-8000-000000000001"
BEGAN = datetime(2026, 11, 26, 5, tzinfo=UTC)
ENDED = BEGAN + timedelta(minutes=5)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def wanted(home: Path, program: str = "claude", session: str | None = ID) -> WantedAgentSession:
    cwd = str(home.parent / "work")
    return WantedAgentSession(
        program_called(program), session, {"HOME": str(home)}, cwd, os.getuid(), BEGAN, ENDED
    )


def claude_file(home: Path, *lines: str, directory: str | None = None, tail: str = "") -> Path:
    cwd = os.path.realpath(home.parent / "work")
    path = (
        home
        / ".claude"
        / "projects"
        / "".join(c if c.isalnum() else "-" for c in cwd)
        / f"{ID}.jsonl"
    )
    path.parent.mkdir(parents=True)
    head = {
        "type": "user",
        "sessionId": ID,
        "cwd": directory or cwd,
        "timestamp": "2026-11-26T05:00:01.000Z",
    }
    path.write_text("\n".join([json.dumps(head), *lines]) + "\n" + tail)
    return path


def reason(session: WantedAgentSession) -> str:
    with pytest.raises(NotResumable) as raised:
        session.find()
    return str(raised.value)


def test_a_whole_session_is_found(home: Path) -> None:
    claude_file(home, '{"type": "assistant"}')
    assert wanted(home).find() == ID


def test_one_that_is_gone(home: Path) -> None:
    said = reason(wanted(home))
    assert f"its session file is not there: no session {ID} in {home}/.claude/projects" in said
    assert "CLAUDE_CONFIG_DIR or HOME is not what it was" in said


@pytest.mark.parametrize(
    "tail", ['{"type": "assis', '{"type": "assis\n', "\0" * 512, '{"type": "user"}\n\0\0\0\0']
)
def test_one_that_is_cut(home: Path, tail: str) -> None:
    path = claude_file(home, tail=tail)
    assert reason(wanted(home)) == (
        f"its session file {path} is cut: the last line is incomplete; remove that line to continue"
    )


@pytest.mark.parametrize("content", ["", '{"type": "us', "\0" * 4096])
def test_one_without_its_beginning(home: Path, content: str) -> None:
    path = claude_file(home)
    path.write_text(content)
    assert reason(wanted(home)).startswith(
        f"its session file {path} is cut: its beginning does not say whose it is"
    )


def test_one_of_another_directory(home: Path) -> None:
    path = claude_file(home, directory="/srv/other")
    assert (
        reason(wanted(home))
        == f"its session file {path} is of /srv/other, and the run was in {home.parent / 'work'}"
    )


def test_no_session_is_known(home: Path) -> None:
    assert reason(wanted(home, session=None)) == "no session of Claude Code is known of it"


@pytest.mark.parametrize("odd", ["link", "fifo", "directory"])
def test_what_is_no_file_of_the_user_is_not_opened(home: Path, odd: str) -> None:
    path = claude_file(home)
    if odd == "link":
        path.rename(home / "elsewhere")
        path.symlink_to(home / "elsewhere")
    else:
        path.unlink()
        os.mkfifo(path) if odd == "fifo" else path.mkdir()
    assert reason(wanted(home)).startswith("its session file is not there")


@pytest.fixture
def database(home: Path) -> Iterator[sqlite3.Connection]:
    """A database of opencode whose program still has it open: the last rows are only in its log."""
    path = home / ".local" / "share" / "opencode" / "opencode.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(
            "CREATE TABLE session (id TEXT, parent_id TEXT, directory TEXT, time_created INTEGER, "
            "time_updated INTEGER)"
        )
        yield connection


def begin(
    database: sqlite3.Connection,
    home: Path,
    name: str,
    after: float,
    *,
    cwd: str | None = None,
    parent: str | None = None,
) -> None:
    time = int((BEGAN.timestamp() + after) * 1000)
    directory = cwd or os.path.realpath(home.parent / "work")
    database.execute(
        "INSERT INTO session VALUES (?, ?, ?, ?, ?)", (name, parent, directory, time, time)
    )


def test_a_session_in_a_database(home: Path, database: sqlite3.Connection) -> None:
    begin(database, home, "ses_1", 1)
    before = sorted(os.listdir(home / ".local" / "share" / "opencode"))
    assert wanted(home, "opencode", "ses_1").find() == "ses_1"
    assert sorted(os.listdir(home / ".local" / "share" / "opencode")) == before
    assert "has no session ses_2" in reason(wanted(home, "opencode", "ses_2"))
    begin(database, home, "ses_3", 1, cwd="/srv")
    assert "its session ses_3 is of /srv, and the run was in" in reason(
        wanted(home, "opencode", "ses_3")
    )


def test_a_session_without_an_id_is_the_only_one_of_its_directory_and_time(
    home: Path, database: sqlite3.Connection
) -> None:
    begin(database, home, "before", -1)
    begin(database, home, "after", 301)
    begin(database, home, "elsewhere", 1, cwd="/srv")
    begin(database, home, "subagent", 2, parent="own")
    assert "no session of opencode began in" in reason(wanted(home, "opencode", None))
    begin(database, home, "own", 1)
    assert wanted(home, "opencode", None).find() == "own"
    begin(database, home, "another", 2)
    assert "2 sessions of opencode began in" in reason(wanted(home, "opencode", None))


def test_a_database_that_is_not_there_or_none(home: Path) -> None:
    assert "opencode has no sessions in" in reason(wanted(home, "opencode", "ses_1"))
    path = home / ".local" / "share" / "opencode" / "opencode.db"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\0" * 4096)
    assert "cannot be read" in reason(wanted(home, "opencode", "ses_1"))

"""Sessions in a database are read while their program writes to it, and what is in it does no
harm."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio

from sfad.agents import Reading, session_files_of
from sfad.agents.program import SessionPlace
from sfad.usage.session_database import find_database
from sfad.usage.session_files import TooMany
from sfad.usage.sessions import Session, Sessions
from tests.harness import GONE, as_root

BEGAN = datetime.now(UTC) - timedelta(minutes=1)
AFTER = int(BEGAN.timestamp() * 1000) + 1000

_TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE session (id TEXT PRIMARY KEY, parent_id TEXT, directory TEXT, time_created INTEGER,
    time_updated INTEGER);
CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER,
    time_updated INTEGER, data TEXT);
CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, time_created INTEGER,
    time_updated INTEGER, data TEXT);
CREATE INDEX part_session_idx ON part (session_id);
"""


class Opencode:
    """A user of opencode, whose program has its database open."""

    def __init__(self, home: Path) -> None:
        self.home, self.work = home, home / "work"
        self.work.mkdir(parents=True)
        self.path = home / ".local" / "share" / "opencode" / "opencode.db"
        self.path.parent.mkdir(parents=True)
        self.database = sqlite3.connect(self.path, isolation_level=None)
        self.database.executescript(_TABLES)
        self._parts = 0

    def begin(self, session: str, at: int = AFTER, **of: str) -> None:
        directory = of.get("directory", os.path.realpath(self.work))
        row = (session, of.get("parent"), directory, at, at)
        self.database.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?)", row)

    def say(self, session: str, *parts: Any, at: int = AFTER, role: str = "assistant") -> None:
        """Add a message with these parts to a session."""
        message = f"msg_{session}_{self._parts}"
        told = json.dumps({"role": role, "modelID": "claude-sonnet-4-5"})
        row: tuple[Any, ...] = (message, session, at, at, told)
        self.database.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", row)
        for part in parts:
            self._parts += 1
            data = part if isinstance(part, str | bytes) else json.dumps(part)
            row = (f"prt_{self._parts}", message, session, at, at, data)
            self.database.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", row)

    def change(self, part: int, data: Any) -> None:
        row = json.dumps(data), f"prt_{part}"
        self.database.execute("UPDATE part SET data = ? WHERE id = ?", row)

    def session(self, *argv: str, uid: int = os.getuid(), **env: str) -> Session:
        """Return the session of a run that began a minute ago."""
        command = ["opencode", "run", "go", *argv]
        files = session_files_of(None, command)
        assert files is not None
        given, variables = files.session_id(command), {"HOME": str(self.home)} | env
        return Session(files, command, variables, str(self.work), uid, BEGAN, given)


BEGINS = {"type": "step-start"}


def tool(text: str = "") -> dict[str, Any]:
    return {"type": "tool", "tool": "bash", "state": {"input": {"command": text}}}


def ends(tokens: int, *, cost: float = 0, cached: int = 0) -> dict[str, Any]:
    cache = {"read": cached, "write": 0}
    told = {"input": tokens, "output": 10, "reasoning": 1, "cache": cache}
    return {"type": "step-finish", "tokens": told, "cost": cost}


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Opencode]:
    made = Opencode(tmp_path / "home")
    with closing(made.database):
        yield made


def look(session: Session, *taken: str) -> tuple[Reading, ...]:
    assert session.look(taken)
    return session.readings


def tokens(session: Session) -> list[tuple[int, int]]:
    """Return input and output of each session that was read."""
    return [
        (sum(each.input for each in of), sum(each.output for each in of))
        for reading in look(session)
        for of in [reading.models.values()]
    ]


def test_a_call_counts_from_its_first_row_and_its_end_replaces_the_estimate(user: Opencode) -> None:
    session = user.session()
    assert look(session) == ()
    user.begin("ses_1")
    user.say("ses_1", {"type": "text", "text": "a task " * 99}, role="user")
    assert tokens(session) == [(0, 0)]
    user.say("ses_1", BEGINS)
    assert tokens(session) == [(0, 1)], "it has called its model"
    user.say("ses_1", tool())
    user.change(3, tool("x" * 4000))
    ((_, written),) = tokens(session)
    assert 1000 < written < 1010
    (reading,) = session.readings
    assert (reading.turns, reading.messages, reading.partial) == (1, 0, True)
    assert sum(reading.guessed.values()) == written
    user.say("ses_1", ends(500, cached=40))
    assert tokens(session) == [(540, 11)]
    (reading,) = session.readings
    assert (reading.turns, reading.messages, dict(reading.guessed)) == (1, 1, {})
    user.say("ses_1", BEGINS)
    assert tokens(session) == [(540, 12)]


def test_what_opencode_says_that_a_step_costs_counts_and_others_have_a_price(
    user: Opencode,
) -> None:
    user.begin("ses_1")
    user.say("ses_1", ends(500, cost=0.25), ends(70), BEGINS)
    (reading,) = look(user.session())
    assert reading.cost_usd == 0.25
    (priced,) = reading.to_price.values()
    assert (priced.input, priced.output) == (70, 12)


def test_subagents_count_and_other_sessions_do_not(user: Opencode) -> None:
    user.begin("ses_0", AFTER - 3_600_000)
    user.say("ses_0", ends(9000), at=AFTER - 3_600_000)
    user.begin("ses_1")
    user.say("ses_1", ends(500))
    user.begin("ses_2", parent="ses_1")
    user.say("ses_2", ends(60))
    user.begin("ses_3", parent="ses_2")
    user.say("ses_3", ends(7))
    user.begin("ses_4", directory="/srv")
    user.say("ses_4", ends(9000))
    assert tokens(user.session()) == [(500, 11), (60, 11), (7, 11)]


def test_a_second_session_of_the_directory_makes_it_unknown(user: Opencode) -> None:
    session = user.session()
    user.begin("ses_1")
    user.say("ses_1", ends(500))
    assert tokens(session) == [(500, 11)]
    user.begin("ses_2")
    with pytest.raises(TooMany):
        user.session().look(())


@pytest.mark.parametrize("how", [["--session", "ses_1"], ["--continue"]], ids=" ".join)
def test_of_a_continued_session_counts_what_is_new(user: Opencode, how: list[str]) -> None:
    for number in range(3):
        user.begin(f"ses_{number}", AFTER - 3_600_000)
        user.say(f"ses_{number}", ends(9000), at=AFTER - 3_600_000)
    session = user.session(*how)
    user.database.execute("UPDATE session SET time_updated = ? WHERE id = 'ses_1'", (AFTER,))
    user.say("ses_1", ends(500))
    assert tokens(session) == [(500, 11)]


def test_the_variables_say_where_it_is(user: Opencode, tmp_path: Path) -> None:
    user.begin("ses_1")
    user.say("ses_1", ends(500))
    data = str(user.path.parent.parent)
    assert tokens(user.session(HOME="/nowhere", XDG_DATA_HOME=data)) == [(500, 11)]
    assert tokens(user.session(HOME="/nowhere", OPENCODE_DB=str(user.path))) == [(500, 11)]
    assert look(user.session(OPENCODE_DB=":memory:")) == ()
    assert look(user.session(XDG_DATA_HOME=str(tmp_path))) == ()


def test_a_look_makes_no_file_and_takes_no_lock_that_a_writer_waits_for(user: Opencode) -> None:
    session = user.session()
    user.begin("ses_1")
    user.database.execute("BEGIN IMMEDIATE")
    user.say("ses_1", ends(500))
    there = sorted(os.listdir(user.path.parent))
    assert tokens(session) == [(0, 0)], "it is not committed"
    user.database.execute("COMMIT")
    place = SessionPlace(str(user.path.parent), (user.path.name,))
    database = find_database(place, os.getuid())
    assert database is not None
    with database.opened() as reader:
        assert reader.execute("SELECT count(*) FROM part").fetchone() == (1,)
        user.say("ses_1", ends(60))
        user.database.execute("PRAGMA wal_checkpoint(PASSIVE)")
        assert reader.execute("SELECT count(*) FROM part").fetchone() == (2,)
        with pytest.raises(sqlite3.OperationalError):
            reader.execute("DELETE FROM part")
    assert tokens(session) == [(560, 22)]
    assert sorted(os.listdir(user.path.parent)) == there


def test_it_is_read_after_its_program_has_ended(user: Opencode) -> None:
    session = user.session()
    user.begin("ses_1")
    user.say("ses_1", ends(500))
    user.database.close()
    assert os.listdir(user.path.parent) == ["opencode.db"], "the log is gone"
    assert tokens(session) == [(500, 11)]
    assert os.listdir(user.path.parent) == ["opencode.db"]


_KILLED = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("UPDATE part SET data = replace(data, '500', '700')")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_is_read_after_its_program_was_killed(user: Opencode) -> None:
    user.begin("ses_1")
    user.say("ses_1", ends(500))
    user.database.close()
    killed = subprocess.run([sys.executable, "-c", _KILLED, user.path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (user.path.parent / "opencode.db-wal").stat().st_size
    there = sorted(os.listdir(user.path.parent))
    assert tokens(user.session()) == [(700, 11)]
    assert sorted(os.listdir(user.path.parent)) == there


def test_a_look_at_one_that_has_not_changed_does_not_open_it(
    user: Opencode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfad.usage.session_database.SETTLED", 0.0)
    session = user.session()
    user.begin("ses_1")
    user.say("ses_1", ends(500))
    session.name("ses_1")
    assert tokens(session) == [(500, 11)]
    with monkeypatch.context() as patched:
        patched.setattr("sqlite3.connect", None)
        assert tokens(session) == [(500, 11)]
    time.sleep(0.01)  # a tick of the kernel's clock for files
    user.say("ses_1", ends(60))
    assert tokens(session) == [(560, 22)]


@pytest.mark.parametrize(
    "odd",
    [
        "{",
        "[]",
        "null",
        b"\xff\xfe",
        '{"type": "step-finish"}',
        '{"type": "step-finish", "tokens": []}',
        '{"type": "step-finish", "tokens": {"input": -5, "output": null, "cache": 7}, "cost": "x"}',
        '{"type": 7, "tokens": {"input": 9}}',
        "[" * 5000,
        '{"type": "text", "text": "' + "x" * (1 << 20) + '"}',
    ],
    ids=lambda odd: str(odd)[:40],
)
def test_an_odd_row_loses_no_other(user: Opencode, odd: str | bytes) -> None:
    user.begin("ses_1")
    user.say("ses_1", odd, ends(500))
    assert tokens(user.session()) == [(500, 11)]


def test_odd_rows_of_sessions_are_left_out(user: Opencode) -> None:
    for row in [
        (b"\xff", None, "/", AFTER, AFTER),
        ("../x", None, os.path.realpath(user.work), AFTER, AFTER),
        ("ses_2", None, None, AFTER, AFTER),
        ("ses_3", None, os.path.realpath(user.work), "now", AFTER),
        ("ses_4", None, os.path.realpath(user.work), 1 << 62, AFTER),
        ("ses_5", "ses_5", os.path.realpath(user.work), AFTER, AFTER),
    ]:
        user.database.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?)", row)
    user.begin("ses_1")
    user.say("ses_1", ends(500))
    assert tokens(user.session()) == [(500, 11)]


def test_a_view_that_never_ends_is_broken_off(
    user: Opencode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfad.usage.session_database.QUERY_SECONDS", 0.1)
    user.database.executescript(
        "DROP TABLE session; CREATE VIEW session AS WITH RECURSIVE n(rowid) AS "
        "(SELECT 1 UNION ALL SELECT rowid + 1 FROM n) SELECT rowid, 'a' AS id, 'b' AS parent_id, "
        "'c' AS directory, 0 AS time_created, 0 AS time_updated FROM n"
    )
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        user.session().look(())


async def test_that_it_cannot_be_read_is_told_at_the_end(
    user: Opencode, nursery: trio.Nursery
) -> None:
    """A program makes its tables at its first start."""
    user.database.executescript("DROP TABLE session")
    lost = list[str]()
    sessions = Sessions(
        seen=lambda _run, _readings: None, lost=lambda _run, why: lost.append(why), trouble=print
    )
    nursery.start_soon(sessions.serve)
    sessions.begin("a1", user.session())
    await sessions.look_again(["a1"])
    assert not lost
    await sessions.catch_up("a1")
    assert len(lost) == 1
    assert "its database cannot be read: no such table: session" in lost[0]


@pytest.mark.parametrize("odd", ["link", "fifo", "directory", "text", "other"])
def test_what_is_no_database_of_the_user_is_not_read(user: Opencode, odd: str) -> None:
    user.begin("ses_1")
    user.say("ses_1", ends(500))
    user.database.close()
    if odd == "link":
        user.path.rename(user.home / "elsewhere")
        user.path.symlink_to(user.home / "elsewhere")
    elif odd == "other":
        assert look(user.session(uid=GONE)) == ()
        return
    else:
        user.path.unlink()
        if odd == "fifo":
            os.mkfifo(user.path)
        elif odd == "directory":
            user.path.mkdir()
        else:
            user.path.write_text("text " * 999)
    if odd == "text":
        with pytest.raises(sqlite3.DatabaseError):
            user.session().look(())
    else:
        assert look(user.session()) == ()


@as_root
def test_root_reads_one_with_the_rights_of_its_owner() -> None:
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)  # those above pytest's are root's alone
        user = Opencode(Path(place, "home"))
        with closing(user.database):
            user.begin("ses_1")
            user.say("ses_1", ends(500))
            for path, directories, files in os.walk(user.home):
                for name in (".", *directories, *files):
                    os.chown(f"{path}/{name}", GONE, GONE)
            user.home.chmod(0o700)
            assert tokens(user.session(uid=GONE)) == [(500, 11)]
        user.path.chmod(0)
        with pytest.raises(sqlite3.OperationalError, match="unable to open"):
            user.session(uid=GONE).look(())

"""Session files are found and read; whatever an agent puts in their place does no harm."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
import trio
import trio.testing

from sfad.agents import Reading, session_files_of
from sfad.agents.program import SessionFiles
from sfad.protocol.types import Tokens
from sfad.usage import session_files, sessions
from sfad.usage.session_files import FileSearch, TooMany
from sfad.usage.sessions import Session, Sessions
from tests.harness import GONE, as_root, until

ONE, OTHER = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
BEGAN = datetime.now(UTC) - timedelta(minutes=1)


class Home:
    """The home directory of a user of Claude Code, with runs that began a minute ago."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "my.work"
        self.work.mkdir(parents=True)
        slug = "".join(letter if letter.isalnum() else "-" for letter in str(self.work))
        self.project = path / ".claude" / "projects" / slug
        self.project.mkdir(parents=True)

    def session(self, *argv: str, uid: int = os.getuid()) -> Session:
        """Return the session of a run that began a minute ago."""
        files = session_files_of(None, ["claude"])
        assert files is not None
        command = ["claude", *argv]
        return Session(
            files,
            command,
            {"HOME": str(self.path)},
            str(self.work),
            uid,
            BEGAN,
            files.session_id(command),
        )

    def file(
        self, session: str = ONE, *, calls: int = 1, at: datetime | None = None, name: str = ""
    ) -> Path:
        """Write a session file with so many model calls."""
        path = self.project / (name or f"{session}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            for number in range(calls):
                file.write(
                    json.dumps(
                        call(
                            session,
                            f"{name}{number}",
                            at or BEGAN + timedelta(seconds=1),
                            str(self.work),
                        )
                    )
                    + "\n"
                )
        return path


def call(session: str, message: str, at: datetime, cwd: str) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 2}
    said = {"id": message, "model": "m", "stop_reason": "end_turn", "usage": usage, "content": []}
    return {
        "type": "assistant",
        "timestamp": f"{at:%Y-%m-%dT%H:%M:%S}.000Z",
        "sessionId": session,
        "cwd": cwd,
        "message": said,
    }


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def used(session: Session, *taken: str) -> int:
    """Return input tokens divided by 10, or -1 if nothing is known."""
    assert session.look(taken)
    models = [reading.models for reading in session.readings]
    return sum(tokens.input // 10 for each in models for tokens in each.values()) if models else -1


def test_the_only_new_session_of_the_directory_belongs_to_the_run(home: Home) -> None:
    session = home.session()
    assert used(session) == -1
    home.file(OTHER, at=BEGAN - timedelta(hours=1))
    assert used(session) == -1, "it was there before"
    home.file(ONE)
    assert used(session) == 1
    home.file(ONE, calls=3, name="more.txt")
    with (home.project / f"{ONE}.jsonl").open("a") as file:
        file.write(
            json.dumps(call(ONE, "late", BEGAN + timedelta(seconds=9), str(home.work))) + "\n"
        )
    assert used(session) == 2
    home.file(OTHER, at=datetime.now(UTC))
    assert used(session) == 2, "a later one is another process's"


def test_of_two_new_sessions_neither_belongs_to_the_run(home: Home) -> None:
    home.file(ONE)
    home.file(OTHER)
    with pytest.raises(TooMany):
        home.session().look(())
    assert used(home.session(), OTHER) == 1, "the other is known to be another run's"
    assert used(home.session("--session-id", OTHER)) == 1, "the command says which"


def test_a_session_that_has_just_begun_counts_at_once_and_no_more_if_there_is_another(
    home: Home,
) -> None:
    home.file(ONE, at=datetime.now(UTC))
    session = home.session()
    assert used(session) == 1
    assert session.session_id is None, "the run's own may still come"
    home.file(OTHER, at=datetime.now(UTC))
    with pytest.raises(TooMany):
        session.look(())


async def test_what_a_session_told_is_withdrawn_when_it_may_be_another_process_s(
    heard: Heard, home: Home
) -> None:
    home.file(ONE, at=datetime.now(UTC))
    heard.sessions.begin("a1", home.session())
    await until(lambda: bool(heard.seen))
    home.file(OTHER, at=datetime.now(UTC))
    await until(lambda: bool(heard.lost))
    assert [len(readings) for readings in heard.seen] == [1, 0]


async def test_of_two_runs_that_begin_together_neither_takes_the_others_session(
    heard: Heard, home: Home
) -> None:
    """The first file that is there may be of either. Where the gateway is used, it would seem that
    the other goes around it."""
    home.file(ONE, at=datetime.now(UTC))
    heard.sessions.begin("a1", home.session())
    heard.sessions.begin("a2", home.session())
    await heard.sessions.catch_up("a1")
    assert heard.seen == []
    heard.sessions.forget("a2")
    await heard.sessions.catch_up("a1")
    assert len(heard.seen) == 1


def test_a_session_counts_only_once_it_is_certain_where_it_could_end_the_run(home: Home) -> None:
    home.file(ONE, at=datetime.now(UTC))
    session = home.session()
    session.guesses = False
    assert used(session) == -1
    assert session.written > time.time() - 60, "but its lines are signs of life"
    session.end(succeeded=True)
    assert used(session) == 1


def test_a_session_of_another_directory_does_not_belong_to_the_run(home: Home) -> None:
    path = home.file(ONE)
    path.write_text(path.read_text().replace("my.work", "my-work"))
    assert used(home.session()) == -1


def test_a_resumed_session_counts_from_the_start_of_the_run(home: Home) -> None:
    home.file(ONE, calls=5, at=BEGAN - timedelta(hours=1))
    session = home.session("--resume", ONE)
    assert used(session) == 0
    with (home.project / f"{ONE}.jsonl").open("a") as file:
        file.write(
            json.dumps(call(ONE, "new", BEGAN + timedelta(seconds=9), str(home.work))) + "\n"
        )
    assert used(session) == 1
    assert used(home.session("--continue")) == 1


def test_subagents_count(home: Home) -> None:
    home.file(ONE)
    home.file(ONE, calls=2, name=f"{ONE}/subagents/agent-a1.jsonl")
    home.file(OTHER, calls=4, name=f"{ONE}/subagents/agent-b2.jsonl")
    assert used(home.session("--session-id", ONE)) == 3, "one of them belongs to another session"


def test_a_file_that_is_replaced_or_truncated_is_read_again(home: Home) -> None:
    path, session = home.file(ONE, calls=3), home.session("--session-id", ONE)
    assert used(session) == 3
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert used(session) == 1
    home.file(ONE, calls=2, name="new.txt").rename(path)
    assert used(session) == 2


def fifo(home: Home, path: Path) -> None:
    os.mkfifo(path)


def link(home: Home, path: Path) -> None:
    path.symlink_to(home.file(ONE, name="elsewhere.txt"))


def directory(home: Home, path: Path) -> None:
    path.mkdir()


def device(home: Home, path: Path) -> None:
    path.symlink_to("/dev/zero")


def linked_directory(home: Home, path: Path) -> None:
    home.file(ONE)
    home.project.rename(home.path / "moved")
    home.project.symlink_to(home.path / "moved")


def hole(home: Home, path: Path) -> None:
    line = {**call(ONE, "", BEGAN + timedelta(seconds=1), str(home.work)), "type": "user"}
    with path.open("wb") as file:
        file.write(json.dumps(line).encode() + b"\n")
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    "trap", [fifo, link, directory, device, linked_directory, hole], ids=lambda trap: trap.__name__
)
def test_only_regular_files_are_read(home: Home, trap: Callable[[Home, Path], None]) -> None:
    trap(home, home.project / f"{ONE}.jsonl")
    for argv in ([], ["--session-id", ONE]):
        session = home.session(*argv)
        begun = time.monotonic()
        session.look(())
        assert not any(reading.models for reading in session.readings)
        assert time.monotonic() - begun < 30


@as_root
def test_a_file_of_another_user_is_not_read(home: Home) -> None:
    path = home.file(ONE)
    assert used(home.session("--session-id", ONE, uid=GONE)) == -1
    os.chown(path, GONE, GONE)
    assert used(home.session("--session-id", ONE, uid=GONE)) == 1


def test_only_a_part_of_a_huge_directory_is_read(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_files, "MOST_ENTRIES", 50)
    for number in range(200):
        (home.project / f"x{number}").touch()
    search = FileSearch(os.getuid(), BEGAN.timestamp())
    with monkeypatch.context() as patched:
        patched.setattr(session_files, "FileSearch", lambda _uid, _since: search)
        home.session().look(())
    assert search.entries == 51
    home.file(ONE)
    assert used(home.session("--session-id", ONE)) == 1, "a name that is known is not searched for"


def test_the_number_of_heads_that_one_look_reads_is_bounded(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_files, "MOST_FILES", 5)
    for number in range(6):
        (home.project / f"0000000{number}{ONE[8:]}.jsonl").write_bytes(b"{}\n" * 1000)
    with pytest.raises(TooMany):
        home.session().look(())
    head = json.dumps(call(ONE, "", BEGAN, str(home.work))).encode()
    files = home.session().files
    assert isinstance(files, SessionFiles)
    assert files.head(b"{}\n" * 99 + head + b"\n") is not None
    assert files.head(b"{}\n" * 100 + head + b"\n") is None


def test_an_incomplete_line_stays_in_the_file(home: Home) -> None:
    path, session = home.file(ONE), home.session("--session-id", ONE)
    line = path.read_bytes()
    with path.open("ab") as file:
        file.write(b"x" * 100)
    assert used(session) == 1
    with path.open("r+b") as file:  # no agent does that: it shows that the beginning is read again
        file.seek(len(line))
        file.write(
            line[:100]
            + line[100:].replace(b'"0"', b'"1"')
            + b" " * 2_000_000
            + b"\n"
            + line.replace(b'"0"', b'"2"')
        )
    assert used(session) == 3


@pytest.mark.parametrize("succeeded", [True, False])
def test_figures_are_final_only_if_the_program_succeeded(home: Home, succeeded: bool) -> None:
    """A call that an error or an interrupt ended may be billed, and no file tells it."""
    home.file()
    session = home.session("--session-id", ONE)
    session.end(succeeded=succeeded)
    assert session.look(())
    (reading,) = session.readings
    assert sum(used.input for used in reading.models.values()) == 10
    assert reading.partial is not succeeded


def test_a_reply_of_gemini_is_final_only_if_the_program_succeeded(home: Home) -> None:
    """Gemini CLI saves a tool call when it has ended."""
    recorded = (
        (Path(__file__).parents[1] / "agents" / "sessions" / "gemini.jsonl")
        .read_text()
        .splitlines(keepends=True)
    )
    chats = home.path / ".gemini" / "tmp" / "work" / "chats"
    chats.mkdir(parents=True)
    name = json.loads(recorded[0])["sessionId"]
    (chats / f"session-2026-{name[:8]}.jsonl").write_text("".join(recorded[:5]))
    files = session_files_of(None, ["gemini"])
    assert files is not None
    began = datetime(2026, 1, 1, tzinfo=UTC)
    session = Session(
        files, ["gemini"], {"HOME": str(home.path)}, str(home.work), os.getuid(), began, name
    )
    for succeeded in (False, True):
        session.end(succeeded=succeeded)
        assert session.look(())
        (reading,) = session.readings
        assert (reading.turns, reading.partial) == (0, not succeeded)


class Heard:
    """A `Sessions`, and what it tells."""

    def __init__(self) -> None:
        self.seen: list[tuple[Reading, ...]] = []
        self.lost: list[str] = []
        self.trouble: list[str] = []
        self.sessions = Sessions(
            seen=lambda _run, readings: self.seen.append(readings),
            lost=lambda _run, message: self.lost.append(message),
            trouble=self.trouble.append,
        )


@pytest.fixture
async def heard(nursery: trio.Nursery) -> Heard:
    found = Heard()
    nursery.start_soon(found.sessions.serve)
    return found


async def test_the_end_of_a_run_waits_for_a_look(heard: Heard, home: Home) -> None:
    home.file(ONE, at=datetime.now(UTC))
    heard.sessions.begin("a1", home.session())
    await heard.sessions.catch_up("a1")
    assert [reading.models for reading in heard.seen[-1]] == [{"m": Tokens(input=10, output=2)}]
    heard.sessions.forget("a1")
    assert "a1" not in heard.sessions
    await heard.sessions.catch_up("a1")


async def test_without_runs_nothing_wakes(
    heard: Heard, home: Home, autojump_clock: trio.testing.MockClock
) -> None:
    def next_wake() -> float:
        return trio.lowlevel.current_statistics().seconds_to_next_deadline

    await trio.testing.wait_all_tasks_blocked()
    assert next_wake() == math.inf
    heard.sessions.begin("a1", home.session())
    await trio.testing.wait_all_tasks_blocked()
    assert next_wake() <= sessions.LOOK_EVERY
    heard.sessions.forget("a1")
    await trio.sleep(2 * sessions.LOOK_EVERY)
    await trio.testing.wait_all_tasks_blocked()
    assert next_wake() == math.inf


async def test_attempts_add_up(heard: Heard, home: Home) -> None:
    for name, taken in ((ONE, 1), (OTHER, 2)):
        home.file(name)
        heard.sessions.begin("a1", home.session("--session-id", name), heard.sessions.told("a1"))
        await heard.sessions.catch_up("a1")
        assert len(heard.seen[-1]) == taken


async def test_an_ambiguous_session_is_reported_once(heard: Heard, home: Home) -> None:
    home.file(ONE)
    home.file(OTHER)
    heard.sessions.begin("a1", home.session())
    await heard.sessions.catch_up("a1")
    await heard.sessions.catch_up("a1")
    assert len(heard.lost) == 1
    assert "nothing tells which is the run's" in heard.lost[0]
    assert heard.seen == []


async def test_a_file_system_that_does_not_answer_delays_only_its_user(
    heard: Heard, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread waits, and so does the next end of a run of that user; sessions of other users are
    read."""
    stuck = home.session("--session-id", ONE)
    reader, writer = os.pipe()
    looked = Session.look

    def look(self: Session, taken: Any) -> bool:
        return bool(os.read(reader, 1)) if self is stuck else looked(self, taken)

    monkeypatch.setattr(Session, "look", look)
    monkeypatch.setattr(sessions, "LAST_LOOK_WAIT", 0.05)
    home.file(OTHER)
    heard.sessions.begin("a1", stuck)
    heard.sessions.begin("a2", home.session("--session-id", OTHER, uid=GONE))
    await heard.sessions.catch_up("a1")
    with trio.fail_after(30):
        await heard.sessions.catch_up("a2")
        # a busy machine begins to look later
        await until(lambda: heard.sessions.waiting == 1, "one look takes too long")
    os.write(writer, b"x")
    with trio.fail_after(30):
        while heard.sessions.waiting:  # noqa: ASYNC110 - a thread that ends sets no event
            await trio.sleep(0.001)
    os.close(reader)
    os.close(writer)


async def test_a_session_named_by_another_user_is_not_reserved(heard: Heard, home: Home) -> None:
    home.file(ONE)
    heard.sessions.begin("a1", home.session("--session-id", ONE, uid=GONE))
    heard.sessions.begin("a2", home.session())
    await heard.sessions.catch_up("a2")
    assert [reading.models for reading in heard.seen[-1]] == [{"m": Tokens(input=10, output=2)}]


async def test_a_bug_in_a_meter_ends_only_its_reading(
    heard: Heard, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_self: Session, _taken: Any) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Session, "look", look)
    heard.sessions.begin("a1", home.session())
    await heard.sessions.catch_up("a1")
    assert "a1" not in heard.sessions
    assert "ZeroDivisionError" in heard.trouble[0]


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before


def test_an_odd_session_id_is_ignored(home: Home) -> None:
    for identity, known in ((ONE, ONE), ("(a+)+b", None), ("../x", None), ("", None)):
        session = home.session()
        session.name(identity)
        assert session.session_id == known


# ---- agent programs that a run has started itself


NO_PID = (1 << 22) + 1
"""Above any pid."""


def begun(home: Home, *argv: str, number: int = 1) -> Session:
    """Return the session of an agent program that a run has started a minute ago, and that has
    ended."""
    session = home.session(*argv)
    session.process = (NO_PID, number)
    return session


def inputs(heard: Heard) -> int:
    """Return input tokens divided by 10, of all sessions of the run."""
    return sum(
        tokens.input // 10
        for reading in heard.sessions.told("a1")
        for tokens in reading.models.values()
    )


async def test_sessions_of_agent_programs_of_a_run_add_up_and_each_is_read_once(
    heard: Heard, home: Home
) -> None:
    home.file(ONE, calls=2)
    home.file(OTHER, calls=3)
    heard.sessions.begin("a1", None)
    for number in (1, 2, 2, 1):  # the same process may be told again
        heard.sessions.add("a1", begun(home, number=number))
    await heard.sessions.catch_up("a1")
    assert inputs(heard) == 5
    heard.sessions.forget("a1")
    assert heard.sessions.told("a1") == ()


async def test_one_of_them_takes_no_session_that_another_process_has_begun(
    heard: Heard, home: Home
) -> None:
    home.file(ONE)
    home.file(OTHER)
    heard.sessions.begin("a1", None)
    heard.sessions.add("a1", begun(home))
    await heard.sessions.catch_up("a1")
    assert heard.sessions.told("a1") == ()
    assert len(heard.lost) == 1


async def test_it_is_read_beside_the_session_of_the_run_and_after_it_has_ended(
    heard: Heard, home: Home
) -> None:
    home.file(ONE, calls=2)
    home.file(OTHER, calls=3)
    heard.sessions.begin("a1", home.session("--session-id", ONE))
    heard.sessions.add("a1", begun(home, "--session-id", OTHER))
    with trio.fail_after(60):
        while inputs(heard) != 5:  # noqa: ASYNC110 - a session that was read sets no event
            await trio.sleep(0.05)
    heard.sessions.forget("a1")


# ---- programs that go around the gateway


@contextmanager
def process(home: Home, *words: str) -> Iterator[int]:
    """Yield a process that waits in the directory of the sessions, and looks like this command."""
    script = home.path / words[0]
    script.write_text("import sys; sys.stdin.read()")
    with Popen([sys.executable, str(script), *words[1:]], stdin=PIPE, cwd=home.work) as made:
        try:
            yield made.pid
        finally:
            made.kill()


def around(home: Home, *pids: int, uid: int = os.getuid()) -> Session:
    """Return the session of a program that goes around the gateway, and has just begun."""
    session = home.session(uid=uid)
    session.began = datetime.now(UTC) - timedelta(seconds=2)
    session.around, session.pids = True, frozenset(pids)
    session.family = session.pids
    return session


def test_the_session_of_a_program_that_goes_around_the_gateway_counts_at_once(home: Home) -> None:
    home.file(at=datetime.now(UTC))
    session = around(home)
    assert session.look(())
    assert [reading.models for reading in session.readings] == [{"m": Tokens(input=10, output=2)}]
    led = around(home)
    led.around = led.guesses = False
    assert led.look(())
    assert led.readings == (), "only when it is certain that it is the run's"


def test_it_does_not_while_another_process_may_have_begun_it(home: Home) -> None:
    home.file(at=datetime.now(UTC))
    with process(home, "claude", "-p", "x") as pid:
        assert around(home).look(())
        session = around(home, pid)
        session.look(())
        assert session.readings, "that process is its own"
        stranger = around(home)
        stranger.look(())
        assert not stranger.readings
        beside = around(home, pid)
        beside.beside = True
        beside.look(())
        assert not beside.readings
    stranger.look(())
    assert stranger.readings


@as_root
def test_a_process_of_another_user_cannot_have_begun_it(home: Home) -> None:
    """Its working directory cannot be read."""
    os.chown(home.file(at=datetime.now(UTC)), GONE, GONE)
    with process(home, "claude", "-p", "x"):
        session = around(home, uid=GONE)
        session.look(())
    assert session.readings


def test_a_process_that_tells_its_session_is_believed_whatever_else_began(home: Home) -> None:
    for name in (ONE, OTHER):
        home.file(name, at=datetime.now(UTC), calls=1 + (name == OTHER))
    with process(home, "claude", "-p", "x") as pid:
        told = home.path / ".claude" / "sessions" / f"{pid}.json"
        told.parent.mkdir()
        for text in ("{", "[]", '{"sessionId": 7}', '{"sessionId": "(a+)+b"}'):
            told.write_text(text)
            with pytest.raises(TooMany):
                around(home, pid).look(())
        told.write_text(json.dumps({"pid": pid, "sessionId": OTHER}))
        session = around(home, pid)
        session.look(())
        assert session.session_id == OTHER
        assert [reading.messages for reading in session.readings] == [2]


def test_so_is_one_that_has_its_file_open(home: Home) -> None:
    home.file(ONE, at=datetime.now(UTC))
    with home.file(OTHER, at=datetime.now(UTC)).open("a"):
        session = around(home, os.getpid())
        session.look(())
        assert session.session_id == OTHER

"""The state directory of a daemon that is gone, read without it."""

from __future__ import annotations

import gzip
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from sfad.daemon.history import History
from sfad.protocol import messages as m
from sfad.protocol.types import ErrorCode, Status
from sfad.storage.ledger.database import LedgerError, LedgerUnknown
from sfad.storage.ledger.opening import open_past
from sfad.storage.ledger.schema import VERSION
from tests.cli.night import ROWS, fill

R = TypeVar("R", bound=m.Reply)

FROZEN = Path(__file__).parent / "frozen" / "1.0"


def asked(state: Path, request: m.Request, expected: type[R]) -> R:
    with closing(open_past(state)) as connection:
        reply, descriptors = History(state, connection).answer(request)
    for descriptor in descriptors:
        os.close(descriptor)
    assert isinstance(reply, expected), reply
    return reply


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory after a night, with the output of one run."""
    state = tmp_path_factory.mktemp("state")
    fill(state)
    (state / "output").mkdir()
    (state / "output" / "a1.out").write_text("found <b>\n")
    (state / "output" / "a1.err").touch()
    return state


@pytest.mark.parametrize("name", ["ledger.db", "ledger.db-wal"])
def test_a_fifo_in_place_of_a_ledger_does_not_block(tmp_path: Path, name: str) -> None:
    (tmp_path / "ledger.db").touch()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(LedgerError, match=f"{name} is not a regular file"):
        open_past(tmp_path)


def test_it_answers_like_a_daemon(state: Path) -> None:
    assert len(asked(state, m.List(id=1), m.RunList).runs) == 50
    page = asked(state, m.List(id=1, name="boss", rows=60), m.RunList)
    rest = asked(state, m.List(id=1, name="boss", rows=60, before=page.next), m.RunList)
    assert (len(page.runs), len(rest.runs), rest.next) == (60, 40, None)
    assert asked(state, m.Info(id=1, run="a1"), m.RunReply).run.total_cost_usd == 1.75
    assert asked(state, m.Summarise(id=1, since=0), m.Summarised).summary.runs == ROWS
    assert asked(state, m.Logs(id=1, run="a1"), m.LogFiles).ended
    assert "found &lt;b&gt;" in asked(state, m.Result(id=1, run="a1"), m.ResultText).text


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (m.Info(id=1, run="zz9"), ErrorCode.NO_SUCH_RUN),
        (m.Info(id=1, run="b"), ErrorCode.AMBIGUOUS_RUN),
        (m.Logs(id=1, run="a2"), ErrorCode.WRONG_STATE),
        (m.Stop(id=1, everything=True), ErrorCode.UNAVAILABLE),
    ],
)
def test_requests_that_need_a_daemon_fail(
    state: Path, request_: m.Request, code: ErrorCode
) -> None:
    assert asked(state, request_, m.Error).code is code


def test_a_ledger_that_was_left_is_read_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    file.write_bytes(gzip.decompress((FROZEN / "ledger.db.gz").read_bytes()))
    before = file.read_bytes()
    runs = asked(tmp_path, m.List(id=1), m.RunList).runs
    assert [run.id for run in runs] == ["a1", "a2", "a3"]
    left = asked(tmp_path, m.Info(id=1, run="a3"), m.RunReply).run
    assert (left.status, left.reason and left.reason.kind) == (Status.RUNNING, "no_daemon")
    found = asked(tmp_path, m.Summarise(id=1, since=0), m.Summarised).summary
    assert found.by_status[Status.RUNNING] == 1
    assert file.read_bytes() == before


def test_a_ledger_that_cannot_be_read(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.executescript(
            f"PRAGMA application_id = 1936089444; PRAGMA user_version = {VERSION + 1}; "
            "CREATE TABLE x (y);"
        )
    with pytest.raises(LedgerError, match="run the sfad that wrote it"):
        open_past(tmp_path)
    (tmp_path / "ledger.db").write_bytes(b"no ledger at all" * 100)
    with pytest.raises(LedgerError, match="is not a database"):
        open_past(tmp_path)
    assert issubclass(LedgerUnknown, LedgerError)


def test_nothing_is_created_in_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="unable to open"):
        open_past(tmp_path)
    assert list(tmp_path.iterdir()) == []

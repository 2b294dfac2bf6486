"""What the gateway notes of calls under way, for the case that it is killed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sfad.features.gateway.program.call_journal import SLOT, Journal, noted_in
from sfad.protocol.messages import EndCall
from sfad.protocol.types import Tokens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with closing(Journal(os.fspath(path), pytest.fail)) as made:
        yield made


def call(name: str, output: int = 1, model: str = "m") -> EndCall:
    return EndCall(
        id=0,
        run="a1",
        reservation=name,
        model=model,
        tokens=Tokens(input=5, output=output),
        partial=True,
    )


def test_the_last_note_of_each_call_is_read(journal: Journal, path: Path) -> None:
    for output in (1, 2, 3):
        journal.note(call("a1-1", output))
        journal.note(call("a1-2", 10 * output))
    assert noted_in(path) == ([call("a1-1", 3), call("a1-2", 30)], True)


def test_a_slot_is_used_again(journal: Journal, path: Path) -> None:
    journal.note(call("a1-1"))
    journal.note(call("a1-2"))
    journal.forget("a1-1")
    assert noted_in(path) == ([call("a1-2")], True)
    journal.note(call("a1-3"))
    assert noted_in(path) == ([call("a1-3"), call("a1-2")], True)
    assert path.stat().st_size <= 3 * SLOT


def test_a_call_that_is_too_long_is_noted_as_reserved(journal: Journal, path: Path) -> None:
    journal.note(call("a1-1"))
    journal.note(call("a1-1", 2, model="m" * SLOT))
    as_reserved = EndCall(id=0, run="a1", reservation="a1-1", model="")
    assert noted_in(path) == ([as_reserved], True)


def test_what_cannot_be_written_may_have_been_sent(
    path: Path,
) -> None:
    troubles: list[str] = []
    with closing(Journal(os.fspath(path), troubles.append)) as journal:
        assert noted_in(path) == ([], True)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (SLOT, limit[1]))
        try:
            journal.note(call("a1-1"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, ignored)
        journal.note(call("a1-2"))
        assert noted_in(path) == ([call("a1-2")], False)
    assert len(troubles) == 1


def test_what_cannot_be_read_is_left_out(journal: Journal, path: Path) -> None:
    journal.note(call("a1-1"))
    journal.note(call("a1-2"))
    with path.open("r+b") as file:
        file.seek(SLOT + 4)
        file.write(b"[[[[")
    assert noted_in(path) == ([call("a1-2")], False)


def test_the_notes_of_an_earlier_version_do_not_tell_what_was_not_sent(
    journal: Journal, path: Path
) -> None:
    journal.note(call("a1-1"))
    path.write_bytes(path.read_bytes()[SLOT:])
    assert noted_in(path) == ([call("a1-1")], False)


def test_a_missing_file_and_what_is_no_file_have_no_notes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert noted_in(tmp_path / "pipe") == noted_in(tmp_path / "missing") == ([], False)


def test_notes_survive_the_process(path: Path) -> None:
    script = (
        "import sys, os, signal\n"
        "from sfad.features.gateway.program.call_journal import Journal\n"
        "from sfad.protocol.messages import EndCall\njournal = Journal(sys.argv[1], "
        "print)\nfor n in range(1000): journal.note(EndCall(id=n, run='a1', "
        "reservation=f'a1-{n}', model='m'))\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, os.fspath(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [each.id for each in noted_in(path).calls] == list(range(1000))

"""One JSON object a line; a full disk does not stop the daemon."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sfad.host.log import Log
from sfad.protocol.types import Event

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    return lambda: [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def log(tmp_path: Path, level: str = "info") -> Log:
    return Log(level, file=tmp_path / "log", now=lambda: NOW)


Lines = Callable[[], list[dict[str, Any]]]


def test_a_line_is_an_object(tmp_path: Path, lines: Lines) -> None:
    out = log(tmp_path)
    out.info("hello\nthere", run_id="a1")
    out.debug("not this")
    out.event(
        Event(type="run_failed", severity="medium", time=NOW, seq=4, run_id="a1", message="exit 1")
    )
    out.close()
    when = "2026-01-02T00:00:00Z"
    assert lines() == [
        {"time": when, "level": "info", "message": "hello\nthere", "run_id": "a1"},
        {
            "time": when, "level": "warning", "severity": "medium", "type": "run_failed", "seq": 4,
            "run_id": "a1", "message": "exit 1",
        },
    ]  # fmt: skip
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_levels(tmp_path: Path, lines: Lines) -> None:
    out = log(tmp_path, "warning")
    for say in (out.debug, out.info, out.warning, out.error):
        say("x")
    out.event(Event(type="low", time=NOW))
    out.event(Event(type="high", severity="high", time=NOW))
    assert [line["level"] for line in lines()] == ["warning", "error", "error"]
    out.close()
    with pytest.raises(ValueError, match="not in"):
        Log("loud")


def test_values_that_json_cannot_hold(tmp_path: Path, lines: Lines) -> None:
    out = log(tmp_path)
    out.info("p", path=Path("/x"), error=ValueError("no"), raw=b"\xff")
    out.info("s", name="\udcff", big=10**30, table={(1, 2): 3})
    out.close()
    assert lines()[0]["path"] == "/x"
    assert lines()[1]["name"] == "\udcff"


def test_lines_that_a_full_disk_refused_are_counted_in_the_next(tmp_path: Path) -> None:
    out = log(tmp_path)
    out.info("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "log").stat().st_size + 20, hard))
    try:
        out.info("torn in two")
        out.info("lost")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert out.dropped == 2
    out.info("after")
    out.info("and on")
    out.close()
    first, torn, *rest = (tmp_path / "log").read_text().splitlines()
    assert (json.loads(first)["message"], torn) == ("before", '{"time":"2026-01-02T')
    assert [(line["message"], line.get("dropped")) for line in map(json.loads, rest)] == [
        ("after", 2),
        ("and on", None),
    ]


def test_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = Log(descriptor=writer)
    out.error("nobody reads this")
    assert out.dropped == 1
    out.close()
    os.close(writer)


@pytest.mark.parametrize("message", ["short", "x" * 10_000])
@pytest.mark.parametrize(
    "make", [os.pipe, lambda: [one.detach() for one in socket.socketpair()][::-1]]
)
def test_a_pipe_without_a_reader_is_not_waited_for(
    make: Callable[[], Sequence[int]], message: str
) -> None:
    reader, writer = make()
    out = Log(descriptor=writer)
    while out.dropped < 3:
        out.info(message)
    os.set_blocking(reader, False)
    with suppress(BlockingIOError):
        while os.read(reader, 1 << 16):
            pass
    out.info("after")
    assert json.loads(os.read(reader, 1 << 16).splitlines()[-1])["dropped"] >= 3
    os.close(reader)
    os.close(writer)


def test_a_fifo_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    out = log(tmp_path)
    (tmp_path / "log").rename(tmp_path / "log.1")
    os.mkfifo(tmp_path / "log")
    with pytest.raises(OSError, match="No such device"):
        out.reopen()
    out.info("goes on")
    out.close()
    assert "goes on" in (tmp_path / "log.1").read_text()


def test_a_rotated_file_is_opened_again(tmp_path: Path, lines: Lines) -> None:
    out = log(tmp_path)
    out.info("one")
    (tmp_path / "log").rename(tmp_path / "log.1")
    out.reopen()
    out.info("two")
    out.close()
    assert [line["message"] for line in lines()] == ["two"]


def test_secrets_are_hidden(tmp_path: Path, lines: Lines) -> None:
    out = log(tmp_path)
    out.warning(
        "it ran claude --token abcdef",
        argv=["--password", "hunter2"],
        error=ValueError("key sk-abcdefghijklmnop"),
    )
    out.event(
        Event(
            type="unadmitted",
            severity="medium",
            time=NOW,
            command="curl -H 'Authorization: Bearer abc.def'",
        )
    )
    out.close()
    first, second = lines()
    assert (first["message"], first["argv"], first["error"]) == (
        "it ran claude --token ***",
        ["--password", "***"],
        "key ***",
    )
    assert second["command"] == "curl -H 'Authorization: Bearer ***'"


def test_a_line_does_not_steer_the_terminal_that_shows_it(tmp_path: Path, lines: Lines) -> None:
    out, text = log(tmp_path), "\x1b[2J\x9b2J\x7f\u202e\u2028\U000e0041 Grüße"
    out.info(text, error=text)
    out.event(Event(type="milestone", severity="low", time=NOW, message=text))
    out.close()
    assert all(line["message"] == text for line in lines())
    written = (tmp_path / "log").read_text()
    assert "Grüße" in written
    assert not any(character in written for character in "\x1b\x9b\x7f\u202e\u2028\U000e0041")


def test_a_file_is_renamed_when_it_is_large(
    tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfad.host.log.LOG_MAX", 300)
    out = log(tmp_path)
    for number in range(20):
        out.info("line", number=number)
    out.close()
    kept = [json.loads(line)["number"] for line in (tmp_path / "log.1").read_text().splitlines()]
    kept += [line["number"] for line in lines()]
    assert kept == list(range(kept[0], 20))
    assert (tmp_path / "log").stat().st_size <= 300

"""The output of a run, as an open page gets it."""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness import PATIENCE, Daemon, started, stopped, wait_until
from tests.web.console import Console


@pytest.fixture
def console(common: Daemon) -> Iterator[Console]:
    one = Console(common)
    one.open()
    yield one
    assert one.end() == 0


def output(console: Console, run: str, until: str, last: str = "") -> tuple[str, str]:
    """Return what the page is told up to a text, and the id of the message with its end."""
    headers = {"Host": console.host, "Cookie": console.cookie, "Last-Event-ID": last}
    told, name, number = "", "", ""
    with closing(
        http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE)
    ) as connection:
        connection.request("GET", f"/api/stream?output={run}", headers=headers)
        answer = connection.getresponse()
        while until not in told:
            key, _, value = answer.readline().decode().rstrip("\n").partition(": ")
            name = value if key == "event" else name
            number = value if key == "id" else number
            told += json.loads(value) if (key, name) == ("data", "output") else ""
        return told, number


def test_output_goes_on_where_the_page_was_and_waits_for_whole_characters(
    common: Daemon, console: Console, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    # the second byte of the last character comes later
    script = f"echo one; printf 'two \\303'; read go < {tmp_path}/go; printf '\\274 three\\n'; cat"
    with common.client() as client:
        run = started(client, ["sh", "-c", f"{script} < {tmp_path}/go"]).id
        told, number = output(console, run, "two ")
        assert told == "one\ntwo "
        (tmp_path / "go").write_text("\n")
        assert output(console, run, "three\n", number)[0] == "\u00fc three\n"
        stopped(client, run)


def test_of_much_output_the_newest_part_is_told(common: Daemon, console: Console) -> None:
    with common.client() as client:
        run = started(client, ["sh", "-c", "seq 100000; echo over; sleep 300"]).id
        wait_until(lambda: common.output(run).endswith("over\n"), "everything is written")
        told, _ = output(console, run, "over\n")
        assert re.match(r"\[earlier output is not shown: \d+ bytes\]\n", told)
        assert told.endswith("99999\n100000\nover\n")
        assert len(told) < 70_000
        stopped(client, run)

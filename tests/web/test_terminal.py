"""The terminal of a run, as an open page gets it and types into it."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from sfad.protocol.types import Terminal
from tests.harness import PATIENCE, Daemon, started, stopped
from tests.web.console import Console

HOSTILE = r"\033]52;c;b3duZWQ=\007\033]0;owned\007\033[6n\033]8;;http://evil.example\007"


@pytest.fixture
def console(common: Daemon) -> Iterator[Console]:
    one = Console(common)
    one.open()
    yield one
    assert one.end() == 0


class Stream:
    """What a page is told of a terminal."""

    def __init__(self, console: Console, run: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE)
        headers = {"Host": console.host, "Cookie": console.cookie}
        self._connection.request("GET", f"/api/stream?output={run}", headers=headers)
        self._answer = self._connection.getresponse()
        self.text, self.sizes = "", list[tuple[int, int]]()

    def close(self) -> None:
        self._connection.close()

    def until(self, words: str) -> str:
        """Read until this was told since the screen was told last. Return what was told since."""
        name = ""
        while words not in self.text:
            key, _, value = self._answer.readline().decode().rstrip("\n").partition(": ")
            name = value if key == "event" else name
            if (key, name) == ("data", "terminal"):
                piece = json.loads(value)
                if "rows" in piece:
                    self.sizes.append((piece["rows"], piece["columns"]))
                    self.text = ""
                self.text += piece["text"]
        return self.text


def test_a_page_is_told_the_screen_and_types(common: Daemon, console: Console) -> None:
    talk = (
        f"seq 30; printf 'ready \\303\\274 {HOSTILE}\\033[31mred\\033[m'; stty -echo; "
        'while read -r x; do echo "got [$x] $(stty size)"; done'
    )
    with common.client() as client:
        run = started(client, ["sh", "-c", talk], terminal=Terminal(rows=10, columns=40)).id
        with closing(Stream(console, run)) as first:
            first.until("red")
            body = json.dumps({"keys": "one\r", "rows": 12, "columns": 50})
            path = f"/api/runs/{run}/keys"
            assert console.ask(path, "POST", body)[0] == 403
            token = {"X-CSRF-Token": console.token()}
            there = {**token, "Origin": "http://evil.example"}
            assert console.ask(path, "POST", body, there)[0] == 403
            for wrong in ('{"keys": 1}', '{"keys": "", "rows": "1"}', '{"rows": true}'):
                assert console.ask(path, "POST", wrong, token)[0] == 400
            assert console.ask(path, "POST", '{"rows": 99999, "columns": 1}', token)[0] == 400
            assert console.ask(path, "POST", body, token)[0] == 200
            first.until("got [one] 12 50")
            assert first.sizes == [(10, 40), (12, 50)]
        with closing(Stream(console, run)) as second:
            # lines that have left the screen, then the screen
            told = re.sub(r"\x1b\[[0-9;]*m", "", second.until("got [one] 12 50"))
            assert second.sizes == [(12, 50)]
            assert told.index("\r\n19") < told.index("ready ü") < told.index("got [one]")
            assert not any(each in told for each in ("\x1b]", "\x07", "owned", "evil", "\x1b[6n"))
        stopped(client, run)
        assert "nothing reads its terminal" in console.ask(path, "POST", body, token)[2]
        with closing(Stream(console, run)) as last:
            assert "got [one] 12 50" in last.until("got [one]")

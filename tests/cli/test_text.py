"""`sfactl run --text` and `sfactl result`: the agent's words instead of its JSON events."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.meters.recordings import STREAMS
from tests.meters.test_text import START, delta, lines, result, said

from .conftest import PATIENCE, World

Start = Callable[..., subprocess.Popen[bytes]]

SUCCESS = ("--meter", "claude", "--", "cat", str(STREAMS / "claude-success.jsonl"))
FAILURE = ("--meter", "claude", "--", "cat", str(STREAMS / "claude-api-failure.jsonl"))


class Agent:
    """A run whose stdout is what the test writes."""

    def __init__(self, start: Start, fifo: Path, *words: str) -> None:
        os.mkfifo(fifo)
        self.process = start("run", "--meter", "claude", *words, "--", "cat", str(fifo))
        self.stdout: IO[bytes] = open(fifo, "wb", buffering=0)  # noqa: SIM115 - closed by `end`
        assert self.process.stdout is not None
        self._read = self.process.stdout

    def says(self, data: bytes, shown: bytes) -> None:
        """Write, and read what the client shows."""
        self.stdout.write(data)
        found = b""
        while len(found) < len(shown) and (more := self._read.read(len(shown) - len(found))):
            found += more
        assert found == shown

    def end(self) -> bytes:
        """End the run. Return the rest of the output."""
        self.stdout.close()
        rest = b"".join(iter(lambda: self._read.read(4096), b""))
        assert self.process.wait(PATIENCE) == 0
        return rest


@pytest.fixture
def agent(start: Start, tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(*words: str) -> Agent:
        made.append(Agent(start, tmp_path / "fifo", *words))
        return made[-1]

    yield make
    for each in made:
        each.stdout.close()


def test_text_instead_of_events_and_tools_with_verbose(daemon: World) -> None:
    done = daemon.sfactl("run", "--text", *SUCCESS)
    assert done.stdout == "All done.\n"
    assert "Bash" not in done.stderr
    assert re.search(r"completed; it used 0\.\d+ USD$", done.stderr)
    done = daemon.sfactl("run", "--text", "--verbose", "--name", "me", *SUCCESS)
    assert done.stdout == "All done.\n"
    assert "[agent:me] Bash: ls -la" in done.stderr.splitlines()
    assert daemon.sfactl("run", *SUCCESS).stdout == (STREAMS / "claude-success.jsonl").read_text()


def test_words_of_a_failure_are_on_stderr(daemon: World) -> None:
    done = daemon.sfactl("run", "--text", *FAILURE, code=1)
    assert done.stdout == ""
    assert "API Error: 400 scripted failure" in done.stderr
    assert "API Error: 400 scripted failure" in daemon.sfactl("run", "-q", "--text", *FAILURE, code=1).stderr


def test_text_of_a_program_without_a_meter_is_its_output(daemon: World) -> None:
    assert daemon.sfactl("run", "--text", "--", "echo", '{"type": "x"}').stdout == '{"type": "x"}\n'


def test_result_is_the_final_answer_and_raw_the_events(daemon: World) -> None:
    run = daemon.json("run", *SUCCESS)["id"]
    text = daemon.sfactl("result", run).stdout
    assert "\nAll done.\n</subagent_result>" in text
    assert "session_id" not in text
    assert "session_id" in daemon.sfactl("result", "--raw", run).stdout
    run = daemon.json("run", *FAILURE, code=1)["id"]
    assert "The agent failed: API Error: 400 scripted failure" in daemon.sfactl("result", run).stdout


def test_a_child_of_a_metered_run_gives_text_unless_asked_for_events(daemon: World) -> None:
    child = "$SFACTL run -q %s --meter claude -- cat " + str(STREAMS / "claude-success.jsonl")
    shown = {}
    for key, parent, option in (("metered", "jsonl", ""), ("raw", "jsonl", "--raw"), ("unmetered", "none", "")):
        shown[key] = daemon.sfactl("run", "--meter", parent, "--raw", "--", "sh", "-c", child % option).stdout
    assert shown["metered"] == "All done.\n"
    assert shown["raw"] == shown["unmetered"] == (STREAMS / "claude-success.jsonl").read_text()


def test_text_comes_as_the_stream_does(agent: Callable[..., Agent]) -> None:
    it = agent("--text")
    it.says(b"loading\n" + lines(START, delta("One, ")), b"loading\nOne, ")
    it.says(lines(delta("two."), said("One, two."))[:-40], b"two.")
    it.says(lines(said("One, two."))[-40:] + lines(said("Three.")), b"\nThree.\n")
    it.stdout.write(lines(result("Three."))[:-1])
    assert it.end() == b""


def test_text_is_shown_once_over_a_crash_of_the_daemon(world: World, tmp_path: Path) -> None:
    world.begin()
    try:
        it = Agent(world.popen, tmp_path / "fifo", "--text", "--keep")
        it.says(lines(said("before"), START, delta("dur")), b"before\ndur")
        world.kill()
        it.stdout.write(lines(delta("ing"), said("during")))
        world.begin()
        it.says(lines(said("after")), b"ing\nafter\n")
        it.stdout.close()
        it.process.communicate(timeout=PATIENCE)
    finally:
        world.end()


@pytest.mark.parametrize("other", ["--raw", "--json", "--no-log", "--stdio=inherit"])
def test_text_and_what_excludes_it(daemon: World, other: str) -> None:
    assert "exclude each other" in daemon.sfactl("run", "--text", other, "--", "true", code=2).stderr

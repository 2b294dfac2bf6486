"""`sfactl run --text` and `sfactl result`: the agent's words instead of its JSON events."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import shlex
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.agents.recordings import STREAMS
from tests.agents.test_text import START, delta, lines, result, said
from tests.tiers import first, variant

from .conftest import PATIENCE, World

Start = Callable[..., subprocess.Popen[bytes]]

SUCCESS_FILE = shlex.quote(str(STREAMS / "claude-success.jsonl"))
SUCCESS = ("--meter", "claude", "--", "cat", str(STREAMS / "claude-success.jsonl"))
FAILURE = ("--meter", "claude", "--", "cat", str(STREAMS / "claude-api-failure.jsonl"))


class Agent:
    """A run whose stdout is what the test writes, at a terminal."""

    def __init__(self, start: Start, fifo: Path, *words: str) -> None:
        os.mkfifo(fifo)
        self._master, slave = raw_terminal()
        try:
            self.process = start(
                "run", "--meter", "claude", *words, "--", "cat", str(fifo), stdout=slave
            )
        finally:
            os.close(slave)
        self.stdout: IO[bytes] = open(fifo, "wb", buffering=0)  # noqa: SIM115 - closed by `end`

    def says(self, data: bytes, shown: bytes) -> None:
        """Write, and read what the client shows."""
        self.stdout.write(data)
        found = b""
        while len(found) < len(shown) and (
            more := read_terminal(self._master, len(shown) - len(found))
        ):
            found += more
        assert found == shown

    def end(self) -> bytes:
        """End the run. Return the rest of the output."""
        self.stdout.close()
        rest = b"".join(iter(lambda: read_terminal(self._master, 4096), b""))
        assert self.process.wait(PATIENCE) == 0
        return rest

    def close(self) -> None:
        self.stdout.close()
        os.close(self._master)


def raw_terminal() -> tuple[int, int]:
    """Return both ends of a terminal that changes nothing of what is written."""
    master, slave = pty.openpty()
    modes = termios.tcgetattr(slave)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    return master, slave


def read_terminal(master: int, most: int) -> bytes:
    """Return what was written, nothing once every writer has closed the terminal."""
    try:
        return os.read(master, most)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


@pytest.fixture
def agent(start: Start, tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(*words: str) -> Agent:
        made.append(Agent(start, tmp_path / "fifo", *words))
        return made[-1]

    yield make
    for each in made:
        each.close()


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
    assert (
        "API Error: 400 scripted failure"
        in daemon.sfactl("run", "-q", "--text", *FAILURE, code=1).stderr
    )


def test_text_of_a_program_without_a_meter_is_its_output(daemon: World) -> None:
    assert daemon.sfactl("run", "--text", "--", "echo", '{"type": "x"}').stdout == '{"type": "x"}\n'


def test_result_is_the_final_answer_and_raw_the_events(daemon: World) -> None:
    run = daemon.json("run", *SUCCESS)["id"]
    text = daemon.sfactl("result", run).stdout
    assert "\nAll done.\n</subagent_result>" in text
    assert "session_id" not in text
    assert "session_id" in daemon.sfactl("result", "--raw", run).stdout
    run = daemon.json("run", *FAILURE, code=1)["id"]
    assert (
        "The agent failed: API Error: 400 scripted failure" in daemon.sfactl("result", run).stdout
    )


def test_the_result_of_a_run_that_a_limit_ended_says_the_limit(
    daemon: World, tmp_path: Path
) -> None:
    """Claude says "[ede_diagnostic] result_type=user" when it is told to end."""
    diagnostic = "[ede_diagnostic] result_type=user last_content_type=n/a stop_reason=tool_use"
    failed = {"type": "result", "subtype": "error_during_execution", "is_error": True}
    (tmp_path / "failure").write_text(json.dumps(failed | {"errors": [diagnostic]}) + "\n")
    script = f"trap 'cat {tmp_path}/failure; exit 1' TERM; cat {SUCCESS_FILE}; "
    agent = ("--meter", "claude", "--", "sh", "-c", script + "while :; do sleep 0.05; done")
    run = daemon.json("run", "--limit", "turns=1", *agent, code=4)["id"]
    assert diagnostic in daemon.sfactl("result", "--raw", run).stdout
    said = daemon.sfactl("result", "--plain", run).stdout
    assert "The run was not completed: used 2 turns; its turns limit is 1" in said
    assert "ede_diagnostic" not in said


def test_so_does_the_result_of_one_that_prints_text(daemon: World) -> None:
    told = ("sh", "-c", "echo one; while :; do sleep 0.05; done")
    run = daemon.json("run", "--limit", "time=1s", "--", *told, code=3)["id"]
    assert daemon.sfactl("result", "--raw", run).stdout == "one\n"
    said = daemon.sfactl("result", "--plain", run).stdout
    assert said.startswith("one\nThe run was not completed: ran 1.0 s; its time limit is 1 s")


ANSWER = {"type": "result", "text": "a < b && c \x1b[31m"}


def test_result_is_made_safe_only_for_a_model(daemon: World) -> None:
    run = daemon.json("run", "--meter", "jsonl", "--", "printf", "%s\n", json.dumps(ANSWER))["id"]
    assert daemon.sfactl("result", "--plain", run).stdout == "a < b && c \x1b[31m\n"
    assert daemon.json("result", "--plain", run)["text"] == "a < b && c \x1b[31m"
    assert daemon.sfactl("result", "--raw", run).stdout == json.dumps(ANSWER) + "\n"
    assert "\na &lt; b &amp;&amp; c \n</subagent_result>" in daemon.sfactl("result", run).stdout
    assert at_terminal(daemon, "result", run) == b"a < b && c \\x1b[31m\n"
    assert b"&lt;" in at_terminal(daemon, "result", "--wrapped", run)
    nested = (
        f"$SFACTL run -q --raw --name one --meter jsonl -- printf '%s\\n' '{json.dumps(ANSWER)}' "
        ">&2; $SFACTL result"
    )
    assert "&lt;" in daemon.sfactl("run", "-q", "--", "sh", "-c", nested + " one").stdout
    assert (
        daemon.sfactl("run", "-q", "--", "sh", "-c", nested + " --plain one").stdout
        == "a < b && c \x1b[31m\n"
    )
    assert (
        "exclude each other" in daemon.sfactl("result", "--wrapped", "--plain", run, code=2).stderr
    )


STEERS = (
    "\x1b[2J",
    "\x1b]0;x\x07",
    "\x9b2J",
    "\u202e",
    "\u2028",
    "\x00",
    "\x08",
    "\x7f",
    "\u2066",
    "\ufeff",
)
KEPT = "Grüße 👩\u200d💻 ✔\ufe0f می\u200cخواهم\ta"


def test_a_run_does_not_steer_the_terminal(daemon: World, tmp_path: Path) -> None:
    text = "".join(f"{number}{each}" for number, each in enumerate(STEERS))
    said_ = f"{text}{KEPT}\r\nold\rnew\n".encode() + b"\xff\xe2"
    file = tmp_path / "said"
    file.write_bytes(said_)
    for redirect in ("", ">&2"):
        command = ("--", "sh", "-c", f"cat {file} {redirect}")
        run = daemon.json("run", "--name", "x", *command)["id"]
        read = daemon.popen("logs", run, stderr=subprocess.STDOUT).communicate(timeout=PATIENCE)[0]
        assert read == said_
        lines_ = at_terminal(daemon, "logs", run, "--stderr" if redirect else "--stdout")
        for shown in (
            lines_,
            at_terminal(daemon, "run", "-q", *command, stderr=None),
            at_terminal(daemon, "logs", "-f", run, stderr=None),
            at_terminal(daemon, "logs", "-t", run, stderr=None),
        ):
            assert not any(each.encode() in shown for each in STEERS), shown
            assert b"\\x1b[2J" in shown
            assert b"\\x9b2J" in shown
            assert b"\\u202e" in shown
            assert KEPT.encode() in shown
            assert b"\\xff\\xe2" in shown
            assert b"\r" not in shown
        assert b"\nold\nnew\n" in lines_
    answer = json.dumps({"type": "result", "text": text + KEPT})
    run = daemon.json("run", "--meter", "jsonl", "--", "printf", "%s\n", answer)["id"]
    for words in (("--plain",), ("--json", "--plain"), ("--wrapped",), ()):
        shown = at_terminal(daemon, "result", *words, run)
        assert not any(each.encode() in shown for each in STEERS)
    assert daemon.json("result", "--plain", run)["text"] == text + KEPT


def test_a_result_that_is_cut_says_so(daemon: World) -> None:
    run = daemon.json("run", "--", "printf", "a&b;äc")["id"]
    done = daemon.sfactl("result", "--plain", "--max-bytes", "2", run)
    assert (done.stdout, "only the newest part" in done.stderr) == ("c\n", True)


def at_terminal(world: World, *words: str, stderr: int | None = subprocess.DEVNULL) -> bytes:
    """Return what `sfactl` prints on a terminal, with `stderr=None` on both streams."""
    master, slave = raw_terminal()
    try:
        to = slave if stderr is None else stderr
        with world.popen(*words, stdout=slave, stderr=to) as process:
            os.close(slave)
            found = b"".join(iter(lambda: read_terminal(master, 4096), b""))
        assert process.returncode == 0
        return found
    finally:
        os.close(master)


def test_into_a_pipe_and_inside_a_run_text_is_the_final_answer_alone(
    daemon: World, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.write_bytes(
        b"loading\n"
        + lines(
            START,
            delta("One, "),
            delta("two."),
            said("One, two."),
            said("Three."),
            result("Three."),
        )
    )
    command = ("--meter", "claude", "--", "cat", str(events))
    assert daemon.sfactl("run", "--text", *command).stdout == "Three.\n"
    assert at_terminal(daemon, "run", "--text", *command) == b"loading\nOne, two.\nThree.\n"
    inside = "$SFACTL run -q --text " + " ".join(command)
    assert daemon.sfactl("run", "--raw", "--", "sh", "-c", inside).stdout == "Three.\n"
    assert (
        daemon.sfactl("run", "--text", "--meter", "claude", "--", "echo", "no event").stdout
        == "no event\n"
    )


def test_a_child_of_a_metered_run_gives_text_unless_asked_for_events(daemon: World) -> None:
    child = f"$SFACTL run -q %s --meter claude -- cat {SUCCESS_FILE}"
    shown = {}
    for key, parent, option in (
        ("metered", "jsonl", ""),
        ("raw", "jsonl", "--raw"),
        ("unmetered", "none", ""),
    ):
        shown[key] = daemon.sfactl(
            "run", "--meter", parent, "--raw", "--", "sh", "-c", child % option
        ).stdout
    assert shown["metered"] == "All done.\n"
    assert shown["raw"] == shown["unmetered"] == (STREAMS / "claude-success.jsonl").read_text()


def test_text_comes_as_the_stream_does(agent: Callable[..., Agent]) -> None:
    it = agent("--text")
    it.says(b"loading\n" + lines(START, delta("One, ")), b"loading\nOne, ")
    it.says(lines(delta("two."), said("One, two."))[:-40], b"two.")
    it.says(lines(said("One, two."))[-40:] + lines(said("Three.")), b"\nThree.\n")
    it.stdout.write(lines(result("Three."))[:-1])
    assert it.end() == b""


@variant
def test_text_is_shown_once_over_a_crash_of_the_daemon(world: World, tmp_path: Path) -> None:
    world.begin()
    try:
        it = Agent(world.popen, tmp_path / "fifo", "--text", "--keep")
        it.says(lines(said("before"), START, delta("dur")), b"before\ndur")
        world.kill()
        it.stdout.write(lines(delta("ing"), said("during")))
        world.begin()
        it.says(lines(said("after")), b"ing\nafter\n")
        it.close()
        it.process.communicate(timeout=PATIENCE)
    finally:
        world.end()


@first(2)
@pytest.mark.parametrize("other", ["--raw", "--json", "--no-log", "--stdio=inherit"])
def test_text_and_what_excludes_it(daemon: World, other: str) -> None:
    assert (
        "exclude each other" in daemon.sfactl("run", "--text", other, "--", "true", code=2).stderr
    )

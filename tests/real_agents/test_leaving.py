"""A live session of Claude Code in a terminal leaves nothing outside of its run, whatever a person
types there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psutil
import pytest

from tests.real_agents.clis import CLAUDE
from tests.real_agents.conftest import MakeDesk
from tests.real_agents.desk import Desk
from tests.real_agents.script import Say, Shell
from tests.real_agents.test_own_server import claude_desk, handed_over
from tests.top.terminal import ENTER, Terminal


@contextmanager
def session(at: Desk) -> Iterator[Terminal]:
    """Yield the terminal of a session that has a command in the background."""
    command = at.command("run", "-q", "--stdio", "inherit", "--", *CLAUDE.in_terminal)
    with closing(Terminal(at.env, command, 120, 40, at.env["HOME"])) as terminal:
        terminal.until("1 shell still running")
        yield terminal


def enter(terminal: Terminal, text: str) -> None:
    """Type a command, behind a prompt that ends with a no-break space."""
    terminal.press(text)
    terminal.until(rf"(?m)^❯\s{text}$")
    terminal.press(ENTER)


def processes(at: Desk) -> list[str]:
    """Return the commands of all processes of the person, but for their clients."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        command = " ".join(process.info["cmdline"] or ())
        home = (process.info["environ"] or {}).get("HOME")
        if home == at.env["HOME"] and "sfactl" not in command:
            found.append(command)
    return found


@pytest.fixture
def at(desk: MakeDesk, containment: str) -> Desk:
    sleep = Shell("sleep 1000", background=True)
    return claude_desk(desk, sleep, Say("Done."), Say("More."), containment=containment)


def test_the_session_cannot_be_sent_to_the_background(at: Desk) -> None:
    with session(at) as terminal:
        enter(terminal, "/background")
        terminal.until("Unknown command: /background")
        (run,) = at.listed()
        assert run["status"] == "running"
        at.sfactl("stop", run["id"])
    assert processes(at) == []


def test_what_is_in_the_background_ends_with_the_session(at: Desk) -> None:
    with session(at) as terminal:
        enter(terminal, "/exit")
        terminal.until("Exit and stop tasks")
        assert "Move to background" not in terminal.text
        terminal.press(ENTER)
        assert terminal.exit_code() == 0
    (run,) = at.listed()
    assert run["status"] == "completed"
    assert processes(at) == []


def test_what_a_person_allows_to_go_to_the_background_ends_with_the_run(at: Desk) -> None:
    """The program starts its service within the run, if no other is there."""
    at.env["CLAUDE_CODE_DISABLE_AGENT_VIEW"] = "0"
    with session(at) as terminal:
        enter(terminal, "/background")
        terminal.until("claude attach")
        terminal.exit_code()
    assert processes(at) == []
    assert not handed_over(at)


@pytest.mark.parametrize("allowed", [True, False])
def test_no_task_is_left_to_a_later_session(desk: MakeDesk, allowed: bool) -> None:
    at = claude_desk(desk, Say("Done."))
    if allowed:
        at.env["CLAUDE_CODE_DISABLE_CRON"] = "0"
    done = at.sfactl("run", "--", *CLAUDE.argv)
    assert done.returncode == 0, done.stdout + done.stderr
    (request,) = at.talk(CLAUDE).requests
    assert ("CronDelete" in json.dumps(request)) == allowed, "the model can ask for one"

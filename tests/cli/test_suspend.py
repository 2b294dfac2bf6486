"""Ctrl-Z and `fg`: the client is a job of a shell, and its run stops and continues with it."""

from __future__ import annotations

import os
import signal
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import PYTHON, argv, wait_until
from tests.tiers import sampled

from .conftest import PATIENCE, World
from .test_terminal import Screen

STOPPED = r"Stopped[^\n]*\n(.|\n)*> $"
"""The message of bash about the job, and its prompt."""

HANDLES_THE_KEY = """
import os, signal, sys, termios, time, tty
before = termios.tcgetattr(0)
while True:
    tty.setraw(0)
    os.write(1, b"ready\\r\\n")
    if os.read(0, 1) != b"\\x1a":
        break
    termios.tcsetattr(0, termios.TCSADRAIN, before)
    {stop}
sys.exit(5)
"""
"""Like an editor, or an agent's terminal interface: it reads the key and stops itself."""


@pytest.fixture
def shell(daemon: World) -> Iterator[Screen]:
    screen = Screen(daemon, "--norc", "--noprofile", "-i", program=("/bin/bash",))
    screen.expect("> $")
    yield screen
    os.kill(screen.pid, signal.SIGKILL)
    os.waitid(os.P_PID, screen.pid, os.WEXITED)
    screen.close()


def last(daemon: World) -> str:
    found: str = daemon.json("list")["runs"][-1]["id"]
    return found


def why(daemon: World, run: str) -> str | None:
    reason = daemon.json("info", run)["reason"]
    return None if reason is None else str(reason["kind"])


def job(daemon: World, *words: str) -> int:
    """Return the pid of the only client whose command line ends with these words."""
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdecimal()]
    clients = [
        pid
        for pid in pids
        if "sfactl" in argv(pid) and tuple(argv(pid)[-len(words) :]) == words and daemon.owns(pid)
    ]
    assert len(clients) == 1, clients
    return clients[0]


def until_stopped(shell: Screen) -> None:
    """Ask bash for its jobs until it tells that the one has stopped: the client stops a moment
    after the daemon has paused the run, or after it was continued in the background. By itself bash
    tells it once, perhaps in what was read before."""
    give_up = time.monotonic() + PATIENCE
    shell.type("jobs\r")
    while "Stopped" not in shell.expect(r"\n(.|\n)*> $"):
        assert time.monotonic() < give_up
        shell.type("jobs\r")


def wait_for(daemon: World, run: str, *status: str) -> None:
    wait_until(lambda: daemon.status(run) in status, f"{run} is {' or '.join(status)}")


def test_a_program_that_knows_nothing_of_job_control(daemon: World, shell: Screen) -> None:
    shell.type(
        "$SFACTL run -q --stdio inherit -- sh -c 'echo here; read word; echo got $word; exit 7'\r"
    )
    shell.expect(r"\nhere")
    shell.type("\x1a")
    shell.expect(STOPPED)
    run = last(daemon)
    assert (daemon.status(run), why(daemon, run)) == ("paused", "suspended")
    assert "suspended at its terminal" in daemon.sfactl("why", run).stdout
    assert "paused (suspended)" in daemon.sfactl("list").stdout
    shell.type("fg\r")
    shell.type("that\r")
    shell.expect("got that")
    shell.expect("> $")
    shell.type("echo code-$?\r")
    shell.expect("code-7")


@pytest.mark.parametrize(
    "stop", ["os.kill(0, signal.SIGTSTP)", "os.kill(os.getpid(), signal.SIGSTOP)"]
)
def test_a_program_that_handles_the_key_itself(shell: Screen, tmp_path: Path, stop: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(HANDLES_THE_KEY.format(stop=stop))
    shell.type(f"$SFACTL run -q --stdio inherit -- {PYTHON} {program}\r")
    shell.expect("ready")
    for _ in range(2):
        shell.type("\x1a")
        shell.expect(STOPPED)
        shell.type("stty -a | grep -o '.icanon'; stty sane\r")
        shell.expect(" icanon")
        shell.type("fg\r")
        shell.expect("ready")
    shell.type("q")
    shell.expect("> $")
    shell.type("echo code-$?\r")
    shell.expect("code-5")


def test_a_suspended_client_does_not_fight_for_the_terminal_and_takes_its_run_along(
    daemon: World, shell: Screen
) -> None:
    shell.type("$SFACTL run --stdio inherit -- sleep 61\r")
    shell.expect("starting")  # the client knows its run, so it can pause it
    run, client = last(daemon), job(daemon, "sleep", "61")
    os.kill(client, signal.SIGTSTP)
    wait_for(daemon, run, "paused")
    shell.type("\r")
    shell.expect(STOPPED)
    shell.type("bg\r")
    shell.expect(r"\]\+ (.|\n)*> $")
    until_stopped(shell)
    assert daemon.status(run) == "paused"
    os.kill(client, signal.SIGKILL)
    # its terminal hangs up, too (SIGHUP): one of the two comes first
    wait_for(daemon, run, "cancelled", "failed")


def test_a_stopped_job_can_be_ended_by_kill(daemon: World, shell: Screen) -> None:
    shell.type("$SFACTL run -q --stdio inherit -- sleep 62\r")
    give_up = time.monotonic() + PATIENCE
    while not (runs := daemon.json("list", "--status", "running")["runs"]):
        assert time.monotonic() < give_up
    shell.type("\x1a")
    shell.expect(STOPPED)
    shell.type("kill %1\r")
    wait_for(daemon, runs[-1]["id"], "cancelled")
    # the client may copy the echo of Ctrl-Z only now, after a prompt
    while "Exit 143" not in shell.expect(r"(.|\n)*?\n> "):
        shell.type("\r")


def test_a_program_that_begins_in_the_background(
    daemon: World, shell: Screen, tmp_path: Path
) -> None:
    """It may write; input waits for `fg`. A program that changes the terminal stops until then."""
    shell.type(
        "$SFACTL run -q --stdio inherit -- sh -c 'echo from-$((1+1)); read word; echo got $word; "
        "exit 7' &\r"
    )
    shell.expect("from-2")
    shell.type("echo mine\r")
    shell.expect(r"\nmine(.|\n)*> $")
    shell.type("fg\r")
    shell.expect(r"exit 7'\r\n")
    shell.type("that\r")
    shell.expect("got that")
    shell.expect("> $")
    program = tmp_path / "program.py"
    program.write_text(HANDLES_THE_KEY.format(stop="pass"))
    before = last(daemon)
    shell.type(f"echo code-$?; $SFACTL run -q --stdio inherit -- {PYTHON} {program} &\r")
    shell.expect("code-7")
    wait_until(lambda: last(daemon) != before, "it is there")
    # it may be paused before it says that it is ready
    wait_for(daemon, last(daemon), "paused")
    until_stopped(shell)
    shell.type("fg\r")
    wait_for(daemon, last(daemon), "running")
    shell.type("q")
    shell.expect("> $")
    shell.type("echo code-$?\r")
    shell.expect("code-5")


READS = "sh -c 'echo begun; read word; echo got $word; exit 7'"


@pytest.mark.parametrize("form", sampled(["", "--stdio inherit", "--stdio inherit >>{}"]))
@pytest.mark.parametrize("stops", [False, True])
def test_what_is_typed_at_the_shell_is_not_for_a_job_in_the_background(
    daemon: World, shell: Screen, tmp_path: Path, form: str, stops: bool
) -> None:
    said = tmp_path / "said"
    form = form.format(said)
    shell.type(f"$SFACTL run -q {form.partition('>')[0]} -- {READS} {'>' if '>' in form else ''}"
               f"{form.partition('>')[2]}{'' if stops else ' &'}\r")  # fmt: skip
    if ">" in form:
        wait_until(said.exists, "the shell has started the job")
        wait_until(lambda: "begun" in said.read_text(), "the run has begun")
    else:
        shell.expect(r"begun\r")
    run = last(daemon)
    if stops:
        shell.type("\x1a")
        shell.expect(STOPPED)
        shell.type("bg\r")
        shell.expect(r"&\r\n")
    for number in range(3):
        shell.type(f"echo my-$(({number}+1))-secret\r")
        shell.expect(f"my-{number + 1}-secret")
    assert daemon.status(run) in ("running", "paused")
    shell.type("fg\r")
    shell.expect("exit 7'")
    wait_for(daemon, run, "running")
    shell.type("that\r")
    wait_for(daemon, run, "failed")
    shell.expect("> $")
    shell.type("echo code-$?\r")
    shell.expect("code-7")
    assert "got that" in (said.read_text() if said.exists() else shell.text)
    assert "got my" not in shell.text


def test_a_password_is_not_shown(shell: Screen) -> None:
    program = "import getpass; print(getpass.getpass(stream=open(2, 'w', closefd=False))[::-1])"
    shell.type(f'$SFACTL run -q -- {PYTHON} -c "{program}"\r')
    shell.expect("Password: ")
    wait_until(lambda: not shell.attributes()[3] & termios.ECHO, "the terminal shows nothing")
    shell.type("sesame\r")
    shell.expect("emases")
    shell.expect("> $")
    assert "sesame" not in shell.text
    assert shell.attributes()[3] & termios.ICANON == 0  # the shell edits its line
    shell.type("stty -a | grep -o '.echo '\r")
    shell.expect(" echo ")


def test_single_keys(daemon: World, shell: Screen, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, tty\ntty.setraw(0)\nprint('ready', flush=True)\n"
        "while (key := os.read(0, 1)) != b'q': print('key', key, flush=True)"
    )
    shell.type(f"$SFACTL run -q -- {PYTHON} {program}\r")
    shell.expect("ready")
    wait_until(lambda: not shell.attributes()[3] & termios.ICANON, "the terminal gives keys")
    for key in "abc":
        shell.type(key)
        shell.expect(f"key b'{key}'")
    shell.type("\x1a")
    shell.expect(STOPPED)
    shell.type("stty -a | grep -o '.icanon'; stty sane\r")
    shell.expect(" icanon")
    shell.type("fg\r")
    wait_for(daemon, last(daemon), "running")
    wait_until(lambda: not shell.attributes()[3] & termios.ICANON, "the terminal gives keys")
    shell.type("d")
    shell.expect("key b'd'")
    shell.type("\x03")
    shell.expect("> $")
    shell.type("echo code-$?\r")
    shell.expect("code-130")
    shell.type("stty -a | grep -o '.icanon'\r")
    shell.expect(" icanon")


def test_the_end_of_the_input(shell: Screen) -> None:
    shell.type("$SFACTL run -q -- sh -c 'echo ready; cat'; echo code-$?\r")
    shell.expect(r"\nready")
    shell.type("one\rtwo\rthree\x04\x04")
    shell.expect(r"one\r\n(.|\n)*two\r\n(.|\n)*three(.|\n)*code-0")


def test_a_pager_behind_a_pipe_gets_the_keys(shell: Screen, tmp_path: Path) -> None:
    pager = tmp_path / "pager.py"
    pager.write_text(
        "import os, sys, tty\nfile = os.open('/dev/tty', os.O_RDWR)\nsys.stdin.readline()\n"
        "tty.setraw(file)\nprint('ready', flush=True)\n"
        "while (key := os.read(file, 1)) != b'q': print('key', key, flush=True)"
    )
    shell.type(f"$SFACTL run -q -- sh -c 'echo; exec sleep 5' | {PYTHON} {pager}; stty sane\r")
    shell.expect("ready")
    for key in "abcdefgh":
        shell.type(key)
        shell.expect(f"key b'{key}'")
    shell.type("q")
    shell.expect("> $")


def test_what_the_run_does_not_read_is_for_the_shell(shell: Screen) -> None:
    shell.type("$SFACTL run -q -- sh -c 'echo ready; sleep 1'\r")
    shell.expect(r"\nready")
    shell.type("echo lost-or-$((1+1))\recho mine-$((1+2))\r")
    shell.expect("mine-3")


def test_a_run_without_a_terminal_goes_on_in_the_background(daemon: World, shell: Screen) -> None:
    shell.type("$SFACTL run -- sh -c 'echo one; while sleep 0.2; do echo tick; done'\r")
    shell.expect(r"\none")
    shell.type("\x1a")
    shell.expect(r"paused until this job continues \(fg\)")
    shell.expect(STOPPED)
    run = last(daemon)
    assert (daemon.status(run), why(daemon, run)) == ("paused", "suspended")
    shell.type("bg\r")
    shell.expect(r"tick\r\n")
    assert daemon.status(run) == "running"
